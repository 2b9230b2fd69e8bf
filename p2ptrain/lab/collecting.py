"""What the peers of a lab run tell, put into its ``Record``, while it runs and at its end.

Decides what a fact means for the record: whose report of a round stands (the first), when a life ended and how, how
long the swarm stalled after each happening. Knows nothing of processes: a teller is anything with a list of facts.

    collector = Collector(record, start=time.monotonic())
    life = collector.add_life("a", "oregon", peer, microbatch_s=0.05)
    collector.absorb()                  # as often as wanted
    collector.finish(end=time.monotonic())
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from typing import Any, Protocol

from p2ptrain.lab.record import Happening, PeerLife, Record, RoundFact

Fact = dict[str, Any]

STALLED = "StalledError"


class Teller(Protocol):
    """``facts``: dictionaries with ``ev`` and ``t`` (monotonic seconds), appended to by another thread."""

    facts: list[Fact]


@dataclass
class _Life:
    """What is known of one life beyond its ``PeerLife``."""

    teller: Teller
    life: PeerLife
    paces: list[tuple[float, float]]  # (since, seconds a microbatch), as the scenario says
    seen: int = 0
    stalled_at: float | None = None
    measured_s: list[float] = field(default_factory=list)


class Collector:
    """Owned by one thread. Times of facts are on the monotonic clock; those of the record since ``start``."""

    def __init__(self, record: Record, start: float) -> None:
        self.record = record
        self.start = start
        self._lives: list[_Life] = []
        self._rounds: dict[int, RoundFact] = {}
        self._losses: dict[int, tuple[float, int, float]] = {}
        self._end_s: float | None = None

    # --- what the scenario does

    def now_s(self, moment: float) -> float:
        return moment - self.start

    def add_life(self, name: str, region: str, teller: Teller, microbatch_s: float, moment: float) -> int:
        """A process was started. Its index."""
        began = max(0.0, self.now_s(moment))
        life = PeerLife(name, "", region, began)
        self.record.lives.append(life)
        self._lives.append(_Life(teller, life, [(began, microbatch_s)]))
        return len(self._lives) - 1

    def end_life(self, index: int, how: str, moment: float) -> None:
        """It was killed, or its process is gone; the first end stands."""
        life = self._lives[index].life
        if not life.ended:
            life.ended, life.ended_s = how, self.now_s(moment)

    def pace(self, index: int, microbatch_s: float, moment: float) -> None:
        """Its stated speed changed."""
        self._lives[index].paces.append((self.now_s(moment), microbatch_s))

    def happened(self, do: str, peers: list[str], text: str, moment: float) -> Happening:
        happening = Happening(self.now_s(moment), do, peers, text)
        self.record.happenings.append(happening)
        return happening

    # --- what the peers tell

    def absorb(self) -> None:
        """Take in what was told since the last time."""
        for index, life in enumerate(self._lives):
            facts = life.teller.facts
            upto = len(facts)
            for fact in facts[life.seen : upto]:
                self._take(index, life, fact)
            life.seen = upto

    @property
    def last_round(self) -> int:
        return max(self._rounds, default=0)

    def samples_per_s(self, window_s: float, now_s: float) -> float:
        """Counted in the last ``window_s`` seconds."""
        counted = sum(f.counted for f in self._rounds.values() if f.t > now_s - window_s)
        return counted * self.record.microbatch_samples / window_s

    def is_stalled(self, index: int) -> bool:
        return self._lives[index].stalled_at is not None

    def freeze(self, moment: float) -> None:
        """The scenario's time is over: what is told of later rounds is not part of it."""
        self.absorb()
        self._end_s = self.now_s(moment)
        for index, life in enumerate(self._lives):
            if not life.life.ended and self.is_stalled(index):
                life.life.ended, life.life.ended_s = STALLED, self._end_s

    def finish(self) -> None:
        """After ``freeze``: everything that needs the whole run."""
        record = self.record
        record.seconds = self._end_s if self._end_s is not None else 0.0
        record.rounds = [self._rounds[round] for round in sorted(self._rounds)]
        record.applied.sort()
        record.losses = sorted(self._losses.values())
        for life in self._lives:
            life.life.microbatch_s = _median(life.measured_s)
            life.life.own_samples_per_s = self._own_speed(life)
        for happening in record.happenings:
            _measure(record, happening)

    # --- helpers

    def _take(self, index: int, life: _Life, fact: Fact) -> None:
        t, kind = self.now_s(fact["t"]), fact["ev"]
        if kind in ("ended", "failed"):
            if self._end_s is None:
                self.end_life(index, fact["error"] or "leave", fact["t"])
        elif self._end_s is not None and t > self._end_s:
            return
        elif kind == "ready":
            life.life.peer, life.life.ready_s = fact["peer"], max(0.0, t)
        elif kind == "applied":
            life.life.rounds += 1
            life.stalled_at = None
            self.record.applied.append((t, index, int(fact["round"]), fact["chain"]))
        elif kind == "round":
            self._take_round(life, fact, t)
        elif kind == "loss":
            self._take_loss(int(fact["round"]), float(fact["loss"]), t)
        elif kind == "abandoned":
            self.record.abandoned.append((t, life.life.name, int(fact["first"]), int(fact["last"])))
        elif kind == "say" and fact["key"] == "stalled":
            life.stalled_at = t

    def _take_round(self, life: _Life, fact: Fact, t: float) -> None:
        if fact.get("microbatch_s"):
            life.measured_s.append(float(fact["microbatch_s"]))
        contributions = fact["contributions"]
        if life.life.first_counted_s is None and contributions.get(life.life.peer):
            life.life.first_counted_s = t
        round = int(fact["round"])
        known = self._rounds.get(round)
        if known is not None and known.t <= t:
            return
        loss = fact["loss"]
        self._rounds[round] = RoundFact(
            round,
            t,
            len(fact["members"]),
            int(fact["counted"]),
            int(fact["expected"]),
            int(fact["attempts"]),
            float(loss) if loss is not None and loss == loss else None,
            float(fact["stall_s"]),
            float(fact["fill_s"]),
            [(str(item[0]), " ".join(str(part) for part in item[1:])) for item in fact["left_out"]],
        )

    def _take_loss(self, round: int, loss: float, t: float) -> None:
        if loss == loss and (round not in self._losses or t < self._losses[round][0]):
            self._losses[round] = (t, round, loss)

    def _own_speed(self, life: _Life) -> float:
        """Samples a second of a peer alone, over its whole life: as stated, or as measured where nothing is stated."""
        samples = self.record.microbatch_samples
        end = life.life.ended_s if life.life.ended_s is not None else self.record.seconds
        total, weight = 0.0, 0.0
        for (since, pace), until in zip(life.paces, [p[0] for p in life.paces[1:]] + [end], strict=True):
            seconds = max(0.0, min(until, end) - since)
            microbatch_s = pace or life.life.microbatch_s
            if microbatch_s and seconds:
                total += seconds * samples / microbatch_s
            weight += seconds
        return total / weight if weight else 0.0


def _median(values: list[float]) -> float:
    return statistics.median(values) if values else 0.0


def _measure(record: Record, happening: Happening) -> None:
    """Until the next round: one later than any that had been applied before, by peers that it did not happen to."""
    t = happening.t
    before = max((round for at, _, round, _ in record.applied if at <= t), default=0)
    hit = set(happening.peers) if happening.do in ("kill", "leave", "stop") else set()
    survivors = {
        index
        for index, life in enumerate(record.lives)
        if life.ready_s is not None
        and life.ready_s <= t
        and (life.ended_s is None or life.ended_s > t)
        and life.name not in hit
    }
    first: dict[int, float] = {}
    for at, index, round, _ in record.applied:
        if at > t and round > before and index in survivors:
            first.setdefault(index, at)
    if not first:
        return
    happening.next_commit_s = min(first.values()) - t
    lasting = [i for i in survivors if i in first or record.lives[i].ended_s is None]
    if all(index in first for index in lasting):
        happening.all_on_s = max(first[index] for index in lasting) - t
