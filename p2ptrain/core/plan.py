"""Who serves what. In the whole-span step: every present peer serves all stages, one group per stage.

Decides assignments and says why; it does not decide voters (records do), rounds or leases. Same inputs, same plan on
every peer; unchanged inputs give back the very same plan, so that nothing moves for nothing.

    members a, b, c alive  ->  plan 0: a, b, c serve stages 0 to 0
    c dies                 ->  plan 1: a, b              ("c is gone")
    nothing changes        ->  plan 1 again              ("nothing changed")
"""

from __future__ import annotations

from collections.abc import Iterable

from p2ptrain.core.groups import group_of
from p2ptrain.core.stages import whole_span
from p2ptrain.core.types import Assignment, Member, PeerId, PeerInfo, Plan, RunSpec, short


def plan(
    run: RunSpec, members: Iterable[Member], previous: Plan | None, coordinator: PeerInfo
) -> tuple[Plan | None, str]:
    """The plan by ``coordinator``, and the reason in words. None if there is nobody, or nothing, to plan for.

    ``term`` grows when another life coordinates, ``epoch`` with every change within a term.
    """
    present = sorted(member.info.peer for member in members if member.present)
    if not run.stages:
        return None, "the run has no stages"
    if not present:
        return None, "no member is present"
    span = whole_span(run.stages)
    assignments = tuple(Assignment(peer, span) for peer in present)
    reason = _why(run, assignments, previous)
    if previous is not None and not reason:
        return previous, "nothing changed"
    same = previous is not None and (previous.coordinator, previous.life) == (coordinator.peer, coordinator.life)
    term = previous.term + (0 if same else 1) if previous else 0
    epoch = previous.epoch + 1 if previous and same else 0
    spans = [(assignment.peer, assignment.span) for assignment in assignments]
    groups = tuple((stage.index, group_of(stage.index, spans)) for stage in run.stages)
    made = Plan(term, coordinator.peer, coordinator.life, epoch, run.stages, assignments, (), groups)
    return made, reason


def _why(run: RunSpec, assignments: tuple[Assignment, ...], previous: Plan | None) -> str:
    """What differs from the plan before, "" if nothing does."""
    if previous is None:
        return f"first plan, {_people([a.peer for a in assignments])} with all stages"
    if previous.stages != run.stages:
        return "the stages are others"
    now, before = {a.peer: a.span for a in assignments}, {a.peer: a.span for a in previous.assignments}
    told = [
        f"{_people(peers)} {what}"
        for what, peers in (
            ("joined", sorted(now.keys() - before.keys())),
            ("gone", sorted(before.keys() - now.keys())),
            ("moved", sorted(peer for peer in now.keys() & before.keys() if now[peer] != before[peer])),
        )
        if peers
    ]
    return ", ".join(told)


def _people(peers: list[PeerId]) -> str:
    named = ", ".join(short(peer) for peer in peers[:4])
    return named if len(peers) <= 4 else f"{named} and {len(peers) - 4} more"
