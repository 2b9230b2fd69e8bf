"""One member's side of a round, event by event: promises, fences, what is taken and what is not."""

from __future__ import annotations

import random

import pytest

from p2ptrain.core import events as ev
from p2ptrain.core import messages as msg
from p2ptrain.core.desk import Desk
from p2ptrain.core.following import RoundMessage
from p2ptrain.core.rounds import StageRound
from p2ptrain.core.types import (
    Ballot,
    BaseDigest,
    Bundle,
    PartDone,
    PartOrder,
    Policy,
    Record,
    RunSpec,
    Stage,
    Voter,
    digest_of,
)

A, B, C = (Voter(name, 1) for name in "abc")
SIZE = 100
RUN = RunSpec("r", (Stage(0, 0, 0, SIZE),), 2, policy=Policy.MAJORITY)
BASE = BaseDigest(b"chain")


def record(
    round: int, parent: bytes, parts: tuple[PartDone, ...] = (), voters: tuple[Voter, ...] = (A, B, C)
) -> Record:
    return Record(0, 0, round, parent, b"chain", parts, (), 0.0, 1.0, voters, 2 * round, 2 * round)


class Member:
    """``b`` of voters a, b, c, at round 1 after a genesis; ``sent`` and ``effects`` of the last call."""

    def __init__(self) -> None:
        self.desk = Desk(B, random.Random(0))
        self.stage = StageRound(RUN, RUN.stages[0], self.desk, lambda: ["a", "b", "c"])
        self.stage.adopt(record(0, b"genesis"), b"chain", BASE)

    def take(self) -> list[ev.Effect]:
        while self.desk.local:
            self.tell(B, self.desk.local.popleft())
        return self.desk.take()

    def tell(self, sender: Voter, message: msg.Message) -> None:
        stage = self.stage
        if isinstance(message, msg.Commit):
            stage.on_commit(sender, message)
        elif isinstance(message, RoundMessage) and stage.admit(sender, message):
            if isinstance(message, msg.Close):
                stage.on_close(sender, message)
            elif isinstance(message, msg.Begin):
                stage.on_begin(sender, message)
            elif isinstance(message, msg.Propose):
                stage.on_propose(sender, message)
            elif isinstance(message, msg.Accept):
                stage.on_accept(sender, message)

    def hear(self, sender: Voter, message: msg.Message) -> list[ev.Effect]:
        self.desk.take()
        self.tell(sender, message)
        return self.take()


@pytest.fixture
def member() -> Member:
    return Member()


def sent(effects: list[ev.Effect], kind: type[msg.Message]) -> list[tuple[str, msg.Message]]:
    return [(e.to, e.message) for e in effects if isinstance(e, ev.Send) and isinstance(e.message, kind)]


def begin(member: Member, ballot: Ballot, attempt: int = 1, ids: tuple[int, ...] = (0, 1)) -> msg.Begin:
    bundles = (Bundle("a", 1, 0, ids),)
    orders = (PartOrder(0, 0, SIZE, "a", (0,)),)
    return msg.Begin(member.stage.fence(ballot), attempt, (A, B, C), bundles, orders)


def averaged(name: str = "x", ids: tuple[int, ...] = (0, 1)) -> PartDone:
    return PartDone(0, 0, SIZE, digest_of(name), ids, 1.0, SIZE)


FIRST, SECOND, THIRD = Ballot(0, "a", 1), Ballot(1, "c", 1), Ballot(2, "a", 1)


def test_a_close_is_promised_and_answered_and_lower_ballots_refused(member: Member) -> None:
    effects = member.hear(C, msg.Close(member.stage.fence(SECOND)))
    assert [to for to, _ in sent(effects, msg.Filled)] == ["c"]
    assert member.stage.promised == SECOND
    assert not member.hear(A, begin(member, FIRST))
    assert sent(member.hear(A, msg.Close(member.stage.fence(Ballot(0, "a", 1)))), msg.Close)[0][0] == "a"
    assert member.stage.promised == SECOND


def test_a_ballot_is_its_owners_alone(member: Member) -> None:
    member.hear(A, msg.Close(member.stage.fence(SECOND)))
    assert member.stage.promised == FIRST
    assert member.stage.seen == SECOND  # but now it is known to exist


def test_another_run_lineage_parent_or_stage_changes_nothing(member: Member) -> None:
    fence = member.stage.fence(SECOND)
    for other in (
        msg.Fence("other", *list_of(fence)[1:]),
        msg.Fence(fence.run, 7, *list_of(fence)[2:]),
        msg.Fence(fence.run, 0, 3, *list_of(fence)[3:]),
        msg.Fence(fence.run, 0, 0, 1, b"elsewhere", SECOND),
    ):
        member.hear(C, msg.Close(other))
        assert (member.stage.promised, member.stage.seen) == (FIRST, FIRST)


def list_of(fence: msg.Fence) -> list[object]:
    return [fence.run, fence.lineage, fence.stage, fence.round, fence.parent, fence.ballot]


def test_accepts_only_with_all_bytes_and_tells_the_voters(member: Member) -> None:
    member.hear(A, begin(member, FIRST))
    part = averaged()
    proposal = record(1, member.stage.cut, (part,))
    assert not sent(member.hear(A, msg.Propose(member.stage.fence(FIRST), proposal)), msg.Accept)
    member.stage.part_held(ev.PartHeld(member.stage.exchanging.begin.digest, part))
    assert [to for to, _ in sent(member.take(), msg.Accept)] == ["a", "c"]
    member.stage.check()


def test_what_is_missing_is_fetched_from_one_peer_after_the_other(member: Member) -> None:
    part = averaged()
    effects = member.hear(A, msg.Propose(member.stage.fence(FIRST), record(1, member.stage.cut, (part,))))
    assert [e.peer for e in effects if isinstance(e, ev.FetchPart)] == ["a"]
    member.stage.part_fetch_failed(ev.PartFetchFailed(part.digest, "a", "gone"))
    assert [e.peer for e in member.take() if isinstance(e, ev.FetchPart)] == ["c"]
    member.stage.part_fetch_failed(ev.PartFetchFailed(part.digest, "c", "gone"))
    assert not member.take()
    assert member.stage.fetching.fruitless == 1
    member.desk.now = member.stage.deadline()
    member.stage.tick()
    assert [e.peer for e in member.take() if isinstance(e, ev.FetchPart)] == ["a"]


def test_a_part_nobody_ordered_in_this_round_is_not_taken(member: Member) -> None:
    member.stage.part_held(ev.PartHeld(b"an exchange of the round before", averaged()))
    member.stage.part_held(ev.PartHeld(b"", averaged("fetched by nobody")))
    assert not member.stage.held


def test_a_quorum_of_accepts_decides_and_it_is_applied(member: Member) -> None:
    part = averaged()
    proposal = record(1, member.stage.cut, (part,))
    member.hear(A, msg.Propose(member.stage.fence(FIRST), proposal))
    member.stage.part_held(ev.PartHeld(b"", part))
    effects = member.take()
    accept = msg.Accept(member.stage.fence(FIRST), 1, proposal.digest)
    assert not [e for e in effects if isinstance(e, ev.Apply)]
    assert not [e for e in member.hear(A, msg.Accept(accept.fence, 2, proposal.digest)) if isinstance(e, ev.Apply)]
    assert [e for e in member.hear(A, accept) if isinstance(e, ev.Apply)]
    commit = member.stage.applied(ev.Applied(0, 1, BASE))
    assert commit is not None and commit.record == proposal
    assert (member.stage.round, member.stage.promised, dict(member.stage.held)) == (2, FIRST, {})


def test_who_has_decided_answers_a_new_leader_with_the_decision(member: Member) -> None:
    member.tell(A, msg.Commit(record(1, member.stage.cut, (averaged(),)), (A, C)))
    assert sent(member.hear(C, msg.Close(member.stage.fence(SECOND))), msg.Commit)
    assert member.stage.promised == FIRST


def test_promises_outlive_a_step_out_of_the_round(member: Member) -> None:
    """State is pulled again in the same life: the vote given before still binds (I5)."""
    part, tip, chain = averaged(), member.stage.tip, member.stage.chain
    member.hear(C, msg.Close(member.stage.fence(SECOND)))
    member.hear(C, msg.Propose(member.stage.fence(SECOND), record(1, member.stage.cut, (part,))))
    member.stage.part_held(ev.PartHeld(b"", part))
    accepted = member.stage.accepted
    assert accepted is not None and tip is not None
    member.stage.retire()
    member.stage.adopt(tip, chain, BASE)
    assert (member.stage.promised, member.stage.accepted) == (SECOND, accepted)
    member.stage.check()


def test_a_second_proposal_in_one_ballot_is_ignored(member: Member) -> None:
    one, other = (record(1, member.stage.cut, (averaged(name),)) for name in "xy")
    member.hear(A, msg.Propose(member.stage.fence(FIRST), one))
    effects = member.hear(A, msg.Propose(member.stage.fence(FIRST), other))
    assert [e.key for e in effects if isinstance(e, ev.Say)] == ["two-proposals"]
    assert member.stage.proposals[FIRST] == one


def test_orders_and_records_that_do_not_fit_the_stage_are_refused(member: Member) -> None:
    order = begin(member, FIRST)
    gap = msg.Begin(order.fence, 1, order.members, order.bundles, (PartOrder(0, 0, SIZE - 1, "a", (0,)),))
    assert [e.key for e in member.hear(A, gap) if isinstance(e, ev.Say)] == ["bad-begin"]
    empty = msg.Propose(member.stage.fence(FIRST), record(1, member.stage.cut, ()))
    assert [e.key for e in member.hear(A, empty) if isinstance(e, ev.Say)] == ["bad-record"]


def test_trouble_is_told_again_until_the_leader_orders_anew(member: Member) -> None:
    order = begin(member, FIRST)
    member.hear(A, order)
    event = ev.PartTroubled(order.digest, 0, (), True, "silent")
    member.stage.part_troubled(event)
    assert len(sent(member.take(), msg.Trouble)) == 1
    member.desk.now = member.stage.exchanging.repeat_at
    member.stage.tick()
    assert len(sent(member.take(), msg.Trouble)) == 1
    effects = member.hear(A, begin(member, FIRST, attempt=2))
    assert [type(e).__name__ for e in effects][:2] == ["StopExchange", "Exchange"]
    assert not member.stage.exchanging.troubles


def test_later_rounds_wait_and_their_records_are_asked_for(member: Member) -> None:
    later = msg.Fence("r", 0, 0, 3, b"cut of 2", Ballot(0, "a", 1))
    effects = member.hear(A, msg.Close(later))
    assert [(m.first, m.last) for _, m in sent(effects, msg.RecordAsk)] == [(1, 2)]  # type: ignore[attr-defined]
    assert member.stage.take_early() == [(A, msg.Close(later))]


def test_a_follower_fetches_the_parts_of_rounds_to_come(member: Member) -> None:
    first = record(1, member.stage.cut, (averaged("1"),))
    second = record(2, digest_of("cut of 1"), (averaged("2"),))
    effects = member.hear(A, msg.Commit(second, (A, C), ("a",)))
    assert [e.part.digest for e in effects if isinstance(e, ev.FetchPart)] == [averaged("2").digest]
    member.stage.part_held(ev.PartHeld(b"", averaged("2")))
    assert not member.stage.held  # not of this round
    effects = member.hear(A, msg.Commit(first, (A, C), ("a",)))
    assert [e.part.digest for e in effects if isinstance(e, ev.FetchPart)] == [averaged("1").digest]


def test_a_part_that_is_not_wanted_any_more_leaves_no_deadline_behind(member: Member) -> None:
    """Found by random order: a deadline in the past that no tick moves keeps a driver busy for nothing."""
    stage, part = member.stage, averaged()
    fixed = PartOrder(0, 0, SIZE, fixed=part, holders=("a", "c"))
    bundles = (Bundle("a", 1, 0, (0, 1)),)
    member.hear(A, msg.Begin(stage.fence(FIRST), 1, (A, B, C), bundles, (fixed,)))
    for _ in range(2):
        for digest, peer in list(stage.fetching.running.items()):
            stage.part_fetch_failed(ev.PartFetchFailed(digest, peer, "gone"))
    assert member.desk.now < stage.deadline() < 10.0, "everybody was asked in vain: a pause"
    member.hear(A, begin(member, FIRST, attempt=2))
    member.desk.now = stage.deadline()
    stage.tick()
    assert stage.deadline() > member.desk.now
