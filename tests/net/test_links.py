"""Links on loopback with real TLS: up, messages, down, one per pair, bounded."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from p2ptrain.core.events import DialFailed, LinkLost, LinkUp, Received
from p2ptrain.core.messages import Gossip, Leave, Probe
from p2ptrain.core.types import Member, PeerInfo, Status, Voter
from p2ptrain.errors import TransportError
from p2ptrain.net.identity import Identity
from p2ptrain.net.settings import LINK_METHOD, NetSettings
from p2ptrain.wire import translate
from tests.net.swarm import Peer, TestRun, in_loop, join, raw_channel


@in_loop
async def test_a_link_stands_and_carries_messages_both_ways() -> None:
    run = TestRun()
    one, other = await Peer(run, life=3).start(), await Peer(run).start()
    one.dial(other, known=False)
    up = await one.wait(LinkUp)
    assert up.we_dialled and up.info.peer == other.id and up.info.addresses == other.addresses and up.round_trip_s > 0
    assert not (await other.wait(LinkUp)).we_dialled
    one.transport.send(other.id, Probe(7))
    assert await other.wait(Received) == Received(Voter(one.id, 3), Probe(7))
    other.transport.send(one.id, Probe(8))
    assert (await one.wait(Received)).message == Probe(8)
    other.transport.send(Identity.generate().peer, Probe(9))  # no link: dropped
    await one.stop()
    lost = await other.wait(LinkLost)
    assert (lost.peer, lost.life, lost.cause, lost.detail) == (one.id, 3, "closed", "stopping")
    assert one.of(LinkLost) == [], "one's own stop is no event"
    await other.stop()


@in_loop
async def test_a_dial_of_a_standing_link_is_answered_by_it() -> None:
    run = TestRun()
    one, other = await Peer(run).start(), await Peer(run).start()
    await join(one, other)
    other.dial(one)
    up = await other.wait(LinkUp, after=1)
    assert up.info.peer == one.id and not up.we_dialled
    one.dial(other, known=False)
    await one.wait(LinkUp, after=1)
    assert not one.of(LinkLost) and not other.of(LinkLost)
    await asyncio.gather(one.stop(), other.stop())


@in_loop
async def test_a_hangup_is_told_to_the_other_side_alone() -> None:
    run = TestRun()
    one, other = await Peer(run).start(), await Peer(run).start()
    await join(one, other)
    other.transport.hangup(one.id, "held dead")
    lost = await one.wait(LinkLost)
    assert (lost.cause, lost.detail) == ("closed", "held dead") and not other.of(LinkLost)
    one.dial(other)
    await one.wait(LinkUp, after=len(one.events))
    await asyncio.gather(one.stop(), other.stop())


@in_loop
async def test_both_dial_at_once_and_one_link_survives() -> None:
    run = TestRun()
    for attempt in range(6):
        one, other = await Peer(run).start(), await Peer(run).start()
        one.dial(other, known=attempt % 2 == 0)
        other.dial(one, known=attempt % 3 == 0)
        ups = [await one.wait(LinkUp), await other.wait(LinkUp)]
        assert len({up.we_dialled for up in ups}) == 2, "both speak of the same stream"
        for sender, receiver in ((one, other), (other, one)):
            sender.transport.send(receiver.id, Probe(attempt))
            await receiver.wait(Received)
        assert not [e for peer in (one, other) for e in peer.events if isinstance(e, LinkLost | DialFailed)]
        await asyncio.gather(one.stop(), other.stop())


@in_loop
async def test_the_second_live_peer_with_one_key_is_refused_by_name() -> None:
    run, identity = TestRun(), Identity.generate()
    host = await Peer(run).start()
    first = await Peer(run, identity=identity, life=5).start()
    await join(first, host)
    for life in (4, 5, 6):
        copy = await Peer(run, identity=identity, life=life).start()
        copy.dial(host)
        failed = await copy.wait(DialFailed)
        assert failed.failure == "duplicate" and "two live peers" in failed.detail
        copy.dial(first, known=False)
        assert (await copy.wait(DialFailed, after=len(copy.events))).failure == "duplicate"
        await copy.stop()
    assert not host.of(LinkLost)
    first.transport.send(host.id, Probe(1))
    await host.wait(Received)
    await asyncio.gather(first.stop(), host.stop())


@in_loop
async def test_a_later_life_replaces_a_ghost() -> None:
    run, identity = TestRun(), Identity.generate()
    host = await Peer(run).start()
    ghost = await Peer(run, identity=identity, life=5).start()
    await join(ghost, host)
    link = ghost.transport._table.links[host.id]
    link._on_side = lambda side: None  # type: ignore[method-assign]  # it hangs: its sockets stay open, it answers nothing
    risen = await Peer(run, identity=identity, life=6).start()
    risen.dial(host)
    await risen.wait(LinkUp)
    lost = await host.wait(LinkLost)
    assert (lost.life, lost.cause) == (5, "reset") and "replaced" in lost.detail
    assert (await host.wait(LinkUp, lambda e: e.info.life == 6)).info.peer == risen.id
    await asyncio.gather(ghost.stop(), risen.stop(), host.stop())


@contextmanager
def black_hole() -> Iterator[str]:
    """An address that never answers: a listener whose queue is full, as far as the kernel lets it be."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        fillers = []
        for _ in range(4):
            filler = socket.socket()
            filler.setblocking(False)
            filler.connect_ex(listener.getsockname())
            fillers.append(filler)
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        for filler in fillers:
            filler.close()


@contextmanager
def mute() -> Iterator[str]:
    """An address that accepts connections and says nothing."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(16)
        yield f"127.0.0.1:{listener.getsockname()[1]}"


def closed_port() -> str:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{sock.getsockname()[1]}"


@in_loop
@pytest.mark.parametrize("known", [True, False])
async def test_a_black_hole_beside_a_good_address_costs_nothing(known: bool) -> None:
    run = TestRun()
    one, other = await Peer(run).start(), await Peer(run).start()
    with black_hole() as hole, mute() as silent:
        addresses = (hole, silent, closed_port(), "no.such.name.invalid:4100", *other.addresses)
        one.transport.dial(other.id if known else "", addresses, 3600.0)
        await one.wait(LinkUp)
        assert not one.of(DialFailed)
        await asyncio.gather(one.stop(), other.stop())


@in_loop
async def test_each_failure_has_its_name() -> None:
    run = TestRun()
    one = await Peer(run).start()
    stranger = Identity.generate().peer

    async def failure(peer: str, *addresses: str, timeout_s: float = 0.5) -> DialFailed:
        start = len(one.events)
        one.transport.dial(peer, addresses, timeout_s)
        return await one.wait(DialFailed, after=start)

    for peer in (stranger, ""):
        refused = await failure(peer, closed_port(), timeout_s=20.0)
        assert (refused.failure, refused.peer) == ("refused", peer) and refused.address in refused.detail
        assert (await failure(peer, "no.such.name.invalid:4100", timeout_s=20.0)).failure == "name"
        assert (await failure(peer, "nonsense", timeout_s=20.0)).failure == "name"
        with black_hole() as hole, mute() as silent:
            assert (await failure(peer, hole)).failure == "timeout"
            assert (await failure(peer, silent)).failure == "timeout"
            mixed = await failure(peer, hole, closed_port())
            assert mixed.failure == "timeout", "one refusal proves nothing while another address is silent"
            assert "refused" in mixed.detail and "did not answer" in mixed.detail
    assert (await failure(stranger)).failure == "unreachable"
    assert (await failure("", *one.addresses)).failure == "duplicate"
    await one.stop()


@in_loop
async def test_an_address_that_now_belongs_to_another_member() -> None:
    run = TestRun()
    one, other = await Peer(run).start(), await Peer(run).start()
    one.transport.dial(Identity.generate().peer, other.addresses, 20.0)
    failed = await one.wait(DialFailed)
    assert failed.failure == "certificate" and other.id[:8] in failed.detail
    await asyncio.gather(one.stop(), other.stop())


@in_loop
async def test_another_version_is_refused_with_the_reason() -> None:
    run = TestRun()
    one, other = await Peer(run, version="0.2.0").start(), await Peer(run, version="0.1.7").start()
    one.dial(other)
    failed = await one.wait(DialFailed)
    assert failed.failure == "version" and "0.1.7" in failed.detail and "update" in failed.detail
    await asyncio.gather(one.stop(), other.stop())


@in_loop
async def test_unsigned_lines_do_not_reach_the_core() -> None:
    run = TestRun()
    one, other, third = await Peer(run).start(), await Peer(run).start(), Identity.generate()
    await join(one, other)
    good = Member(third.sign_info(run.run, PeerInfo(third.peer, 1)), 0, Status.ALIVE)
    bad = Member(replace(good.info, life=9), 0, Status.DEAD)
    one.transport.send(other.id, Gossip((bad, good, bad)))
    assert (await other.wait(Received)).message == Gossip((good,))
    one.transport.send(other.id, Probe(1, (bad,)))
    one.transport.send(other.id, Leave(third.peer, 1))
    leave = third.sign_leave(run.run, Leave(third.peer, 1))
    one.transport.send(other.id, leave)
    await other.wait(Received, lambda e: isinstance(e.message, Leave))
    assert [e.message for e in other.of(Received)[1:]] == [Probe(1), leave]
    assert other.transport.describe()["dropped"] == {"info": 3, "leave": 1}
    await asyncio.gather(one.stop(), other.stop())


@in_loop
@pytest.mark.parametrize("claims", [{"run": "cd" * 32}, {"info": "unsigned"}, {"info": "other"}])
async def test_a_wrong_hello_is_refused(claims: dict[str, str]) -> None:
    run, liar = TestRun(), Identity.generate()
    infos = {
        "unsigned": PeerInfo(liar.peer, 1),
        "other": (o := Identity.generate()).sign_info(run.run, PeerInfo(o.peer, 1)),
    }
    hello = {key: infos.get(value, value) for key, value in claims.items()}
    one, other = await Peer(run, identity=liar, claims=hello).start(), await Peer(run).start()
    one.dial(other)
    failed = await one.wait(DialFailed)
    assert failed.failure == ("foreign_run" if "run" in claims else "certificate")
    other.dial(one)
    assert (await other.wait(DialFailed)).failure == failed.failure, "checked by the dialler too"
    assert not other.of(LinkUp)
    await asyncio.gather(one.stop(), other.stop())


@in_loop
@pytest.mark.parametrize("frame", [b"", b"\x00", b"nonsense", b"\xc2\x3e\x03abc", b"\x08\x63"])
async def test_a_malformed_message_drops_the_link(frame: bytes, caplog: pytest.LogCaptureFixture) -> None:
    run = TestRun()
    one, other = await Peer(run).start(), await Peer(run).start()
    await join(one, other)
    with caplog.at_level(logging.WARNING, "p2ptrain.net"):
        one.transport._table.links[other.id].send(frame)
        assert "protocol" in (await other.wait(LinkLost)).detail
        assert (await one.wait(LinkLost)).cause == "closed"
    assert any("broke the rules" in record.getMessage() for record in caplog.records)
    await asyncio.gather(one.stop(), other.stop())


@in_loop
async def test_an_oversized_message_drops_the_link() -> None:
    run = TestRun()
    roomy = NetSettings(message_max_bytes=64 << 20)
    one, other = await Peer(run, settings=roomy).start(), await Peer(run).start()
    await join(one, other)
    one.transport._table.links[other.id].send(b"\x00" * (9 << 20))
    assert (await other.wait(LinkLost)).peer == one.id
    assert (await one.wait(LinkLost)).peer == other.id
    await asyncio.gather(one.stop(), other.stop())


@in_loop
async def test_a_slow_reader_loses_its_link_and_memory_is_bounded() -> None:
    run = TestRun()
    tight = NetSettings(queue_max_bytes=200_000, bulk_window_bytes=65_536)
    one, reader = await Peer(run, settings=tight).start(), await Peer(run).start()
    channel = raw_channel(one, run.credentials(reader.identity))
    call = channel.stream_stream(LINK_METHOD)()
    await call.write(translate.to_bytes(reader.hello()))  # ... and then it reads nothing
    await one.wait(LinkUp)
    link, message = one.transport._table.links[reader.id], Leave(one.id, 1, "x" * 1000)
    while not one.of(LinkLost):
        for _ in range(100):
            one.transport.send(reader.id, message)
            assert link.queued_bytes <= 200_000
        await asyncio.sleep(0)
    assert "slow reader" in one.of(LinkLost)[0].detail and one.of(LinkLost)[0].cause == "silent"
    await channel.close()
    await asyncio.gather(one.stop(), reader.stop())


@in_loop
async def test_a_port_in_use_is_named() -> None:
    run = TestRun()
    one = await Peer(run).start()
    with pytest.raises(TransportError, match=rf"{one.addresses[0]}.*in use.*--listen"):
        await Peer(run, listen=one.addresses[0]).start()
    await one.stop()


@in_loop
async def test_announced_addresses_replace_the_guess() -> None:
    run = TestRun()
    one = await Peer(run, listen="0.0.0.0:0", announce=("swarm.example.org:4100",)).start()
    assert one.addresses == ("swarm.example.org:4100",)
    guessed = await Peer(run, listen="0.0.0.0:0").start()
    assert guessed.addresses[-1].startswith("127.0.0.1:"), "loopback comes last"
    await asyncio.gather(one.stop(), guessed.stop())


@in_loop
async def test_dial_back() -> None:
    run = TestRun()
    one, other = await Peer(run).start(), await Peer(run).start()
    await join(one, other)
    ask = one.transport.ask_dial_back
    assert (await ask(other.id, one.addresses[0], 10.0)).reached
    assert (await ask(other.id, closed_port(), 10.0)).failure == "refused"
    wrong = await ask(other.id, other.addresses[0], 10.0)
    assert wrong.failure == "certificate", "somebody else's address is not ours"
    with pytest.raises(TransportError, match="no link that we dialled"):
        await other.transport.ask_dial_back(one.id, other.addresses[0], 1.0)
    await asyncio.gather(one.stop(), other.stop())


@in_loop
async def test_without_tls_for_benches() -> None:
    run = TestRun()
    one, other = await Peer(run, insecure=True).start(), await Peer(run, insecure=True).start()
    one.dial(other, known=False)
    await one.wait(LinkUp)
    one.transport.send(other.id, Probe(7))
    assert (await other.wait(Received)).sender.peer == one.id
    stream = await one.transport.open_bulk(other.id, 5.0)
    await stream.send(b"frame")
    assert await stream.receive() == b"frame"
    await asyncio.gather(one.stop(), other.stop())
