"""Decided records beside the round at hand: the last ones kept for others, and later ones heard of too early.

Decides what is kept and for how long (in rounds, and in bytes while somebody pulls). Does not decide what is decided.

    recent   ... 41 42 43 | tip 43 | future  45 46      44 is asked for; then 45 and 46 follow without asking
"""

from __future__ import annotations

import math
from collections import OrderedDict

from p2ptrain.core.messages import Commit, RecordAsk
from p2ptrain.core.types import Digest, Head, Knobs, cut_of

RECORDS_KEPT = 256
FUTURE_MAX = 64
AHEAD_ROUNDS = 4
"""A follower fetches parts of so many decided rounds at once: one by one, it would never reach quick rounds."""


class Archive:
    """``recent``: applied rounds, oldest first. ``future``: decided and not yet reachable.

    The parts of the last rounds are kept too (from ``parts_from`` on); records much longer: by them a straggler sees
    whether what it holds is part of this history.
    """

    def __init__(self, knobs: Knobs) -> None:
        self.knobs = knobs
        self.recent: OrderedDict[int, Commit] = OrderedDict()
        self.future: dict[int, Commit] = {}
        self.parts_from = 0
        self.keep_from = math.inf  # oldest round whose parts somebody may still need who pulls from us

    def keep(self, commit: Commit) -> int:
        """An applied round. Returns the oldest round whose parts are still kept.

        Kept are the last ``parts_kept_rounds``, and within ``parts_kept_bytes`` all since the oldest snapshot that is
        being pulled.
        """
        self.recent[commit.record.round] = commit
        while len(self.recent) > RECORDS_KEPT:
            self.recent.popitem(last=False)
        oldest = next(iter(self.recent))
        last = commit.record.round - self.knobs.parts_kept_rounds + 1
        wanted = max(oldest, min(last, self.keep_from))
        nbytes = 0
        for round in reversed(self.recent):
            nbytes += sum(part.nbytes for part in self.recent[round].record.parts)
            if round < wanted or (round < last and nbytes > self.knobs.parts_kept_bytes):
                break
            self.parts_from = round
        return self.parts_from

    def lies_on(self, head: Head) -> bool | None:
        """Whether ``head`` is a point of this history; None if that round is not kept."""
        kept = self.recent.get(head.round)
        return cut_of((kept.record,)) == head.cut if kept is not None else None

    def ahead(self, commit: Commit) -> None:
        """A decision of a later round. The earliest are kept: they are needed first."""
        self.future[commit.record.round] = commit
        while len(self.future) > FUTURE_MAX:
            del self.future[max(self.future)]

    def next_ones(self) -> list[Commit]:
        """The decisions whose parts are fetched ahead."""
        return [self.future[round] for round in sorted(self.future)[:AHEAD_ROUNDS]]

    def take_next(self, round: int, cut: Digest) -> Commit | None:
        """The decision of ``round`` if it is known and follows from ``cut``."""
        commit = self.future.pop(round, None)
        return commit if commit is not None and commit.record.parent == cut else None

    def drop_until(self, round: int) -> None:
        for old in [r for r in self.future if r <= round]:
            del self.future[old]

    def answer(self, ask: RecordAsk, tip: int) -> list[Commit] | None:
        """The records asked for, up to ``tip``; None if the first of them is not kept any more."""
        if ask.first not in self.recent:
            return None
        return [self.recent[round] for round in range(ask.first, min(ask.last, tip) + 1) if round in self.recent]

    def clear(self) -> None:
        self.recent.clear()
        self.future.clear()
        self.parts_from = 0
