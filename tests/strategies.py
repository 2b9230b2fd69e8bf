"""Hypothesis strategies for every value and message of the core, within the limits of the wire.

    from tests.strategies import MESSAGES, messages

    @given(messages())                 # any message
    @given(MESSAGES[Begin])            # one kind

``exact(value)`` shows all of a value: floats by their bits, types, and fields that do not take part in comparison.
"""

from __future__ import annotations

import base64
import dataclasses
from enum import Enum
from typing import Any

from hypothesis import strategies as st

from p2ptrain.core import messages as m
from p2ptrain.core import types as t

SMALL = st.integers(0, 40)
COUNTS = st.one_of(SMALL, st.integers(0, (1 << 63) - 1))
ROUNDS = st.one_of(st.integers(-1, 40), st.integers(-1, (1 << 63) - 1))
REALS = st.one_of(st.just(-0.0), st.floats(allow_nan=False, allow_infinity=False))
POSITIVE = st.floats(min_value=0, allow_nan=False, allow_infinity=False)
DIGESTS = st.binary(min_size=32, max_size=32)
DIGESTS_OR_NONE = st.one_of(st.just(b""), DIGESTS)
NORMS = st.one_of(POSITIVE, st.integers(0, 300), st.integers(0, (1 << 512) - 1))
PEERS = st.one_of(
    st.sampled_from(["a", "b", "c", "d"]),
    st.binary(min_size=32, max_size=32).map(lambda key: base64.b32encode(key).decode().rstrip("=").lower()),
)
RUNS = st.one_of(st.just("run"), DIGESTS.map(bytes.hex))
TEXT = st.text(st.characters(min_codepoint=32, max_codepoint=126) | st.sampled_from("äß東€"), max_size=20)
ADDRESSES = st.one_of(
    st.builds(lambda port: f"10.0.0.1:{port}", st.integers(1, 65_535)), st.just("[::1]:7000"), st.just("peer.example:7")
)
RUNS_OF_IDS = st.builds(
    lambda first, count: tuple(range(first, first + count)), COUNTS.filter(lambda n: n < 1 << 62), SMALL
)
IDS = st.one_of(
    RUNS_OF_IDS,
    st.lists(RUNS_OF_IDS, max_size=4).map(lambda runs: tuple(n for run in runs for n in run)),
    st.lists(COUNTS, max_size=8).map(tuple),
)


def many(of: st.SearchStrategy[Any], most: int = 3) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.lists(of, max_size=most).map(tuple)


def ordered(of: st.SearchStrategy[int] = COUNTS) -> st.SearchStrategy[tuple[int, int]]:
    return st.tuples(of, of).map(lambda pair: (min(pair), max(pair)))


VOTERS = st.builds(t.Voter, PEERS, COUNTS)
BALLOTS = st.one_of(st.just(t.NO_BALLOT), st.builds(t.Ballot, COUNTS, PEERS, COUNTS))
FENCES = st.builds(
    t.Fence, run=RUNS, lineage=COUNTS, stage=COUNTS, round=COUNTS, parent=DIGESTS_OR_NONE, ballot=BALLOTS
)
STAGES = st.builds(lambda index, pair, size: t.Stage(index, *pair, size), COUNTS, ordered(), COUNTS)
SPANS = ordered().map(lambda pair: t.Span(*pair))
PEER_INFOS = st.builds(
    t.PeerInfo,
    peer=PEERS,
    life=COUNTS,
    addresses=many(ADDRESSES),
    region=TEXT,
    party=TEXT,
    memory_bytes=COUNTS,
    microbatch_s=POSITIVE,
    uplink_mbps=POSITIVE,
    downlink_mbps=POSITIVE,
    joined_round=ROUNDS,
    threads=COUNTS,
    version=TEXT,
    signature=st.binary(max_size=64),
    public_key=st.binary(max_size=64),
)
MEMBERS = st.builds(t.Member, info=PEER_INFOS, incarnation=COUNTS, status=st.sampled_from(t.Status), since=REALS)
BUNDLES = st.builds(t.Bundle, peer=PEERS, life=COUNTS, index=COUNTS, ids=IDS, loss_sum=REALS)
PARTS_DONE = st.builds(
    lambda pair, **others: t.PartDone(start=pair[0], stop=pair[1], **others),
    pair=ordered(),
    index=COUNTS,
    digest=DIGESTS,
    counted=IDS,
    norm_sq=NORMS,
    nbytes=COUNTS,
)
RECORDS = st.builds(
    t.Record,
    lineage=COUNTS,
    stage=COUNTS,
    round=ROUNDS,
    parent=DIGESTS_OR_NONE,
    base_digest=DIGESTS_OR_NONE,
    parts=many(PARTS_DONE),
    spent_ids=IDS,
    norm_sq=NORMS,
    next_scale=POSITIVE,
    voters_next=many(VOTERS),
    samples_total=COUNTS,
    next_id=COUNTS,
    owed_ids=IDS,
)
BASE_DIGESTS = st.builds(
    t.BaseDigest, chain=DIGESTS_OR_NONE, slice_index=st.integers(-1, 65_536), slice_digest=DIGESTS_OR_NONE
)
HEADS = st.builds(t.Head, lineage=COUNTS, samples_total=COUNTS, round=ROUNDS, cut=DIGESTS_OR_NONE)
PLANS = st.builds(
    t.Plan,
    term=COUNTS,
    coordinator=PEERS,
    life=COUNTS,
    epoch=COUNTS,
    stages=many(STAGES),
    assignments=many(st.builds(t.Assignment, peer=PEERS, span=SPANS)),
    shadows=many(st.tuples(COUNTS, PEERS)),
    groups=many(st.tuples(COUNTS, many(PEERS))),
)


def part_orders(bundles: int) -> st.SearchStrategy[t.PartOrder]:
    """A part that takes some of ``bundles`` bundles."""
    return st.builds(
        lambda pair, **others: t.PartOrder(start=pair[0], stop=pair[1], **others),
        pair=ordered(),
        index=COUNTS,
        reducer=st.one_of(st.just(""), PEERS),
        bundles=many(st.integers(0, bundles - 1), bundles) if bundles else st.just(()),
        fixed=st.none() | PARTS_DONE,
        holders=many(PEERS),
    )


def _snapshot(record: t.Record, chunk_digests: tuple[bytes, ...], chunk_bytes: int, last: int, **others: Any) -> Any:
    total = max(0, len(chunk_digests) * chunk_bytes - last % chunk_bytes)
    return t.SnapshotInfo(
        record=record, chunk_digests=chunk_digests, chunk_bytes=chunk_bytes, total_bytes=total, **others
    )


SNAPSHOT_INFOS = st.builds(
    _snapshot,
    record=RECORDS,
    chunk_digests=many(DIGESTS, 4),
    chunk_bytes=st.integers(1, 64 << 20),
    last=COUNTS,
    stage=COUNTS,
    chain=DIGESTS_OR_NONE,
)

_BEGINS = many(BUNDLES).flatmap(
    lambda bundles: st.builds(
        m.Begin,
        fence=FENCES,
        attempt=COUNTS,
        members=many(VOTERS),
        bundles=st.just(bundles),
        parts=many(part_orders(len(bundles))),
        scale=POSITIVE,
    )
)

MESSAGES: dict[type[m.Message], st.SearchStrategy[Any]] = {
    m.Hello: st.builds(m.Hello, run=RUNS, info=PEER_INFOS, incarnation=COUNTS, head=st.none() | HEADS, version=TEXT),
    m.Leave: st.builds(
        m.Leave,
        peer=PEERS,
        life=COUNTS,
        reason=TEXT,
        signature=st.binary(max_size=64),
        public_key=st.binary(max_size=64),
    ),
    m.Gossip: st.builds(m.Gossip, updates=many(MEMBERS), whole=st.booleans()),
    m.Probe: st.builds(m.Probe, seq=COUNTS, updates=many(MEMBERS)),
    m.ProbeAck: st.builds(m.ProbeAck, seq=COUNTS, updates=many(MEMBERS)),
    m.ProbeFor: st.builds(m.ProbeFor, seq=COUNTS, target=PEERS),
    m.ProbeReport: st.builds(m.ProbeReport, seq=COUNTS, target=PEERS, life=COUNTS, heard=st.booleans()),
    m.PlanSaid: st.builds(m.PlanSaid, plan=PLANS),
    m.Grant: st.builds(m.Grant, lineage=COUNTS, round=COUNTS, serial=COUNTS, positions=IDS, done=st.booleans()),
    m.Revoke: st.builds(m.Revoke, lineage=COUNTS, round=COUNTS, positions=IDS),
    m.Progress: st.builds(m.Progress, lineage=COUNTS, round=COUNTS, done=IDS, pending=IDS, microbatch_s=POSITIVE),
    m.Close: st.builds(m.Close, fence=FENCES, dead=many(VOTERS), reform=many(VOTERS)),
    m.Filled: st.builds(
        m.Filled,
        fence=FENCES,
        life=COUNTS,
        accepted=st.none() | st.tuples(BALLOTS, RECORDS),
        bundles=many(BUNDLES),
        held=many(PARTS_DONE),
        base=BASE_DIGESTS,
        refused=IDS,
        expects_more=st.booleans(),
        receives=st.booleans(),
    ),
    m.Begin: _BEGINS,
    m.Have: st.builds(m.Have, fence=FENCES, begin_digest=DIGESTS, parts=many(PARTS_DONE)),
    m.Trouble: st.builds(
        m.Trouble,
        fence=FENCES,
        begin_digest=DIGESTS,
        part=COUNTS,
        bundles=many(SMALL),
        reducer=st.booleans(),
        reason=TEXT,
    ),
    m.Propose: st.builds(m.Propose, fence=FENCES, record=RECORDS),
    m.Accept: st.builds(m.Accept, fence=FENCES, life=COUNTS, record_digest=DIGESTS),
    m.Commit: st.builds(m.Commit, record=RECORDS, accepted=many(VOTERS), holders=many(PEERS)),
    m.HeadSaid: st.builds(m.HeadSaid, head=HEADS),
    m.RecordAsk: st.builds(
        lambda stage, lineage, pair: m.RecordAsk(stage, lineage, *pair), COUNTS, COUNTS, ordered(ROUNDS)
    ),
    m.SnapshotAsk: st.builds(m.SnapshotAsk, stage=COUNTS, round=ROUNDS),
    m.SnapshotOffer: st.builds(
        m.SnapshotOffer,
        stage=COUNTS,
        asked_round=ROUNDS,
        info=st.none() | SNAPSHOT_INFOS,
        reason=TEXT,
        head=st.none() | HEADS,
    ),
    m.SnapshotRelease: st.builds(m.SnapshotRelease, key=DIGESTS),
    m.Heal: st.builds(m.Heal, fence=FENCES, slices=many(SMALL), healthy=many(PEERS)),
}


def messages() -> st.SearchStrategy[m.Message]:
    """Any message."""
    return st.one_of(*MESSAGES.values())


def message_classes() -> list[type[m.Message]]:
    """Every message class of the core, in the order of its module."""
    found = [c for c in vars(m).values() if isinstance(c, type) and issubclass(c, m.Message)]
    return [c for c in found if c is not m.Message]


def exact(value: Any) -> Any:
    """Everything that makes up a value, for comparison without tolerance."""
    if isinstance(value, float):
        return ("float", value.hex())
    if isinstance(value, Enum):
        return (type(value).__name__, value.value)
    if dataclasses.is_dataclass(value):
        rows = [(f.name, exact(getattr(value, f.name))) for f in dataclasses.fields(value)]
        return (type(value).__name__, rows)
    if isinstance(value, tuple):
        return (type(value).__name__, [exact(item) for item in value])
    return (type(value).__name__, value)
