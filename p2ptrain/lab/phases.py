"""Named points of the protocol and named roles, for holding a peer still exactly there.

A point is a predicate on (event, effects) of the driver's watchers; a role is a predicate on the node, evaluated in the
process itself at that very moment. Decides nothing.

    role "leader", phase "proposing": the peer that leads this round is about to send its proposal
"""

from __future__ import annotations

from collections.abc import Callable

from p2ptrain.core import events as ev
from p2ptrain.core import messages as msg
from p2ptrain.core.node import Node

Phase = Callable[[ev.Event, list[ev.Effect]], bool]


def sends(*kinds: type[msg.Message]) -> Phase:
    return lambda event, effects: any(isinstance(e, ev.Send) and isinstance(e.message, kinds) for e in effects)


def gives(kind: type[ev.Effect]) -> Phase:
    return lambda event, effects: any(isinstance(e, kind) for e in effects)


def hears(kind: type[ev.Event]) -> Phase:
    return lambda event, effects: isinstance(event, kind)


def receives(kind: type[msg.Message]) -> Phase:
    return lambda event, effects: isinstance(event, ev.Received) and isinstance(event.message, kind)


MEMBER_PHASES: dict[str, Phase] = {
    "filling": hears(ev.MicrobatchDone),
    "filled": hears(ev.BundleDone),
    "exchanging": gives(ev.Exchange),
    "reduced": hears(ev.PartHeld),
    "having": sends(msg.Have),
    "accepting": sends(msg.Accept),
    "deciding": gives(ev.Apply),
    "applied": hears(ev.Applied),
}
LEADER_PHASES: dict[str, Phase] = {
    "beginning": sends(msg.Begin),
    "proposing": sends(msg.Propose),
    "deciding for all": sends(msg.Commit),
}
SOURCE_PHASES: dict[str, Phase] = {"asked": receives(msg.SnapshotAsk), "pinned": hears(ev.SnapshotPinned)}
JOINER_PHASES: dict[str, Phase] = {
    "asking": sends(msg.SnapshotAsk),
    "pulling": gives(ev.PullChunk),
    "pulled": hears(ev.ChunkPulled),
    "loading": gives(ev.LoadState),
    "loaded": hears(ev.StateLoaded),
}
OTHER_PHASES: dict[str, Phase] = {
    "any": lambda event, effects: True,
    "healing": gives(ev.HealSlices),
    "leaving": hears(ev.LeaveAsked),
}
PHASES: dict[str, Phase] = {**MEMBER_PHASES, **LEADER_PHASES, **SOURCE_PHASES, **JOINER_PHASES, **OTHER_PHASES}
"""Points at which a peer can be held: before its effects are carried out unless ``after`` is asked for."""


def _leads(node: Node) -> bool:
    return node.succession.lead is not None


def _coordinates(node: Node) -> bool:
    return node.coordinator == node.desk.me.peer


def _reduces(node: Node) -> bool:
    begin = node.stage.begin
    return begin is None or any(order.reducer == node.desk.me.peer for order in begin.parts)


ROLES: dict[str, Callable[[Node], bool]] = {
    "": lambda node: True,
    "contributor": lambda node: not (_leads(node) or _coordinates(node) or node.me.diallable),
    "reducer": lambda node: node.me.diallable and not (_leads(node) or _coordinates(node)) and _reduces(node),
    "leader": lambda node: _leads(node) and not _coordinates(node),
    "coordinator": lambda node: _coordinates(node) and not _leads(node),
    "both": lambda node: _coordinates(node) and _leads(node) and len(_taking_part(node)) > 1,
}
"""Roles are disjoint in a swarm of three or more. ``contributor``: one that cannot be dialled, so it is only that."""


def _taking_part(node: Node) -> list[str]:
    lead = node.succession.lead
    return [voter.peer for voter in lead.answers] if lead is not None else []
