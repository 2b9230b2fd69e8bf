"""Copying one snapshot from many neighbours at once: which chunk from whom, and what to do when one is slow or wrong.

Decides the split (a greedy that is optimal for known speeds, after *Learning in Chaos*, arXiv 2505.12815), and
corrects it while it runs: idle donors steal queued chunks, a late chunk is fetched a second time elsewhere, a wrong
one elsewhere only. It does not decide who is a donor, nor what happens to the bytes.

    donors   fast ========== 0 1 2 3 4 5      fast finishes: steals 8 from slow's end; 7 is late: fetched twice,
             slow ===        6 7 8            the first copy wins, the other is stopped

Every chunk is done, or in flight (from one donor, or two), or waits in one donor's queue, or in the pool.
"""

from __future__ import annotations

import heapq
import math
import random
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from statistics import median

from p2ptrain.core.deadlines import Arrivals
from p2ptrain.core.events import ChunkFailed, ChunkPulled, Effect, PullChunk, StopChunk
from p2ptrain.core.types import Knobs, PeerId, SnapshotInfo, short

FAILURES_MAX = 3
"""Failures in a row after which a donor is given up for this snapshot."""

CORRUPT_COUNTS = 2
"""A chunk with a wrong digest counts as so many failures."""


def greedy_split(delays: Sequence[float], rates: Sequence[float], chunks: int) -> list[int]:
    """How many chunks to take from each donor, so that the last one ends as early as possible.

    ``delays``: seconds before a donor starts; ``rates``: chunks per second, above 0. Minimises the largest
    ``delays[i] + n[i] / rates[i]`` over the donors used. Each chunk goes to the donor that would finish it earliest
    (heap; ties to the first), which is optimal.
    """
    counts = [0] * len(rates)
    heap = [(delays[i] + 1.0 / rates[i], i) for i in range(len(rates))]
    heapq.heapify(heap)
    for _ in range(chunks if heap else 0):
        _, i = heap[0]
        counts[i] += 1
        heapq.heapreplace(heap, (delays[i] + (counts[i] + 1) / rates[i], i))
    return counts


class Tier(IntEnum):
    """An untried donor is tried like a measured one; a failed one only when there is no other."""

    MEASURED = 0
    UNTRIED = 1
    FAILED = 2
    GONE = 3


@dataclass(slots=True)
class _Donor:
    bytes_per_s: float  # over all its streams; 0: unknown
    tier: Tier
    arrivals: Arrivals
    queue: deque[int] = field(default_factory=deque)
    failures: int = 0  # in a row
    not_before: float = -math.inf
    nbytes: int = 0
    trouble: str = ""


@dataclass(slots=True)
class _Flight:
    since: float
    late: bool = False


class Pull:
    """The puller's machine for one snapshot. Deterministic given ``rng`` and the calls.

    ``donors``: bytes per second as measured before, 0 if untried. All of them offer the same ``info.key``.
    """

    def __init__(self, info: SnapshotInfo, donors: Mapping[PeerId, float], knobs: Knobs, rng: random.Random) -> None:
        self.info = info
        self.key = info.key
        self._knobs = knobs
        self._rng = rng
        self._total = len(info.chunk_digests)
        self._donors = {peer: self._new_donor(donors[peer]) for peer in sorted(donors)}
        self._pool: list[int] = []  # sorted
        self._flights: dict[int, dict[PeerId, _Flight]] = {}
        self._bad: dict[int, set[PeerId]] = {}  # who failed to deliver this chunk
        self._done: set[int] = set()
        self._now = -math.inf
        self.chunks_requested = 0

    # --- events ------------------------------------------------------------------------------------------------------

    def start(self, now: float) -> list[Effect]:
        """Splits the chunks among the donors, runs of neighbouring chunks each, in an order drawn by ``rng``."""
        peers = [peer for peer in self._donors if self._donors[peer].tier < Tier.FAILED]
        self._rng.shuffle(peers)  # newcomers that join together do not all begin with the same donor
        chunk_bytes = max(1, self.info.chunk_bytes)
        counts = greedy_split([0.0] * len(peers), [self._rate(p) / chunk_bytes for p in peers], self._total)
        begin = 0
        for peer, count in zip(peers, counts, strict=True):
            self._donors[peer].queue.extend(range(begin, begin + count))
            begin += count
        self._pool = list(range(begin, self._total))
        return self._fill(now)

    def chunk_pulled(self, event: ChunkPulled, now: float) -> list[Effect]:
        """A verified chunk is here, from whomever; another copy still under way is stopped."""
        if event.key != self.key or not 0 <= event.index < self._total:
            return []
        donor = self._donors.get(event.peer)
        flights = self._flights.pop(event.index, {})
        if donor is not None:
            streams = 1 + sum(event.peer in others for others in self._flights.values())
            rate = event.nbytes / max(event.seconds, 1e-6) * streams
            donor.bytes_per_s = rate if donor.tier is not Tier.MEASURED else 0.5 * (donor.bytes_per_s + rate)
            donor.tier, donor.failures, donor.not_before = Tier.MEASURED, 0, -math.inf
            donor.arrivals.observe(event.seconds)
            donor.nbytes += event.nbytes
        flights.pop(event.peer, None)
        effects: list[Effect] = [StopChunk(self.key, event.index, peer) for peer in sorted(flights)]
        self._unqueue(event.index)
        self._done.add(event.index)
        return effects + self._fill(now)

    def chunk_failed(self, event: ChunkFailed, now: float) -> list[Effect]:
        """The chunk goes elsewhere; its donor is marked, harder for a wrong digest than for an error."""
        flights = self._flights.get(event.index, {})
        if event.key != self.key or event.peer not in flights:
            return []
        self._ended(event.index, event.peer)
        trouble = f"chunk {event.index} {'has a wrong digest' if event.corrupt else event.reason}"
        effects = self._blame(event.peer, trouble, CORRUPT_COUNTS if event.corrupt else 1, now)
        return effects + self._fill(now)

    def donor_added(self, peer: PeerId, bytes_per_s: float, now: float) -> list[Effect]:
        """Another holder of the same snapshot, or one that is back."""
        known = self._donors.get(peer)
        if known is None or known.tier is Tier.GONE:
            self._donors[peer] = self._new_donor(bytes_per_s)
            self._donors = {p: self._donors[p] for p in sorted(self._donors)}
        return self._fill(now)

    def donor_lost(self, peer: PeerId, now: float) -> list[Effect]:
        """The donor died, left or released the snapshot: its chunks go to the others at once."""
        donor = self._donors.get(peer)
        if donor is None or donor.tier is Tier.GONE:
            return []
        return self._give_up(peer, "lost") + self._fill(now)

    def tick(self, now: float) -> list[Effect]:
        """Late chunks are fetched a second time; a donor that stays silent on one is taken for failed."""
        effects: list[Effect] = []
        for index, peer in sorted((i, p) for i, flights in self._flights.items() for p in flights):
            flight = self._flights.get(index, {}).get(peer)
            if flight is not None:
                flight.late = flight.late or now >= self._late_at(peer, flight)
                if now >= self._hopeless_at(peer, flight):
                    effects.append(StopChunk(self.key, index, peer))
                    self._ended(index, peer)
                    effects += self._blame(peer, f"chunk {index} silent for {now - flight.since:.1f} s", 1, now)
        return effects + self._fill(now)

    # --- questions ---------------------------------------------------------------------------------------------------

    def deadline(self) -> float:
        """When ``tick`` next has something to do; ``math.inf`` when done or without donors."""
        if self.done:
            return math.inf
        times = [math.inf]
        for flights in self._flights.values():
            for peer, flight in flights.items():
                times.append(self._hopeless_at(peer, flight) if flight.late else self._late_at(peer, flight))
        if not any(donor.tier < Tier.FAILED for donor in self._donors.values()):
            waits = [donor.not_before for donor in self._donors.values() if donor.tier is Tier.FAILED]
            times += [wait for wait in waits if wait > self._now]
        return min(times)

    @property
    def done(self) -> bool:
        return len(self._done) == self._total

    @property
    def failed(self) -> str | None:
        """Why nobody can deliver any more, each donor by name; None while somebody can (``donor_added`` mends it)."""
        if self.done or any(donor.tier is not Tier.GONE for donor in self._donors.values()):
            return None
        told = "; ".join(f"{short(peer)}: {donor.trouble}" for peer, donor in self._donors.items())
        return f"{len(self._done)} of {self._total} chunks copied, no donor left ({told or 'none was known'})"

    def progress(self) -> tuple[int, int, dict[PeerId, float]]:
        """Chunks done, chunks in all, and bytes per second by donor (0: not measured)."""
        return len(self._done), self._total, {peer: donor.bytes_per_s for peer, donor in self._donors.items()}

    def tier_of(self, peer: PeerId) -> Tier:
        return self._donors[peer].tier

    def describe(self) -> str:
        """One line: how far, and from whom."""
        whom = ", ".join(
            f"{short(p)} {d.tier.name.lower()} {d.nbytes} bytes{f' ({d.trouble})' if d.trouble else ''}"
            for p, d in self._donors.items()
        )
        return f"round {self.info.round}: {len(self._done)}/{self._total} chunks; {whom or 'no donors'}"

    def check(self) -> None:
        """Asserts that every chunk is in exactly one place and no donor has more than its streams."""
        queued = [index for donor in self._donors.values() for index in donor.queue]
        places = sorted([*queued, *self._pool, *self._flights, *self._done])
        assert places == list(range(self._total)), places
        for flights in self._flights.values():
            assert 1 <= len(flights) <= 2
            assert all(self._donors[peer].tier is not Tier.GONE for peer in flights)
        for peer in self._donors:
            assert self._streams(peer) <= self._knobs.pull_streams

    # --- whom to ask for what ----------------------------------------------------------------------------------------

    def _fill(self, now: float) -> list[Effect]:
        """Gives every free stream of every usable donor something to do."""
        effects: list[Effect] = []
        self._now = now
        peers = self._usable(now)
        for _ in range(self._knobs.pull_streams):  # one chunk each in turn, so that all donors share the start
            for peer in peers:
                if self._streams(peer) >= self._knobs.pull_streams:
                    continue
                index = self._next_for(peer, peers, now)
                if index is None:
                    continue
                self._unqueue(index)
                self._flights.setdefault(index, {})[peer] = _Flight(now)
                self.chunks_requested += 1
                effects.append(PullChunk(self.key, self.info, index, peer))
        return effects

    def _usable(self, now: float) -> list[PeerId]:
        good = [peer for peer, donor in self._donors.items() if donor.tier < Tier.FAILED]
        if good:
            return sorted(good, key=lambda p: (-self._rate(p), p))
        return [p for p, donor in self._donors.items() if donor.tier is Tier.FAILED and donor.not_before <= now]

    def _next_for(self, peer: PeerId, peers: list[PeerId], now: float) -> int | None:
        """Late chunks of others first, then one's own queue, the pool, and what others have queued or in flight."""
        for index in sorted(self._flights):
            if self._can_hedge(index, peer) and any(flight.late for flight in self._flights[index].values()):
                return index
        queue = self._donors[peer].queue
        if queue:
            return queue[0]
        for index in self._pool:
            bad = self._bad.get(index, set())
            if peer not in bad or bad.issuperset(peers):
                return index
        return self._stolen(peer, now)

    def _stolen(self, peer: PeerId, now: float) -> int | None:
        """The end of the longest queue, or a copy of what is in flight: only if that ends clearly sooner."""
        mine_s = self._chunk_s(peer)
        victims = [p for p in self._donors if p != peer and self._donors[p].queue]
        if victims:
            slowest = max(victims, key=lambda p: (self._backlog_s(p), p))
            return self._donors[slowest].queue[-1] if mine_s < self._backlog_s(slowest) else None
        if self._donors[peer].tier is not Tier.MEASURED:
            return None
        waits = [
            (self._chunk_s(other) - (now - flight.since), -index)
            for index, flights in self._flights.items()
            if self._can_hedge(index, peer)
            for other, flight in flights.items()
            if self._donors[other].tier is Tier.MEASURED
        ]
        left_s, index = max(waits, default=(0.0, 0))
        return -index if left_s > 2 * mine_s else None

    def _can_hedge(self, index: int, peer: PeerId) -> bool:
        flights = self._flights[index]
        return len(flights) == 1 and peer not in flights and peer not in self._bad.get(index, ())

    # --- what became of it -------------------------------------------------------------------------------------------

    def _ended(self, index: int, peer: PeerId) -> None:
        """One copy failed: if it was the only one, the chunk waits again."""
        flights = self._flights[index]
        del flights[peer]
        self._bad.setdefault(index, set()).add(peer)
        if not flights:
            del self._flights[index]
            self._pool = sorted([*self._pool, index])

    def _blame(self, peer: PeerId, trouble: str, weight: int, now: float) -> list[Effect]:
        donor = self._donors[peer]
        donor.failures += weight
        donor.trouble = trouble
        if donor.failures > FAILURES_MAX:
            return self._give_up(peer, trouble)
        donor.tier = Tier.FAILED
        donor.not_before = now + self._knobs.repeat_s * 2 ** (donor.failures - 1)
        self._pool = sorted([*self._pool, *donor.queue])
        donor.queue.clear()
        return []

    def _give_up(self, peer: PeerId, trouble: str) -> list[Effect]:
        donor = self._donors[peer]
        donor.tier, donor.trouble = Tier.GONE, trouble
        self._pool = sorted([*self._pool, *donor.queue])
        donor.queue.clear()
        indices = sorted(index for index, flights in self._flights.items() if peer in flights)
        for index in indices:
            self._ended(index, peer)
        return [StopChunk(self.key, index, peer) for index in indices]

    def _unqueue(self, index: int) -> None:
        if index in self._pool:
            self._pool.remove(index)
        for donor in self._donors.values():
            if index in donor.queue:
                donor.queue.remove(index)

    # --- estimates ---------------------------------------------------------------------------------------------------

    def _new_donor(self, bytes_per_s: float) -> _Donor:
        measured = bytes_per_s > 0 and math.isfinite(bytes_per_s)
        arrivals = Arrivals(self._knobs, default_s=self._knobs.chunk_timeout_s)
        return _Donor(bytes_per_s if measured else 0.0, Tier.MEASURED if measured else Tier.UNTRIED, arrivals)

    def _rate(self, peer: PeerId) -> float:
        """Bytes per second; of an untried donor the median of the measured, or all equal."""
        donor = self._donors[peer]
        if donor.bytes_per_s > 0:
            return donor.bytes_per_s
        known = [other.bytes_per_s for other in self._donors.values() if other.bytes_per_s > 0]
        return median(known) if known else float(max(1, self.info.chunk_bytes))

    def _chunk_s(self, peer: PeerId) -> float:
        return max(1, self.info.chunk_bytes) / self._rate(peer)

    def _backlog_s(self, peer: PeerId) -> float:
        return (len(self._donors[peer].queue) + self._streams(peer)) * self._chunk_s(peer)

    def _streams(self, peer: PeerId) -> int:
        return sum(peer in flights for flights in self._flights.values())

    def _late_at(self, peer: PeerId, flight: _Flight) -> float:
        return flight.since + self._donors[peer].arrivals.deadline_s()

    def _hopeless_at(self, peer: PeerId, flight: _Flight) -> float:
        """Without a single arrival after this, the donor counts as silent."""
        return flight.since + max(self._knobs.deadline_max_s, 3 * self._donors[peer].arrivals.deadline_s())
