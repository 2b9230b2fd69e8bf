"""Translations of all messages in ``core/messages.py``: one row each, named as in the envelope's ``oneof``."""

from __future__ import annotations

from p2ptrain.core import messages as core
from p2ptrain.wire import limits
from p2ptrain.wire.fields import DigestBytes, Flag, Ids, Raw, Real, RunName, Text, Whole
from p2ptrain.wire.runs import Refused
from p2ptrain.wire.shapes import Many, Maybe, Shape
from p2ptrain.wire.v1 import messages_pb2 as pb
from p2ptrain.wire.values import (
    ACCEPTED,
    BASE_DIGEST,
    BUNDLES,
    FENCE,
    HEAD,
    PART_ORDERS,
    PARTS_DONE,
    PEER,
    PEER_INFO,
    PEERS,
    PLAN,
    RECORD,
    ROUND,
    SLICES,
    SNAPSHOT_INFO,
    UPDATES,
    VOTER,
    VOTERS,
    in_order,
)

_SIGNATURE = Raw(limits.MAX_SIGNATURE_BYTES)
_PUBLIC_KEY = Raw(limits.MAX_PUBLIC_KEY_BYTES)
_VERSION = Text(limits.MAX_NAME_CHARS)
_TOLD = Text(limits.MAX_REASON_CHARS, clip=True)
_REQUIRED = DigestBytes(may_be_empty=False)
_POSITIONS = Ids(limits.MAX_BUNDLES)
_MANY_VOTERS = Many(VOTER, limits.MAX_MEMBERS)


def _positions_exist(begin: core.Begin) -> None:
    for part in begin.parts:
        if part.bundles and max(part.bundles) >= len(begin.bundles):
            raise Refused(f"part {part.index} takes bundle {max(part.bundles)} of {len(begin.bundles)}")


TRANSLATIONS: dict[str, Shape] = {
    "hello": Shape(
        core.Hello, pb.Hello, run=RunName(), info=PEER_INFO, incarnation=Whole(), head=Maybe(HEAD), version=_VERSION
    ),
    "leave": Shape(
        core.Leave,
        pb.Leave,
        peer=PEER,
        life=Whole(),
        reason=Text(limits.MAX_REASON_CHARS),  # signed: never clipped
        signature=_SIGNATURE,
        public_key=_PUBLIC_KEY,
    ),
    "gossip": Shape(core.Gossip, pb.Gossip, updates=UPDATES, whole=Flag()),
    "probe": Shape(core.Probe, pb.Probe, seq=Whole(), updates=UPDATES),
    "probe_ack": Shape(core.ProbeAck, pb.ProbeAck, seq=Whole(), updates=UPDATES),
    "probe_for": Shape(core.ProbeFor, pb.ProbeFor, seq=Whole(), target=PEER),
    "probe_report": Shape(core.ProbeReport, pb.ProbeReport, seq=Whole(), target=PEER, life=Whole(), heard=Flag()),
    "plan_said": Shape(core.PlanSaid, pb.PlanSaid, plan=PLAN),
    # leases
    "grant": Shape(core.Grant, pb.Grant, lineage=Whole(), round=Whole(), serial=Whole(), positions=Ids(), done=Flag()),
    "revoke": Shape(core.Revoke, pb.Revoke, lineage=Whole(), round=Whole(), positions=Ids()),
    "progress": Shape(
        core.Progress, pb.Progress, lineage=Whole(), round=Whole(), done=Ids(), pending=Ids(), microbatch_s=Real()
    ),
    # the round
    "close": Shape(core.Close, pb.Close, fence=FENCE, dead=VOTERS, reform=VOTERS),
    "filled": Shape(
        core.Filled,
        pb.Filled,
        fence=FENCE,
        life=Whole(),
        accepted=Maybe(ACCEPTED),
        bundles=BUNDLES,
        held=PARTS_DONE,
        base=BASE_DIGEST,
        refused=Ids(),
        expects_more=Flag(),
        receives=Flag(),
    ),
    "begin": Shape(
        core.Begin,
        pb.Begin,
        check=_positions_exist,
        fence=FENCE,
        attempt=Whole(),
        members=_MANY_VOTERS,
        bundles=BUNDLES,
        parts=PART_ORDERS,
        scale=Real(),
    ),
    "have": Shape(core.Have, pb.Have, fence=FENCE, begin_digest=_REQUIRED, parts=PARTS_DONE),
    "trouble": Shape(
        core.Trouble,
        pb.Trouble,
        fence=FENCE,
        begin_digest=_REQUIRED,
        part=Whole(),
        bundles=_POSITIONS,
        reducer=Flag(),
        reason=_TOLD,
    ),
    "propose": Shape(core.Propose, pb.Propose, fence=FENCE, record=RECORD),
    "accept": Shape(core.Accept, pb.Accept, fence=FENCE, life=Whole(), record_digest=_REQUIRED),
    "commit": Shape(core.Commit, pb.Commit, record=RECORD, accepted=_MANY_VOTERS, holders=PEERS),
    # heads, records, snapshots
    "head_said": Shape(core.HeadSaid, pb.HeadSaid, head=HEAD),
    "record_ask": Shape(
        core.RecordAsk, pb.RecordAsk, check=in_order, stage=Whole(), lineage=Whole(), first=ROUND, last=ROUND
    ),
    "snapshot_ask": Shape(core.SnapshotAsk, pb.SnapshotAsk, stage=Whole(), round=ROUND),
    "snapshot_offer": Shape(
        core.SnapshotOffer,
        pb.SnapshotOffer,
        stage=Whole(),
        asked_round=ROUND,
        info=Maybe(SNAPSHOT_INFO),
        reason=_TOLD,
        head=Maybe(HEAD),
    ),
    "snapshot_release": Shape(core.SnapshotRelease, pb.SnapshotRelease, key=_REQUIRED),
    "heal": Shape(core.Heal, pb.Heal, fence=FENCE, slices=SLICES, healthy=PEERS),
}
