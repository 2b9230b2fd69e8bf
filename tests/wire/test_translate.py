"""Messages to bytes and back: exact round trips, every refusal by name, and no other exception for any bytes."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, get_args

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from p2ptrain.core import messages as m
from p2ptrain.core import types as t
from p2ptrain.core.events import DialFailure
from p2ptrain.errors import ProtocolError
from p2ptrain.wire import limits
from p2ptrain.wire import translate as wire
from p2ptrain.wire.messages import TRANSLATIONS
from p2ptrain.wire.v1 import messages_pb2, values_pb2
from p2ptrain.wire.v1.peer_pb2 import Envelope
from tests.strategies import MESSAGES, exact, message_classes, messages

SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large]
RUN = "ab" * 32
PEER = "a" * 52
FENCE = t.Fence(RUN, 0, 0, 5, b"p" * 32, t.Ballot(0, PEER, 1))
PART = t.PartDone(0, 0, 10, b"d" * 32, (0, 1, 2), 1.5, 40)
INFO = t.PeerInfo(PEER, 1, ("127.0.0.1:7000",))


def record(**changed: Any) -> t.Record:
    plain = t.Record(0, 0, 5, b"", b"", (PART,), (0, 1, 2), 1.5, 1.0, (t.Voter(PEER, 1),), 3, 3)
    return dataclasses.replace(plain, **changed)


# --- round trips ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", message_classes(), ids=lambda kind: kind.__name__)
def test_round_trip_is_exact(kind: type[m.Message]) -> None:
    assert kind in MESSAGES, f"tests/strategies.py has no strategy for {kind.__name__}"

    @settings(max_examples=40, deadline=None, suppress_health_check=SLOW)
    @given(MESSAGES[kind])
    def holds(message: m.Message) -> None:
        data = wire.to_bytes(message)
        back = wire.from_bytes(data)
        assert back == message
        assert exact(back) == exact(message)
        assert wire.to_bytes(back) == data

    holds()


def test_every_message_has_a_translation() -> None:
    assert [shape.made for shape in TRANSLATIONS.values()] == message_classes()


def test_the_envelope_knows_every_translation() -> None:
    assert [field.name for field in Envelope.DESCRIPTOR.oneofs_by_name["message"].fields] == list(TRANSLATIONS)


def test_every_translated_field_is_on_the_wire() -> None:
    for name, shape in TRANSLATIONS.items():
        kind = Envelope.DESCRIPTOR.fields_by_name[name].message_type
        assert [field.name for field in kind.fields] == [f.name for f in dataclasses.fields(shape.made)]


def test_a_message_sent_to_many_is_translated_once() -> None:
    first, equal = m.Probe(7), m.Probe(7)
    data = wire.to_bytes(first)
    assert wire.to_bytes(first) is data
    assert wire.to_bytes(equal) == data
    assert wire.to_bytes(m.Probe(8)) != data


def test_an_unknown_message_class_is_refused() -> None:
    class Stranger(m.Message):
        pass

    with pytest.raises(ProtocolError, match="Stranger has no translation"):
        wire.to_bytes(Stranger())


def test_ids_travel_as_runs() -> None:
    short = wire.to_bytes(m.Grant(0, 0, 0, (5,)))
    long = wire.to_bytes(m.Grant(0, 0, 0, tuple(range(5, 50_000))))
    assert len(long) <= len(short) + 2


def test_reasons_for_people_are_cut_and_cleaned() -> None:
    sent = m.Trouble(FENCE, b"b" * 32, 0, (), True, "\x1b[31mred\n" + "x" * 5000)
    back = wire.from_bytes(wire.to_bytes(sent), strict=True)
    assert isinstance(back, m.Trouble)
    assert back.reason == (" [31mred " + "x" * 5000)[: limits.MAX_REASON_CHARS]


def test_strict_accepts_the_true_forms() -> None:
    for message in (m.Hello(RUN, INFO, 0), m.Accept(FENCE, 1, b"r" * 32), m.Commit(record(), (t.Voter(PEER, 1),))):
        assert wire.from_bytes(wire.to_bytes(message), strict=True) == message


# --- refusals ---------------------------------------------------------------------------------------------------------

HUGE = (1 << 63) - 1

BAD_VALUES: list[tuple[m.Message, str]] = [
    (m.Probe(-1), r"Probe\.seq: must be 0 to"),
    (m.Probe(1 << 63), r"Probe\.seq: must be 0 to"),
    (m.Probe(1 << 9000), r"Probe\.seq: .* a number of 9001 bits"),
    (m.Probe(True), r"Probe\.seq: must be a whole number, got True"),
    (m.Probe(1.5), r"Probe\.seq: must be a whole number, got 1\.5"),  # type: ignore[arg-type]
    (m.ProbeFor(1, ""), r"ProbeFor\.target: must be a peer id"),
    (m.ProbeFor(1, "a" * 65), r"ProbeFor\.target: must be a peer id"),
    (m.ProbeFor(1, "a b"), r"ProbeFor\.target: must be a peer id, .* got 'a b'"),
    (m.Accept(FENCE, -1, b"r" * 32), r"Accept\.life: must be 0"),
    (m.Accept(FENCE, 1, b""), r"Accept\.record_digest: must be a digest of 32 bytes"),
    (m.Accept(FENCE, 1, b"r" * 31), r"Accept\.record_digest: must be a digest of 32 bytes"),
    (m.Accept(dataclasses.replace(FENCE, parent=b"x"), 1, b"r" * 32), r"Accept\.fence\.parent: must be a digest"),
    (m.Accept(dataclasses.replace(FENCE, run=""), 1, b"r" * 32), r"Accept\.fence\.run: must name a run"),
    (m.Accept(dataclasses.replace(FENCE, ballot=t.Ballot(3, "", 0)), 1, b"r" * 32), r"fence\.ballot: only the ballot"),
    (m.Accept(None, 1, b"r" * 32), r"Accept\.fence: must be a Fence"),  # type: ignore[arg-type]
    (
        m.Filled(FENCE, 1, accepted=(t.NO_BALLOT,)),  # type: ignore[arg-type]
        r"Filled\.accepted: must be a tuple of 2 fields",
    ),
    (m.RecordAsk(0, 0, 5, 4), r"RecordAsk: the range is inverted, got \(5, 4\)"),
    (m.Commit(record(norm_sq=math.nan), ()), r"Commit\.record\.norm_sq: must be finite and at least 0, got nan"),
    (m.Commit(record(norm_sq=-1), ()), r"Commit\.record\.norm_sq: must be at least 0"),
    (m.Commit(record(norm_sq=1 << 512), ()), r"Commit\.record\.norm_sq: .* a number of 513 bits"),
    (m.Commit(record(next_scale=math.inf), ()), r"Commit\.record\.next_scale: must be finite"),
    (
        m.Commit(record(parts=(PART, dataclasses.replace(PART, start=11))), ()),
        r"Commit\.record\.parts\[1\]: the range is inverted, got \(11, 10\)",
    ),
    (m.Commit(record(parts=[PART]), ("x",)), r"Commit\.accepted\[0\]: must be a Voter"),  # type: ignore[arg-type]
    (m.Grant(0, 0, 0, (-1,)), r"Grant\.positions: holds something other than numbers"),
    (m.Grant(0, 0, 0, (HUGE + 1,)), r"Grant\.positions: holds something other than numbers"),
    (m.Grant(0, 0, 0, tuple(range(limits.MAX_IDS + 1))), r"Grant\.positions: has 65537 ids, the limit is 65536"),
    (m.Close(FENCE, (t.Voter(PEER, 1),) * 257), r"Close\.dead: has 257 entries, the limit is 256"),
    (m.Begin(FENCE, 0, (), (), (t.PartOrder(0, 0, 1, bundles=(0,)),)), r"Begin: part 0 takes bundle 0 of 0"),
    (m.Progress(0, 0, (), (), -0.5), r"Progress\.microbatch_s: must be finite and at least 0, got -0\.5"),
    (m.Hello(RUN, dataclasses.replace(INFO, region="x" * 65), 0), r"Hello\.info\.region: has 65 characters"),
    (m.Hello(RUN, dataclasses.replace(INFO, region="\x1b[2J"), 0), r"Hello\.info\.region: .* cannot be printed"),
    (m.Hello(RUN, dataclasses.replace(INFO, party="\ud800"), 0), r"Hello\.info\.party: .* cannot be printed"),
    (m.Hello(RUN, dataclasses.replace(INFO, addresses=("x" * 263,)), 0), r"info\.addresses\[0\]: must be an address"),
    (m.Hello(RUN, dataclasses.replace(INFO, addresses=("h:1",) * 17), 0), r"info\.addresses: has 17 entries"),
    (m.Hello(RUN, dataclasses.replace(INFO, signature=b"s" * 513), 0), r"info\.signature: has 513 bytes"),
    (
        m.SnapshotOffer(0, 0, t.SnapshotInfo(0, record(), b"", 100, 10, (b"c" * 32,))),
        r"SnapshotOffer\.info: 1 chunks of 10 bytes do not make 100 bytes",
    ),
    (
        m.SnapshotOffer(0, 0, t.SnapshotInfo(0, record(), b"", 0, 0, ())),
        r"SnapshotOffer\.info\.chunk_bytes: must be 1 to",
    ),
]


@pytest.mark.parametrize(("message", "told"), BAD_VALUES, ids=[told[:40] for _, told in BAD_VALUES])
def test_bad_values_are_not_sent(message: m.Message, told: str) -> None:
    with pytest.raises(ProtocolError, match=told) as caught:
        wire.to_bytes(message)
    assert caught.value.fields["message"] == type(message).__name__
    assert len(str(caught.value)) < 300


def _sent(**message: Any) -> bytes:
    return Envelope(format=1, **message).SerializeToString()


PB_FENCE = values_pb2.Fence(run="run", ballot=values_pb2.Ballot(number=0, peer="a"))
PB_VOTER = values_pb2.Voter(peer="a")

BAD_BYTES: list[tuple[bytes, str]] = [
    (b"", r"speaks wire format 0, we 1"),
    (Envelope(format=2).SerializeToString(), r"speaks wire format 2, we 1"),
    (Envelope(format=1).SerializeToString(), r"an envelope without a message"),
    (b"\x08\x01\xff\xff", r"message: 4 bytes that are no Envelope"),
    (b"x" * (limits.MAX_MESSAGE_BYTES + 1), r"a message of 1048577 bytes, the limit is 1048576"),
    (_sent(close=messages_pb2.Close()), r"Close\.fence: is missing"),
    (_sent(close=messages_pb2.Close(fence=values_pb2.Fence(run="r"))), r"Close\.fence\.ballot: is missing"),
    (_sent(propose=messages_pb2.Propose(fence=PB_FENCE)), r"Propose\.record: is missing"),
    (_sent(filled=messages_pb2.Filled(fence=PB_FENCE)), r"Filled\.base: is missing"),
    (_sent(commit=messages_pb2.Commit(record=values_pb2.Record())), r"Commit\.record\.norm_sq: is missing"),
    (
        _sent(commit=messages_pb2.Commit(record=values_pb2.Record(norm_sq=values_pb2.Norm()))),
        r"Commit\.record\.norm_sq: is empty",
    ),
    (
        _sent(commit=messages_pb2.Commit(record=values_pb2.Record(norm_sq=values_pb2.Norm(whole=b"\0\1")))),
        r"Commit\.record\.norm_sq: must be 1 to 64 bytes without leading zeros",
    ),
    (
        _sent(probe=messages_pb2.Probe(updates=[values_pb2.Member(info=values_pb2.PeerInfo(peer="a"))])),
        r"Probe\.updates\[0\]\.status: is unknown, got 0",
    ),
    (
        _sent(probe=messages_pb2.Probe(updates=[values_pb2.Member(info=values_pb2.PeerInfo(peer="a"), status=99)])),
        r"Probe\.updates\[0\]\.status: is unknown, got 99",
    ),
    (_sent(revoke=messages_pb2.Revoke(positions=values_pb2.Ids(gaps=[1]))), r"has 1 run starts and 0 run lengths"),
    (_sent(revoke=messages_pb2.Revoke(positions=values_pb2.Ids(gaps=[-1], counts=[1]))), r"Revoke\.positions: has an"),
    (_sent(revoke=messages_pb2.Revoke(positions=values_pb2.Ids(gaps=[1], counts=[0]))), r"Revoke\.positions: has an"),
    (
        _sent(revoke=messages_pb2.Revoke(positions=values_pb2.Ids(gaps=[HUGE], counts=[2]))),
        r"Revoke\.positions: has an empty run, or one outside",
    ),
    (
        _sent(revoke=messages_pb2.Revoke(positions=values_pb2.Ids(gaps=[0], counts=[(1 << 32) - 1]))),
        r"Revoke\.positions: has 4294967295 ids, the limit is 65536",
    ),
    (_sent(probe=messages_pb2.Probe(seq=1 << 63)), r"Probe\.seq: must be 0 to"),
]


@pytest.mark.parametrize(("data", "told"), BAD_BYTES, ids=[told[:40] for _, told in BAD_BYTES])
def test_bad_bytes_are_refused(data: bytes, told: str) -> None:
    with pytest.raises(ProtocolError, match=told):
        wire.from_bytes(data)


@pytest.mark.parametrize(
    ("message", "told"),
    [
        (m.ProbeFor(1, "a"), r"ProbeFor\.target: must be a peer id, 52 characters"),
        (m.ProbeFor(1, "A" * 52), r"ProbeFor\.target: must be a peer id, 52 characters"),
        (m.ProbeFor(1, "a" * 51 + "b"), r"ProbeFor\.target: must be a peer id, 52 characters"),
        (m.ProbeFor(1, "a" * 51 + "1"), r"ProbeFor\.target: must be a peer id, 52 characters"),
        (m.Accept(dataclasses.replace(FENCE, run="run"), 1, b"r" * 32), r"Accept\.fence\.run: must be a run's digest"),
        (m.Hello(RUN, dataclasses.replace(INFO, addresses=("host",)), 0), r"addresses\[0\]: must be host:port"),
        (m.Hello(RUN, dataclasses.replace(INFO, addresses=("host:70000",)), 0), r"addresses\[0\]: must be host:port"),
        (m.Hello(RUN, dataclasses.replace(INFO, addresses=("::1:7000",)), 0), r"addresses\[0\]: must be host:port"),
    ],
)
def test_strict_refuses_loose_forms(message: m.Message, told: str) -> None:
    data = wire.to_bytes(message)
    assert wire.from_bytes(data) == message
    with pytest.raises(ProtocolError, match=told):
        wire.from_bytes(data, strict=True)


def test_small_bytes_cannot_stand_for_endless_ids() -> None:
    bundles = [
        values_pb2.Bundle(peer="a", index=i, ids=values_pb2.Ids(gaps=[i], counts=[limits.MAX_IDS])) for i in range(17)
    ]
    begin = messages_pb2.Begin(fence=PB_FENCE, members=[PB_VOTER], bundles=bundles)
    assert len(_sent(begin=begin)) < 1000
    with pytest.raises(ProtocolError, match=r"Begin\.bundles\[16\]\.ids: takes the message above 1048576 ids"):
        wire.from_bytes(_sent(begin=begin))


def test_equal_lists_of_ids_count_once() -> None:
    counted = tuple(range(limits.MAX_IDS))
    parts = tuple(dataclasses.replace(PART, index=i, counted=counted) for i in range(64))
    message = m.Have(FENCE, b"b" * 32, parts)
    back = wire.from_bytes(wire.to_bytes(message))
    assert back == message
    assert isinstance(back, m.Have) and len({id(part.counted) for part in back.parts}) == 1


def test_a_message_above_the_size_limit_is_not_sent() -> None:
    member = t.Member(dataclasses.replace(INFO, signature=b"s" * 512), 0, t.Status.ALIVE)
    with pytest.raises(ProtocolError, match=r"Gossip of \d+ bytes, the limit is 1048576"):
        wire.to_bytes(m.Gossip((member,) * 2000))


# --- any bytes --------------------------------------------------------------------------------------------------------


def refused_or_read(data: bytes, strict: bool) -> None:
    """The one promise: a message or ProtocolError."""
    try:
        message = wire.from_bytes(data, strict=strict)
    except ProtocolError as error:
        assert len(str(error)) < 400 and str(error).isprintable()
    else:
        assert exact(wire.from_bytes(wire.to_bytes(message))) == exact(message)


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200), st.booleans(), st.booleans())
def test_random_bytes(data: bytes, strict: bool, with_format: bool) -> None:
    refused_or_read(b"\x08\x01" + data if with_format else data, strict)


@settings(max_examples=300, deadline=None, suppress_health_check=SLOW)
@given(messages(), st.data())
def test_damaged_messages(message: m.Message, draw: st.DataObject) -> None:
    data = bytearray(wire.to_bytes(message))
    refused_or_read(bytes(data[: draw.draw(st.integers(0, len(data)))]), False)
    for _ in range(draw.draw(st.integers(1, 4))):
        data[draw.draw(st.integers(0, len(data) - 1))] ^= 1 << draw.draw(st.integers(0, 7))
    refused_or_read(bytes(data), draw.draw(st.booleans()))


# --- dial-back --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("failure", [None, *get_args(DialFailure)])
def test_dial_back_round_trip(failure: DialFailure | None) -> None:
    question = wire.DialBack("peer.example:7000")
    assert wire.dial_back_from_bytes(wire.dial_back_to_bytes(question)) == question
    answer = wire.DialBackAnswer(failure, "what happened")
    assert wire.dial_back_answer_from_bytes(wire.dial_back_answer_to_bytes(answer)) == answer


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=60), st.booleans())
def test_dial_back_refuses_by_name(data: bytes, with_format: bool) -> None:
    data = b"\x08\x01" + data if with_format else data
    for read in (wire.dial_back_from_bytes, wire.dial_back_answer_from_bytes):
        try:
            read(data)
        except ProtocolError as error:
            assert str(error).isprintable()


def test_dial_back_answers_that_contradict_themselves_are_refused() -> None:
    from p2ptrain.wire.v1.peer_pb2 import DialBackReply

    for reply in (DialBackReply(format=1), DialBackReply(format=1, reached=True, failure="refused")):
        with pytest.raises(ProtocolError, match=r"DialBackAnswer\.failure"):
            wire.dial_back_answer_from_bytes(reply.SerializeToString())
    with pytest.raises(ProtocolError, match=r"DialBackAnswer\.failure: reached=False, failure='bored'"):
        wire.dial_back_answer_from_bytes(DialBackReply(format=1, failure="bored").SerializeToString())
