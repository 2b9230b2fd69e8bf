"""One member's side of the round protocol for one stage: promise, hold, accept, decide, apply.

Decides what this peer promises (R2), holds and accepts (R6), when it sees a decision (R7) and when it applies (R8).
Does not decide what a leader proposes (``leading``), who leads when nobody does (``succession``), what is computed
(``filling``) or how a newcomer gets state (``catchup``).

    tip r --Filled--> leader --Begin--> exchange --Have--> leader --Propose--> Accept to all --quorum--> Apply --> tip r+1
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable
from typing import NamedTuple

from p2ptrain.core.archive import Archive
from p2ptrain.core.compose import is_sound_begin, is_sound_record
from p2ptrain.core.desk import Desk
from p2ptrain.core.events import Applied, Apply, PartFetchFailed, PartHeld, PartTroubled, ReleaseParts
from p2ptrain.core.exchanging import Exchanging
from p2ptrain.core.fetching import Fetching
from p2ptrain.core.ledger import ids_of_round
from p2ptrain.core.messages import Accept, Begin, Close, Commit, Filled, Have, HeadSaid, Propose, RecordAsk, Trouble
from p2ptrain.core.quorum import Electorate
from p2ptrain.core.types import (
    NO_BALLOT,
    Ballot,
    BaseDigest,
    Bundle,
    Digest,
    Fence,
    Head,
    PartDone,
    PeerId,
    Record,
    RunSpec,
    Stage,
    Voter,
    chain_digest,
    cut_of,
    short,
)

EARLY_MAX = 512
SLICES = 16
FILLED_REPEATS = 2.0  # an unanswered Filled is sent again after this many ``repeat_s``
VOTES_KEPT = 16

RoundMessage = Close | Filled | Begin | Have | Trouble | Propose | Accept


class _Vote(NamedTuple):
    """What this life has promised and accepted in a round that it stepped out of."""

    promised: Ballot
    accepted: tuple[Ballot, Record] | None
    held: tuple[PartDone, ...]


class StageRound:
    """State of a member, per stage (round protocol, section 2), and rules R2 and R4 to R8.

    ``present`` gives the peers held alive (for commits and fetches), own id included.
    """

    def __init__(self, run: RunSpec, stage: Stage, desk: Desk, present: Callable[[], Iterable[PeerId]]) -> None:
        self.run = run
        self.stage = stage
        self.desk = desk
        self.present = present
        knobs = run.knobs
        self.archive = Archive(knobs)
        self.fetching = Fetching(desk, present, knobs.repeat_s)
        self.held: dict[Digest, PartDone] = {}
        self.exchanging = Exchanging(desk, lambda: self.held.values(), knobs.chunk_timeout_s, knobs.repeat_s)
        self.tip: Record | None = None
        self.cut: Digest = b""
        self.chain: Digest = b""
        self.base = BaseDigest(b"")
        self.early: deque[tuple[Voter, RoundMessage]] = deque(maxlen=EARLY_MAX)
        self.asked_at = -math.inf
        self.healing = False
        self.pulling = False  # a snapshot is on its way here: nothing is applied meanwhile
        self.led_by: Voter | None = None  # leader of the round applied last
        self._votes: dict[tuple[int, int, Digest], _Vote] = {}
        self._ids: tuple[int, ...] = ()
        self._reset()

    def _reset(self) -> None:
        """What a new round (or another history) starts from."""
        self.promised: Ballot = NO_BALLOT
        self.seen: Ballot = NO_BALLOT  # highest ballot met in this round
        self.accepted: tuple[Ballot, Record] | None = None
        self.held.clear()
        self.bundles: list[Bundle] = []
        self.refused: list[int] = []
        self.expects_more = False
        self.proposals: dict[Ballot, Record] = {}
        self.closes: dict[Ballot, tuple[frozenset[Voter], tuple[Voter, ...]]] = {}
        self.accepts: dict[tuple[Ballot, Digest], set[Voter]] = {}
        self.decided: Commit | None = None
        self.applying = False
        self.fetching.reset()
        self.exchanging.reset()
        self.progress_at = self.leader_heard_at = self.sent_at = self.desk.now
        self.filled_at: float | None = None

    # --- where we are ----------------------------------------------------------------------------------------------

    @property
    def round(self) -> int:
        """The round that is being filled or exchanged; 0 while there is no state."""
        return self.tip.round + 1 if self.tip else 0

    @property
    def begin(self) -> Begin | None:
        return self.exchanging.begin

    @property
    def voters(self) -> tuple[Voter, ...]:
        return self.tip.voters_next if self.tip else ()

    @property
    def head(self) -> Head | None:
        tip = self.tip
        return Head(tip.lineage, tip.samples_total, tip.round, self.cut) if tip else None

    @property
    def finished(self) -> bool:
        """The run's last round is applied here."""
        return bool(self.tip and self.run.rounds and self.tip.round >= self.run.rounds)

    def ids(self) -> tuple[int, ...]:
        """Sample ids of the current round."""
        assert self.tip is not None
        return self._ids

    def fence(self, ballot: Ballot) -> Fence:
        assert self.tip is not None
        return Fence(self.run.run, self.tip.lineage, self.stage.index, self.tip.round + 1, self.cut, ballot)

    def electorate(self, ballot: Ballot) -> Electorate:
        """Voters of this round with D as frozen in the ballot's ``Close``; an unseen Close counts as D = {} (stricter)."""
        dead, reform = self.closes.get(ballot, (frozenset(), ()))
        return Electorate(self.run.policy, self.voters, self.run.replication, dead, reform)

    def first_ballot(self) -> Ballot:
        """R0: the ballot that needs no Close."""
        return Ballot(0, *self.voters[0]) if self.voters else NO_BALLOT

    def adopt(self, record: Record, chain: Digest, base: BaseDigest) -> None:
        """Take ``record`` as the last applied one: genesis, a loaded snapshot, or the round just applied.

        A round that this life has voted in before is entered with what it promised and accepted then (R2).
        """
        self._remember()
        self.tip = record
        self.cut = cut_of((record,))
        self.chain = chain
        self.base = base
        self._ids = ids_of_round(record.next_id, record.owed_ids, self.run.microbatches)
        self._reset()
        self.promised = self.seen = self.first_ballot()
        vote = self._votes.get((record.lineage, self.round, self.cut))
        if vote is not None:
            self.promised = self.seen = max(vote.promised, self.promised)
            self.accepted = vote.accepted
            self.held.update((part.digest, part) for part in vote.held)
        self.archive.drop_until(record.round)

    def retire(self) -> None:
        """Give up this history: nothing is answered on it any more (another one is greater, section 5)."""
        self._remember()
        self.exchanging.stop()
        self.tip = None
        self.cut = self.chain = b""
        self.archive.clear()
        self.early.clear()
        self._reset()

    def _remember(self) -> None:
        if self.tip is None or (self.accepted is None and self.promised <= self.first_ballot()):
            return
        names = {part.digest for part in self.accepted[1].parts} if self.accepted else set()
        held = tuple(part for digest, part in self.held.items() if digest in names)
        self._votes[self.tip.lineage, self.round, self.cut] = _Vote(self.promised, self.accepted, held)
        while len(self._votes) > VOTES_KEPT:
            del self._votes[next(iter(self._votes))]

    # --- messages --------------------------------------------------------------------------------------------------

    def admit(self, sender: Voter, message: RoundMessage) -> bool:
        """The fence, compared whole (G5). False: dealt with here (stale, early, decided, of another history)."""
        fence = message.fence
        if fence.run != self.run.run or fence.stage != self.stage.index or self.tip is None:
            return False
        if fence.lineage != self.tip.lineage or (fence.round == self.round and fence.parent != self.cut):
            self.say_head(sender.peer)
            return False
        if fence.round < self.round:
            if not isinstance(message, Accept | Have | Trouble):
                self._send_record(sender.peer, fence.round)
            return False
        if fence.round > self.round:
            self.early.append((sender, message))
            if self.decided is None:
                self.ask_records(sender.peer, fence.round - 1)
            return False
        if self.decided is not None and sender != self.desk.me and isinstance(message, Close | Filled | Begin | Propose):
            self.desk.send(sender.peer, self.decided)
            return False
        self.seen = max(self.seen, fence.ballot)
        if sender == self.promised.owner:
            self.leader_heard_at = self.desk.now
        return True

    def ask_records(self, peer: PeerId, last: int) -> None:
        """We are behind: ask for what was decided since, not more often than ``repeat_s``."""
        if self.tip is None or self.desk.now - self.asked_at < self.run.knobs.repeat_s:
            return
        self.asked_at = self.desk.now
        self.desk.send(peer, RecordAsk(self.stage.index, self.tip.lineage, self.round, last))

    def on_close(self, sender: Voter, message: Close) -> None:
        """R2. A ``Close`` passed on by somebody else is only a hint that a higher ballot exists (``admit`` noted it)."""
        ballot = message.fence.ballot
        if ballot.owner != sender:
            return
        if ballot < self.promised:
            dead, reform = self.closes.get(self.promised, (frozenset(), ()))
            self.desk.send(sender.peer, Close(self.fence(self.promised), tuple(sorted(dead)), reform))
            return
        self.closes[ballot] = (frozenset(message.dead), message.reform)
        self._promise(ballot)
        self.send_filled()

    def on_begin(self, sender: Voter, message: Begin) -> None:
        """R4, a member's part: start (or restart) the exchange; fetch what is fixed and not held."""
        ballot, begin = message.fence.ballot, self.begin
        if ballot < self.promised or ballot.owner != sender or self.desk.me not in message.members:
            return
        if begin is not None and begin.fence.ballot == ballot and begin.attempt >= message.attempt:
            if begin.attempt == message.attempt:
                self.exchanging.tell_have(whole=True)
            return
        if not is_sound_begin(message, self.stage.size):
            self.desk.say("error", "bad-begin", f"{short(sender.peer)} orders an exchange that does not fit the stage: ignored")
            return
        self._promise(ballot)
        self.progress_at = self.desk.now
        self.exchanging.start(message)
        self.look_again()

    def on_propose(self, sender: Voter, message: Propose) -> None:
        ballot, record = message.fence.ballot, message.record
        if ballot < self.promised or ballot.owner != sender or record.parent != self.cut:
            return
        known = self.proposals.get(ballot)
        if known is not None and known.digest != record.digest:
            self.desk.say("error", "two-proposals", f"{short(sender.peer)} proposed two records in one ballot: second ignored")
            return
        if record.round != self.round or not is_sound_record(record, self.stage):
            self.desk.say("error", "bad-record", f"{short(sender.peer)} proposed a record that does not fit the stage: ignored")
            return
        self._promise(ballot)
        if known is None:
            self.progress_at = self.desk.now
        self.proposals[ballot] = record
        if self.accepted and self.accepted[0] == ballot:
            self._send_accept()
            return
        self._fetch_missing(record, (sender.peer,))
        self._try_accept()
        self._try_decide(ballot, record)

    def on_accept(self, sender: Voter, message: Accept) -> None:
        """R7: whoever sees a quorum has a decision, leader or not."""
        ballot = message.fence.ballot
        if message.life != sender.life:
            return
        self.accepts.setdefault((ballot, message.record_digest), set()).add(sender)
        record = self.proposals.get(ballot)
        if record is not None and record.digest == message.record_digest:
            self._try_decide(ballot, record)

    def on_commit(self, sender: Voter, message: Commit) -> bool:
        """A decision of this or a later round. False if its history is not ours (``catchup`` deals with that)."""
        record = message.record
        if self.tip is None or record.stage != self.stage.index or record.lineage != self.tip.lineage:
            return self.tip is not None and record.lineage < self.tip.lineage
        if record.round < self.round:
            kept = self.archive.recent.get(record.round)
            return kept is None or kept.record.digest == record.digest
        if not is_sound_record(record, self.stage):
            return True
        if record.round > self.round:
            self.archive.ahead(message)
            if self.decided is None:
                self.ask_records(sender.peer, record.round)
            return True
        if record.parent != self.cut:
            return False
        self._decide(Commit(record, message.accepted, tuple(sorted({*message.holders, sender.peer} - {self.desk.me.peer}))))
        return True

    def on_record_ask(self, sender: Voter, message: RecordAsk) -> None:
        tip = self.tip
        known = self.archive.answer(message, tip.round) if tip and message.lineage == tip.lineage else None
        for commit in known or ():
            self.desk.send(sender.peer, commit)
        if not known:
            self.say_head(sender.peer)

    # --- facts from the hands --------------------------------------------------------------------------------------

    def bundle_done(self, bundle: Bundle, expects_more: bool) -> None:
        self.bundles.append(bundle)
        self.fill_changed(expects_more)

    def fill_changed(self, expects_more: bool) -> None:
        """Tell the leader of the promised ballot what is summed here by now."""
        self.expects_more = expects_more
        if not expects_more and self.filled_at is None:
            self.filled_at = self.progress_at = self.desk.now
        self.send_filled()

    def part_held(self, event: PartHeld) -> None:
        """Parts of an earlier round, or of nobody's order, are not taken: they would be averaged into this one."""
        part = event.part
        ordered = event.begin_digest in self.exchanging.known if event.begin_digest else self.fetching.asked_for(part.digest)
        if self.tip is None or not ordered:
            return
        self.fetching.arrived(part.digest)
        self.held[part.digest] = part
        self.progress_at = self.desk.now
        self.exchanging.part_held(part)
        self._try_accept()
        self.look_again()
        self.try_apply()

    def part_troubled(self, event: PartTroubled) -> None:
        """Tell the leader; if the reducer is gone, look for the part elsewhere once a record names it."""
        if self.exchanging.troubled(event):
            self.look_again()

    def part_fetch_failed(self, event: PartFetchFailed) -> None:
        if self.fetching.failed(event):
            self.look_again()

    def look_again(self) -> None:
        """Fetch what is missing of a decision, a proposal, or a fixed part."""
        if self.decided:
            self._fetch_missing(self.decided.record, self.decided.holders)
        elif self.promised in self.proposals:
            self._fetch_missing(self.proposals[self.promised], (self.promised.peer,))
        elif self.begin:
            for order in self.begin.parts:
                if order.fixed and order.fixed.digest not in self.held:
                    self.fetching.want(order.fixed, order.holders)

    def try_apply(self) -> None:
        """R8. With one stage the cut is known as soon as its record is decided."""
        if self.decided is None or self.applying or self.healing or self.pulling or not self._holds(self.decided.record):
            return
        record = self.decided.record
        self.applying = True
        counted = self._own_counted(record)
        self.desk.emit(Apply(record, chain_digest(self.chain, record), record.round % SLICES, counted))

    def applied(self, event: Applied) -> Commit | None:
        """The decision is in the state: next round. Returns what was applied, or None for a stale event."""
        if not self.applying or self.decided is None or event.round != self.decided.record.round:
            return None
        commit = self.decided
        self.led_by = self.promised.owner
        oldest = self.archive.keep(Commit(commit.record, commit.accepted, (self.desk.me.peer,)))
        self.adopt(commit.record, chain_digest(self.chain, commit.record), event.base)
        self.desk.emit(ReleaseParts(oldest))
        return commit

    def follow_up(self) -> None:
        """After applying: a later decision already known, or decided rounds to ask for."""
        commit = self.archive.take_next(self.round, self.cut)
        if commit is not None:
            self._decide(commit)
        elif self.archive.future:
            last = max(self.archive.future)
            holders = self.archive.future[last].holders
            if holders:
                self.asked_at = -math.inf
                self.ask_records(holders[0], last)

    def take_early(self) -> list[tuple[Voter, RoundMessage]]:
        """Messages of later rounds met before this one was applied, to be handled again."""
        waiting = list(self.early)
        self.early.clear()
        return waiting

    # --- answers ---------------------------------------------------------------------------------------------------

    def filled(self) -> Filled:
        return Filled(
            fence=self.fence(self.promised),
            life=self.desk.me.life,
            accepted=self.accepted,
            bundles=tuple(self.bundles),
            held=tuple(self.held.values()),
            base=self.base,
            refused=tuple(self.refused),
            expects_more=self.expects_more,
        )

    def tick(self) -> None:
        """Fetches whose pause is over, and answers that may have been lost with a link."""
        self.look_again()
        self.exchanging.tick()
        if self.desk.now >= self._repeat_at():
            self.send_filled()

    def deadline(self) -> float:
        return min(self._repeat_at(), self.fetching.deadline(), self.exchanging.repeat_at)

    def _repeat_at(self) -> float:
        if self.filled_at is None or self.begin is not None or self.decided is not None or self.tip is None or self.healing:
            return math.inf
        return self.sent_at + FILLED_REPEATS * self.run.knobs.repeat_s

    def send_filled(self) -> None:
        self.sent_at = self.desk.now
        if self.tip is not None and self.promised.peer and self.decided is None and not self.healing and not self.finished:
            self.desk.send(self.promised.peer, self.filled())

    def say_head(self, peer: PeerId) -> None:
        if self.head is not None:
            self.desk.send(peer, HeadSaid(self.head))

    def head_said(self, sender: Voter, message: HeadSaid) -> None:
        """A leader answers a repeated ``Filled`` by its head: if it is ours, it is at work on this round."""
        if sender == self.promised.owner and message.head.cut == self.cut:
            self.leader_heard_at = self.desk.now

    def _promise(self, ballot: Ballot) -> None:
        if ballot <= self.promised:
            return
        self.promised = ballot
        self.progress_at = self.leader_heard_at = self.desk.now
        self.exchanging.passed_by(ballot)

    def _try_accept(self) -> None:
        """R6: only when all bytes of the record are held; the base is our tip by the fence."""
        record = self.proposals.get(self.promised)
        if record is None or (self.accepted and self.accepted[0] >= self.promised) or not self._holds(record):
            return
        if self.desk.me not in self.electorate(self.promised).standing:
            return
        self.accepted = (self.promised, record)
        self._send_accept()

    def _send_accept(self) -> None:
        """To the leader and all who vote; everybody else learns from the leader's ``Commit``."""
        assert self.accepted is not None
        ballot, record = self.accepted
        peers = {voter.peer for voter in (*self.voters, *self.electorate(ballot).standing)} | {ballot.peer, self.desk.me.peer}
        self.desk.broadcast(peers, Accept(self.fence(ballot), self.desk.me.life, record.digest))

    def _try_decide(self, ballot: Ballot, record: Record) -> None:
        votes = self.accepts.get((ballot, record.digest), set())
        if self.decided is None and self.electorate(ballot).is_quorum(votes):
            holders = tuple(sorted(voter.peer for voter in votes if voter != self.desk.me))
            commit = Commit(record, tuple(sorted(votes)), holders)
            if ballot.owner == self.desk.me:
                others = set(self.present()) | {voter.peer for voter in self.voters}
                self.desk.broadcast(others - {self.desk.me.peer}, commit)
            self._decide(commit)

    def _decide(self, commit: Commit) -> None:
        if self.decided is None:
            self.decided = commit
            self.progress_at = self.desk.now
            self._fetch_missing(commit.record, commit.holders)
            self.try_apply()

    def _holds(self, record: Record) -> bool:
        return all(part.digest in self.held for part in record.parts)

    def _fetch_missing(self, record: Record, hints: Iterable[PeerId]) -> None:
        for part in record.parts:
            if part.digest not in self.held and not self.exchanging.is_coming(part):
                self.fetching.want(part, hints)

    def _own_counted(self, record: Record) -> tuple[tuple[int, tuple[int, ...]], ...]:
        exchanged = {bundle.key for bundle in self.begin.bundles} if self.begin else set()
        own = [bundle for bundle in self.bundles if bundle.key in exchanged]
        return tuple((part.index, tuple(b.index for b in own if set(b.ids) <= set(part.counted))) for part in record.parts)

    def _send_record(self, peer: PeerId, round: int) -> None:
        commit = self.archive.recent.get(round)
        if commit is not None:
            self.desk.send(peer, commit)
        else:
            self.say_head(peer)

    def check(self) -> None:
        """Invariants I3, I5 (as far as one member sees them) and the shape of the state."""
        if self.accepted is not None:
            assert self.accepted[0] <= self.promised, "I5: accepted above promised"
            assert self._holds(self.accepted[1]), "I3: accepted without its bytes"
        if self.applying:
            assert self.decided is not None and self._holds(self.decided.record), "I3: applying without bytes"
        if self.tip is not None:
            assert self.promised >= self.first_ballot(), "I5: promised fell"
        for bundle in self.bundles:
            assert bundle.peer == self.desk.me.peer, "a bundle of somebody else"
