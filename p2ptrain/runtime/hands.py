"""Carries out the core's orders to trainer, exchange and transfer. Decides nothing.

Exchange, StopExchange      -> ``exchange``          FetchPart, PullChunk -> ``pulls``
Compute, Apply, Pin, ...    -> the trainer's queue   ReleaseParts         -> ``parts``
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Executor

from p2ptrain.codec.feedback import Counted, Residuals
from p2ptrain.core import events as ev
from p2ptrain.core.types import BaseDigest, PeerId
from p2ptrain.errors import P2PTrainError
from p2ptrain.ports import Trainer
from p2ptrain.runtime.exchange import Exchanges
from p2ptrain.runtime.parts import PartStore
from p2ptrain.runtime.pulls import Pulls
from p2ptrain.wire import bulk

logger = logging.getLogger("p2ptrain")

SLICE_MAX_BYTES = 1 << 34


class PulledSlices:
    """``ports.SliceSource`` for healing: what was pulled from healthy peers, by (stage, round, index)."""

    def __init__(self) -> None:
        self._slices: dict[tuple[int, int, int], bytes] = {}

    def put(self, stage: int, round: int, index: int, data: bytes) -> None:
        self._slices[(stage, round, index)] = data

    def slice_bytes(self, stage: int, round: int, index: int) -> bytes:
        return self._slices[(stage, round, index)]

    def clear(self) -> None:
        self._slices.clear()


class Hands:
    """``driver.EffectHands`` over the real adapters; lives in the loop."""

    def __init__(
        self,
        trainer: Trainer,
        exchanges: Exchanges,
        pulls: Pulls,
        parts: PartStore,
        residuals: Residuals,
        slices: PulledSlices,
        pool: Executor,
        round_now: Callable[[], int],
        post: Callable[[ev.Event], None],
    ) -> None:
        self.trainer = trainer
        self.exchanges = exchanges
        self.pulls = pulls
        self.parts = parts
        self.residuals = residuals
        self.slices = slices
        self.pool = pool
        self.round_now = round_now
        self.post = post
        self._committing: asyncio.Future[None] | None = None
        self._waiting: ev.Exchange | None = None
        self._healing: asyncio.Task[None] | None = None

    def do(self, effect: ev.Effect) -> None:
        if isinstance(effect, ev.Exchange):
            self._exchange(effect)
        elif isinstance(effect, ev.StopExchange):
            if self._waiting is not None and self._waiting.begin.digest == effect.begin_digest:
                self._waiting = None
            self.exchanges.stop(effect.begin_digest)
        elif isinstance(effect, ev.FetchPart):
            self.pulls.fetch_part(effect)
        elif isinstance(effect, ev.PullChunk):
            self._pull_chunk(effect)
        elif isinstance(effect, ev.StopChunk):
            self.pulls.stop_chunk(effect)
        elif isinstance(effect, ev.ReleaseParts):
            self.parts.release(effect.before_round)
            self.exchanges.release(effect.before_round)
        elif isinstance(effect, ev.HealSlices):
            self._healing = asyncio.ensure_future(self._heal(effect))
        elif isinstance(effect, ev.Apply):
            self._apply(effect)
        elif isinstance(effect, ev.Compute | ev.Shrink | ev.Pin | ev.Unpin | ev.LoadState):
            self.trainer.submit(effect)
        else:
            raise AssertionError(f"no hands for {type(effect).__name__}")

    def _exchange(self, effect: ev.Exchange) -> None:
        """Not before the residuals of the round before are settled (they are read while encoding)."""
        if self._committing is None or self._committing.done():
            self.exchanges.start(effect)
        else:
            self._waiting = effect
            self._committing.add_done_callback(lambda _: self._start_waiting(effect))

    def _start_waiting(self, effect: ev.Exchange) -> None:
        """Unless it was stopped, or another one ordered, while it waited."""
        if self._waiting is effect:
            self._waiting = None
            self.exchanges.start(effect)

    def _apply(self, effect: ev.Apply) -> None:
        self.trainer.submit(effect)
        self.trainer.forget_round(effect.record.round)
        if not self.residuals.enabled:
            return
        counted = [
            Counted(index, part.start, part.stop, float(len(part.counted)))
            for part, (_, indices) in zip(effect.record.parts, effect.counted, strict=False)
            for index in indices
        ]
        digests = {part.digest for part in effect.record.parts}
        loop = asyncio.get_running_loop()
        self._committing = loop.run_in_executor(self.pool, self.residuals.commit, effect.record.round, counted, digests)

    def _pull_chunk(self, effect: ev.PullChunk) -> None:
        try:
            self.pulls.sink.open(effect.info)
        except P2PTrainError as error:
            self.post(ev.ChunkFailed(effect.key, effect.index, effect.peer, error.text))
            return
        self.pulls.pull_chunk(effect)

    async def _heal(self, effect: ev.HealSlices) -> None:
        """Pull the slices from the first healthy peer that gives them, then let the trainer write them."""
        round = self.round_now()
        reason = ""
        for index in effect.slices:
            try:
                self.slices.put(effect.stage, round, index, await self._slice(effect, round, index))
            except P2PTrainError as error:
                reason = error.text
        if reason:
            self.post(ev.SlicesHealed(BaseDigest(b""), (), reason))
        else:
            self.trainer.submit(effect)

    async def _slice(self, effect: ev.HealSlices, round: int, index: int) -> bytes:
        last: P2PTrainError | None = None
        for peer in effect.healthy:
            try:
                return await self._slice_from(peer, effect.stage, round, index)
            except P2PTrainError as error:
                last = error
        raise last or P2PTrainError("nobody to pull healthy slices from")

    async def _slice_from(self, peer: PeerId, stage: int, round: int, index: int) -> bytes:
        header = bulk.StreamHeader(bulk.StreamKind.SLICE, self.pulls.run, bytes(32), stage, round, index)
        return bytes(await self.pulls.pull_bytes(peer, header, SLICE_MAX_BYTES))
