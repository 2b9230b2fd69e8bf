"""A leader's side, event by event: what it orders when reducers and contributors fail."""

from __future__ import annotations

import random

import pytest

from p2ptrain.core.choosing import Outlook
from p2ptrain.core.deadlines import Arrivals
from p2ptrain.core.desk import Desk
from p2ptrain.core.leading import Lead
from p2ptrain.core.messages import Begin, Filled, Trouble
from p2ptrain.core.rounds import StageRound
from p2ptrain.core.types import BaseDigest, Bundle, Member, PeerInfo, Record, RunSpec, Stage, Status, Voter

VOTERS = tuple(Voter(name, 1) for name in "abcd")
RUN = RunSpec("r", (Stage(0, 0, 0, 4 * 8192),), 4)
BASE = BaseDigest(b"chain")


class Leader:
    """``a`` leads the first ballot of round 1; all four have filled, so the exchange has begun: a part for each."""

    def __init__(self) -> None:
        self.desk = Desk(VOTERS[0], random.Random(0))
        self.stage = StageRound(RUN, RUN.stages[0], self.desk, lambda: list("abcd"))
        self.stage.adopt(Record(0, 0, 0, b"", b"", (), (), 0.0, 1.0, VOTERS, 0, 0), b"chain", BASE)
        self.members = {
            v.peer: Member(PeerInfo(v.peer, 1, (f"{v.peer}:1",), joined_round=0), 0, Status.ALIVE) for v in VOTERS
        }
        arrivals = Arrivals(RUN.knobs), Arrivals(RUN.knobs)
        outlook = Outlook(lambda: self.members, lambda voter: False, *arrivals)
        self.lead = Lead(self.stage, self.stage.first_ballot(), frozenset(), (), outlook)
        for index, voter in enumerate(VOTERS):
            bundle = Bundle(voter.peer, 1, 0, (index,))
            self.lead.on_filled(voter, Filled(self.fence, 1, bundles=(bundle,), base=BASE))
        self.lead.check()

    @property
    def fence(self):  # type: ignore[no-untyped-def]
        return self.stage.fence(self.lead.ballot)

    @property
    def begin(self) -> Begin:
        assert self.lead.begin is not None
        return self.lead.begin

    def reducers(self) -> list[str]:
        return [order.reducer for order in self.begin.parts]

    def trouble(self, sender: int, part: int) -> None:
        self.lead.on_trouble(VOTERS[sender], Trouble(self.fence, self.begin.digest, part, (), True, "no stream"))


@pytest.fixture
def leader() -> Leader:
    return Leader()


def test_all_answered_and_the_exchange_begins_with_a_part_for_each(leader: Leader) -> None:
    assert sorted(leader.reducers()) == list("abcd") and leader.begin.attempt == 1


def test_a_silent_reducer_is_given_a_moment_and_then_passed_over(leader: Leader) -> None:
    part = leader.reducers().index("c")
    leader.trouble(1, part)
    assert leader.begin.attempt == 1
    leader.desk.now = leader.lead.deadline()
    leader.lead.tick()
    assert leader.begin.attempt == 2 and sorted(leader.reducers()) == list("abd")


def test_a_suspected_reducer_is_passed_over_at_once(leader: Leader) -> None:
    from dataclasses import replace

    leader.members["c"] = replace(leader.members["c"], status=Status.SUSPECT)
    leader.trouble(1, leader.reducers().index("c"))
    assert leader.begin.attempt == 2 and sorted(leader.reducers()) == list("abd")


def test_two_silent_reducers_whose_time_is_over_together(leader: Leader) -> None:
    """Found by a run under load: the first mends, and the parts that the second was blamed for are no more."""
    for part in range(4):
        if leader.reducers()[part] in "cd":
            leader.trouble(1, part)
    leader.desk.now = leader.lead.deadline()
    leader.lead.tick()
    leader.lead.check()
    assert leader.begin.attempt == 2 and len(leader.reducers()) == 3
