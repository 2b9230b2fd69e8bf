"""One part being reduced here: contributions in, average out, chunk by chunk.

Decides the order of the sum (by position in ``Begin.bundles``, so that the same contributions give the same bits) and
when a chunk is done. Does not talk to the network: ``exchange`` feeds it and sends what it yields.

    chunk 0: a b c d -> sum, encode, hash -> frame 0 (sent while chunk 1 still comes in)

A contribution whose gradient is not finite is refused, and among three or more one whose norm in a chunk is above
``NORM_FACTOR`` times their median: the median stands while fewer than half are absurd. A peer that is broken is left
out by it; what stays below the factor is not judged (clipping bounds the step). Where more than half have no gradient
in the chunk, as for rare rows of an embedding, nothing is compared. Exact mode needs no such rule: it clamps each
microbatch.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from statistics import median

import torch

from p2ptrain.codec.base import Codec
from p2ptrain.codec.digest import PartHasher
from p2ptrain.codec.exact import norm_sq_int
from p2ptrain.codec.feedback import Residuals
from p2ptrain.codec.reduce import is_finite, norm_sq
from p2ptrain.codec.sizes import chunk_ranges
from p2ptrain.core.messages import Begin
from p2ptrain.core.types import PartDone, PartOrder
from p2ptrain.errors import ProtocolError
from p2ptrain.wire import bulk

NORM_FACTOR = 1e4
"""So many times the median norm of the group's contributions is absurd. Honest ones of one round, all computed from the
same parameters, differ by their data and their count: in a chunk by some tens, at worst by hundreds."""

JUDGES_MIN = 3
LOOK_FACTOR = 8.0  # an average so many times longer than one's own contribution: each is looked at


@dataclass
class _Chunk:
    start: int
    stop: int
    payloads: dict[int, memoryview | torch.Tensor] = field(default_factory=dict)


class Refused(Exception):
    """A contribution that cannot be counted. ``position``: which bundle."""

    def __init__(self, position: int, reason: str) -> None:
        super().__init__(reason)
        self.position = position
        self.reason = reason


class Reduction:
    """State of one (begin, part) at its reducer; lives in the loop, computes in ``pool``.

    ``frames`` grows in order of chunk; ``changed`` is set anew whenever it does, when ``done`` or when ``ended``.
    """

    def __init__(self, begin: Begin, order: PartOrder, codec: Codec, residuals: Residuals, pool: Executor) -> None:
        self.begin = begin
        self.order = order
        self.codec = codec
        self.residuals = residuals
        self.pool = pool
        self.chunks = [_Chunk(a, b) for a, b in chunk_ranges(order.start, order.stop, codec.chunk_values)]
        self.frames: list[bytes] = []
        self.done: PartDone | None = None
        self.end_frame = b""
        self.ended = ""
        self.changed = asyncio.Event()
        self.heard: dict[int, float] = dict.fromkeys(order.bundles, time.monotonic())
        self.hasher = PartHasher(codec.name, begin.fence.stage, order.start, order.stop)
        self.norm: float | int = 0 if codec.name == "exact" else 0.0
        self.total_weight = sum(begin.bundles[p].weight for p in order.bundles)
        self._reducing = False

    def missing(self) -> list[int]:
        """Positions of bundles that have not arrived whole."""
        return [
            p for p in self.order.bundles if any(p not in chunk.payloads for chunk in self.chunks[len(self.frames) :])
        ]

    def add_own(self, position: int, flat: torch.Tensor) -> None:
        """One's own bundle: uncompressed, all chunks at once."""
        for chunk in self.chunks:
            chunk.payloads[position] = flat[chunk.start : chunk.stop]

    def add(self, position: int, index: int, payload: memoryview) -> None:
        """A contribution's chunk as it arrived. Raises ProtocolError for one that does not belong here."""
        if position not in self.heard or not 0 <= index < len(self.chunks):
            raise ProtocolError(f"contribution {position} chunk {index} is not part of this exchange")
        chunk = self.chunks[index]
        if position in chunk.payloads:
            raise ProtocolError(f"contribution {position} chunk {index} came twice")
        chunk.payloads[position] = payload
        self.heard[position] = time.monotonic()

    async def advance(self) -> None:
        """Reduce every chunk that is complete, in order. Raises Refused (not finite, absurd norm), ProtocolError."""
        if self._reducing:
            return
        self._reducing = True
        try:
            loop = asyncio.get_running_loop()
            while not self.ended and len(self.frames) < len(self.chunks):
                chunk = self.chunks[len(self.frames)]
                if len(chunk.payloads) < len(self.order.bundles):
                    return
                frame, norm = await loop.run_in_executor(self.pool, self._reduce, len(self.frames), chunk)
                chunk.payloads.clear()
                self.norm += norm
                self.frames.append(frame)
                self._notify()
            if not self.ended and self.done is None:
                self._finish()
        finally:
            self._reducing = False

    @property
    def ready(self) -> bool:
        """Whether ``advance`` would find work now."""
        due = len(self.frames)
        return (
            not self._reducing and due < len(self.chunks) and len(self.chunks[due].payloads) == len(self.order.bundles)
        )

    def stop(self, reason: str) -> None:
        """No more will come of this (unless it is done, then it can still be served)."""
        if self.done is None:
            self.ended = reason
        self._notify()

    # --- helpers ---------------------------------------------------------------------------------------------------

    def _reduce(self, index: int, chunk: _Chunk) -> tuple[bytes, float | int]:
        """In the pool: sum in order, encode, hash. All use the decoded bytes, so the norm is of those."""
        size = chunk.stop - chunk.start
        acc = torch.empty(size, dtype=self.codec.dtype)
        if not self.order.bundles:
            acc.zero_()
        exact = self.codec.name == "exact"
        for n, position in enumerate(self.order.bundles):
            payload = chunk.payloads[position]
            weight = self.begin.bundles[position].weight
            share = float(weight) if exact else weight / self.total_weight
            if isinstance(payload, torch.Tensor):
                if exact:
                    acc.copy_(payload) if n == 0 else acc.add_(payload)
                else:
                    torch.mul(payload, share, out=acc) if n == 0 else acc.add_(payload, alpha=share)
            else:
                self.codec.accumulate(payload, acc, share, first=n == 0)
        if not exact and not is_finite(acc):
            raise self._culprit(chunk, size)
        nbytes = self.codec.encoded_bytes(size)
        header = bulk.pack_frame_header(
            nbytes, chunk=index, bundle=-1, weight=self.total_weight, offset=chunk.start - self.order.start, values=size
        )
        fence, part = self.begin.fence, (self.order.start, self.order.stop)
        if exact:
            frame = exact_frame(self.codec, acc, header, index, -1, self.total_weight, chunk.start - self.order.start)
        else:
            frame = self.residuals.stage_reducer(fence.round, self.begin.attempt, part, chunk.start, acc, header)
        payload_view = memoryview(frame)[bulk.FRAME_HEADER_BYTES :]
        self.hasher.update(payload_view)
        if exact:
            return frame, norm_sq_int(acc)
        if not self.codec.lossless:
            self.codec.decode_into(payload_view, acc)
        norm = norm_sq(acc)
        if len(self.order.bundles) >= JUDGES_MIN and self._looks_odd(chunk, norm):
            self._compare_norms(chunk, size)
        return frame, norm

    def _culprit(self, chunk: _Chunk, size: int) -> Refused:
        for position in self.order.bundles:
            if not is_finite(self._values(chunk, position, size)):
                return Refused(position, "gradient not finite")
        return Refused(self.order.bundles[-1], "sum not finite")

    def _looks_odd(self, chunk: _Chunk, norm: float) -> bool:
        """Cheap: is the average much longer than what was computed here? Without an own contribution: always look."""
        own = next((values for values in chunk.payloads.values() if isinstance(values, torch.Tensor)), None)
        return own is None or norm > (LOOK_FACTOR * float(torch.linalg.vector_norm(own))) ** 2

    def _compare_norms(self, chunk: _Chunk, size: int) -> None:
        norms = {position: norm_sq(self._values(chunk, position, size)) ** 0.5 for position in self.order.bundles}
        middle, worst = median(norms.values()), max(norms, key=lambda position: norms[position])
        if middle > 0.0 and norms[worst] > NORM_FACTOR * middle:
            raise Refused(worst, f"gradient of norm {norms[worst]:.3g} where the group's median is {middle:.3g}")

    def _values(self, chunk: _Chunk, position: int, size: int) -> torch.Tensor:
        payload = chunk.payloads[position]
        return payload if isinstance(payload, torch.Tensor) else self.codec.decode(payload, size)

    def _finish(self) -> None:
        counted = tuple(sorted(i for p in self.order.bundles for i in self.begin.bundles[p].ids))
        digest = self.hasher.digest()
        nbytes = sum(len(frame) for frame in self.frames)
        order = self.order
        self.done = PartDone(order.index, order.start, order.stop, digest, counted, self.norm, nbytes)
        self.residuals.seal_reducer(self.begin.fence.round, self.begin.attempt, (order.start, order.stop), digest)
        self.end_frame = bulk.pack_end(bulk.PartEnd(digest, self.norm, counted))
        self._notify()

    def _notify(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()


def exact_frame(
    codec: Codec, values: torch.Tensor, header: bytes, chunk: int, bundle: int, weight: int, offset: int
) -> bytes:
    """A frame of the exact codec, whose payload size is known only after encoding: the header is written last."""
    frame = codec.encode(values, header)
    size = len(frame) - bulk.FRAME_HEADER_BYTES
    fitting = bulk.pack_frame_header(
        size, chunk=chunk, bundle=bundle, weight=weight, offset=offset, values=values.numel()
    )
    return fitting + frame[bulk.FRAME_HEADER_BYTES :]


def frames_payload(frames: Sequence[bytes]) -> int:
    """Payload bytes of frames."""
    return sum(len(frame) - bulk.FRAME_HEADER_BYTES for frame in frames)
