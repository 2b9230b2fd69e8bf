"""A member and what is not of its round: late and early messages, records asked for and told, parts to be fetched.

Decides what is kept, told and fetched so that whoever is behind comes up, this member included. Does not decide
anything of the round at hand (``rounds``, which builds on this), nor when a snapshot is needed (``catchup``).

    a round too late: gets the record, is ``trailing``     too early: waits in ``early``, records are asked for
    decided, two rounds ahead: kept, and its parts are fetched while the rounds before are applied
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable

from p2ptrain.core.archive import Archive
from p2ptrain.core.desk import Desk
from p2ptrain.core.exchanging import Exchanging
from p2ptrain.core.fetching import Fetching
from p2ptrain.core.messages import Accept, Begin, Close, Filled, Have, HeadSaid, Propose, RecordAsk, Trouble
from p2ptrain.core.position import Position
from p2ptrain.core.types import Digest, PartDone, PeerId, Record, RunSpec, Stage, Voter

EARLY_MAX = 512
TRAILING_ROUNDS = 2  # a follower no more rounds behind than this is waited for once, so that it gets into step

RoundMessage = Close | Filled | Begin | Have | Trouble | Propose | Accept


class Following(Position):
    """``present`` gives the peers held alive (for commits and fetches), own id included.

    ``early``: messages of later rounds. ``ahead``: parts of later decided rounds, held, or None while asked for.
    ``trailing``: who answered a round too late, and in which round we heard of it.
    """

    def __init__(self, run: RunSpec, stage: Stage, desk: Desk, present: Callable[[], Iterable[PeerId]]) -> None:
        super().__init__(run, stage, desk)
        self.present = present
        knobs = run.knobs
        self.archive = Archive(knobs)
        self.fetching = Fetching(desk, present, knobs.repeat_s)
        self.exchanging = Exchanging(desk, self.held, knobs.chunk_timeout_s, knobs.repeat_s)
        self.early: deque[tuple[Voter, RoundMessage]] = deque(maxlen=EARLY_MAX)
        self.ahead: dict[Digest, PartDone | None] = {}
        self.trailing: dict[Voter, int] = {}
        self.asked_at = -math.inf

    def pass_on(self) -> None:
        """Another round: only what concerns this one and later ones is still wanted."""
        coming = {part.digest for commit in self.archive.next_ones() for part in commit.record.parts}
        self.trailing = {v: at for v, at in self.trailing.items() if at >= self.round - TRAILING_ROUNDS}
        self.ahead = {digest: part for digest, part in self.ahead.items() if digest in coming}
        self.fetching.reset(coming)

    def late(self, sender: Voter, message: RoundMessage) -> None:
        """A message of a round that is applied here: its sender gets the record."""
        round = message.fence.round
        if isinstance(message, Filled) and round >= self.round - TRAILING_ROUNDS:
            self.trailing[sender] = self.round
        if not isinstance(message, Accept | Have | Trouble):
            self.send_record(sender.peer, round)

    def say_head(self, peer: PeerId) -> None:
        if self.head is not None:
            self.desk.send(peer, HeadSaid(self.head))

    def ask_records(self, peer: PeerId, last: int) -> None:
        """We are behind: ask for what was decided since, not more often than ``repeat_s``."""
        if self.tip is None or self.desk.now - self.asked_at < self.run.knobs.repeat_s:
            return
        self.asked_at = self.desk.now
        self.desk.send(peer, RecordAsk(self.stage.index, self.tip.lineage, self.round, last))

    def on_record_ask(self, sender: Voter, message: RecordAsk) -> None:
        tip = self.tip
        known = self.archive.answer(message, tip.round) if tip and message.lineage == tip.lineage else None
        for commit in known or ():
            self.desk.send(sender.peer, commit)
        if not known:
            self.say_head(sender.peer)

    def send_record(self, peer: PeerId, round: int) -> None:
        commit = self.archive.recent.get(round)
        if commit is not None:
            self.desk.send(peer, commit)
        else:
            self.say_head(peer)

    def take_early(self) -> list[tuple[Voter, RoundMessage]]:
        """Messages of later rounds met before this one was applied, to be handled again."""
        waiting = list(self.early)
        self.early.clear()
        return waiting

    def look_ahead(self) -> None:
        for commit in self.archive.next_ones():
            for part in commit.record.parts:
                if self.ahead.setdefault(part.digest, None) is None:
                    self.fetching.want(part, commit.holders)

    def fetch_missing(self, record: Record, hints: Iterable[PeerId]) -> None:
        for part in record.parts:
            if part.digest not in self.held and not self.exchanging.is_coming(part):
                self.fetching.want(part, hints)
