"""How a life ends: asked to leave, or the run is finished.

Decides when this peer says goodbye. It first contributes to the round at hand, and does not go while it holds the only
copy of the state and somebody is there to take it (each wait with its own deadline).

    LeaveAsked -> finish the round -> others hold the state? -> Leave to all -> Halt
    last round applied -> wait until all present hold it -> Leave to all -> Halt
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from p2ptrain.core.events import Halt, LeaveAsked
from p2ptrain.core.messages import HeadSaid, Leave, RecordAsk
from p2ptrain.core.types import PeerId, short

if TYPE_CHECKING:
    from p2ptrain.core.node import Node

FINISH_S = 20.0
HAND_OVER_S = 60.0


class Leaving:
    """``asked``: why, or "" while nobody asked. ``done``: the run's last round is applied here."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.asked = ""
        self.until = math.inf
        self.hand_over_until = math.inf
        self.round_over = False
        self.ask_at = -math.inf
        self.asked_round = -1
        self.done = False

    @property
    def at_once(self) -> bool:
        """Asked to leave, own round over, others there to go on: do not start to lead any more."""
        return bool(self.asked) and self.round_over and any(peer != self.node.desk.me.peer for peer in self._others())

    def on_asked(self, event: LeaveAsked) -> None:
        if self.asked:
            return
        desk, stage = self.node.desk, self.node.stage
        self.asked = event.reason or "asked to leave"
        self.until = desk.now + FINISH_S
        self.hand_over_until = desk.now + HAND_OVER_S
        desk.say(
            "info", "leaving", f"leaves ({self.asked}): finishes round {stage.round} first, at most {FINISH_S:.0f} s"
        )
        if stage.tip is None or (not stage.bundles and not self.node.filling.expects_more and stage.begin is None):
            self.round_over = True

    def round_applied(self) -> None:
        """A record was applied."""
        if self.asked:
            self.round_over = True

    def look(self) -> None:
        """After every event: time to go?"""
        node, now = self.node, self.node.desk.now
        if node.stage.finished and not self.done:
            self.done = True
            self.until = now + FINISH_S
            assert node.stage.head is not None
            node.desk.broadcast(self._others(), HeadSaid(node.stage.head))
            round = node.stage.head.round
            node.desk.say("info", "finished", f"round {round} is the last: waits for the others to hold it", round)
        if self.done and (now >= self.until or self._all_hold_last()):
            self._goodbye("the run is finished")
        elif self.asked and (self.round_over or now >= self.until):
            if now < self.hand_over_until and not self._is_kept():
                self._ask_who_holds()
                return
            self._goodbye(self.asked)

    def tick(self) -> None:
        self.look()

    def deadline(self) -> float:
        if self.asked and self.round_over:
            return min(self.hand_over_until, max(self.ask_at, self.node.desk.now))
        return self.until

    # --- helpers ---------------------------------------------------------------------------------------------------

    def _others(self) -> list[PeerId]:
        me = self.node.desk.me.peer
        return [peer for peer in self.node.stage.present() if peer != me]

    def _all_hold_last(self) -> bool:
        heads, rounds = self.node.catchup.heads, self.node.run.rounds
        roster = self.node.roster
        waiting = [p for p in self._others() if roster.linked(p)]
        return all(peer in heads and heads[peer].round >= rounds for peer in waiting)

    def _is_kept(self) -> bool:
        """Whether enough others hold what we hold (R11): ``replication`` of them, or all that take part."""
        node = self.node
        head, others = node.stage.head, self._others()
        if head is None or not others:
            return True
        heads = node.catchup.heads
        holders = [
            p for p in others if p in heads and heads[p].lineage >= head.lineage and heads[p].round >= head.round
        ]
        members = [p for p in others if (m := node.roster.get(p)) is not None and m.info.joined_round >= 0]
        return len(holders) >= max(1, min(node.run.replication, len(members)))

    def _ask_who_holds(self) -> None:
        """An answer with our last record shows that it is applied there; its parts can be fetched here meanwhile."""
        node = self.node
        head = node.stage.head
        if head is None or (node.desk.now < self.ask_at and self.asked_round == head.round):
            return
        self.asked_round = head.round
        self.ask_at = node.desk.now + node.run.knobs.repeat_s
        ask = RecordAsk(node.stage.stage.index, head.lineage, head.round, head.round)
        node.desk.broadcast(self._others(), ask)

    def _goodbye(self, reason: str) -> None:
        node = self.node
        if any(isinstance(effect, Halt) for effect in node.desk.effects):
            return
        me = node.desk.me
        if node.stage.tip is not None and not self._others():
            node.desk.say("warning", "last-copy", "nobody else holds the state: it goes with this process")
        node.desk.broadcast(self._others(), Leave(me.peer, me.life, reason))
        node.desk.say("info", "goodbye", f"{short(me.peer)} leaves: {reason}")
        node.desk.emit(Halt("", reason))
