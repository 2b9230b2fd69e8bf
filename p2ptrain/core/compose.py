"""What a leader puts into ``Begin`` and into a record: pure functions over what members have reported.

Decides which bundles count (C2), which ranges of the flat buffer are already averaged and which need a reducer (R4),
and the record's contents (C3, C4, R10). Does not decide when: that is ``leading``.

    held by somebody alive:  [0..300)            -> fixed by digest
    the rest:                        [300..1000) -> split among reducers by uplink
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from p2ptrain.core.groups import split_parts
from p2ptrain.core.ledger import after_round
from p2ptrain.core.messages import Begin, Filled
from p2ptrain.core.seniority import seniority_key
from p2ptrain.core.types import (
    BaseDigest,
    Bundle,
    Digest,
    Member,
    PartDone,
    PartOrder,
    PeerId,
    Record,
    RunSpec,
    Stage,
    Voter,
    hash_bytes,
)

PART_ALIGN = 4096  # parts begin on multiples of this many values: whole blocks of every codec


def choose_bundles(bundles: Iterable[Bundle]) -> tuple[Bundle, ...]:
    """Pairwise disjoint bundles, heaviest first, ties by key; sorted by key. Same inputs, same choice."""
    taken: set[int] = set()
    chosen: list[Bundle] = []
    for bundle in sorted(bundles, key=lambda b: (-b.weight, b.key)):
        if bundle.ids and taken.isdisjoint(bundle.ids):
            chosen.append(bundle)
            taken.update(bundle.ids)
    return tuple(sorted(chosen, key=lambda b: b.key))


def covered_ids(bundles: Iterable[Bundle]) -> set[int]:
    return {sample for bundle in bundles for sample in bundle.ids}


def fixed_parts(
    size: int, held: Mapping[Digest, tuple[PartDone, frozenset[PeerId]]], whole: frozenset[int] | None
) -> list[tuple[PartDone, tuple[PeerId, ...]]]:
    """Averaged parts that stand: not overlapping, within [0, size), held by somebody alive (``held`` lists only those).

    ``whole`` is the round's id set in exact mode: there a part stands only if it counts all of it (C3). Prefers parts
    with more counted ids, then lower start, then digest.
    """
    chosen: list[tuple[PartDone, tuple[PeerId, ...]]] = []
    order = sorted(held.values(), key=lambda item: (-len(item[0].counted), item[0].start, item[0].digest))
    for part, holders in order:
        if not holders or (whole is not None and frozenset(part.counted) != whole):
            continue
        if all(part.stop <= other.start or part.start >= other.stop for other, _ in chosen):
            chosen.append((part, tuple(sorted(holders))))
    return sorted(chosen, key=lambda item: item[0].start)


def order_parts(
    size: int,
    fixed: Sequence[tuple[PartDone, tuple[PeerId, ...]]],
    reducers: Sequence[tuple[PeerId, float]],
    n_bundles: int,
) -> tuple[PartOrder, ...]:
    """Tile [0, size): fixed parts by digest, every gap split among ``reducers`` in proportion to their uplinks.

    Parts are numbered by their start. Every reduced part takes all ``n_bundles`` bundles of the Begin.
    """
    takes = tuple(range(n_bundles))
    ranges: list[tuple[int, int, PeerId, PartDone | None, tuple[PeerId, ...]]] = []
    position = 0
    for part, holders in [*fixed, (None, ())]:
        stop = size if part is None else part.start
        if stop > position:
            for start, end, peer in split_parts(stop - position, list(reducers), PART_ALIGN):
                ranges.append((position + start, position + end, peer, None, ()))
        if part is not None:
            ranges.append((part.start, part.stop, "", part, holders))
            position = part.stop
    orders = []
    for index, (start, stop, peer, done, holders) in enumerate(ranges):
        orders.append(
            PartOrder(index, start, stop, fixed=done, holders=holders)
            if done is not None
            else PartOrder(index, start, stop, reducer=peer, bundles=takes)
        )
    return tuple(orders)


def genesis(run: RunSpec, founder: Voter) -> Record:
    """The record of round 0: the manifest's initial state, the founder its only voter."""
    return Record(
        lineage=0,
        stage=run.stages[0].index,
        round=0,
        parent=hash_bytes(b"genesis", run.run.encode()),
        base_digest=b"",
        parts=(),
        spent_ids=(),
        norm_sq=0 if run.exact else 0.0,
        next_scale=run.first_scale,
        voters_next=(founder,),
        samples_total=0,
        next_id=0,
    )


def compose_record(
    run: RunSpec,
    tip: Record,
    parent: Digest,
    chain: Digest,
    round_ids: tuple[int, ...],
    parts: Sequence[PartDone],
    refused: Iterable[int],
    voters_next: tuple[Voter, ...],
    stage: int,
) -> Record:
    """The record of the round after ``tip``, from its averaged parts (one per range, in order of start)."""
    ordered = tuple(sorted(parts, key=lambda part: part.start))
    counted = {sample for part in ordered for sample in part.counted}
    spent = tuple(sample for sample in round_ids if sample in counted or sample in set(refused))
    next_id, owed = after_round(round_ids, spent, tip.next_id, tip.owed_ids, run.microbatches)
    norm_sq: float | int = 0 if run.exact else 0.0
    for part in ordered:
        norm_sq += part.norm_sq
    return Record(
        lineage=tip.lineage,
        stage=stage,
        round=tip.round + 1,
        parent=parent,
        base_digest=chain,
        parts=ordered,
        spent_ids=spent,
        norm_sq=norm_sq,
        next_scale=tip.next_scale,
        voters_next=voters_next,
        samples_total=tip.samples_total + len(counted) * run.samples_per_microbatch,
        next_id=next_id,
        owed_ids=owed,
    )


def voters_after(
    run: RunSpec,
    voters: Sequence[Voter],
    dropped: frozenset[Voter],
    proven: Iterable[Voter],
    members: Mapping[PeerId, Member],
) -> tuple[Voter, ...]:
    """R10: V - dead + members that proved this round's base, at most ``voters_max``.

    Chosen by seniority, spread over regions and parties. Ordered by seniority, those that can be dialled first, rotated
    by one so that the round's leader and the coordinator (the most senior) are two peers wherever there are two.
    """
    keep = {voter for voter in voters if voter not in dropped} | {v for v in proven if v not in dropped}
    ranked = sorted(keep, key=lambda voter: _rank(voter, members))
    chosen = _spread(ranked, members, run.voters_max)
    chosen.sort(key=lambda voter: (not _diallable(voter, members), _rank(voter, members)))
    if len(chosen) > 1:
        chosen = chosen[1:] + chosen[:1]
    dialled = next((i for i, voter in enumerate(chosen) if _diallable(voter, members)), 0)
    return tuple(chosen[dialled:] + chosen[:dialled])


def proven_voters(filled: Mapping[Voter, Filled], base: BaseDigest) -> list[Voter]:
    """Those whose ``Filled`` shows the same base as the leader's."""
    return [voter for voter, answer in filled.items() if answer.receives and same_base(answer.base, base)]


def same_base(one: BaseDigest, other: BaseDigest) -> bool:
    """Equal chains, and equal slices where both have hashed the same one."""
    if one.chain != other.chain or not one.chain:
        return False
    unhashed = not one.slice_digest or not other.slice_digest or one.slice_index != other.slice_index
    return unhashed or one.slice_digest == other.slice_digest


def is_sound_begin(begin: Begin, size: int) -> bool:
    """Parts numbered by start that tile [0, size), each either fixed or with a reducer and known bundles."""
    known = range(len(begin.bundles))
    for index, order in enumerate(begin.parts):
        sent = not order.fixed and order.reducer and all(position in known for position in order.bundles)
        kept = order.fixed is not None and (order.fixed.start, order.fixed.stop) == (order.start, order.stop)
        if order.index != index or not (sent or kept):
            return False
    return _tiles([(order.start, order.stop) for order in begin.parts], size)


def is_sound_record(record: Record, stage: Stage) -> bool:
    """Of this stage, with parts in order that tile it."""
    return record.stage == stage.index and _tiles([(part.start, part.stop) for part in record.parts], stage.size)


def loss_of(begin: Begin) -> float:
    """Mean training loss per microbatch over the bundles of this exchange; NaN if there are none."""
    weight = sum(bundle.weight for bundle in begin.bundles)
    return sum(bundle.loss_sum for bundle in begin.bundles) / weight if weight else float("nan")


def _tiles(ranges: list[tuple[int, int]], size: int) -> bool:
    edges = [0, *(stop for _, stop in ranges)]
    return edges[-1] == size and all(start == edge < stop for (start, stop), edge in zip(ranges, edges, strict=False))


def _rank(voter: Voter, members: Mapping[PeerId, Member]) -> tuple[object, ...]:
    member = members.get(voter.peer)
    if member is None or member.info.life != voter.life:
        return (float("inf"), voter.life, voter.peer)
    return tuple(seniority_key(member.info))


def _diallable(voter: Voter, members: Mapping[PeerId, Member]) -> bool:
    member = members.get(voter.peer)
    return member is None or member.info.diallable


def _spread(ranked: list[Voter], members: Mapping[PeerId, Member], limit: int) -> list[Voter]:
    """The most senior first, then round-robin over (region, party) places, seniority within each."""
    if len(ranked) <= limit:
        return list(ranked)
    places: dict[tuple[str, str], list[Voter]] = {}
    for voter in ranked:
        member = members.get(voter.peer)
        place = (member.info.region, member.info.party) if member else ("", "")
        places.setdefault(place, []).append(voter)
    chosen: list[Voter] = []
    queues = list(places.values())
    while len(chosen) < limit:
        for queue in queues:
            if queue and len(chosen) < limit:
                chosen.append(queue.pop(0))
    return chosen
