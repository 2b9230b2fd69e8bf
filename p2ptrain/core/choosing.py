"""A leader's choices among what members have answered: pure functions, and what it knows from earlier rounds.

Decides which bundles and refusals count, who computes what is missing, who reduces, and which averaged part is the one
that was ordered. Does not decide when (``leading``), nor how parts tile or what a record holds (``compose``).

    missing 7 8 9, a hangs, b refused 8, c  ->  takers: b 7 9, c 8
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from p2ptrain.core.deadlines import Arrivals
from p2ptrain.core.messages import Begin, Filled
from p2ptrain.core.once import Once
from p2ptrain.core.types import Bundle, Digest, Member, PartDone, PartOrder, PeerId, Status, Voter


@dataclass
class Outlook:
    """What a leader knows beyond its ballot: the roster, and what it has seen in earlier rounds.

    ``is_dead``: one's own verdict about a life. ``arrivals``: seconds from full coverage to the last answer waited for.
    ``fills``: seconds from the ballot to full coverage. ``slow``: voters that were not there in time the last time.
    ``waited``: followers a round or two behind, and the round that waited for them.
    """

    members: Callable[[], Mapping[PeerId, Member]]
    is_dead: Callable[[Voter], bool]
    arrivals: Arrivals
    fills: Arrivals
    slow: set[Voter] = field(default_factory=set)
    waited: dict[Voter, int] = field(default_factory=dict)


WAIT_AGAIN_ROUNDS = 32


def awaited(
    answers: Mapping[Voter, Filled],
    standing: Collection[Voter],
    outlook: Outlook,
    trailing: Collection[Voter],
    round: int,
) -> list[PeerId]:
    """Who ought to answer before the exchange of ``round`` begins.

    Voters and members that take part; and once in a while a follower (``trailing``): with rounds as quick as its way
    to us it would for ever hear of each one too late to take part in it.
    """
    slow = outlook.slow
    found = {v.peer for v in standing if v not in answers and v not in slow and not outlook.is_dead(v)}
    for peer, member in outlook.members().items():
        if member.status is Status.ALIVE and 0 <= member.info.joined_round < round:
            answer = answers.get(member.info.voter)
            if (answer is None and member.info.voter not in slow) or (answer is not None and answer.expects_more):
                found.add(peer)
    for voter in trailing:
        again = outlook.waited.get(voter, -WAIT_AGAIN_ROUNDS) <= round - WAIT_AGAIN_ROUNDS
        if voter not in answers and not outlook.is_dead(voter) and (again or outlook.waited[voter] == round):
            outlook.waited[voter] = round
            found.add(voter.peer)
    return sorted(found)


def usable_bundles(answers: Mapping[Voter, Filled], excluded: Collection[tuple[PeerId, int, int]]) -> list[Bundle]:
    """Bundles of those who report them, without those lost or refused (``excluded``, by key)."""
    return [
        bundle
        for voter, answer in answers.items()
        for bundle in answer.bundles
        if bundle.key not in excluded and (bundle.peer, bundle.life) == voter
    ]


def refused_ids(answers: Mapping[Voter, Filled], exact: bool) -> set[int]:
    """Ids whose gradient is not finite. In exact mode two must say so (where there are two): one may be faulty."""
    said = Counter(sample for answer in answers.values() for sample in set(answer.refused))
    enough = min(2, len(answers)) if exact else 1
    return {sample for sample, times in said.items() if times >= enough}


def takers(
    missing: list[int], answers: Mapping[Voter, Filled], busy: Collection[Voter], failed: Collection[PeerId]
) -> dict[PeerId, list[int]]:
    """Who computes what is missing: not who is busy, could not deliver, or refused the very id, if others can."""
    able = sorted(answers)
    free = [v for v in able if v not in busy]
    good = [v for v in free if v.peer not in failed] or free or able
    shares: dict[PeerId, list[int]] = {}
    for n, sample in enumerate(missing):
        willing = [v for v in good if sample not in answers[v].refused] or good
        if willing:
            shares.setdefault(willing[n % len(willing)].peer, []).append(sample)
    return shares


def reducers(
    members: tuple[Voter, ...], roster: Mapping[PeerId, Member], shunned: Collection[PeerId]
) -> list[tuple[PeerId, float]]:
    """Members that average parts, with their weights: those that can be dialled, answer, and were reached so far.

    Weights are uplinks in Mbit/s if all are known, else equal.
    """
    able = [v.peer for v in members if v.peer in roster and roster[v.peer].info.diallable]
    reached = [p for p in able if p not in shunned]
    quick = [p for p in reached if roster[p].status is not Status.BUSY]
    good = quick or reached or able or [v.peer for v in members]
    uplinks = {p: roster[p].info.uplink_mbps if p in roster else 0.0 for p in good}
    known = all(uplink > 0 for uplink in uplinks.values())
    return [(p, uplinks[p] if known else 1.0) for p in good]


def averaged_part(
    order: PartOrder, begin: Begin, holders: Mapping[Digest, Collection[PeerId]], parts: Mapping[Digest, PartDone]
) -> PartDone | None:
    """The averaged part of this range as ``begin`` ordered it, if anybody holds it."""
    ordered = ids_ordered(order, begin)
    for digest in sorted(holders):
        part = parts[digest]
        if not holders[digest] or (part.start, part.stop) != (order.start, order.stop):
            continue
        if order.fixed.digest == digest if order.fixed else ids_counted(part) == ordered:
            return part
    return None


def _ids_ordered(order: PartOrder, begin: Begin) -> frozenset[int]:
    return frozenset(i for position in order.bundles for i in begin.bundles[position].ids)


def _ids_counted(part: PartDone) -> frozenset[int]:
    return frozenset(part.counted)


ids_ordered = Once(_ids_ordered)
"""The ids that a part is to count, as ``begin`` orders it."""

ids_counted = Once(_ids_counted)
"""The ids that an averaged part counts."""
