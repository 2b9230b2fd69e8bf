"""How long to wait for something that has been seen to arrive before.

Decides one number: median of the recent arrivals plus a multiple of their median deviation, between stated bounds
(fixed time-outs are the common root of hangs and false evictions). It does not decide what happens at the deadline.

    arrivals 1.0, 1.1, 0.9 s  ->  median 1.0, median deviation 0.1  ->  1.0 + 6 * 0.1 = 1.6 s
"""

from __future__ import annotations

import math
from collections import deque
from statistics import median

from p2ptrain.core.types import Knobs

RECENT = 32
"""Arrivals remembered; older ones are forgotten, so that the deadline follows what changes."""

FLOOR_SHARE = 0.25
"""Tolerance never falls below this share of the median: a perfectly regular past promises nothing."""


class Arrivals:
    """Observed durations of one kind of thing, and the deadline they justify. Deterministic.

    ``default_s`` is the answer before any observation; without it ``knobs.deadline_max_s``.
    """

    def __init__(self, knobs: Knobs, default_s: float | None = None) -> None:
        self._knobs = knobs
        self._default_s = knobs.deadline_max_s if default_s is None else default_s
        self._recent_s: deque[float] = deque(maxlen=RECENT)

    def observe(self, seconds: float) -> None:
        """Adds one arrival, in seconds after its start. Raises ValueError if it is not a finite number."""
        if not math.isfinite(seconds):
            raise ValueError(f"an arrival takes a finite number of seconds, not {seconds}")
        self._recent_s.append(max(0.0, seconds))

    def deadline_s(self) -> float:
        """Seconds after its start at which the next arrival counts as late."""
        if not self._recent_s:
            return self._default_s
        middle_s = median(self._recent_s)
        deviation_s = median(abs(seconds - middle_s) for seconds in self._recent_s)
        tolerance_s = max(self._knobs.deadline_factor * deviation_s, FLOOR_SHARE * middle_s)
        return min(max(middle_s + tolerance_s, self._knobs.deadline_min_s), self._knobs.deadline_max_s)

    def __len__(self) -> int:
        return len(self._recent_s)
