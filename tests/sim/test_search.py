"""Every reachable state of one decision, on the production code; and that the search sees what it must.

Leaving out the rule for a finding of the round protocol brings its violation back (by patching the production code in
the test). The larger configurations run with ``make soak``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection

import pytest

from p2ptrain.core.leading import Lead
from p2ptrain.core.messages import Accept, Filled
from p2ptrain.core.quorum import Electorate
from p2ptrain.core.rounds import StageRound
from p2ptrain.core.types import Ballot, Policy, Record, Voter
from p2ptrain.sim.search import search
from p2ptrain.sim.searched import Setup

MAJORITY, ANY = Policy.MAJORITY, Policy.ANY

COMPLETE = [
    Setup(MAJORITY, voters=2, ballots=1, crashes=0),
    Setup(MAJORITY, voters=2, ballots=1, crashes=1),
    Setup(ANY, voters=2, ballots=1, crashes=2),
]
DEEPER = [
    Setup(MAJORITY, voters=2, ballots=1, crashes=0, restarts=1),
    Setup(ANY, voters=2, ballots=2, crashes=2, cap=2_000_000),
    Setup(MAJORITY, voters=2, ballots=1, crashes=1, commits=True, cap=2_000_000),
    Setup(MAJORITY, voters=3, ballots=1, crashes=1, cap=2_000_000),
    Setup(MAJORITY, voters=3, ballots=1, crashes=0, restarts=1, openers="c", cap=2_000_000),
    Setup(ANY, voters=3, ballots=1, crashes=2, replication=3, cap=2_000_000),
]


@pytest.mark.parametrize("setup", COMPLETE, ids=str)
def test_all_states_of_small_setups_are_sound(setup: Setup) -> None:
    outcome = search(setup)
    assert outcome.violation == "", outcome.trace
    assert outcome.complete
    assert outcome.decided  # something was decided in some of them: the search is not vacuous


@pytest.mark.parametrize("setup", [Setup(MAJORITY, voters=3, cap=12_000), Setup(ANY, voters=3, cap=12_000)], ids=str)
def test_the_first_states_of_three_voters_are_sound(setup: Setup) -> None:
    outcome = search(setup)
    assert outcome.violation == "", outcome.trace


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("setup", DEEPER, ids=str)
def test_larger_setups_are_sound(setup: Setup) -> None:
    outcome = search(setup)
    assert outcome.violation == "", outcome.trace
    assert outcome.complete or outcome.states >= setup.cap


# --- what the rules are for: without them the search finds the schedule again ---------------------------------------


def test_finding_1_survivors_suffice_for_a_quorum(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Electorate, "is_quorum", _anybody_suffices)
    outcome = search(Setup(MAJORITY, voters=3, crashes=0))
    assert outcome.violation.startswith("I1")


def test_finding_2_a_new_leader_averages_again(monkeypatch: pytest.MonkeyPatch) -> None:
    on_filled = Lead.on_filled

    def forgetful(lead: Lead, sender: Voter, message: Filled) -> None:
        on_filled(lead, sender, dataclasses.replace(message, accepted=None))

    monkeypatch.setattr(Lead, "on_filled", forgetful)
    outcome = search(Setup(ANY, voters=2, crashes=1, openers="b"))
    assert outcome.violation.startswith("I1")


DECIDED_BY_A_AND_B = ("b->a Filled", "a impatient", "a part", "a->b Propose", "b fetched", "b->a Accept")


@pytest.mark.parametrize("amnesia", [True, False], ids=["same-life", "new-life"])
def test_finding_5_a_restart_forgets_its_vote(amnesia: bool) -> None:
    """From where a has decided with b's vote: b restarts, and c leads. Votes of a new life count for nothing."""
    cap = 400_000 if amnesia else 15_000
    setup = Setup(MAJORITY, voters=3, crashes=0, restarts=1, openers="c", amnesia=amnesia, cap=cap)
    outcome = search(setup, after=DECIDED_BY_A_AND_B)
    assert outcome.violation[:2] == ("I1" if amnesia else ""), outcome.trace


def test_finding_6_accepting_without_the_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StageRound, "_holds", _always)
    outcome = search(Setup(MAJORITY, voters=3, crashes=1))
    assert outcome.violation.startswith("I4")


@pytest.mark.parametrize("frozen", [True, False], ids=["frozen", "judged-later"])
def test_finding_15_deaths_counted_afterwards(monkeypatch: pytest.MonkeyPatch, frozen: bool) -> None:
    """Accepts to all, as first drafted: a learner may count with the D of the ballot, not with its own verdicts."""
    monkeypatch.setattr(StageRound, "_send_accept", _accept_to_all)
    if not frozen:
        monkeypatch.setattr(StageRound, "electorate", _judged_by_own_verdicts)
    setup = Setup(ANY, voters=2, learners=1, ballots=1, crashes=2, openers="b", cap=25_000)
    after = ("b->a Filled", "c->a Filled", "a part", "a dies", "a->b Begin", "b learn a")  # a proposed, and died
    outcome = search(setup, after=after)
    assert outcome.violation[:2] == ("" if frozen else "I1"), outcome.trace


def _anybody_suffices(electorate: Electorate, answered: Collection[Voter]) -> bool:
    return any(voter in answered for voter in electorate.standing)


def _always(stage: StageRound, record: Record) -> bool:
    return True


def _accept_to_all(stage: StageRound) -> None:
    assert stage.accepted is not None
    ballot, record = stage.accepted
    accept = Accept(stage.fence(ballot), stage.desk.me.life, record.digest)
    stage.desk.broadcast({*stage.present(), *(voter.peer for voter in stage.voters)}, accept)


def _judged_by_own_verdicts(stage: StageRound, ballot: Ballot) -> Electorate:
    present = set(stage.present())
    dead = frozenset(voter for voter in stage.voters if voter.peer not in present)
    return Electorate(stage.run.policy, stage.voters, stage.run.replication, dead)
