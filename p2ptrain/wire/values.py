"""Translations of the values in ``core/types.py`` that travel: fields in their classes' order, limits beside them."""

from __future__ import annotations

import math
from typing import Any

from p2ptrain.core.types import (
    Assignment,
    Ballot,
    BaseDigest,
    Bundle,
    Fence,
    Head,
    Member,
    PartDone,
    PartOrder,
    PeerInfo,
    Plan,
    Record,
    SnapshotInfo,
    Span,
    Stage,
    Status,
    Voter,
)
from p2ptrain.wire import limits
from p2ptrain.wire.fields import (
    Address,
    Choice,
    DigestBytes,
    Ids,
    PeerName,
    Raw,
    Real,
    RunName,
    SquaredNorm,
    Text,
    Whole,
)
from p2ptrain.wire.runs import Refused
from p2ptrain.wire.shapes import Many, Maybe, Shape
from p2ptrain.wire.v1 import values_pb2 as pb


def in_order(value: Any) -> None:
    """``first`` to ``last``, both included."""
    if value.first > value.last:
        raise Refused("the range is inverted", (value.first, value.last))


def _values_in_order(value: PartDone | PartOrder) -> None:
    if value.start > value.stop:
        raise Refused("the range is inverted", (value.start, value.stop))


def _owned(ballot: Ballot) -> None:
    if (ballot.number < 0) != (ballot.peer == ""):
        raise Refused("only the ballot below all others has no owner", tuple(ballot))


def _chunks_add_up(info: SnapshotInfo) -> None:
    if len(info.chunk_digests) != -(-info.total_bytes // info.chunk_bytes):
        told = f"{len(info.chunk_digests)} chunks of {info.chunk_bytes} bytes"
        raise Refused(f"{told} do not make {info.total_bytes} bytes")


ROUND = Whole(-1)  # -1: before the first, or none
PEER = PeerName()
VOTER = Shape(Voter, pb.Voter, peer=PEER, life=Whole())
VOTERS = Many(VOTER, limits.MAX_VOTERS)
PEERS = Many(PEER, limits.MAX_MEMBERS)
SLICES = Ids(limits.MAX_SLICES)

BALLOT = Shape(Ballot, pb.Ballot, check=_owned, number=Whole(-1), peer=PeerName(may_be_empty=True), life=Whole())

FENCE = Shape(
    Fence,
    pb.Fence,
    run=RunName(),
    lineage=Whole(),
    stage=Whole(),
    round=Whole(),
    parent=DigestBytes(),
    ballot=BALLOT,
)

STAGE = Shape(Stage, pb.Stage, check=in_order, index=Whole(), first=Whole(), last=Whole(), size=Whole())
SPAN = Shape(Span, pb.Span, check=in_order, first=Whole(), last=Whole())

PEER_INFO = Shape(
    PeerInfo,
    pb.PeerInfo,
    peer=PEER,
    life=Whole(),
    addresses=Many(Address(), limits.MAX_ADDRESSES),
    region=Text(limits.MAX_NAME_CHARS),
    party=Text(limits.MAX_NAME_CHARS),
    memory_bytes=Whole(),
    microbatch_s=Real(),
    uplink_mbps=Real(),
    downlink_mbps=Real(),
    joined_round=ROUND,
    threads=Whole(),
    version=Text(limits.MAX_NAME_CHARS),
    signature=Raw(limits.MAX_SIGNATURE_BYTES),
    public_key=Raw(limits.MAX_PUBLIC_KEY_BYTES),
)

MEMBER = Shape(
    Member,
    pb.Member,
    info=PEER_INFO,
    incarnation=Whole(),
    status=Choice(Status, pb.Status, "STATUS"),
    since=Real(-math.inf),
)
UPDATES = Many(MEMBER, limits.MAX_UPDATES)

BUNDLE = Shape(Bundle, pb.Bundle, peer=PEER, life=Whole(), index=Whole(), ids=Ids(), loss_sum=Real(-math.inf))
BUNDLES = Many(BUNDLE, limits.MAX_BUNDLES)

PART_DONE = Shape(
    PartDone,
    pb.PartDone,
    check=_values_in_order,
    index=Whole(),
    start=Whole(),
    stop=Whole(),
    digest=DigestBytes(may_be_empty=False),
    counted=Ids(),
    norm_sq=SquaredNorm(),
    nbytes=Whole(),
)
PARTS_DONE = Many(PART_DONE, limits.MAX_PARTS)

RECORD = Shape(
    Record,
    pb.Record,
    lineage=Whole(),
    stage=Whole(),
    round=ROUND,
    parent=DigestBytes(),
    base_digest=DigestBytes(),
    parts=PARTS_DONE,
    spent_ids=Ids(),
    norm_sq=SquaredNorm(),
    next_scale=Real(),
    voters_next=VOTERS,
    samples_total=Whole(),
    next_id=Whole(),
    owed_ids=Ids(),
)

BASE_DIGEST = Shape(
    BaseDigest, pb.BaseDigest, chain=DigestBytes(), slice_index=Whole(-1, limits.MAX_SLICES), slice_digest=DigestBytes()
)

PART_ORDER = Shape(
    PartOrder,
    pb.PartOrder,
    check=_values_in_order,
    index=Whole(),
    start=Whole(),
    stop=Whole(),
    reducer=PeerName(may_be_empty=True),
    bundles=Ids(limits.MAX_BUNDLES),
    fixed=Maybe(PART_DONE),
    holders=PEERS,
)
PART_ORDERS = Many(PART_ORDER, limits.MAX_PARTS)

HEAD = Shape(Head, pb.Head, lineage=Whole(), samples_total=Whole(), round=ROUND, cut=DigestBytes())

PLAN = Shape(
    Plan,
    pb.Plan,
    term=Whole(),
    coordinator=PEER,
    life=Whole(),
    epoch=Whole(),
    stages=Many(STAGE, limits.MAX_STAGES),
    assignments=Many(Shape(Assignment, pb.Assignment, peer=PEER, span=SPAN), limits.MAX_MEMBERS),
    shadows=Many(Shape(tuple, pb.Shadow, stage=Whole(), peer=PEER), limits.MAX_MEMBERS),
    groups=Many(Shape(tuple, pb.Group, stage=Whole(), members=PEERS), limits.MAX_STAGES),
)

SNAPSHOT_INFO = Shape(
    SnapshotInfo,
    pb.SnapshotInfo,
    check=_chunks_add_up,
    stage=Whole(),
    record=RECORD,
    chain=DigestBytes(),
    total_bytes=Whole(),
    chunk_bytes=Whole(1, limits.MAX_CHUNK_BYTES),
    chunk_digests=Many(DigestBytes(may_be_empty=False), limits.MAX_CHUNKS),
)

ACCEPTED = Shape(tuple, pb.Accepted, ballot=BALLOT, record=RECORD)
