"""The plan as it is made and passed on. Advisory: no record, voter or lease depends on it in a whole-span run.

Decides when the acting coordinator plans anew (after the roster has been quiet for ``DEBOUNCE_S``, so that ten joiners
make one plan) and which of two plans a member believes (the later one by ``Plan.order``). What is in a plan is decided
by ``plan.plan``.

    roster changes -> DEBOUNCE_S later -> plan() -> PlanSaid to all; a newcomer gets it when its link stands
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from p2ptrain.core.desk import Desk
from p2ptrain.core.messages import PlanSaid
from p2ptrain.core.plan import plan
from p2ptrain.core.types import Member, PeerId, Plan, RunSpec

DEBOUNCE_S = 0.5
CROWD = 64
"""Beyond so many members the pause grows with their number: a plan names them all and goes to them all."""


class Planning:
    """``plan``: the latest one known, made here or heard. ``reason``: why it was made, where it was made here."""

    def __init__(self, run: RunSpec, desk: Desk, members: Callable[[], Mapping[PeerId, Member]]) -> None:
        self.run = run
        self.desk = desk
        self.members = members
        self.plan: Plan | None = None
        self.reason = ""
        self.due_at = math.inf
        self._acting = False

    def look(self, acting: bool, roster_changed: bool) -> None:
        """After every event. ``acting``: this peer is the acting coordinator."""
        if acting and (roster_changed or not self._acting or self.plan is None):
            self.due_at = min(self.due_at, self.desk.now + DEBOUNCE_S * max(1.0, len(self.members()) / CROWD))
        if not acting:
            self.due_at = math.inf
        self._acting = acting
        if self.desk.now >= self.due_at:
            self._plan()

    def on_said(self, message: PlanSaid) -> None:
        """The later plan wins, whoever made it (two coordinators at once cost nothing)."""
        if self.plan is None or message.plan.order > self.plan.order:
            self.plan = message.plan

    def link_up(self, peer: PeerId) -> None:
        if self._acting and self.plan is not None:
            self.desk.send(peer, PlanSaid(self.plan))

    def deadline(self) -> float:
        return self.due_at

    def _plan(self) -> None:
        self.due_at = math.inf
        members = self.members()
        mine = members[self.desk.me.peer].info
        made, reason = plan(self.run, members.values(), self.plan, mine)
        if made is None or made is self.plan:
            return
        self.plan, self.reason = made, reason
        others = [peer for peer, member in members.items() if member.present and peer != self.desk.me.peer]
        self.desk.broadcast(others, PlanSaid(made))
