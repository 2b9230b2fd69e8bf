"""Who leads, and when: the first ballot, a dead leader, a spent ballot, a silent leader (rules R0, R1, R12).

Decides only that this peer opens a ballot, with a number above all seen and D frozen. Being wrong costs time, never
correctness. Under ``any`` D holds the roster's dead and those overdue; under ``majority`` proven deaths only.

    leader dead, I am the first live voter      -> after a random wait
    leader silent (alive by the roster)         -> after the observed deadline, by rank
    D would hold half of V or more (any)        -> one more probing period first
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from p2ptrain.core.choosing import Outlook
from p2ptrain.core.deadlines import Arrivals
from p2ptrain.core.following import RoundMessage
from p2ptrain.core.leading import Lead
from p2ptrain.core.messages import Accept, Begin, Close, Filled, Have, Propose
from p2ptrain.core.quorum import Electorate, drops_half
from p2ptrain.core.rounds import StageRound
from p2ptrain.core.types import Ballot, Member, PeerId, PeerInfo, Policy, Voter, short


class Succession:
    """Holds the ballot this peer leads, if any (``lead``).

    ``is_dead``: this peer's own verdict about a voter's life; ``is_proven_dead``: by signed goodbye or later life.
    ``has_state``: whether a member is known to hold the run's state. ``may_lead``: False while in doubt (R12), while
    leaving, or if it cannot be dialled while others can.
    """

    def __init__(
        self,
        stage: StageRound,
        members: Callable[[], Mapping[PeerId, Member]],
        is_dead: Callable[[Voter], bool],
        is_proven_dead: Callable[[Voter], bool],
        may_lead: Callable[[], bool],
        has_state: Callable[[PeerInfo], bool],
    ) -> None:
        self.stage = stage
        self.desk = stage.desk
        self.members = members
        self.is_dead = is_dead
        self.is_proven_dead = is_proven_dead
        self.may_lead = may_lead
        self.has_state = has_state
        self.outlook = Outlook(members, is_dead, Arrivals(stage.run.knobs), Arrivals(stage.run.knobs))
        self._lead: Lead | None = None
        self.overdue: set[Voter] = set()
        self.lead_at = math.inf  # when this peer opens a ballot unless something changes
        self.look_at = math.inf  # when the leader's silence is judged
        self.reason = ""

    @property
    def lead(self) -> Lead | None:
        """The ballot that this peer leads in the round at hand."""
        lead = self._lead
        return lead if lead is not None and self.stage.tip is not None and lead.cut == self.stage.cut else None

    @lead.setter
    def lead(self, lead: Lead | None) -> None:
        self._lead = lead

    def new_round(self) -> None:
        """After applying a record (or loading a snapshot)."""
        self.lead = None
        self.overdue = set()
        self.lead_at = self.look_at = math.inf
        first = self.stage.first_ballot()
        if (
            first.owner == self.desk.me
            and self.stage.promised == first
            and self.stage.accepted is None
            and self.may_lead()
        ):
            self._open(first, frozenset(), ())

    def look(self) -> None:
        """After every event: give up a passed ballot, notice a spent one, plan or cancel a take-over."""
        stage = self.stage
        self.look_at = math.inf
        if stage.tip is None or stage.decided is not None or stage.finished:
            self.lead_at = math.inf
            return
        if self.lead is not None and stage.seen > self.lead.ballot:
            self.lead = None
        if self.lead is None:
            self._watch_leader()
        elif not self.lead.spent:
            self.lead_at = math.inf
        elif self.lead_at == math.inf:
            self.overdue |= self.lead.overdue
            self.lead_at, self.reason = self.desk.now, self.lead.spent

    def on_message(self, sender: Voter, message: RoundMessage) -> None:
        """A message of this very round (``StageRound.admit``), to the member's side or to the leader's."""
        self.overdue.discard(sender)
        stage, lead = self.stage, self.lead
        if isinstance(message, Close):
            stage.on_close(sender, message)
        elif isinstance(message, Begin):
            stage.on_begin(sender, message)
        elif isinstance(message, Propose):
            stage.on_propose(sender, message)
        elif isinstance(message, Accept):
            stage.on_accept(sender, message)
        elif lead is not None:
            if isinstance(message, Filled):
                lead.on_filled(sender, message)
            elif isinstance(message, Have):
                lead.on_have(sender, message)
            else:
                lead.on_trouble(sender, message)

    def tick(self) -> None:
        if self.lead is not None:
            self.lead.tick()
        if self.desk.now >= self.lead_at:
            self._take_over()

    def deadline(self) -> float:
        return min(self.lead_at, self.look_at, self.lead.deadline() if self.lead and not self.lead.spent else math.inf)

    # --- who is next -----------------------------------------------------------------------------------------------

    def _watch_leader(self) -> None:
        stage, knobs, now = self.stage, self.stage.run.knobs, self.desk.now
        owner = (stage.seen if stage.seen > stage.promised else stage.promised).owner
        if owner != self.desk.me and not self._out(owner):
            late_at = self._late_at()
            if now < late_at:
                self.lead_at, self.look_at = math.inf, late_at
                return
        rank = self._rank(owner)
        if rank is None or not self.may_lead():
            self.lead_at = math.inf
            return
        if self._out(owner):
            self._plan(rank * knobs.takeover_max_s, f"leader {short(owner.peer)} is gone")
            return
        if owner == self.desk.me:
            self._plan(0.0, "own ballot was given up")
            return
        self.overdue.add(owner)
        self._plan(rank * knobs.takeover_max_s, f"leader {short(owner.peer)} is silent")

    def _late_at(self) -> float:
        """When the leader's silence counts; inf while we wait for nothing from it.

        A leader that lives says something more often than this (a repeated Begin, or an answer to a repeated Filled);
        one that lives and brings nothing about is waited for no longer than an exchange may take.
        """
        stage, knobs = self.stage, self.stage.run.knobs
        if stage.filled_at is None and stage.begin is None and stage.promised not in stage.proposals:
            return math.inf
        heard_at = max(stage.progress_at, stage.leader_heard_at)
        return min(heard_at + knobs.silent_leader_s, stage.progress_at + knobs.exchange_max_s)

    def _plan(self, extra_s: float, reason: str) -> None:
        if self.lead_at == math.inf or self.reason != reason:
            knobs = self.stage.run.knobs
            self.reason = reason
            wait = extra_s + self.desk.rng.uniform(knobs.takeover_min_s, knobs.takeover_max_s)
            self.lead_at = self.desk.now + wait

    def _rank(self, owner: Voter) -> int | None:
        """My place among those who may lead now; None if I may not."""
        able = [v for v in self._candidates() if v != owner or v == self.desk.me]
        return able.index(self.desk.me) if self.desk.me in able else None

    def _candidates(self) -> list[Voter]:
        stage = self.stage
        alive = [v for v in stage.voters if v == self.desk.me or not self._out(v)]
        if not alive and stage.run.policy is Policy.ANY:
            alive = list(self._reformers())
        roster = self.members()
        able = [v for v in alive if v.peer in roster and roster[v.peer].info.diallable]
        return able or alive

    def _out(self, voter: Voter) -> bool:
        return voter != self.desk.me and (self.is_dead(voter) or voter in self.overdue)

    def _reformers(self) -> tuple[Voter, ...]:
        """All live members with state: they take V's place when every voter is dead (section 5, any)."""
        roster = self.members().values()
        active = [m.info.voter for m in roster if m.present and self.has_state(m.info) and not self._out(m.info.voter)]
        return tuple(sorted({*active, self.desk.me}))

    # --- opening a ballot ------------------------------------------------------------------------------------------

    def _take_over(self) -> None:
        stage = self.stage
        self.lead_at = math.inf
        if stage.tip is None or stage.decided is not None:
            return
        if not self.may_lead():
            self.lead = None  # if it was ours and spent, others see to the next one
            return
        dead = self._dead()
        if stage.run.policy is Policy.ANY and not self._half_is_sure(dead):
            return
        reform = self._reformers() if all(v in dead for v in stage.voters) else ()
        number = max(stage.seen.number, stage.promised.number) + 1
        ballot = Ballot(number, *self.desk.me)
        electorate = Electorate(stage.run.policy, stage.voters, stage.run.replication, dead, reform)
        answering = [v for v in electorate.standing if v == self.desk.me or not self.is_dead(v)]
        if not electorate.is_quorum(answering):
            self.lead_at = self.desk.now + stage.run.knobs.repeat_s  # no quorum lives: look again (R14 tells the user)
            return
        self.desk.say("info", "takeover", f"leads round {stage.round} by ballot {number}: {self.reason}", stage.round)
        self._open(ballot, dead, reform)

    def _open(self, ballot: Ballot, dead: frozenset[Voter], reform: tuple[Voter, ...]) -> None:
        stage = self.stage
        exchanged = stage.begin is not None or (self.lead is not None and self.lead.exchanged)
        stage.seen = max(stage.seen, ballot)
        self.lead = Lead(stage, ballot, dead, reform, self.outlook, exchanged)
        stage.progress_at = self.desk.now
        self.lead.open()

    def _dead(self) -> frozenset[Voter]:
        """D for a new ballot."""
        voters = self.stage.voters
        if self.stage.run.policy is Policy.MAJORITY:
            return frozenset(v for v in voters if self.is_proven_dead(v))
        return frozenset(v for v in voters if self._out(v) or (v == self.desk.me and self.is_dead(v)))

    def _half_is_sure(self, dead: frozenset[Voter]) -> bool:
        """One more probing period before half of V or more is dropped at once: a router can forge a refusal.

        Only verdicts younger than that count, and no proven deaths: older ones have had their period.
        """
        now, period = self.desk.now, self.stage.run.knobs.probe_period_s
        roster = self.members()
        lines = [roster[v.peer] for v in dead if v.peer in roster and not self.is_proven_dead(v) and self.is_dead(v)]
        fresh = [line.since for line in lines if not line.present and line.since > now - period]
        if len(fresh) > 1 and drops_half(self.stage.voters, dead):
            self.lead_at = max(fresh) + period
            return False
        return True
