"""Which member is probed next, and which probes are unanswered: one's own, and those on behalf of others.

Decides order and lateness only; an unanswered probe alone is never evidence of death.

    ring, shuffled anew each time round:  c a d b | a d b c | ...      every member once per turn
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

from p2ptrain.core.types import Knobs, PeerId


@dataclass(slots=True)
class Outstanding:
    """A probe without an answer. ``asker``: on whose behalf ("" for our own), with the number it gave its question."""

    target: PeerId
    sent_at: float
    asker: PeerId = ""
    asker_seq: int = 0
    late: bool = False


class Probes:
    """The ring and the unanswered probes of one peer. Deterministic given ``rng``."""

    def __init__(self, knobs: Knobs, rng: random.Random) -> None:
        self._knobs = knobs
        self._rng = rng
        self._seq = 0
        self._open: dict[int, Outstanding] = {}
        self._ring: list[PeerId] = []

    def send(self, target: PeerId, now: float, asker: PeerId = "", asker_seq: int = 0) -> int:
        """Notes a probe sent now and returns its number."""
        self._seq += 1
        self._open[self._seq] = Outstanding(target, now, asker, asker_seq)
        return self._seq

    def next_seq(self) -> int:
        """A number for a question that is tracked elsewhere."""
        self._seq += 1
        return self._seq

    def answered(self, sender: PeerId, seq: int) -> list[Outstanding]:
        """Probes that this answer ends: the one named and all earlier ones to the same member."""
        if seq not in self._open or self._open[seq].target != sender:
            return []
        return self._take(lambda number, probe: number <= seq and probe.target == sender)

    def unreachable(self, target: PeerId) -> list[Outstanding]:
        """Probes that can no longer be answered."""
        return self._take(lambda _, probe: probe.target == target)

    def turned_late(self, now: float) -> list[PeerId]:
        """Members whose answer to our own probe is newly late. Probes without hope are forgotten."""
        self._take(lambda _, probe: now >= probe.sent_at + self._hopeless_s)
        late = []
        for probe in self._open.values():
            if not probe.late and not probe.asker and now >= probe.sent_at + self._knobs.probe_timeout_s:
                probe.late = True
                late.append(probe.target)
        return late

    def next_target(self, candidates: list[PeerId]) -> PeerId | None:
        """The next of the ring that is still a candidate; ``candidates`` sorted."""
        allowed = set(candidates)
        for _ in range(2):
            while self._ring:
                peer = self._ring.pop()
                if peer in allowed:
                    return peer
            self._ring = list(candidates)
            self._rng.shuffle(self._ring)
        return None

    def forget(self) -> None:
        self._open.clear()

    def wakes(self) -> float:
        timeout_s = self._knobs.probe_timeout_s
        return min((p.sent_at + timeout_s for p in self._open.values() if not p.late and not p.asker), default=math.inf)

    @property
    def _hopeless_s(self) -> float:
        return max(self._knobs.suspicion_max_s, 2 * self._knobs.probe_timeout_s)

    def _take(self, chosen: object) -> list[Outstanding]:
        assert callable(chosen)
        numbers = [number for number, probe in self._open.items() if chosen(number, probe)]
        return [self._open.pop(number) for number in numbers]
