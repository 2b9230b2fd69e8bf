"""The bounded queue between whoever gives orders and the one training thread. Decides what comes first.

    urgent (in order): Apply, Pin, Unpin, LoadState, HealSlices, questions      computes (in order): Compute

Urgent orders overtake waiting bundles. An Apply marks the bundles of its round (or earlier ones) given before it as
overtaken, LoadState and HealSlices mark all of them; a Shrink is noted on the bundles given before it. The training
thread reads the marks between microbatches. A Compute for a round that cannot start yet waits for its Apply.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from p2ptrain.core.events import Apply, Compute, HealSlices, LoadState, Pin, Shrink, Unpin
from p2ptrain.errors import TrainingError

LIMIT = 256


@dataclass(eq=False)
class Job:
    """A bundle that was ordered, and what was said of it since."""

    order: Compute
    dropped: set[int] = field(default_factory=set)
    sealed: bool = False
    overtaken: str = ""  # why it is of no use any more

    def wants(self, id: int) -> bool:
        return not self.sealed and id not in self.dropped


@dataclass(eq=False)
class Question:
    """Something to be looked up in the training thread, between microbatches."""

    ask: Callable[[], Any]
    answer: Future[Any] = field(default_factory=Future)


Urgent = Apply | Pin | Unpin | LoadState | HealSlices | Question


class OrderQueue:
    """Thread-safe. ``put`` never waits; the training thread waits in ``take``."""

    def __init__(self, limit: int = LIMIT) -> None:
        self._limit = limit
        self._changed = threading.Condition()
        self._urgent: deque[Urgent] = deque()
        self._jobs: deque[Job] = deque()
        self._running: Job | None = None
        self._closed = False

    def put(self, order: Compute | Shrink | Urgent) -> None:
        """Raises TrainingError if more orders wait than the limit; after ``close`` orders are dropped."""
        with self._changed:
            if self._closed:
                if isinstance(order, Question):
                    order.answer.cancel()
                return
            if isinstance(order, Shrink):
                self._shrink(order)
            elif len(self._urgent) + len(self._jobs) >= self._limit:
                raise TrainingError(f"more than {self._limit} orders wait for the training thread")
            elif isinstance(order, Compute):
                self._jobs.append(Job(order))
            else:
                self._mark_overtaken(order)
                self._urgent.append(order)
            self._changed.notify_all()

    def take(self, applied_round: int) -> Urgent | Job | None:
        """Wait for the next thing to do; None after ``close``. Jobs of rounds beyond ``applied_round`` + 1 wait."""
        with self._changed:
            self._running = None
            while not self._closed:
                if self._urgent:
                    return self._urgent.popleft()
                job = next((j for j in self._jobs if j.overtaken or j.order.round <= applied_round + 1), None)
                if job is not None:
                    self._jobs.remove(job)
                    self._running = job
                    return job
                self._changed.wait()
            return None

    def take_reading(self) -> Pin | Unpin | Question | None:
        """The next urgent order if it only reads the state and so may be done in the middle of a bundle."""
        with self._changed:
            if self._urgent and isinstance(self._urgent[0], (Pin, Unpin, Question)) and not self._closed:
                return self._urgent.popleft()  # type: ignore[return-value]
            return None

    def pause(self, seconds: float) -> None:
        """Wait, but not longer than until something urgent comes, the running job is called off, or ``close``."""
        with self._changed:
            self._changed.wait_for(self._disturbed, timeout=seconds)

    @property
    def disturbed(self) -> bool:
        """Whether ``pause`` would return at once."""
        with self._changed:
            return self._disturbed()

    @property
    def closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        """No more orders; waiting ones are dropped."""
        with self._changed:
            self._closed = True
            for order in self._urgent:
                if isinstance(order, Question):
                    order.answer.cancel()
            self._urgent.clear()
            self._jobs.clear()
            self._changed.notify_all()

    def _disturbed(self) -> bool:
        called_off = self._running is not None and (self._running.sealed or self._running.overtaken != "")
        return self._closed or called_off or bool(self._urgent)

    def _all_jobs(self) -> list[Job]:
        return [*self._jobs, *([self._running] if self._running is not None else [])]

    def _shrink(self, order: Shrink) -> None:
        for job in self._all_jobs():
            if job.order.round == order.round:
                job.dropped.update(order.ids)
                job.sealed = job.sealed or order.seal

    def _mark_overtaken(self, order: Urgent) -> None:
        for job in self._all_jobs():
            if isinstance(order, Apply) and job.order.round <= order.record.round:
                job.overtaken = job.overtaken or "round decided without it"
            elif isinstance(order, LoadState):
                job.overtaken = job.overtaken or "state replaced by a pulled snapshot"
            elif isinstance(order, HealSlices):
                job.overtaken = job.overtaken or "state was damaged and is being healed"
