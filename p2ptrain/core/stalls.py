"""Why are we waiting? Names peers and reasons, for status and for ``StalledError`` (R14; field reports, torchft#163).

Decides only when a lack of quorum is worth an error line; nothing here changes the course of a round.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from p2ptrain.core.quorum import Electorate, write_size
from p2ptrain.core.types import PeerId, Policy, Voter, Wait, short

if TYPE_CHECKING:
    from p2ptrain.core.node import Node


class Stalls:
    """``text``: the current stall in words, "" while commits are possible."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.since: float | None = None
        self.text = ""

    def tick(self) -> None:
        missing = missing_voters(self.node)
        now = self.node.desk.now
        if not missing:
            if self.text:
                self.node.desk.say("info", "resumed", "enough voters are back: commits go on", self.node.stage.round)
            self.since, self.text = None, ""
            return
        if self.since is None:
            self.since = now
        if not self.text and now >= self.since + self.node.run.knobs.stalled_after_s:
            self.text = self._explain(missing)
            self.node.desk.say("error", "stalled", f"StalledError: {self.text}", self.node.stage.round)

    def deadline(self) -> float:
        if self.since is not None and not self.text:
            return self.since + self.node.run.knobs.stalled_after_s
        if self.text or missing_voters(self.node):
            return self.node.desk.now + self.node.run.knobs.stalled_after_s
        return math.inf

    def _explain(self, missing: list[Voter]) -> str:
        stage = self.node.stage
        names = ", ".join(f"{short(v.peer)} (life {v.life})" for v in missing)
        if stage.run.policy is Policy.MAJORITY:
            need = write_size(len(stage.voters), stage.run.replication)
            told = f"round {stage.round} needs {need} of {len(stage.voters)} voters; missing: {names}. "
            proven = sum(1 for v in stage.voters if self.node.roster.is_proven_dead(v))
            if len(missing) + proven < need:
                return told + "It goes on when they answer, or when all of them are started again with their own keys"
            return (
                told + "It goes on when they answer; if they died, so many at once, only `resume` from a snapshot helps"
            )
        return f"round {stage.round} waits for {names}. It goes on when they answer or are known to be dead"


def missing_voters(node: Node) -> list[Voter]:
    """Voters that do not answer, if without them no quorum can be had; empty while commits are possible."""
    stage = node.stage
    if stage.tip is None or stage.decided is not None or stage.run.policy is Policy.ANY:
        return []
    lost = [v for v in stage.voters if v != node.desk.me and node.roster.is_dead(v)]
    if not lost:
        return []
    proven = frozenset(v for v in lost if node.roster.is_proven_dead(v))
    electorate = Electorate(stage.run.policy, stage.voters, stage.run.replication, proven)
    return [] if electorate.possible(lost) else [v for v in lost if v not in proven]


def waits_of(node: Node) -> list[Wait]:
    """Every current wait of this peer: what for, on whom, since when, until when."""
    stage, catchup, knobs = node.stage, node.catchup, node.run.knobs
    waits: list[Wait] = []
    if catchup.phase != "current":
        on: tuple[PeerId, ...] = tuple(sorted(catchup.asked))
        if catchup.pull is not None:
            on = tuple(sorted(catchup.pull.progress()[2]))
        waits.append(Wait(f"state ({catchup.phase})", on, catchup.since, catchup.deadline(), catchup.reason))
    if node.stalls.text:
        on = tuple(v.peer for v in missing_voters(node))
        waits.append(Wait("a quorum", on, node.stalls.since or node.desk.now, math.inf, node.stalls.text))
    if stage.tip is None:
        return waits
    owner = stage.promised.peer
    if stage.applying:
        waits.append(Wait("the trainer to apply", (), stage.progress_at, math.inf, f"round {stage.round}"))
    elif stage.decided is not None:
        on = stage.fetching.peers()
        waits.append(Wait("parts of a decided round", on, stage.progress_at, math.inf, f"round {stage.round}"))
    elif stage.begin is not None:
        until = stage.progress_at + knobs.exchange_max_s
        waits.append(
            Wait(
                "the exchange",
                tuple(sorted({o.reducer for o in stage.begin.parts if o.reducer})),
                stage.progress_at,
                until,
            )
        )
    elif stage.filled_at is not None:
        lead = node.succession.lead
        on = tuple(lead.awaited()) if lead is not None else (owner,)
        waits.append(
            Wait("the exchange to begin", on, stage.filled_at, node.succession.lead_at, f"round {stage.round}")
        )
    return waits
