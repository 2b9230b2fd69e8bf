"""The running exchange of this peer: contributions to reducers, averages back, over bulk streams.

Decides how bytes move: one stream per (part, member), opened by the member towards the reducer, contributions one way
and the average the other, both chunk by chunk and overlapped. Does not decide who takes part or what a loss means: it
reports ``PartHeld``, ``PartTroubled`` and ``ExchangeMeasured`` to the core (round protocol, R4).

    member                                reducer (``reduction``)
      header ------------------------------>
      contribution chunk 0, 1, 2 ...  ----->  sum, encode, hash
      <---- average chunk 0, 1, 2 ..., END    (to every member)
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from typing import Any

from p2ptrain.codec import codec_by_name
from p2ptrain.codec.base import Codec
from p2ptrain.codec.digest import PartHasher
from p2ptrain.codec.feedback import Residuals
from p2ptrain.codec.sizes import chunk_ranges
from p2ptrain.core import events as ev
from p2ptrain.core.messages import Begin
from p2ptrain.core.types import Digest, PartDone, PartOrder, PeerId, short
from p2ptrain.errors import P2PTrainError, ProtocolError, TransportError
from p2ptrain.ports import BulkStream, GradientSource, OnEvent, Transport
from p2ptrain.runtime.hashing import Hashing
from p2ptrain.runtime.parts import PartStore, StoredPart
from p2ptrain.runtime.reduction import Reduction, Refused, exact_frame
from p2ptrain.wire import bulk

OPEN_S = 5.0
LINGER_S = 30.0
EARLY_S = 10.0


class Exchanges:
    """All exchanges of one peer and stage; at most one is current. Lives in the loop.

    ``codec_name``: the run's; a lone peer exchanges nothing and keeps its gradient as it is ("none").
    """

    def __init__(
        self,
        transport: Transport,
        me: PeerId,
        run: bytes,
        gradients: GradientSource,
        parts: PartStore,
        codec: Codec,
        residuals: Residuals,
        pool: Executor,
        on_event: OnEvent,
    ) -> None:
        self.transport = transport
        self.me = me
        self.run = run
        self.gradients = gradients
        self.parts = parts
        self.codec = codec
        self.residuals = residuals
        self.pool = pool
        self.on_event = on_event
        self.hooks: Callable[[str, Begin], None] = lambda phase, begin: None
        self._plain = codec_by_name("none")
        self._no_residuals = Residuals(self._plain, residuals.size, enabled=False)
        self._current: _Current | None = None
        self._arrived = asyncio.Event()
        self._serving: dict[tuple[Digest, int], Reduction] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    # --- orders from the core --------------------------------------------------------------------------------------

    def start(self, order: ev.Exchange) -> None:
        """Begin this exchange, ending any earlier one."""
        if self._current is not None:
            self.stop(self._current.digest, "a later attempt has begun")
        self._current = current = _Current(self, order)
        current.begin_all()
        self._arrived.set()
        self._arrived = asyncio.Event()

    def stop(self, begin_digest: Digest, reason: str = "the exchange is over") -> None:
        """End own streams of this exchange. Finished averages are still served to those who lag (``LINGER_S``)."""
        current = self._current
        if current is None or current.digest != begin_digest:
            return
        self._current = None
        current.end(reason)
        self.on_event(ev.ExchangeMeasured(current.digest, current.bytes_sent, current.bytes_received))

    def release(self, before_round: int) -> None:
        """Rounds below are over: forget their finished reductions too."""
        for key, reduction in list(self._serving.items()):
            if reduction.begin.fence.round < before_round:
                del self._serving[key]

    async def close(self) -> None:
        if self._current is not None:
            self.stop(self._current.digest, "the peer ends")
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(list(self._tasks), timeout=2.0)

    # --- streams that members open to us ---------------------------------------------------------------------------

    async def serve(self, stream: BulkStream, header: bulk.StreamHeader) -> None:
        """A member's stream for a part that we reduce: take its contributions, send it the average."""
        reduction = await self._find(header)
        if reduction is None:
            await stream.send(bulk.pack_error("no such exchange here (any more)"))
            await stream.finish()
            return
        begin = reduction.begin
        if stream.peer not in {voter.peer for voter in begin.members}:
            raise ProtocolError(f"{short(stream.peer)} is no member of this exchange")
        own = {p for p in reduction.order.bundles if begin.bundles[p].peer == stream.peer}
        taking = asyncio.ensure_future(self._take(stream, reduction, own))
        try:
            await self._give(stream, reduction)
        finally:
            taking.cancel()
            await asyncio.wait([taking])

    async def _find(self, header: bulk.StreamHeader) -> Reduction | None:
        """The reduction that a stream asks for; its Begin may reach us a little after the stream."""
        key = (header.digest, header.index)
        until = time.monotonic() + EARLY_S
        while key not in self._serving:
            left = until - time.monotonic()
            if left <= 0:
                return None
            arrived = self._arrived
            try:
                await asyncio.wait_for(arrived.wait(), left)
            except asyncio.TimeoutError:
                return None
        return self._serving[key]

    async def _take(self, stream: BulkStream, reduction: Reduction, own: set[int]) -> None:
        current = self._current
        try:
            while (frame := await stream.receive()) is not None:
                header, payload = bulk.parse_frame(frame)
                if header.kind is not bulk.FrameKind.DATA:
                    continue
                if header.bundle not in own:
                    raise ProtocolError(f"{short(stream.peer)} sent bundle {header.bundle}, which is not its own")
                reduction.add(header.bundle, header.chunk, payload)
                if current is not None:
                    current.bytes_received += len(frame)
                if reduction.ready:
                    self.spawn(self.advance(reduction))
        except TransportError:
            return  # the stream is cut: patience or the roster tells what that means
        except ProtocolError as error:
            self._trouble(reduction, sorted(own), f"contribution refused: {error.text}")
            stream.cancel(error.text)

    async def _give(self, stream: BulkStream, reduction: Reduction) -> None:
        sent = 0
        current = self._current
        while True:
            changed = reduction.changed
            while sent < len(reduction.frames):
                frame = reduction.frames[sent]
                await stream.send(frame)
                sent += 1
                if current is not None:
                    current.bytes_sent += len(frame)
            if reduction.done is not None and sent == len(reduction.chunks):
                await stream.send(reduction.end_frame)
                await stream.finish()
                return
            if reduction.ended:
                await stream.send(bulk.pack_error(reduction.ended))
                await stream.finish()
                return
            await changed.wait()

    # --- shared ----------------------------------------------------------------------------------------------------

    async def advance(self, reduction: Reduction) -> None:
        """Reduce what is complete; tell the core when the part is done or refused."""
        was_done = reduction.done is not None
        try:
            await reduction.advance()
        except Refused as refused:
            self._trouble(reduction, [refused.position], refused.reason)
            return
        except P2PTrainError as error:
            self._trouble(reduction, reduction.missing() or list(reduction.order.bundles), error.text)
            return
        if reduction.done is not None and not was_done:
            self._hold(reduction.begin, reduction.done, reduction.codec.name, tuple(reduction.frames))

    def serve_part(self, reduction: Reduction) -> None:
        self._serving[(reduction.begin.digest, reduction.order.index)] = reduction

    def codec_of(self, begin: Begin) -> tuple[Codec, Residuals]:
        """The run's codec; for a lone peer in other than exact mode, none."""
        if len(begin.members) == 1 and self.codec.name != "exact":
            return self._plain, self._no_residuals
        return self.codec, self.residuals

    def _hold(self, begin: Begin, part: PartDone, codec: str, frames: tuple[bytes, ...]) -> None:
        self.parts.put(StoredPart(part, codec, begin.fence.round, frames))
        self.hooks("part-held", begin)
        self.on_event(ev.PartHeld(begin.digest, part))

    def _trouble(self, reduction: Reduction, bundles: list[int], reason: str) -> None:
        event = ev.PartTroubled(reduction.begin.digest, reduction.order.index, tuple(bundles), False, reason)
        self.on_event(event)

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run beside, with its end looked after."""
        task = asyncio.ensure_future(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


class _Current:
    """One attempt, as a member and as a reducer."""

    def __init__(self, owner: Exchanges, order: ev.Exchange) -> None:
        self.owner = owner
        self.begin = order.begin
        self.digest = order.begin.digest
        self.patience_s = order.patience_s
        self.codec, self.residuals = owner.codec_of(self.begin)
        self.reductions: list[Reduction] = []
        self.tasks: list[asyncio.Task[None]] = []
        self.bytes_sent = 0
        self.bytes_received = 0
        self.over = False

    def begin_all(self) -> None:
        owner = self.owner
        for order in self.begin.parts:
            if order.fixed is not None:
                continue
            if order.reducer == owner.me:
                reduction = Reduction(self.begin, order, self.codec, self.residuals, owner.pool)
                self.reductions.append(reduction)
                owner.serve_part(reduction)
                self.tasks.append(owner.spawn(self._reduce(reduction)))
            else:
                self.tasks.append(owner.spawn(self._member(order)))
        owner.hooks("exchange-began", self.begin)

    def end(self, reason: str) -> None:
        self.over = True
        for task in self.tasks:
            task.cancel()
        for reduction in self.reductions:
            reduction.stop(reason)

    # --- as the reducer --------------------------------------------------------------------------------------------

    async def _reduce(self, reduction: Reduction) -> None:
        owner = self.owner
        for position in self._own(reduction.order):
            try:
                reduction.add_own(position, self._flat(position))
            except KeyError:
                owner._trouble(reduction, [position], "own bundle is not held any more")
                return
        await owner.advance(reduction)
        told: set[int] = set()
        while reduction.done is None and not reduction.ended:
            await asyncio.sleep(min(0.25, self.patience_s / 4))
            now = time.monotonic()
            late = [p for p in reduction.missing() if now - reduction.heard[p] > self.patience_s and p not in told]
            if late:
                told.update(late)
                owner._trouble(reduction, late, f"silent for {self.patience_s:.1f} s")

    # --- as a member -----------------------------------------------------------------------------------------------

    async def _member(self, order: PartOrder) -> None:
        """Contribute to and receive one part; once more on a fresh stream if the first one breaks."""
        reason = ""
        for attempt in range(2):
            try:
                await self._attempt(order)
                return
            except (TransportError, ProtocolError) as error:
                reason = str(error)
                if isinstance(error, ProtocolError) or attempt:
                    break
                await asyncio.sleep(0.05)
        if not self.over:
            self.owner.on_event(
                ev.PartTroubled(self.digest, order.index, (), True, f"{short(order.reducer)}: {reason}")
            )

    async def _attempt(self, order: PartOrder) -> None:
        owner, fence = self.owner, self.begin.fence
        stream = await owner.transport.open_bulk(order.reducer, OPEN_S)
        try:
            header = bulk.StreamHeader(
                bulk.StreamKind.EXCHANGE, owner.run, self.digest, fence.stage, fence.round, order.index
            )
            await stream.send(bulk.pack_stream_header(header))
            giving = asyncio.ensure_future(self._contribute(stream, order))
            try:
                await self._receive(stream, order)
            finally:
                giving.cancel()
                await asyncio.wait([giving])
        finally:
            stream.cancel("done")

    async def _contribute(self, stream: BulkStream, order: PartOrder) -> None:
        """One chunk is encoded while the one before it is sent."""
        loop = asyncio.get_running_loop()
        chunks = enumerate(chunk_ranges(order.start, order.stop, self.codec.chunk_values))
        own = self._own(order)
        todo = [(order, position, index, start, stop) for index, (start, stop) in chunks for position in own]
        try:
            coming = loop.run_in_executor(self.owner.pool, self._encode, *todo[0]) if todo else None
            for number in range(len(todo)):
                assert coming is not None
                frame = await coming
                if number + 1 < len(todo):
                    coming = loop.run_in_executor(self.owner.pool, self._encode, *todo[number + 1])
                await stream.send(frame)
                self.bytes_sent += len(frame)
                if number == 0:
                    self.owner.hooks("contributing", self.begin)
            await stream.finish()
        except (TransportError, KeyError):
            return  # the receiving half fails too, or the reducer's patience tells it

    async def _receive(self, stream: BulkStream, order: PartOrder) -> None:
        """The averaged part, its digest compared with what the reducer says it sent."""
        hashing = Hashing(PartHasher(self.codec.name, self.begin.fence.stage, order.start, order.stop), self.owner.pool)
        patience = _Patience(stream, 2 * self.patience_s + OPEN_S)
        try:
            frames, end = await self._average(patience, order, hashing)
        finally:
            patience.end()
        if await hashing.digest() != end.digest:
            raise ProtocolError("the average's digest does not match its bytes")
        nbytes = sum(len(frame) for frame in frames)
        part = PartDone(order.index, order.start, order.stop, end.digest, end.counted, end.norm_sq, nbytes)
        self.owner._hold(self.begin, part, self.codec.name, tuple(frames))

    async def _average(
        self, patience: _Patience, order: PartOrder, hashing: Hashing
    ) -> tuple[list[bytes], bulk.PartEnd]:
        frames: list[bytes] = []
        sizes = [b - a for a, b in chunk_ranges(order.start, order.stop, self.codec.chunk_values)]
        while True:
            frame = await patience.next()
            if frame is None:
                raise TransportError("the average ended too early")
            header, payload = bulk.parse_frame(frame)
            if header.kind is bulk.FrameKind.ERROR:
                raise TransportError(f"the reducer gave up: {bulk.parse_error(payload)}")
            self.bytes_received += len(frame)
            if header.kind is bulk.FrameKind.END:
                if len(frames) != len(sizes):
                    raise ProtocolError(f"the average ended after {len(frames)} of {len(sizes)} chunks")
                return frames, bulk.parse_end(payload)
            if len(frames) >= len(sizes) or header.chunk != len(frames) or header.values != sizes[len(frames)]:
                raise ProtocolError(f"average chunk {header.chunk} where {len(frames)} was due")
            frames.append(frame)
            hashing.add(payload)

    def _encode(self, order: PartOrder, position: int, index: int, start: int, stop: int) -> bytes:
        """In the pool: one chunk of one own bundle, header and payload in one buffer."""
        bundle = self.begin.bundles[position]
        values = self._flat(position)[start:stop]
        size, offset = stop - start, start - order.start
        header = bulk.pack_frame_header(
            self.codec.encoded_bytes(size),
            chunk=index,
            bundle=position,
            weight=bundle.weight,
            offset=offset,
            values=size,
        )
        if self.codec.name == "exact":
            return exact_frame(self.codec, values, header, index, position, bundle.weight, offset)
        total = sum(self.begin.bundles[p].weight for p in order.bundles)
        fence = self.begin.fence
        return self.residuals.stage_sender(
            fence.round, bundle.index, (order.start, order.stop), start, values, bundle.weight, total, header
        )

    def _own(self, order: PartOrder) -> list[int]:
        return [p for p in order.bundles if self.begin.bundles[p].peer == self.owner.me]

    def _flat(self, position: int) -> Any:
        fence = self.begin.fence
        return self.owner.gradients.bundle(fence.stage, fence.round, self.begin.bundles[position].index)


class _Patience:
    """Ends a stream on which nothing came for ``limit_s``: one timer at a time, not one for every frame."""

    def __init__(self, stream: BulkStream, limit_s: float) -> None:
        self.stream = stream
        self.limit_s = limit_s
        self._since = time.monotonic()
        self._timer = asyncio.get_running_loop().call_later(limit_s, self._look)

    async def next(self) -> bytes | None:
        """As ``BulkStream.receive``; TransportError also when the limit is reached."""
        frame = await self.stream.receive()
        self._since = time.monotonic()
        return frame

    def end(self) -> None:
        self._timer.cancel()

    def _look(self) -> None:
        left = self._since + self.limit_s - time.monotonic()
        if left > 0:
            self._timer = asyncio.get_running_loop().call_later(left, self._look)
        else:
            self.stream.cancel(f"the reducer was silent for {self.limit_s:.1f} s")
