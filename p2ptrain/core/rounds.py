"""One member's side of the round protocol for one stage: promise, hold, accept, decide, apply.

Decides what this peer promises (R2), holds and accepts (R6), when it sees a decision (R7) and when it applies (R8).
Does not decide what a leader proposes (``leading``), who leads when nobody does (``succession``), what is computed
(``filling``) or how a newcomer gets state (``catchup``).

    tip r --Filled--> leader --Begin--> exchange --Have--> leader --Propose--> Accept --quorum--> Apply --> tip r+1
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from p2ptrain.core.choosing import ids_counted
from p2ptrain.core.compose import is_sound_begin, is_sound_record
from p2ptrain.core.desk import Desk
from p2ptrain.core.events import Applied, Apply, PartFetchFailed, PartHeld, PartTroubled, ReleaseParts
from p2ptrain.core.following import Following, RoundMessage
from p2ptrain.core.messages import Accept, Begin, Close, Commit, Filled, HeadSaid, Propose
from p2ptrain.core.types import (
    Ballot,
    BaseDigest,
    Bundle,
    Digest,
    PeerId,
    Record,
    RunSpec,
    Stage,
    Voter,
    chain_digest,
    short,
)

SLICES = 16
FILLED_REPEATS = 2.0  # an unanswered Filled is sent again after this many ``repeat_s``


class StageRound(Following):
    """State of a member, per stage (round protocol, section 2), and rules R2 and R4 to R8.

    ``present`` gives the peers held alive (for commits and fetches), own id included.
    """

    def __init__(self, run: RunSpec, stage: Stage, desk: Desk, present: Callable[[], Iterable[PeerId]]) -> None:
        super().__init__(run, stage, desk, present)
        self.healing = False
        self.pulling = False  # a snapshot is on its way here: nothing is applied meanwhile
        self.led_by: Voter | None = None  # leader of the round applied last
        self._reset()

    def _reset(self) -> None:
        """What a new round (or another history) starts from."""
        self.bundles: list[Bundle] = []
        self.refused: list[int] = []
        self.expects_more = False
        self.decided: Commit | None = None
        self.applying = False
        self.pass_on()
        self.exchanging.reset()
        self.progress_at = self.leader_heard_at = self.sent_at = self.desk.now
        self.filled_at: float | None = None

    @property
    def begin(self) -> Begin | None:
        return self.exchanging.begin

    def adopt(self, record: Record, chain: Digest, base: BaseDigest) -> None:
        """Take ``record`` as the last applied one: genesis, a loaded snapshot, or the round just applied."""
        self.stand_at(record, chain, base)
        self.archive.drop_until(record.round)
        self._reset()

    def retire(self) -> None:
        """Give up this history: nothing is answered on it any more (another one is greater, section 5)."""
        self.stand_nowhere()
        self.exchanging.stop()
        self.archive.clear()
        self.early.clear()
        self._reset()

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
            self.late(sender, message)
            return False
        if fence.round > self.round:
            self.early.append((sender, message))
            if self.decided is None:
                self.ask_records(sender.peer, fence.round - 1)
            return False
        if (
            self.decided is not None
            and sender != self.desk.me
            and isinstance(message, Close | Filled | Begin | Propose)
        ):
            self.desk.send(sender.peer, self.decided)
            return False
        self.seen = max(self.seen, fence.ballot)
        if sender == self.promised.owner:
            self.leader_heard_at = self.desk.now
        return True

    def on_close(self, sender: Voter, message: Close) -> None:
        """R2. A ``Close`` passed on by somebody else only shows that a higher ballot exists (``admit`` noted it)."""
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
            self.desk.say(
                "error", "bad-begin", f"{short(sender.peer)} orders an exchange that does not fit the stage: ignored"
            )
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
            self.desk.say(
                "error", "two-proposals", f"{short(sender.peer)} proposed two records in one ballot: second ignored"
            )
            return
        if record.round != self.round or not is_sound_record(record, self.stage):
            self.desk.say(
                "error", "bad-record", f"{short(sender.peer)} proposed a record that does not fit the stage: ignored"
            )
            return
        self._promise(ballot)
        if known is None:
            self.progress_at = self.desk.now
        self.proposals[ballot] = record
        if self.accepted and self.accepted[0] == ballot:
            self._send_accept()
            return
        self.fetch_missing(record, (sender.peer,))
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
            self.look_ahead()
            if self.decided is None:
                self.ask_records(sender.peer, record.round)
            return True
        if record.parent != self.cut:
            return False
        self._decide(
            Commit(record, message.accepted, tuple(sorted({*message.holders, sender.peer} - {self.desk.me.peer})))
        )
        return True

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
        ordered = (
            event.begin_digest in self.exchanging.known if event.begin_digest else self.fetching.asked_for(part.digest)
        )
        if self.tip is None or not ordered:
            return
        self.fetching.arrived(part.digest)
        if part.digest in self.ahead and not event.begin_digest:
            self.ahead[part.digest] = part
            self.look_ahead()
            return
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
            self.look_ahead()

    def look_again(self) -> None:
        """Fetch what is missing of a decision, a proposal, or a fixed part."""
        if self.decided:
            self.fetch_missing(self.decided.record, self.decided.holders)
        elif self.promised in self.proposals:
            self.fetch_missing(self.proposals[self.promised], (self.promised.peer,))
        elif self.begin:
            for order in self.begin.parts:
                if order.fixed and order.fixed.digest not in self.held:
                    self.fetching.want(order.fixed, order.holders)

    def try_apply(self) -> None:
        """R8. With one stage the cut is known as soon as its record is decided."""
        if (
            self.decided is None
            or self.applying
            or self.healing
            or self.pulling
            or not self._holds(self.decided.record)
        ):
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
        self.look_ahead()
        if commit is not None:
            self._decide(commit)
        elif self.archive.future:
            last = max(self.archive.future)
            holders = self.archive.future[last].holders
            if holders:
                self.asked_at = -math.inf
                self.ask_records(holders[0], last)

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
        self.look_ahead()
        self.fetching.looked_again()
        self.exchanging.tick()
        if self.desk.now >= self._repeat_at():
            self.send_filled()

    def deadline(self) -> float:
        return min(self._repeat_at(), self.fetching.deadline(), self.exchanging.repeat_at)

    def _repeat_at(self) -> float:
        if (
            self.filled_at is None
            or self.begin is not None
            or self.decided is not None
            or self.tip is None
            or self.healing
        ):
            return math.inf
        return self.sent_at + FILLED_REPEATS * self.run.knobs.repeat_s

    def send_filled(self) -> None:
        self.sent_at = self.desk.now
        if (
            self.tip is not None
            and self.promised.peer
            and self.decided is None
            and not self.healing
            and not self.finished
        ):
            self.desk.send(self.promised.peer, self.filled())

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
        peers = {voter.peer for voter in (*self.voters, *self.electorate(ballot).standing)} | {
            ballot.peer,
            self.desk.me.peer,
        }
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
            for part in commit.record.parts:
                if self.ahead.pop(part.digest, None) is not None:
                    self.held[part.digest] = part
            self.fetch_missing(commit.record, commit.holders)
            self.try_apply()

    def _holds(self, record: Record) -> bool:
        return all(part.digest in self.held for part in record.parts)

    def _own_counted(self, record: Record) -> tuple[tuple[int, tuple[int, ...]], ...]:
        me = self.desk.me.peer
        exchanged = {bundle.key for bundle in self.begin.bundles if bundle.peer == me} if self.begin else set()
        own = [bundle for bundle in self.bundles if bundle.key in exchanged]
        return tuple(
            (part.index, tuple(b.index for b in own if ids_counted(part).issuperset(b.ids))) for part in record.parts
        )

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
