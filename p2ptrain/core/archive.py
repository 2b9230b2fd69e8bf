"""Decided records beside the round at hand: the last ones kept for others, and later ones heard of too early.

Decides what is kept and for how long (in rounds, and in bytes while somebody pulls). Does not decide what is decided.

    recent   ... 41 42 43 | tip 43 | future  45 46      44 is asked for; then 45 and 46 follow without asking
"""

from __future__ import annotations

import math
from collections import OrderedDict

from p2ptrain.core.messages import Commit, RecordAsk
from p2ptrain.core.types import Digest, Knobs


class Archive:
    """``recent``: applied rounds, oldest first, whose parts are kept too. ``future``: decided and not yet reachable."""

    def __init__(self, knobs: Knobs) -> None:
        self.knobs = knobs
        self.recent: OrderedDict[int, Commit] = OrderedDict()
        self.future: dict[int, Commit] = {}
        self.keep_from = math.inf  # oldest round whose parts somebody may still need who pulls from us

    def keep(self, commit: Commit) -> int:
        """An applied round. Returns the oldest round whose parts are still kept.

        Kept are the last ``parts_kept_rounds``, and within ``parts_kept_bytes`` all since the oldest snapshot that is
        being pulled.
        """
        self.recent[commit.record.round] = commit
        nbytes = sum(part.nbytes for kept in self.recent.values() for part in kept.record.parts)
        while len(self.recent) > self.knobs.parts_kept_rounds:
            oldest = next(iter(self.recent))
            if oldest > self.keep_from and nbytes <= self.knobs.parts_kept_bytes:
                break
            nbytes -= sum(part.nbytes for part in self.recent.pop(oldest).record.parts)
        return next(iter(self.recent))

    def ahead(self, commit: Commit) -> None:
        """A decision of a later round. The earliest are kept: they are needed first."""
        self.future[commit.record.round] = commit
        while len(self.future) > self.knobs.parts_kept_rounds:
            del self.future[max(self.future)]

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
