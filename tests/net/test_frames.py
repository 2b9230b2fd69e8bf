"""Side frames and the proof of the answering side."""

from __future__ import annotations

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2ptrain.core.messages import Probe
from p2ptrain.errors import ProtocolError
from p2ptrain.net import frames
from p2ptrain.net.identity import Identity
from p2ptrain.wire import translate
from tests.net.swarm import RUN


@pytest.mark.parametrize("side", [frames.Bye("x" * 200), frames.Pulse(2**40, True), frames.BulkPlease(b"t" * 16)])
def test_round_trip(side: frames.Side) -> None:
    assert frames.unpack(frames.pack(side)) == side


def test_messages_of_the_core_are_no_side_frames_and_the_other_way_round() -> None:
    assert frames.unpack(translate.to_bytes(Probe(7))) is None
    with pytest.raises(ProtocolError):
        translate.from_bytes(frames.pack(frames.Pulse()))


@given(st.binary(max_size=100))
def test_hostile_bytes_are_refused_by_name(body: bytes) -> None:
    for frame in (b"\xc2\x3e" + body, b"\xc2\x3e" + bytes([len(body)]) + body):
        try:
            assert frames.unpack(frame) is not None
        except ProtocolError:
            continue


def test_only_the_owner_of_the_key_proves_it_and_only_to_the_dialler() -> None:
    owner, other, dialler = (Identity.generate() for _ in range(3))
    signed = frames.proof_bytes(RUN, b"n" * 32, dialler.peer, owner.peer)
    good = frames.pack_proof(owner.sign(signed), owner.public_key, (b"leaf", b"signer"))
    assert frames.check_proof(good, signed, owner.peer) == (b"leaf", b"signer")
    for bad in (
        frames.pack_proof(other.sign(signed), other.public_key, ()),
        frames.pack_proof(other.sign(signed), owner.public_key, ()),
        msgpack.packb([1, 2]),
        b"",
    ):
        with pytest.raises(ProtocolError):
            frames.check_proof(bad, signed, owner.peer)
    passed_on = frames.proof_bytes(RUN, b"n" * 32, other.peer, owner.peer)
    with pytest.raises(ProtocolError, match="does not own the key"):
        frames.check_proof(good, passed_on, owner.peer)
