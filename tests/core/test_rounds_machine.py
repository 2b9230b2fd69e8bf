"""A member's side of the round under messages in any order (Hypothesis): what it promised, accepted and applied stands.

The member is ``b`` of the voters a, b, c. Messages of several ballots, attempts and rounds reach it in every order,
twice, late, early, with foreign fences and without their links; the hands succeed or fail at will. After every step the
member's own invariants hold, and what this test has seen go in and out agrees with the rules (R2, R6, R7, R8, G5).
"""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from p2ptrain.core import events as ev
from p2ptrain.core import messages as msg
from p2ptrain.core.desk import Desk
from p2ptrain.core.following import RoundMessage
from p2ptrain.core.quorum import Electorate
from p2ptrain.core.rounds import StageRound
from p2ptrain.core.types import (
    NO_BALLOT,
    Ballot,
    BaseDigest,
    Bundle,
    Head,
    PartDone,
    PartOrder,
    Policy,
    Record,
    RunSpec,
    Stage,
    Voter,
    digest_of,
)

A, B, C, L = (Voter(name, 1) for name in "abcl")  # l learns: it has no vote
VOTERS = (A, B, C)
SIZE = 8192
HALF = SIZE // 2
OTHERS = st.sampled_from([A, C, L])
BALLOTS = st.sampled_from([(0, A), (1, C), (1, B), (2, A), (3, C)])
NAMES = st.sampled_from("xyz")
DEAD = st.sampled_from([(), (A,), (C,), (A, C)])


class Rounds(RuleBasedStateMachine):
    policy = Policy.MAJORITY

    @initialize()
    def begin_life(self) -> None:
        run = RunSpec("r", (Stage(0, 0, 0, SIZE),), 2, policy=self.policy)
        self.desk = Desk(B, random.Random(0))
        self.present = {"a", "b", "c", "l"}
        self.stage = StageRound(run, run.stages[0], self.desk, lambda: self.present)
        self.stage.adopt(self._record(0, b"genesis", ()), b"chain", BaseDigest(b"chain"))
        self.fetches: set[tuple[bytes, str]] = set()
        self.exchanges: list[msg.Begin] = []
        self.applying: Record | None = None
        self.accepted: dict[tuple[int, Ballot], bytes] = {}
        self.given: dict[tuple[int, Ballot, bytes], set[Voter]] = {}  # Accepts that went in, ours included
        self.told: set[bytes] = set()  # records of Commits that went in
        self.applied_rounds: list[int] = []
        self.proposed: dict[tuple[int, Ballot], Record] = {}
        self.promised = NO_BALLOT
        self.round = 0

    # --- what goes in --------------------------------------------------------------------------------------------

    @rule(ballot=BALLOTS, dead=DEAD, passed_on=st.booleans())
    def close(self, ballot: tuple[int, Voter], dead: tuple[Voter, ...], passed_on: bool) -> None:
        owned = self._ballot(ballot)
        self._hear(L if passed_on else owned.owner, msg.Close(self.stage.fence(owned), dead))

    @rule(ballot=BALLOTS, attempt=st.integers(1, 3), name=NAMES, fixed=st.booleans(), sound=st.booleans())
    def begin(self, ballot: tuple[int, Voter], attempt: int, name: str, fixed: bool, sound: bool) -> None:
        owned = self._ballot(ballot)
        done = self._parts(name)[0]
        first = PartOrder(0, 0, HALF, fixed=done, holders=("a",)) if fixed else PartOrder(0, 0, HALF, "a", (0,))
        second = PartOrder(1, HALF, SIZE if sound else SIZE + 1, "b", (0,))
        bundles = (Bundle("a", 1, 0, self.stage.ids()),)
        self._hear(owned.owner, msg.Begin(self.stage.fence(owned), attempt, (*VOTERS, L), bundles, (first, second)))

    @rule(ballot=BALLOTS, name=NAMES, sound=st.booleans())
    def propose(self, ballot: tuple[int, Voter], name: str, sound: bool) -> None:
        owned = self._ballot(ballot)
        record = self._record(self.stage.round, self.stage.cut, self._parts(name))
        record = record if sound else dataclasses.replace(record, parts=record.parts[:1])
        self._hear(owned.owner, msg.Propose(self.stage.fence(owned), record))

    @rule(ballot=BALLOTS, name=NAMES, sender=OTHERS, life=st.sampled_from([1, 1, 1, 2]))
    def accept(self, ballot: tuple[int, Voter], name: str, sender: Voter, life: int) -> None:
        owned = self._ballot(ballot)
        record = self._record(self.stage.round, self.stage.cut, self._parts(name))
        if life == sender.life and self.stage.decided is None:
            self.given.setdefault((self.stage.round, owned, record.digest), set()).add(sender)
        self._hear(sender, msg.Accept(self.stage.fence(owned), life, record.digest))

    @rule(name=NAMES, sender=OTHERS, ahead=st.integers(0, 2), foreign=st.booleans())
    def commit(self, name: str, sender: Voter, ahead: int, foreign: bool) -> None:
        parent = digest_of("elsewhere") if foreign or ahead else self.stage.cut
        record = self._record(self.stage.round + ahead, parent, self._parts(name, self.stage.round + ahead))
        if not foreign and not ahead:
            self.told.add(record.digest)
        self._hear(sender, msg.Commit(record, (A, C), ("a", "c")))

    @rule(ballot=BALLOTS, what=st.sampled_from(["run", "lineage", "parent", "stage"]))
    def foreign_fence(self, ballot: tuple[int, Voter], what: str) -> None:
        """G5: compared whole. Nothing of the round changes."""
        owned = self._ballot(ballot)
        other = {"run": "s", "lineage": 5, "parent": digest_of("p"), "stage": 3}[what]
        fence = dataclasses.replace(self.stage.fence(owned), **{what: other})
        before = self._votes()
        self._hear(owned.owner, msg.Close(fence, (A,)))
        self._hear(owned.owner, msg.Propose(fence, self._record(self.stage.round, self.stage.cut, self._parts("x"))))
        assert self._votes() == before

    @rule(back=st.integers(-2, 2), sender=OTHERS)
    def other_round(self, back: int, sender: Voter) -> None:
        """Late and early messages change no vote of the round at hand."""
        if back == 0:
            return
        fence = dataclasses.replace(self.stage.fence(Ballot(7, *sender)), round=self.stage.round + back)
        before = self._votes()
        self._hear(sender, msg.Close(fence, (A,)))
        self._hear(sender, msg.Filled(fence, 1))
        assert self._votes() == before

    @rule(sender=OTHERS, first=st.integers(0, 4))
    def ask(self, sender: Voter, first: int) -> None:
        self.stage.on_record_ask(sender, msg.RecordAsk(0, 0, first, first + 3))
        self.stage.head_said(sender, msg.HeadSaid(Head(0, 2, self.stage.round - 1, self.stage.cut)))
        self._out()

    @rule(peer=st.sampled_from("acl"))
    def link_lost_or_back(self, peer: str) -> None:
        self.present ^= {peer}
        self.stage.look_again()
        self.stage.send_filled()
        self._out()

    # --- the hands -----------------------------------------------------------------------------------------------

    @rule(index=st.integers(0, 1), expects_more=st.booleans())
    def computed(self, index: int, expects_more: bool) -> None:
        if self.stage.applying or any(bundle.index == index for bundle in self.stage.bundles):
            return
        self.stage.bundle_done(Bundle("b", 1, index, self.stage.ids()[index : index + 1]), expects_more)
        self._out()

    @precondition(lambda self: self.exchanges)
    @rule(name=NAMES, which=st.integers(0, 1), old=st.booleans(), trouble=st.booleans())
    def exchanged(self, name: str, which: int, old: bool, trouble: bool) -> None:
        begin = self.exchanges[0 if old else -1]
        if trouble:
            self.stage.part_troubled(ev.PartTroubled(begin.digest, which, (0,), bool(which), "planted"))
        else:
            self.stage.part_held(ev.PartHeld(begin.digest, self._parts(name, begin.fence.round)[which]))
        self._out()

    @precondition(lambda self: self.fetches)
    @rule(data=st.data(), arrives=st.booleans())
    def fetched(self, data: st.DataObject, arrives: bool) -> None:
        digest, peer = data.draw(st.sampled_from(sorted(self.fetches)))
        self.fetches.discard((digest, peer))
        if arrives:
            rounds = range(max(1, self.stage.round - 1), self.stage.round + 4)
            part = next((p for r in rounds for n in "xyz" for p in self._parts(n, r) if p.digest == digest), None)
            if part is not None:
                self.stage.part_held(ev.PartHeld(b"", part))
        else:
            self.stage.part_fetch_failed(ev.PartFetchFailed(digest, peer, "planted"))
        self._out()

    @rule(name=NAMES)
    def unasked_part(self, name: str) -> None:
        """Bytes that nobody ordered or asked for are not taken."""
        part = dataclasses.replace(self._parts(name)[0], digest=digest_of(("stray", name)))
        self.stage.part_held(ev.PartHeld(digest_of("no such exchange"), part))
        self.stage.part_held(ev.PartHeld(b"", part))
        assert part.digest not in self.stage.held
        self._out()

    @rule(seconds=st.sampled_from([0.0, 0.3, 1.1, 30.0]))
    def time_passes(self, seconds: float) -> None:
        self.desk.now += seconds
        if self.desk.now >= self.stage.deadline():
            self.stage.tick()
        self._out()
        assert self.stage.deadline() > self.desk.now, "a deadline that its own tick does not move"

    @precondition(lambda self: self.applying is not None)
    @rule(stale=st.booleans())
    def applied(self, stale: bool) -> None:
        record = self.applying
        assert record is not None
        base = BaseDigest(digest_of(("base", record.round)))
        if stale:
            assert self.stage.applied(ev.Applied(0, record.round - 1, base)) is None
            return
        self.applying = None
        commit = self.stage.applied(ev.Applied(0, record.round, base))
        assert commit is not None and commit.record == record and self.stage.tip == record
        self.applied_rounds.append(record.round)
        assert self.applied_rounds == list(range(1, len(self.applied_rounds) + 1)), "G2: each round once, in order"
        self.stage.follow_up()
        for sender, message in self.stage.take_early():
            self._tell(sender, message)
        self._out()

    # --- what must hold ------------------------------------------------------------------------------------------

    @invariant()
    def holds(self) -> None:
        if not hasattr(self, "stage"):
            return
        stage = self.stage
        stage.check()
        if stage.round == self.round:
            assert stage.promised >= self.promised, "R2: a promise fell"
        self.round, self.promised = stage.round, stage.promised
        assert stage.seen >= stage.promised
        for ballot, record in stage.proposals.items():
            assert self.proposed.setdefault((stage.round, ballot), record) == record, "R5: two proposals in one ballot"
        if stage.decided is not None:
            self._decision_is_founded(stage.decided.record)

    def _decision_is_founded(self, record: Record) -> None:
        """R7: somebody said so, or a quorum of one ballot's voters accepted this very record."""
        if record.digest in self.told or record.round != self.stage.round:
            return
        for (round, ballot, digest), voters in self.given.items():
            dead, reform = self.stage.closes.get(ballot, (frozenset(), ()))
            electorate = Electorate(self.policy, VOTERS, 2, dead, reform)
            if (round, digest) == (record.round, record.digest) and electorate.is_quorum(voters):
                return
        raise AssertionError("R7: decided without a quorum")

    # --- helpers -------------------------------------------------------------------------------------------------

    def _ballot(self, drawn: tuple[int, Voter]) -> Ballot:
        return Ballot(drawn[0], *drawn[1])

    def _parts(self, name: str, round: int | None = None) -> tuple[PartDone, PartDone]:
        round = self.stage.round if round is None else round
        ids = tuple(range(2 * round - 2, 2 * round))
        first = PartDone(0, 0, HALF, digest_of((name, round, 0)), ids, 1.0, HALF)
        return first, PartDone(1, HALF, SIZE, digest_of((name, round, 1)), ids, 1.0, HALF)

    def _record(self, round: int, parent: bytes, parts: tuple[PartDone, ...]) -> Record:
        return Record(0, 0, round, parent, b"chain", parts, (), 0.0, 1.0, VOTERS, 2 * round, 2 * round)

    def _votes(self) -> tuple[Any, ...]:
        stage = self.stage
        return (stage.tip, stage.promised, stage.accepted, dict(stage.proposals), dict(stage.closes), stage.decided)

    def _hear(self, sender: Voter, message: msg.Message) -> None:
        self._tell(sender, message)
        self._out()

    def _tell(self, sender: Voter, message: msg.Message) -> None:
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

    def _out(self) -> None:
        """Carry out what the member orders; note what it says."""
        while self.desk.local:
            message = self.desk.local.popleft()
            if isinstance(message, msg.Accept):
                self._note_accept(message)
            self._tell(B, message)
        for effect in self.desk.take():
            if isinstance(effect, ev.Exchange):
                self.exchanges.append(effect.begin)
            elif isinstance(effect, ev.FetchPart):
                assert effect.peer != "b"
                self.fetches.add((effect.part.digest, effect.peer))
            elif isinstance(effect, ev.Apply):
                assert self.applying is None and effect.record.round == self.stage.round, "R8: applied once, in order"
                assert all(part.digest in self.stage.held for part in effect.record.parts)
                self.applying = effect.record
            elif isinstance(effect, ev.Send) and isinstance(effect.message, msg.Accept):
                self._note_accept(effect.message)
            elif isinstance(effect, ev.Send) and isinstance(effect.message, msg.Filled):
                assert effect.to == effect.message.fence.ballot.peer, "Filled goes to its ballot's owner alone"

    def _note_accept(self, message: msg.Accept) -> None:
        key = (message.fence.round, message.fence.ballot)
        assert self.accepted.setdefault(key, message.record_digest) == message.record_digest, "two in one ballot"
        later = [ballot for round, ballot in self.accepted if round == message.fence.round and ballot > key[1]]
        assert not later, "R6: accepted below an earlier acceptance"
        self.given.setdefault((*key, message.record_digest), set()).add(B)


class RoundsUnderAny(Rounds):
    policy = Policy.ANY


@pytest.mark.parametrize("machine", [Rounds, RoundsUnderAny], ids=["majority", "any"])
def test_a_member_in_any_order(machine: type[Rounds]) -> None:
    examples = settings().max_examples * 2 // 5
    run_state_machine_as_test(machine, settings=settings(max_examples=examples, stateful_step_count=40))
