"""What happens to a packet, in virtual time: queues, order, loss, cuts, NAT, flipped bits, lateness."""

from __future__ import annotations

import random
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2ptrain.lab.wan import Host, Shape
from p2ptrain.lab.wan.paths import FLOW_S, FLOWS_MAX, Lateness, Paths, Queue, flip_bit, flow_of

A, B, C = 0, 1, 2


def paths(*shapes: tuple[int, int, Shape], hosts: list[Host] | None = None) -> Paths:
    made = Paths(hosts or [Host("a"), Host("b"), Host("c")], seed=1)
    for source, target, shape in shapes:
        made.pair(source, target).set(shape)
    return made


def test_a_rate_is_a_queue() -> None:
    queue = Queue(8.0)  # 1 byte takes 1 us
    assert queue.pass_at(1.0, 1000) == pytest.approx(1.001)
    assert queue.pass_at(1.0, 1000) == pytest.approx(1.002)
    assert queue.pass_at(5.0, 1000) == pytest.approx(5.001)


def test_a_full_queue_drops_and_empties_again() -> None:
    queue = Queue(8.0)
    passed = [queue.pass_at(0.0, 10_000) for _ in range(30)]
    assert passed.count(-1.0) > 0 and max(passed) <= queue.limit_s + 0.01 + 1e-9
    assert queue.pass_at(1.0, 10_000) == pytest.approx(1.01)


def test_a_slow_queue_still_takes_a_few_packets() -> None:
    assert Queue(0.1).limit_s > 1.0


@given(st.lists(st.tuples(st.floats(0, 0.05), st.integers(40, 9000)), min_size=1, max_size=60), st.floats(0, 0.2))
def test_jitter_never_reorders_a_pair(gaps: list[tuple[float, int]], jitter_s: float) -> None:
    made = paths((A, B, Shape(0.02, jitter_s, 0.0, 50.0)))
    now, before = 0.0, 0.0
    for gap, nbytes in gaps:
        now += gap
        at = made.departs(now, A, B, nbytes)
        if at >= 0.0:
            assert at >= before and at >= now + 0.02
            before = at


@pytest.mark.parametrize("loss", [0.001, 0.01, 0.02])
def test_loss_is_the_share_asked_for(loss: float) -> None:
    made = paths((A, B, Shape(loss=loss)))
    lost = sum(made.departs(0.0, A, B, 100) < 0.0 for _ in range(200_000))
    assert lost / 200_000 == pytest.approx(loss, rel=0.2)


def test_a_cut_holds_in_one_direction_and_for_what_is_under_way() -> None:
    made = paths((A, B, Shape(0.1)), (B, A, Shape(0.1)))
    under_way = made.departs(0.0, A, B, 100)
    made.pair(A, B).is_cut = True
    assert made.arrives(under_way, A, B, 100) < 0.0
    assert made.departs(0.2, A, B, 100) < 0.0
    assert made.departs(0.2, B, A, 100) == pytest.approx(0.3)
    made.pair(A, B).is_cut = False
    assert made.departs(0.4, A, B, 100) == pytest.approx(0.5)


def test_a_router_uplink_is_shared_by_those_behind_it() -> None:
    made = paths(hosts=[Host("a", router="home"), Host("b", router="home"), Host("c")])
    made.shape_uplink("home", 8.0, 80.0)
    assert made.departs(0.0, A, C, 10_000) == pytest.approx(0.01)
    assert made.departs(0.0, B, C, 10_000) == pytest.approx(0.02)
    assert made.departs(0.0, A, B, 10_000) == pytest.approx(0.0)  # does not leave the house
    assert made.arrives(0.0, C, A, 10_000) == pytest.approx(0.001)
    assert made.arrives(0.0, C, B, 10_000) == pytest.approx(0.002)
    assert made.arrives(0.0, A, B, 10_000) == pytest.approx(0.0)


def test_unknown_uplink() -> None:
    with pytest.raises(KeyError):
        paths().shape_uplink("nowhere", 1.0, 1.0)


# --- NAT --------------------------------------------------------------------------------------------------------------


def flow(source: int, port: int, target: int, to_port: int) -> tuple[int, bytes, int, bytes, int]:
    return 6, bytes([10, 0, 0, source]), port, bytes([10, 0, 0, target]), to_port


def test_nat_lets_in_answers_only() -> None:
    made = paths(hosts=[Host("a", nat=True), Host("b"), Host("c", nat=True)])
    assert not made.lets_in(0.0, B, A, flow(B, 7700, A, 5000))
    assert made.lets_in(1.0, A, B, flow(A, 5000, B, 7700))
    assert made.lets_in(2.0, B, A, flow(B, 7700, A, 5000))
    assert not made.lets_in(2.0, B, A, flow(B, 7701, A, 5000))
    assert not made.lets_in(2.0, A, C, flow(A, 5000, C, 7700))
    assert not made.lets_in(3.0 + FLOW_S, B, A, flow(B, 7700, A, 5000))


def test_behind_one_router_everybody_can_dial() -> None:
    made = paths(hosts=[Host("a", router="home", nat=True), Host("b", router="home", nat=True)])
    assert made.lets_in(0.0, A, B, flow(A, 5000, B, 7700))


def test_the_flow_table_is_bounded() -> None:
    made = paths(hosts=[Host("a", nat=True), Host("b")])
    for port in range(FLOWS_MAX + 100):
        made.lets_in(0.0, A, B, (6, b"aaaa", port, b"bbbb", 1))
    assert len(made._flows) <= FLOWS_MAX
    assert made.lets_in(0.0, B, A, (6, b"bbbb", 1, b"aaaa", FLOWS_MAX + 99))


# --- packets ----------------------------------------------------------------------------------------------------------


def tcp_packet(payload: bytes) -> bytes:
    addresses = bytes([10, 0, 0, 1, 10, 0, 0, 2])
    ip = struct.pack("!BBHHHBBH", 0x45, 0, 40 + len(payload), 1, 0, 64, 6, 0) + addresses
    head = struct.pack("!HHIIBBHHH", 5000, 7700, 1, 1, 5 << 4, 0x18, 500, 0, 0)
    checksum = tcp_checksum(addresses, head + payload)
    return ip + head[:16] + checksum.to_bytes(2, "big") + head[18:] + payload


def tcp_checksum(addresses: bytes, segment: bytes) -> int:
    data = addresses + struct.pack("!HH", 6, len(segment)) + segment
    data += b"\0" * (len(data) % 2)
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


@given(st.binary(min_size=1, max_size=300), st.integers(0, 2**32))
def test_a_flipped_bit_keeps_the_checksum_right(payload: bytes, seed: int) -> None:
    packet = tcp_packet(payload)
    flipped = flip_bit(packet, random.Random(seed))
    different = int.from_bytes(packet[40:], "big") ^ int.from_bytes(flipped[40:], "big")
    assert bin(different).count("1") == 1
    assert flipped[:36] == packet[:36]
    assert tcp_checksum(flipped[12:20], flipped[20:]) == 0  # as a receiver sees it


def test_what_carries_nothing_is_left_alone() -> None:
    rng = random.Random(1)
    assert flip_bit(tcp_packet(b""), rng) == tcp_packet(b"")
    datagram = bytes([0x45] + [0] * 8 + [17] + [0] * 20)
    assert flip_bit(datagram, rng) == datagram


def test_flows_are_read_from_packets() -> None:
    assert flow_of(tcp_packet(b"x")) == (6, bytes([10, 0, 0, 1]), 5000, bytes([10, 0, 0, 2]), 7700)
    ping = bytes([0x45] + [0] * 8 + [1, 0, 0]) + b"aaaabbbb"
    assert flow_of(ping) == (1, b"aaaa", 0, b"bbbb", 0)


@given(st.lists(st.floats(2e-6, 10), min_size=1, max_size=300))
def test_lateness_quantiles_are_at_most_an_eighth_too_high(late: list[float]) -> None:
    found = Lateness()
    for each in late:
        found.add(each)
    for share in (0.5, 0.99):
        exact = next(each for i, each in enumerate(sorted(late)) if i + 1 >= share * len(late))
        assert exact * 0.999 <= found.quantile_s(share) <= exact * 1.126


def test_no_packets_no_lateness() -> None:
    assert Lateness().quantile_s(0.99) == 0.0
