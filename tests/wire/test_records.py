"""DHT records: sealed, opened again exactly, and refused by name when foreign, expired, forged or malformed."""

from __future__ import annotations

import dataclasses
import hashlib
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from p2ptrain.core.messages import Hello, Leave
from p2ptrain.core.types import PeerInfo
from p2ptrain.errors import AdmissionError, ProtocolError
from p2ptrain.wire import limits, records, translate
from tests.strategies import PEER_INFOS, exact

RUN = "ab" * 32
NOW = 1_000_000.0
KEY = b"a key"
INFO = PeerInfo("a" * 52, 3, ("10.0.0.1:7000",), region="eu", microbatch_s=0.25, public_key=KEY)


def sign(data: bytes) -> bytes:
    """Stands for a peer's key: what matters here is over which bytes it is asked."""
    return hashlib.blake2b(data, key=KEY, digest_size=32).digest()


def verify(peer: str, public_key: bytes, signature: bytes, data: bytes) -> bool:
    return signature == hashlib.blake2b(data, key=public_key[:64], digest_size=32).digest()


def signed(info: PeerInfo, run: str = RUN) -> PeerInfo:
    return dataclasses.replace(info, signature=sign(records.info_signing_bytes(run, info)))


def opened(data: bytes, run: str = RUN, now: float = NOW, strict: bool = True) -> PeerInfo:
    return records.unseal(data, run, now, verify, strict=strict)


@settings(deadline=None)
@given(PEER_INFOS)
def test_round_trip_is_exact(info: PeerInfo) -> None:
    info = signed(dataclasses.replace(info, public_key=KEY))
    assert exact(opened(records.seal(info, RUN, NOW + 60, sign), strict=False)) == exact(info)


def test_an_info_without_its_own_signature_passes() -> None:
    assert opened(records.seal(INFO, RUN, NOW + 60, sign)) == INFO


@settings(deadline=None)
@given(PEER_INFOS)
def test_signed_bytes_do_not_change_on_the_way(info: PeerInfo) -> None:
    back = translate.from_bytes(translate.to_bytes(Hello(RUN, info, 0)))
    assert isinstance(back, Hello)
    assert records.info_signing_bytes(RUN, back.info) == records.info_signing_bytes(RUN, info)


def test_signed_bytes_do_not_depend_on_how_a_rate_was_written() -> None:
    whole = dataclasses.replace(INFO, uplink_mbps=10)
    real = dataclasses.replace(INFO, uplink_mbps=10.0)
    assert records.info_signing_bytes(RUN, whole) == records.info_signing_bytes(RUN, real)


CHANGES: dict[str, Any] = {
    "peer": "b" * 52,
    "life": 4,
    "addresses": (),
    "region": "us",
    "party": "x",
    "memory_bytes": 1,
    "microbatch_s": 0.5,
    "uplink_mbps": 1.0,
    "downlink_mbps": 1.0,
    "joined_round": 0,
    "threads": 2,
    "version": "1",
}


def test_signatures_cover_every_field_run_and_purpose() -> None:
    assert set(CHANGES) == {f.name for f in dataclasses.fields(PeerInfo) if f.compare}
    all_bytes = [records.info_signing_bytes(RUN, dataclasses.replace(INFO, **{k: v})) for k, v in CHANGES.items()]
    leave = Leave(INFO.peer, 3, "bye")
    leaves = [leave, dataclasses.replace(leave, life=4), dataclasses.replace(leave, reason="")]
    all_bytes += [records.info_signing_bytes(RUN, INFO), records.info_signing_bytes("cd" * 32, INFO)]
    all_bytes += [records.leave_signing_bytes(RUN, each) for each in leaves]
    all_bytes += [records.leave_signing_bytes("cd" * 32, leave)]
    assert len(set(all_bytes)) == len(all_bytes)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"run": "cd" * 32}, "another run, 'abababab'"),
        ({"now": NOW + 60}, r"expired \(\+0 s\)"),
        ({"now": NOW + 500}, r"expired \(-440 s\)"),
        ({"now": NOW - 86_400}, "expires too far ahead"),
    ],
)
def test_foreign_and_expired(changes: dict[str, Any], told: str) -> None:
    with pytest.raises(AdmissionError, match=told):
        opened(records.seal(signed(INFO), RUN, NOW + 60, sign), **changes)


def test_forged() -> None:
    data = records.seal(signed(INFO), RUN, NOW + 60, sign)
    fields = list(msgpack.unpackb(data))
    later = msgpack.packb([fields[0], fields[1], NOW + 600, *fields[3:]])
    other_life = [*fields[:3], [fields[3][0], 99, *fields[3][2:]], fields[4]]
    for forged in (later, msgpack.packb(other_life), msgpack.packb([*fields[:4], b"no"])):
        with pytest.raises(AdmissionError, match="is not signed by it"):
            opened(forged)


def test_an_inner_signature_for_another_run_is_refused() -> None:
    with pytest.raises(AdmissionError, match="is not signed by it"):
        opened(records.seal(signed(INFO, "cd" * 32), RUN, NOW + 60, sign))


GOOD = msgpack.unpackb(records.seal(INFO, RUN, NOW + 60, sign))


def _with(index: int, value: Any) -> bytes:
    data: bytes = msgpack.packb([*GOOD[:index], value, *GOOD[index + 1 :]])
    return data


def _with_info(index: int, value: Any) -> bytes:
    return _with(3, [*GOOD[3][:index], value, *GOOD[3][index + 1 :]])


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"", "no plain msgpack"),
        (b"\xc1", "no plain msgpack"),
        (msgpack.packb({"a": 1}), "no plain msgpack"),
        (msgpack.packb(msgpack.ExtType(5, b"xx")), "no plain msgpack"),
        (msgpack.packb(msgpack.Timestamp(1)), "no plain msgpack"),
        (b"\x91" * 600, "no plain msgpack"),
        (b"\xdd\xff\xff\xff\xff", "no plain msgpack"),
        (b"\xdc\x00\x41" + b"\1" * 65, "no plain msgpack"),
        (msgpack.packb(GOOD) + b"x", "no plain msgpack"),
        (msgpack.packb(7), "unknown format"),
        (msgpack.packb([]), "unknown format"),
        (_with(0, 2), "unknown format"),
        (_with(0, True), "unknown format"),
        (msgpack.packb(GOOD[:4]), "4 fields instead of 5"),
        (_with(1, 5), "without a run or expiry"),
        (_with(2, 5), "without a run or expiry"),
        (_with(2, float("nan")), "without a run or expiry"),
        (_with(4, "text"), "without a signature"),
        (_with(4, b"s" * 513), "without a signature"),
        (_with(3, GOOD[3][:-1]), "has not 14 fields"),
        (_with_info(0, "x"), r"PeerInfo\.peer: must be a peer id"),
        (_with_info(1, -1), r"PeerInfo\.life: must be 0 to"),
        (_with_info(1, b"\0"), r"PeerInfo\.life: must be a whole number"),
        (_with_info(2, [[1]]), r"PeerInfo\.addresses\[0\]: must be an address"),
        (_with_info(2, "10.0.0.1:7000"), r"PeerInfo\.addresses: must be a tuple"),
        (_with_info(3, None), r"PeerInfo\.region: must be text"),
        (_with_info(6, float("inf")), r"PeerInfo\.microbatch_s: must be finite"),
        (_with_info(13, "text"), r"PeerInfo\.public_key: must be bytes"),
        (b"x" * (limits.MAX_RECORD_BYTES + 1), "4097 bytes, the limit is 4096"),
    ],
)
def test_malformed(data: bytes, told: str) -> None:
    with pytest.raises(ProtocolError, match=told):
        opened(data)


def test_too_large_is_not_sealed() -> None:
    with pytest.raises(ProtocolError, match=r"a DHT record of \d+ bytes, the limit is 4096"):
        records.seal(dataclasses.replace(INFO, addresses=("h" * 255 + ":7000",) * 16), RUN, NOW, sign)
    with pytest.raises(ProtocolError, match=r"PeerInfo\.region: has 65 characters"):
        records.seal(dataclasses.replace(INFO, region="x" * 65), RUN, NOW, sign)


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=80), st.booleans(), st.data())
def test_any_bytes(noise: bytes, damaged: bool, draw: st.DataObject) -> None:
    data = bytearray(records.seal(INFO, RUN, NOW + 60, sign) if damaged else noise)
    if damaged:
        for _ in range(draw.draw(st.integers(1, 3))):
            data[draw.draw(st.integers(0, len(data) - 1))] ^= 1 << draw.draw(st.integers(0, 7))
        del data[draw.draw(st.integers(0, len(data))) :]
    try:
        info = opened(bytes(data))
    except (ProtocolError, AdmissionError) as error:
        assert str(error).isprintable() and len(str(error)) < 300
    else:
        assert info == INFO  # the flips undid each other
