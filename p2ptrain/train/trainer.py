"""The one training thread: orders in, events out. Reads like a training loop, decides nothing about the swarm.

    Compute      -> (MicrobatchDone)*, then BundleDone or BundleFailed      Shrink: between microbatches
    Apply        -> Applied             Pin -> SnapshotPinned or PinFailed (from the hashing thread)
    LoadState    -> StateLoaded or StateFailed         HealSlices -> SlicesHealed

Everything that touches the model runs in the thread that called ``run``. ``submit``, ``bundle``, ``chunk``, ``open``,
``write``, ``slice_bytes``, ``ask`` and ``stop`` may be called from any thread; ``on_event`` is called from the training
thread and the hashing thread and must only queue. Given the same orders, model, data, kind of device and number of
threads, the same bits.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TypeVar

import torch
from torch import Tensor, nn

from p2ptrain.core.events import (
    Applied,
    Apply,
    BundleDone,
    BundleFailed,
    Compute,
    HealSlices,
    LoadState,
    MicrobatchDone,
    Pin,
    Shrink,
    SlicesHealed,
    StateFailed,
    StateLoaded,
    Unpin,
)
from p2ptrain.core.types import BaseDigest, Digest, SnapshotInfo
from p2ptrain.errors import TrainingError, TransferError
from p2ptrain.models.forward import next_token_loss
from p2ptrain.ports import OnEvent, PartSource, SliceSource
from p2ptrain.train.apply import apply_record
from p2ptrain.train.bundles import Bundles
from p2ptrain.train.flat import FlatStage
from p2ptrain.train.optimizer import AdamWOptions, check_arithmetic
from p2ptrain.train.orders import Job, OrderQueue, Question, Urgent
from p2ptrain.train.snapshots import Snapshots
from p2ptrain.train.state import SLICES, SNAPSHOT_CHUNK_BYTES, StageState

if TYPE_CHECKING:
    from p2ptrain.ports import GradientSource, SnapshotSink, SnapshotSource, Trainer

MAX_BUNDLES = 32
PACE_LOOK_S = 0.25  # how soon ``pace`` shows in a microbatch that waits already
NOT_FINITE = "loss or gradient is not finite"
T = TypeVar("T")


class Microbatches(Protocol):
    """What the trainer needs of a data set."""

    def microbatch(self, id: int) -> tuple[Tensor, Tensor]:
        """(inputs, targets) of this id: a pure function of it, one shape for all ids."""


@dataclass(frozen=True)
class TrainerOptions:
    optimizer: AdamWOptions = field(default_factory=AdamWOptions)
    exact: bool = False
    microbatches: int = 1  # of a whole round; exact mode budgets its integers by it
    first_scale: float = 1.0  # value of one unit of exact mode's integers in the first round: take 2**-24 or so
    chunk_values: int | None = None  # of the codec; None: its default
    threads: int = 1
    extra_wait_s: float = 0.0  # after each microbatch, so that a round has a length, for tests and benches
    microbatch_least_s: float = 0.0  # a microbatch takes at least so long: a peer of stated speed; see ``pace``
    snapshot_chunk_bytes: int = SNAPSHOT_CHUNK_BYTES


class LocalTrainer:
    """``ports.Trainer``, ``GradientSource``, ``SnapshotSource``, ``SnapshotSink`` and ``SliceSource`` for one stage."""

    def __init__(
        self,
        stage: FlatStage,
        data: Microbatches,
        parts: PartSource,
        on_event: OnEvent,
        options: TrainerOptions | None = None,
        *,
        index: int = 0,
        on_failure: Callable[[TrainingError], None] | None = None,
        healthy: SliceSource | None = None,
    ) -> None:
        """``index`` is the stage's. ``healthy``: where ``HealSlices`` finds the slices that were pulled for it.

        Raises TrainingError if the device does not round as the other peers' do.
        """
        self.options = options or TrainerOptions()
        self.stage = stage
        self._index = index
        self._data = data
        self._parts = parts
        self._emit = on_event
        self._on_failure = on_failure
        self._healthy = healthy
        self._state = StageState(stage, self.options.first_scale)
        self._state_lock = threading.Lock()  # held while the state changes, and by others who read it
        self._bundles = Bundles(stage, exact=self.options.exact, microbatches=self.options.microbatches)
        self._orders = OrderQueue()
        check_arithmetic(stage.device)
        self._chain: Digest = b""
        self._least_s = self.options.microbatch_least_s
        self._snapshots = Snapshots(on_event, self._state.total_bytes, self.options.snapshot_chunk_bytes)

    # --- the loop

    def run(self) -> None:
        """Carry out orders until ``stop``. A failure of model, data or device ends it: ``on_failure``, then return."""
        torch.set_num_threads(self.options.threads)
        try:
            while (order := self._orders.take(self._state.header.round)) is not None:
                self._carry_out(order)
        except Exception as error:  # told, never swallowed: the caller ends the process with it
            self._orders.close()
            failure = _named(error)
            if self._on_failure is None:
                raise failure from error
            self._on_failure(failure)
        finally:
            self._snapshots.close()

    def _carry_out(self, order: Job | Urgent) -> None:
        if isinstance(order, Job):
            self._compute(order)
        elif isinstance(order, Apply):
            self._apply(order)
        elif isinstance(order, LoadState):
            self._load(order)
        elif isinstance(order, HealSlices):
            self._heal(order)
        elif isinstance(order, Pin):
            self._pin(order)
        elif isinstance(order, Unpin):
            self._snapshots.unpin(order.key)
        else:
            _answer(order)

    def _compute(self, job: Job) -> None:
        order, loss_sum = job.order, 0.0
        done: list[int] = []
        refused: list[int] = []
        if self._refused(job):
            return
        self._bundles.begin()
        for id in order.ids:
            if self._orders.closed or job.overtaken or not job.wants(id):
                continue
            started = time.perf_counter()
            loss = self._microbatch(id)
            if not math.isfinite(loss):
                refused.append(id)
                if not self.options.exact:  # the sum is spoilt; exact sums have not taken it in
                    self._fail(job, f"microbatch {id}: {NOT_FINITE}")
                    return
                continue
            done.append(id)
            loss_sum += loss
            if self.options.extra_wait_s:
                self._orders.pause(self.options.extra_wait_s)
            self._wait_out(started)
            self._emit(MicrobatchDone(order.round, id, time.perf_counter() - started, loss))
            self._read()
        if job.overtaken:
            self._fail(job, job.overtaken)
        elif refused and not done:
            self._emit(BundleFailed(order.round, order.index, tuple(refused), f"microbatch {refused[0]}: {NOT_FINITE}"))
        elif done and not self._bundles.seal((order.round, order.index)):
            self._fail(job, "the summed gradient is not finite")
        else:
            self._emit(BundleDone(order.round, order.index, tuple(done), loss_sum, tuple(refused)))

    def _wait_out(self, started: float) -> None:
        """Until ``microbatch_least_s`` have passed since ``started``, looking things up meanwhile; shorter if the
        bundle is called off, something urgent comes, or ``pace`` makes it shorter (a longer one is the next's).
        """
        least_s = self._least_s
        while (left := started + min(least_s, self._least_s) - time.perf_counter()) > 0 and not self._orders.disturbed:
            self._orders.pause(min(left, PACE_LOOK_S))
            self._read()

    def _read(self) -> None:
        while (reading := self._orders.take_reading()) is not None:
            self._carry_out(reading)

    def _microbatch(self, id: int) -> float:
        """Add one microbatch's gradient; its mean loss in nats a token, or NaN if either is not finite."""
        inputs, targets = (tensor.to(self.stage.device) for tensor in self._data.microbatch(id))
        loss = next_token_loss(self.stage.layers, inputs, targets)
        finite = self._bundles.add(loss.backward, self._state.header.scale)
        return loss.item() if finite else math.nan

    def _apply(self, order: Apply) -> None:
        if order.record.stage != self._index:
            raise TrainingError(f"a record of stage {order.record.stage}, this peer trains stage {self._index}")
        with self._state_lock:
            apply_record(
                self._state,
                order.record,
                self._parts,
                self.options.optimizer,
                exact=self.options.exact,
                microbatches=self.options.microbatches,
                chunk_values=self.options.chunk_values,
            )
            base = self._base(order.chain, order.slice_index)
        self._emit(Applied(order.record.stage, order.record.round, base))

    # --- state

    def _pin(self, order: Pin) -> None:
        if order.record.round != self._state.header.round:
            self._snapshots.refuse(order, f"the state is at round {self._state.header.round}")
        else:
            self._snapshots.pin(order, self._state.image)

    def _load(self, order: LoadState) -> None:
        info = order.info
        try:
            with self._state_lock:
                self._state.load(self._snapshots.take(info), info.record)
                base = self._base(info.chain, info.round % SLICES)
        except TransferError as error:
            self._emit(StateFailed(info.key, str(error)))
        else:
            self._emit(StateLoaded(info.key, base))

    def _heal(self, order: HealSlices) -> None:
        healed: list[int] = []
        reason = ""
        round = self._state.header.round
        for index in order.slices:
            try:
                if self._healthy is None:
                    raise TransferError("nobody to pull state slices from")
                data = self._healthy.slice_bytes(order.stage, round, index)
                with self._state_lock:
                    self._state.heal_slice(index, data)
                healed.append(index)
            except KeyError:
                reason = f"slice {index} of round {round} was not pulled"
            except (TransferError, IndexError) as error:
                reason = str(error)
        self._emit(SlicesHealed(self._base(self._chain, round % SLICES), tuple(healed), reason))

    def _base(self, chain: Digest, slice_index: int) -> BaseDigest:
        self._chain = chain
        return BaseDigest(chain, slice_index, self._state.slice_digest(slice_index))

    # --- for any thread

    def submit(self, order: Compute | Shrink | Apply | Pin | Unpin | LoadState | HealSlices) -> None:
        """Queue an order; never waits. Raises TrainingError if too many wait."""
        self._orders.put(order)

    def bundle(self, stage: int, round: int, index: int) -> Tensor:
        """``ports.GradientSource``."""
        if stage != self._index:
            raise KeyError(f"stage {stage}")
        return self._bundles.get((round, index))

    def forget_round(self, before_round: int) -> None:
        self._bundles.forget(before_round)

    def chunk(self, key: Digest, index: int) -> bytes:
        """``ports.SnapshotSource``."""
        return self._snapshots.chunk(key, index)

    def open(self, info: SnapshotInfo) -> None:
        """``ports.SnapshotSink``. Raises TransferError if the offer does not fit this stage."""
        self._snapshots.open(info)

    def write(self, key: Digest, index: int, data: bytes) -> bool:
        """``ports.SnapshotSink``."""
        return self._snapshots.write(key, index, data)

    def slice_bytes(self, stage: int, round: int, index: int) -> bytes:
        """``ports.SliceSource``: this peer's own slice, for one that heals. May wait while a record is applied."""
        with self._state_lock:
            if stage != self._index or round != self._state.header.round or not 0 <= index < SLICES:
                raise KeyError(f"slice {index} of stage {stage} after round {round}")
            return self._state.slice_bytes(index)

    def ask(self, question: Callable[[Sequence[nn.Module]], T]) -> Future[T]:
        """Have ``question(layers)`` answered in the training thread, between microbatches: a loss, a text sample.

        It must not change the layers. Its exception is the future's; the future is cancelled if training has ended.
        """
        asked = Question(lambda: question(self.stage.layers))
        self._orders.put(asked)
        return asked.answer

    def pace(self, seconds: float) -> None:
        """From the next on a microbatch takes at least so long (``TrainerOptions.microbatch_least_s``)."""
        self._least_s = seconds

    def state_digest(self) -> Future[Digest]:
        """BLAKE3 of the whole state, taken between microbatches."""
        return self.ask(lambda _: self._state.digest())

    def final_digest(self) -> Digest:
        """BLAKE3 of the whole state, once ``run`` has returned."""
        with self._state_lock:
            return self._state.digest()

    def stop(self) -> None:
        """``run`` returns after the microbatch that is running; waiting orders are dropped."""
        self._orders.close()

    # --- helpers

    def _refused(self, job: Job) -> bool:
        if job.order.round <= self._state.header.round:
            self._fail(job, job.overtaken or "round is over")
        elif job.order.stage != self._index:
            self._fail(job, f"this peer trains stage {self._index}")
        elif len(self._bundles) >= MAX_BUNDLES:
            self._fail(job, f"{MAX_BUNDLES} bundles are held already")
        elif job.overtaken:
            self._fail(job, job.overtaken)
        else:
            return False
        return True

    def _fail(self, job: Job, reason: str) -> None:
        self._emit(BundleFailed(job.order.round, job.order.index, job.order.ids, reason))


if TYPE_CHECKING:  # mypy holds the trainer against what the runtime is promised

    def _keeps(trainer: LocalTrainer) -> tuple[Trainer, GradientSource, SnapshotSource, SnapshotSink, SliceSource]:
        return trainer, trainer, trainer, trainer, trainer


def _answer(question: Question) -> None:
    if not question.answer.set_running_or_notify_cancel():
        return
    try:
        question.answer.set_result(question.ask())
    except Exception as error:  # the asker's to see
        question.answer.set_exception(error)


def _named(error: Exception) -> TrainingError:
    if isinstance(error, TrainingError):
        return error
    return TrainingError(
        f"training failed: {type(error).__name__}: {error}",
        hint="the model, the data or the device; the traceback is in the journal",
        error=type(error).__name__,
    )
