"""How a newcomer, a straggler or the loser of two histories gets the state (R13, section 5, field reports on joining).

Decides when a snapshot is needed, which round is asked of whom, and when to start over. The copying itself is
``transfer.Pull``; records decided meanwhile are followed by ``rounds``.

    no state -> asking (several donors, one round) -> pulling (chunks from all of them) -> loading -> follow records
                   ^------------------------------ nobody left to pull from --------------'
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

from p2ptrain.core.desk import Desk
from p2ptrain.core.events import (
    ChunkFailed,
    ChunkPulled,
    Effect,
    LoadState,
    RoundsAbandoned,
    StateFailed,
    StateLoaded,
)
from p2ptrain.core.messages import Commit, HeadSaid, RecordAsk, SnapshotAsk, SnapshotOffer, SnapshotRelease
from p2ptrain.core.rounds import StageRound
from p2ptrain.core.transfer import Pull
from p2ptrain.core.types import BaseDigest, Digest, Head, PeerId, Policy, Record, SnapshotInfo, Voter, cut_of, short

DONORS_MAX = 4
OFFER_WAIT_S = 1.5
RETRY_S = 0.3
RETRY_MAX_S = 5.0
FRUITLESS_MAX = 2
OUTRUN_MAX = 6
"""So often a refusal because the round is past is followed at once by the question for one still to come."""


class CatchUp:
    """``phase`` tells where this peer stands; "current" means that it needs no snapshot.

    ``donors``: peers that have state and a link to us, in order of preference. ``loaded``: called once the state of a
    snapshot is in place. ``heads``: who is known to hold state, and how far (a table that others may read).
    """

    def __init__(
        self,
        stage: StageRound,
        donors: Callable[[], list[PeerId]],
        loaded: Callable[[], None],
        heads: dict[PeerId, Head] | None = None,
    ) -> None:
        self.stage = stage
        self.desk: Desk = stage.desk
        self.donors = donors
        self.loaded = loaded
        self.phase: Literal["current", "asking", "pulling", "loading"] = "current"
        self.heads: dict[PeerId, Head] = {} if heads is None else heads
        self.asked: dict[PeerId, int] = {}
        self.asked_late: set[PeerId] = set()
        self.offers: dict[Digest, tuple[SnapshotInfo, list[PeerId]]] = {}
        self.pull: Pull | None = None
        self.retry_at = math.inf
        self.decide_at = math.inf
        self.attempts = 0
        self.outrun = 0  # questions in a row that came too late: rounds are quicker than what we know of them
        self.passed = False  # so was (part of) the last one
        self.since = 0.0
        self.reason = ""
        self.kept: tuple[Record, Digest, BaseDigest] | None = None
        self.abandoned: list[int] = []
        self.agreed: dict[PeerId, int] = {}  # last round that a peer is known to share with us
        self.behind_since: float | None = None

    # --- heads -----------------------------------------------------------------------------------------------------

    def note_head(self, peer: PeerId, head: Head) -> None:
        """Somebody says how far its history reaches: follow it, leave ours for it, or tell it of ours."""
        known = self.heads.get(peer)
        if known is None or head.order >= known.order or head.lineage > known.lineage:
            self.heads[peer] = head
        stage = self.stage
        if stage.archive.lies_on(head):
            self.agreed[peer] = head.round
        if self.phase in ("asking", "pulling"):
            self._ask_also(peer)
        mine = stage.head
        if mine is None or self.phase != "current":
            return
        if head.lineage > mine.lineage:
            self.abandon(peer, head)
        elif head.lineage < mine.lineage or head == mine:
            return
        elif head.round > mine.round:
            self._follow(peer, head, mine)
        elif head.round == mine.round or not self._is_ours(head):
            if head.order > mine.order:
                self.diverged(peer, head)
            else:
                self.desk.send(peer, HeadSaid(mine))

    def heard(self, peer: PeerId, commit: Commit) -> None:
        """``peer`` holds this decision: its history reaches at least there."""
        record = commit.record
        head = Head(record.lineage, record.samples_total, record.round, cut_of((record,)))
        known = self.heads.get(peer)
        if known is None or head.order > known.order:
            self.heads[peer] = head
        if self.stage.archive.lies_on(head):
            self.agreed[peer] = head.round

    def on_foreign_commit(self, peer: PeerId, commit: Commit) -> None:
        """A decision that does not follow from our tip: two histories (never under ``majority``)."""
        head = self.heads.get(peer)
        mine = self.stage.head
        if mine is not None and head is not None:
            self.diverged(peer, head)

    def diverged(self, peer: PeerId, head: Head) -> None:
        mine = self.stage.head
        if mine is None:
            return
        if head.lineage == mine.lineage and self.stage.run.policy is Policy.MAJORITY:
            text = f"{short(peer)} holds another history of round {head.round}: under majority this is a bug or a lie"
            self.desk.say("error", "two-histories", text, head.round)
        elif head.order > mine.order:
            self.abandon(peer, head)
        else:
            self.desk.send(peer, HeadSaid(mine))

    def abandon(self, peer: PeerId, head: Head) -> None:
        """Give up our own history for a greater one, and say which rounds that costs: those after the last one that
        ``peer`` is known to share (all that are kept, if none is known).
        """
        stage = self.stage
        assert stage.tip is not None
        agreed = self.agreed.get(peer, -1)
        rounds = tuple(round for round in stage.archive.recent if round > agreed)
        self.abandoned.extend(rounds)
        self.desk.emit(RoundsAbandoned(rounds, stage.tip.samples_total, stage.cut, head.cut))
        self.desk.say(
            "warning", "abandoned", f"{short(peer)} has the greater history: pulls it from round {head.round}"
        )
        self.kept = (stage.tip, stage.chain, stage.base)
        stage.retire()
        self.start(f"another history is greater (round {head.round})")

    def _follow(self, peer: PeerId, head: Head, mine: Head) -> None:
        stage = self.stage
        if stage.decided is not None:
            return
        if head.round - mine.round > stage.run.knobs.parts_kept_rounds:
            self.start(f"{head.round - mine.round} rounds behind")
            # Is what we hold part of that history? The answer comes before any snapshot can be here.
            self.desk.send(peer, RecordAsk(stage.stage.index, mine.lineage, mine.round + 1, mine.round + 1))
            return
        if self.behind_since is None:
            self.behind_since = self.desk.now
        self._ask_ahead()

    def _ask_ahead(self) -> None:
        """Ask somebody who is ahead of us, another one each time: the last may not keep the records any more."""
        mine = self.stage.head
        ahead = [
            (p, h.round)
            for p, h in sorted(self.heads.items())
            if mine and h.lineage == mine.lineage and h.round > mine.round
        ]
        if ahead and self.desk.now >= self.stage.asked_at + self.stage.run.knobs.repeat_s:
            self.stage.ask_records(*self.desk.rng.choice(ahead))
        elif not ahead:
            self.behind_since = None

    def _is_ours(self, head: Head) -> bool:
        """Whether ``head`` lies on our own history; unknown ones do, unless they count more samples than we do."""
        known = self.stage.archive.lies_on(head)
        if known is not None:
            return known
        mine = self.stage.head
        return mine is not None and head.samples_total <= mine.samples_total

    # --- the pull --------------------------------------------------------------------------------------------------

    def look(self) -> None:
        """After every event: a decided round whose parts nobody keeps any more is passed by with a snapshot."""
        stage = self.stage
        if self.phase != "current" or stage.decided is None or stage.fetching.fruitless < FRUITLESS_MAX:
            return
        record = stage.decided.record
        if any(head.lineage == record.lineage and head.round >= record.round for head in self.heads.values()):
            self.start(f"nobody keeps the parts of round {record.round} any more")

    def start(self, reason: str) -> None:
        """A snapshot is needed."""
        self.phase = "asking"
        self.reason = reason
        self.since = self.desk.now
        self.attempts = self.outrun = 0
        self._ask()

    def on_offer(self, sender: Voter, message: SnapshotOffer) -> None:
        if message.head is not None:
            self.note_head(sender.peer, message.head)
        if message.info is None:
            mine = self.asked.pop(sender.peer, None)
            if mine is not None and message.head is not None and message.head.round > mine:
                self.passed = True
            if self.phase == "asking" and not self.asked:
                self._choose()
            return
        key = message.info.key
        if self.phase == "pulling" and self.pull is not None and key == self.pull.info.key:
            self._run(self.pull.donor_added(sender.peer, 0.0, self.desk.now))
            return
        if self.phase != "asking" or sender.peer not in self.asked:
            self.desk.send(sender.peer, SnapshotRelease(key))
            return
        self.asked.pop(sender.peer)
        self.offers.setdefault(key, (message.info, []))[1].append(sender.peer)
        self.decide_at = min(self.decide_at, self.desk.now + OFFER_WAIT_S)
        if not self.asked:
            self._choose()

    def on_chunk(self, event: ChunkPulled | ChunkFailed) -> None:
        if self.pull is None or event.key != self.pull.info.key:
            return
        if isinstance(event, ChunkPulled):
            self._run(self.pull.chunk_pulled(event, self.desk.now))
        else:
            self._run(self.pull.chunk_failed(event, self.desk.now))
        self._look()

    def on_loaded(self, event: StateLoaded) -> None:
        if self.phase != "loading" or self.pull is None or event.key != self.pull.info.key:
            return
        info = self.pull.info
        self._release()
        self.phase = "current"
        self.stage.pulling = False
        self.kept = None
        self.behind_since = None
        self.stage.adopt(info.record, info.chain, event.base)
        self.desk.say("info", "state", f"holds round {info.round} after {self.desk.now - self.since:.1f} s", info.round)
        self.loaded()
        self.stage.asked_at = -math.inf
        self._ask_ahead()

    def on_load_failed(self, event: StateFailed) -> None:
        if self.phase == "loading" and self.pull is not None and event.key == self.pull.info.key:
            self.desk.say("error", "state-refused", f"the pulled state was refused ({event.reason}): pulls again")
            self._again(event.reason)

    def peer_lost(self, peer: PeerId) -> None:
        self.heads.pop(peer, None)
        self.asked.pop(peer, None)
        if self.phase == "asking":
            for info, peers in list(self.offers.values()):
                if peer in peers:
                    peers.remove(peer)
                if not peers:
                    self.offers.pop(info.key, None)
            if not self.asked:
                self._choose()
        elif self.phase == "pulling" and self.pull is not None:
            self._run(self.pull.donor_lost(peer, self.desk.now))
            self._look()

    def tick(self) -> None:
        now = self.desk.now
        if self.phase == "asking" and now >= self.decide_at:
            self._choose()
        elif self.phase == "asking" and now >= self.retry_at:
            self._ask()
        elif self.phase == "pulling" and self.pull is not None:
            self._run(self.pull.tick(now))
            self._look()
        elif self.phase == "current" and self.behind_since is not None:
            self._watch_following()

    def deadline(self) -> float:
        if self.phase == "asking":
            return min(self.decide_at, self.retry_at)
        if self.phase == "pulling" and self.pull is not None:
            return self.pull.deadline()
        if self.phase == "current" and self.behind_since is not None:
            knobs = self.stage.run.knobs
            asks_at = self.stage.asked_at + knobs.repeat_s if self.stage.decided is None else math.inf
            return min(self.behind_since + knobs.stalled_after_s, asks_at)
        return math.inf

    def progressed(self, commit: Commit) -> None:
        """A record was applied: following works, and a snapshot of no later round is not needed any more."""
        self.behind_since = None
        self.agreed.update((voter.peer, commit.record.round) for voter in commit.accepted)
        tip = self.stage.tip
        if tip is None or self.phase in ("current", "loading"):
            return
        if self.phase == "asking":
            for key, (_, peers) in self.offers.items():
                self.desk.broadcast(peers, SnapshotRelease(key))
            self.offers.clear()
            self.asked.clear()
        elif self.pull is not None and tip.round < self.pull.info.round:
            self._look()
            return
        self._release()
        self.phase = "current"
        self.stage.pulling = False

    # --- helpers ---------------------------------------------------------------------------------------------------

    def _watch_following(self) -> None:
        """Following records brings nothing for a while: take a snapshot instead."""
        assert self.behind_since is not None
        if self.desk.now >= self.behind_since + self.stage.run.knobs.stalled_after_s:
            self.behind_since = None
            self.start("cannot follow the records")
        elif self.stage.decided is None:
            self._ask_ahead()

    def _ask(self) -> None:
        """Ask several donors for one and the same round: the highest head known, the next one when rounds are quick."""
        self.retry_at = math.inf
        self.decide_at = math.inf
        self.offers.clear()
        self.asked.clear()
        self.asked_late.clear()
        self.passed = False
        donors = [peer for peer in self.donors() if peer in self.heads]
        if not donors:
            self._retry_later()
            return
        best = max((self.heads[peer] for peer in donors), key=lambda head: head.order)
        on_best = [p for p in donors if self.heads[p].lineage == best.lineage and self.heads[p].round >= best.round - 1]
        self.desk.rng.shuffle(on_best)
        round = best.round + (self.outrun or (1 if self.attempts % 3 == 1 else 0))
        for peer in on_best[:DONORS_MAX]:
            self.asked[peer] = round
            self.desk.send(peer, SnapshotAsk(self.stage.stage.index, round))
        self.decide_at = self.desk.now + self.stage.run.knobs.chunk_timeout_s

    def _ask_also(self, peer: PeerId) -> None:
        """A donor met after the others were asked shares the load: it is asked for the very same round, once."""
        round = self.pull.info.round if self.pull is not None else next(iter(self.asked.values()), None)
        known = len(self.pull.progress()[2]) if self.pull is not None else len(self.asked)
        if round is None or peer in self.asked or peer in self.asked_late or known >= DONORS_MAX:
            return
        if peer in self.donors():
            self.asked_late.add(peer)
            self.asked[peer] = round
            self.desk.send(peer, SnapshotAsk(self.stage.stage.index, round))

    def _choose(self) -> None:
        """The offer with the most donors, then the later round; nobody: ask again."""
        self.decide_at = math.inf
        if not self.offers and self.passed and self.outrun < OUTRUN_MAX:
            self.outrun += 1  # the refusals said how far they are: ask for what comes next, before that is past too
            self._ask()
            return
        if not self.offers:
            self._retry_later()
            return
        info, peers = max(self.offers.values(), key=lambda o: (o[0].record.lineage, len(o[1]), o[0].round, o[0].key))
        for other, others in self.offers.values():
            if other.key != info.key:
                self.desk.broadcast(others, SnapshotRelease(other.key))
        self.phase = "pulling"
        self.stage.pulling = True
        rates = dict.fromkeys(peers, 0.0)
        self.pull = Pull(info, rates, self.stage.run.knobs, self.desk.rng)
        self.desk.say(
            "info", "pull", f"pulls round {info.round}, {info.total_bytes} bytes, from {len(peers)} donors", info.round
        )
        self._run(self.pull.start(self.desk.now))
        self._look()

    def _look(self) -> None:
        if self.pull is None or self.phase != "pulling":
            return
        if self.pull.done:
            if not self.stage.applying:
                self.phase = "loading"
                self.desk.emit(LoadState(self.pull.info))
        elif self.pull.failed:
            self._again(self.pull.failed)

    def _again(self, reason: str) -> None:
        self.desk.say("warning", "pull-failed", f"pull failed: {reason}; asks again")
        self._release()
        self.phase = "asking"
        self.stage.pulling = False
        self.stage.try_apply()
        self._retry_later()

    def _retry_later(self) -> None:
        self.attempts += 1
        self.outrun, self.passed = 0, False
        self.retry_at = self.desk.now + min(RETRY_MAX_S, RETRY_S * 1.5 ** min(self.attempts, 8))
        if self.kept is not None and self.attempts > 10 and not self.donors():
            record, chain, base = self.kept
            self.kept = None
            self.phase = "current"
            self.desk.say(
                "warning", "restored", f"nobody holds the greater history any more: back to round {record.round}"
            )
            self.stage.adopt(record, chain, base)
            self.loaded()

    def _release(self) -> None:
        if self.pull is not None:
            for peer in sorted(self.pull.progress()[2]):
                self.desk.send(peer, SnapshotRelease(self.pull.info.key))
            self.pull = None

    def _run(self, effects: list[Effect]) -> None:
        for effect in effects:
            self.desk.emit(effect)
