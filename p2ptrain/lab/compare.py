"""How far the simulator's times are from the lab's, for one scenario run by both. Pure.

``ratio`` is simulator by lab: 1 is the same, 0.8 says that the simulator was a fifth too fast.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from itertools import pairwise

from p2ptrain.lab.record import Record

STALLING = ("kill", "leave", "stop", "cut", "partition", "heal", "join")
"""Happenings after which the time to the next commit says something."""


@dataclass(frozen=True)
class Line:
    """One measure of both; None where a run has none. Seconds, or rounds."""

    name: str
    lab: float | None
    sim: float | None

    @property
    def ratio(self) -> float | None:
        return self.sim / self.lab if self.lab and self.sim is not None else None


@dataclass(frozen=True)
class Comparison:
    lines: tuple[Line, ...]

    def as_json(self) -> list[list[str | float]]:
        """Rows of name, lab, simulator, ratio; "" where there is none."""
        return [[line.name, *map(_shown, (line.lab, line.sim, line.ratio))] for line in self.lines]


def compare(lab: Record, sim: Record) -> Comparison:
    """Round times and stalls of the two records of one scenario."""
    lines = [
        Line("round time, median, s", round_time_s(lab), round_time_s(sim)),
        Line("rounds applied", float(len(lab.rounds)), float(len(sim.rounds))),
        Line("stall per round, median, s", stall_s(lab), stall_s(sim)),
    ]
    for do in STALLING:
        if not any(h.do == do for h in lab.happenings):
            continue
        lines.append(Line(f"from {do} to the next commit, median, s", after_s(lab, do), after_s(sim, do)))
    return Comparison(tuple(lines))


def round_time_s(record: Record, from_s: float = 0.0) -> float | None:
    """The median between commits that follow each other, among rounds that count everything."""
    steps = [
        later.t - fact.t
        for fact, later in pairwise(record.rounds)
        if later.round == fact.round + 1 and fact.t >= from_s
    ]
    return statistics.median(steps) if steps else None


def stall_s(record: Record) -> float | None:
    return statistics.median(fact.stall_s for fact in record.rounds) if record.rounds else None


def after_s(record: Record, do: str) -> float | None:
    """The median over the happenings of a kind of the time to the next commit."""
    found = [h.next_commit_s for h in record.happenings if h.do == do and h.next_commit_s is not None]
    return statistics.median(found) if found else None


def around_s(record: Record, do: str) -> float | None:
    """The median length of the rounds that such a happening fell into, from commit to commit.

    Other than ``after_s`` it does not depend on how much of the round was over already.
    """
    found = []
    for happening in record.happenings:
        if happening.do == do and happening.next_commit_s is not None:
            before = max((fact.t for fact in record.rounds if fact.t <= happening.t), default=None)
            if before is not None:
                found.append(happening.t + happening.next_commit_s - before)
    return statistics.median(found) if found else None


def _shown(value: float | None) -> str | float:
    return "" if value is None else round(value, 3)
