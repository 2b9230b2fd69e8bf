"""When a plan is made, and which one is believed."""

from __future__ import annotations

import math
import random

from p2ptrain.core.desk import Desk
from p2ptrain.core.events import Send
from p2ptrain.core.messages import PlanSaid
from p2ptrain.core.planning import DEBOUNCE_S, Planning
from p2ptrain.core.types import Member, PeerInfo, RunSpec, Span, Stage, Status, Voter


def planning(*peers: str) -> tuple[Planning, Desk, dict[str, Member]]:
    members = {p: Member(PeerInfo(p, 1, (f"{p}:1",), joined_round=0), 0, Status.ALIVE) for p in peers}
    desk = Desk(Voter(peers[0], 1), random.Random(0))
    run = RunSpec("run", (Stage(0, 0, 3, 100),), 4)
    return Planning(run, desk, lambda: members), desk, members


def test_ten_joiners_make_one_plan() -> None:
    made, desk, members = planning("a")
    made.look(acting=True, roster_changed=False)
    desk.now = DEBOUNCE_S
    made.look(acting=True, roster_changed=False)
    assert made.plan is not None and [a.peer for a in made.plan.assignments] == ["a"]
    first = made.plan
    for n in range(10):
        members[f"n{n}"] = Member(PeerInfo(f"n{n}", 1, ("x:1",)), 0, Status.JOINING)
        desk.now += 0.01
        made.look(acting=True, roster_changed=True)
    assert made.plan is first
    desk.now = made.deadline()
    made.look(acting=True, roster_changed=False)
    assert made.plan is not None and made.plan.order > first.order
    assert len(made.plan.assignments) == 11 and made.plan.span_of("n9") == Span(0, 0)
    told = [e for e in desk.take() if isinstance(e, Send)]
    assert {e.to for e in told} == {f"n{n}" for n in range(10)}
    assert all(isinstance(e.message, PlanSaid) and e.message.plan is made.plan for e in told)


def test_who_does_not_act_plans_nothing_and_believes_the_later_plan() -> None:
    made, desk, members = planning("a", "b")
    made.look(acting=False, roster_changed=True)
    assert made.deadline() == math.inf and made.plan is None
    other, other_desk, _ = planning("b", "a")
    other.look(acting=True, roster_changed=True)
    other_desk.now = DEBOUNCE_S
    other.look(acting=True, roster_changed=False)
    assert other.plan is not None
    made.on_said(PlanSaid(other.plan))
    assert made.plan == other.plan
    made.look(acting=True, roster_changed=False)
    desk.now = made.deadline()
    del members["b"]
    made.look(acting=True, roster_changed=True)
    assert made.plan is not None and made.plan.order > other.plan.order and made.plan.term == other.plan.term + 1
    newer = made.plan
    made.on_said(PlanSaid(other.plan))
    assert made.plan is newer


def test_a_newcomer_gets_the_plan_when_its_link_stands() -> None:
    made, desk, _ = planning("a", "b")
    made.look(acting=True, roster_changed=True)
    desk.now = DEBOUNCE_S
    made.look(acting=True, roster_changed=False)
    desk.take()
    made.link_up("c")
    assert [(e.to, e.message.plan) for e in desk.take()] == [("c", made.plan)]  # type: ignore[attr-defined]
