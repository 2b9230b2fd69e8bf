"""What a leader has gathered in one ballot, and when it is enough to go on (rule R3).

Decides which record or which exchange the answers call for, whom to wait for, and who computes what nobody delivers.
Does not order exchanges nor propose: that is ``leading``, which builds on this.

    answers of a quorum -> accepted by somebody?  propose that, unchanged
                        -> all parts averaged?    fix them
                        -> all ids covered?       begin, once those who ought to answer have
                        -> else                   the coordinator leases again; if nobody moves, the leader does
"""

from __future__ import annotations

from p2ptrain.core import choosing, compose
from p2ptrain.core.choosing import Outlook
from p2ptrain.core.desk import Desk
from p2ptrain.core.diverging import damaged
from p2ptrain.core.filling import LEADER_SERIAL
from p2ptrain.core.messages import Filled, Grant, Heal
from p2ptrain.core.quorum import Electorate
from p2ptrain.core.rounds import StageRound
from p2ptrain.core.types import Ballot, Bundle, Digest, LeftOut, PartDone, PeerId, Record, Voter, short

CROWD = 64
"""From more answers than this the choice is not made anew with each, while one that is waited for is missing."""

Fixed = list[tuple[PartDone, tuple[PeerId, ...]]]
"""Averaged parts that stand, and who holds them."""


class Gathering:
    """Answers and averaged parts (``parts``, ``holders`` by digest) that one ballot's leader has heard of."""

    def __init__(
        self,
        stage: StageRound,
        ballot: Ballot,
        dead: frozenset[Voter],
        reform: tuple[Voter, ...],
        outlook: Outlook,
        exchanged: bool = False,
    ) -> None:
        self.stage = stage
        self.desk: Desk = stage.desk
        self.ballot = ballot
        self.cut = stage.cut
        self.electorate = Electorate(stage.run.policy, stage.voters, stage.run.replication, dead, reform)
        self.outlook = outlook
        self.members = outlook.members
        self.arrivals = outlook.arrivals
        self.answers: dict[Voter, Filled] = {}
        self.waiting_on: PeerId = ""  # among a crowd: one whose answer is awaited, so that nobody else's is looked at
        self.reported = 0  # ids that the answers name, as done or as refused
        self.parts: dict[Digest, PartDone] = {}
        self.holders: dict[Digest, set[PeerId]] = {}
        self.excluded: dict[tuple[PeerId, int, int], str] = {}  # bundles refused or lost, and why
        self.left_out: dict[PeerId, str] = {}
        self.exchanged = exchanged  # an exchange of this round has begun: lost ids go to the next round (C4)
        self.opened_at = self.said_at = self.desk.now
        self.covered_at: float | None = None
        self.gap_at: float | None = None
        self.gap_serial = LEADER_SERIAL + self.desk.rng.randrange(LEADER_SERIAL)  # apart from earlier ballots'

    def begin_exchange(self, fixed: Fixed, chosen: tuple[Bundle, ...]) -> None:
        """Order the exchange of these bundles, beside what stands."""
        raise NotImplementedError

    def propose(self, record: Record) -> None:
        raise NotImplementedError

    def go_on(self) -> None:
        """With ``Filled`` from a quorum: an accepted record first; only otherwise an exchange."""
        if self.ballot.number > 0 and not self.electorate.is_quorum(set(self.answers)):
            return
        voted = [self.answers[v] for v in self.electorate.standing if v in self.answers]
        accepted = [answer.accepted for answer in voted if answer.accepted]
        if accepted:
            self.propose(max(accepted, key=lambda pair: pair[0])[1])
            return
        if self.waiting_on and self.covered_at is not None and self.desk.now < self.covered_at + self._wait_s():
            return
        must_cover = self.stage.run.exact or not self.exchanged  # else lost ids are owed to the next round (C4)
        if must_cover and not self.holders and not self._may_be_covered():
            if self._gap_is_due():
                self._fill_gap()
            return
        fixed = self._fixed() if self.holders else []
        if fixed and sum(p.stop - p.start for p, _ in fixed) == self.stage.stage.size:
            self.begin_exchange(fixed, ())
            return
        living = self._living()
        chosen = compose.choose_bundles(choosing.usable_bundles(living, self.excluded))
        refused = choosing.refused_ids(living, self.stage.run.exact)
        missing = set(self.stage.ids()) - compose.covered_ids(chosen) - refused
        if missing and (must_cover or not chosen):
            if self._gap_is_due():
                self._fill_gap()
        elif chosen or refused:
            self._covered(fixed, chosen)

    def set_answer(self, voter: Voter, answer: Filled | None) -> None:
        """The latest of this member; None: it has to answer anew."""
        if voter.peer == self.waiting_on:
            self.waiting_on = ""
        before = self.answers.get(voter)
        self.reported += _named(answer) - _named(before)
        if answer is not None:
            self.answers[voter] = answer
        elif before is not None:
            del self.answers[voter]

    def _may_be_covered(self) -> bool:
        """A quick look before the thorough one: are as many ids reported as the round has?"""
        return self.reported >= self.stage.run.microbatches

    def _covered(self, fixed: Fixed, chosen: tuple[Bundle, ...]) -> None:
        """Every id is there: begin once those that ought to answer have, or the wait for them is over."""
        now = self.desk.now
        if self.covered_at is None:
            self.covered_at = now
            if not self.exchanged:
                self.outlook.fills.observe(now - self.opened_at)
        waiting = self.awaited()
        if waiting and now < self.covered_at + self._wait_s() and not self.exchanged:
            self.waiting_on = waiting[0] if len(self.answers) > CROWD else ""
            return
        for peer in waiting:
            self.left_out.setdefault(peer, "no answer in time for the exchange")
        self.outlook.slow.update(v for v in self.electorate.standing if v.peer in waiting and v not in self.answers)
        if not self._heal_minority():
            self.arrivals.observe(now - self.covered_at)
            self.begin_exchange(fixed, chosen)

    def refused(self) -> set[int]:
        return choosing.refused_ids(self._living(), self.stage.run.exact)

    def _gap_is_due(self) -> bool:
        """Ids that nobody delivers: the coordinator re-leases; if nobody expects more for a while, the leader does.

        Who expects more is waited for as long as fills take by experience, not for ever: it may hang.
        """
        now, knobs = self.desk.now, self.stage.run.knobs
        patience = max(knobs.silent_leader_s, self.outlook.fills.deadline_s())
        waits = now < self.opened_at + patience and self._any_busy()
        if waits or self.gap_at is None:
            self.gap_at = now
            return False
        return now >= self.gap_at + knobs.repeat_s

    def _any_busy(self) -> bool:
        return any(answer.expects_more and self._is_alive(v) for v, answer in self.answers.items())

    def _busy(self) -> set[Voter]:
        return {v for v, answer in self.answers.items() if answer.expects_more and self._is_alive(v)}

    def _fill_gap(self) -> None:
        """Lease what is missing, to members that have answered."""
        tip, living = self.stage.tip, self._living()
        assert tip is not None
        self.gap_at = self.desk.now + self._wait_s()
        chosen = compose.choose_bundles(choosing.usable_bundles(living, self.excluded))
        settled = compose.covered_ids(chosen) | choosing.refused_ids(living, self.stage.run.exact)
        missing = [sample for sample in self.stage.ids() if sample not in settled]
        position = self.stage.positions()
        shares = choosing.takers(missing, living, self._busy(), {peer for peer, _, _ in self.excluded})
        for peer, samples in sorted(shares.items()):
            self.gap_serial += 1
            share = tuple(position[sample] for sample in samples)
            self.desk.send(peer, Grant(tip.lineage, self.stage.round, self.gap_serial, share))

    def awaited(self) -> list[PeerId]:
        """Members that ought to answer before the exchange begins."""
        standing, trailing = self.electorate.standing, self.stage.trailing
        return choosing.awaited(self.answers, standing, self.outlook, trailing, self.stage.round)

    def _wait_s(self) -> float:
        return min(self.arrivals.deadline_s(), self.stage.run.knobs.silent_leader_s / 2)

    def _heal_minority(self) -> bool:
        """R9: unequal state slices under one chain. True if somebody must pull again before this round goes on."""
        found = damaged(self.answers, self.stage.base.chain, self.desk.me)
        for voter, index, healthy, tie in found:
            how = "as many hold the one as the other: the leader's are taken" if tie else "it pulls them again"
            self.desk.say("warning", "diverged", f"{short(voter.peer)} holds other bits in slice {index}: {how}")
            self.set_answer(voter, None)
            self.desk.send(voter.peer, Heal(self.stage.fence(self.ballot), (index,), healthy))
        if found:
            self.covered_at = None
        return bool(found)

    def _fixed(self) -> Fixed:
        alive = self._alive_peers()
        held = {d: (self.parts[d], frozenset(peers & alive)) for d, peers in self.holders.items()}
        ids = frozenset(self.stage.ids())
        known = {d: (part, peers) for d, (part, peers) in held.items() if ids.issuperset(part.counted)}
        whole = ids - self.refused() if self.stage.run.exact else None
        return compose.fixed_parts(self.stage.stage.size, known, whole)

    def _alive_peers(self) -> set[PeerId]:
        return set(self.stage.present())

    def _is_alive(self, voter: Voter) -> bool:
        return not self.outlook.is_dead(voter)

    def _living(self) -> dict[Voter, Filled]:
        """Answers of those not held dead."""
        return {voter: answer for voter, answer in self.answers.items() if self._is_alive(voter)}

    def _exclude(self, bundle: Bundle, why: str) -> None:
        self.excluded[bundle.key] = why
        self.left_out[bundle.peer] = why

    def left_out_list(self) -> tuple[LeftOut, ...]:
        return tuple(LeftOut(peer, reason) for peer, reason in sorted(self.left_out.items()))


def _named(answer: Filled | None) -> int:
    return sum(bundle.weight for bundle in answer.bundles) + len(answer.refused) if answer is not None else 0
