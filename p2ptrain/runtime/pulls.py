"""Bytes by name, both ends: averaged parts, snapshot chunks, state slices, corpus chunks.

Decides how they travel (one stream each, header back, data frames, END) and that nothing is believed before its digest
or size matches. Does not decide whom to ask: the core does. Donors cap what they upload for joiners (``upload_mbps``).

    puller: StreamHeader(CHUNK, key, index) ->        <- StreamHeader, DATA..., END
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import Any

from p2ptrain.codec.digest import PartHasher
from p2ptrain.codec.sizes import CODEC_NAMES, chunk_count, chunk_values_of
from p2ptrain.core import events as ev
from p2ptrain.core.types import Digest, PartDone, PeerId, SnapshotInfo, short
from p2ptrain.errors import P2PTrainError, ProtocolError, TransferError, TransportError
from p2ptrain.ports import BulkStream, OnEvent, SliceSource, SnapshotSink, SnapshotSource, Transport
from p2ptrain.runtime.parts import PartStore, StoredPart
from p2ptrain.wire import bulk

OPEN_S = 5.0
PIECE_BYTES = 1 << 20

CorpusChunk = Callable[[Digest, int], bytes]
"""(fingerprint, index) -> bytes; raises KeyError if that corpus is not here."""


class Nothing:
    """What a peer holds before it has built anything: no snapshot, no slice, and nowhere to put one."""

    def chunk(self, key: Digest, index: int) -> bytes:
        raise KeyError("nothing is held yet")

    def slice_bytes(self, stage: int, round: int, index: int) -> bytes:
        raise KeyError("nothing is held yet")

    def open(self, info: SnapshotInfo) -> None:
        raise TransferError("not ready for state yet")

    def write(self, key: Digest, index: int, data: bytes) -> bool:
        return False


class Throttle:
    """A cap on the sum of what is uploaded for others' state. ``mbps`` 0: no cap."""

    def __init__(self, mbps: float = 0.0) -> None:
        self.mbps = mbps
        self._free_at = 0.0

    async def take(self, nbytes: int) -> None:
        """Wait until ``nbytes`` more may go out."""
        if self.mbps <= 0:
            return
        now = time.monotonic()
        start = max(now, self._free_at)
        self._free_at = start + nbytes * 8e-6 / self.mbps
        await asyncio.sleep(max(0.0, start - now))


class Pulls:
    """Serves what this peer holds and pulls what it lacks. Lives in the loop."""

    def __init__(
        self,
        transport: Transport,
        run: bytes,
        parts: PartStore,
        snapshots: SnapshotSource,
        sink: SnapshotSink,
        slices: SliceSource,
        on_event: OnEvent,
        *,
        corpus: CorpusChunk | None = None,
        throttle: Throttle | None = None,
    ) -> None:
        self.transport = transport
        self.run = run
        self.parts = parts
        self.snapshots = snapshots
        self.sink = sink
        self.slices = slices
        self.on_event = on_event
        self.corpus = corpus
        self.throttle = throttle or Throttle()
        self._running: dict[tuple[object, ...], asyncio.Task[None]] = {}

    # --- serving ---------------------------------------------------------------------------------------------------

    async def serve(self, stream: BulkStream, header: bulk.StreamHeader) -> None:
        """Answer one stream. What is not here is said by an ERROR frame, not by a broken stream."""
        try:
            round, codec, pieces = await self._find(header)
        except KeyError as error:
            await stream.send(bulk.pack_error(f"not held here (any more): {error}"))
            await stream.finish()
            return
        reply = bulk.StreamHeader(header.kind, self.run, header.digest, header.stage, round, codec)
        await stream.send(bulk.pack_stream_header(reply))
        for piece in pieces:
            if header.kind is not bulk.StreamKind.PART:
                await self.throttle.take(len(piece))
            await stream.send(piece)
        await stream.send(bulk.pack_end())
        await stream.finish()

    async def _find(self, header: bulk.StreamHeader) -> tuple[int, int, Sequence[bytes]]:
        """Round, for a part the number of its codec, and the frames to send."""
        kind = header.kind
        if kind is bulk.StreamKind.PART:
            stored = self.parts.get(header.digest)
            return stored.round, CODEC_NAMES.index(stored.codec), stored.frames
        loop = asyncio.get_running_loop()
        if kind is bulk.StreamKind.CHUNK:
            data = await loop.run_in_executor(None, self.snapshots.chunk, header.digest, header.index)
        elif kind is bulk.StreamKind.SLICE:
            data = await loop.run_in_executor(None, self.slices.slice_bytes, header.stage, header.round, header.index)
        elif kind is bulk.StreamKind.CORPUS and self.corpus is not None:
            data = await loop.run_in_executor(None, self.corpus, header.digest, header.index)
        else:
            raise KeyError(kind.name)
        return header.round, 0, frames_of(data)

    # --- pulling for the core --------------------------------------------------------------------------------------

    def fetch_part(self, effect: ev.FetchPart) -> None:
        self._spawn(("part", effect.part.digest), self._fetch_part(effect.part, effect.peer))

    def pull_chunk(self, effect: ev.PullChunk) -> None:
        self._spawn(("chunk", effect.key, effect.index, effect.peer), self._pull_chunk(effect))

    def stop_chunk(self, effect: ev.StopChunk) -> None:
        task = self._running.pop(("chunk", effect.key, effect.index, effect.peer), None)
        if task is not None:
            task.cancel()

    async def close(self) -> None:
        tasks = list(self._running.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=2.0)

    async def pull_bytes(
        self, peer: PeerId, header: bulk.StreamHeader, limit: int, silence_s: float = 10.0
    ) -> bytearray:
        """One named piece from ``peer``, at most ``limit`` bytes.

        Raises TransferError (not held there, too long), TransportError (unreachable, cut, silent for ``silence_s``),
        ProtocolError (malformed). The caller checks the digest.
        """
        data = bytearray()
        async for _, frame in self._frames(peer, header, silence_s):
            _, payload = bulk.parse_frame(frame)
            if len(data) + len(payload) > limit:
                raise ProtocolError(f"{short(peer)} sends more than the {limit} bytes asked for")
            data += payload
        return data

    # --- helpers ---------------------------------------------------------------------------------------------------

    async def _fetch_part(self, part: PartDone, peer: PeerId) -> None:
        header = bulk.StreamHeader(bulk.StreamKind.PART, self.run, part.digest)
        try:
            stored = await self._part(part, peer, header)
        except (P2PTrainError, asyncio.TimeoutError) as error:
            self.on_event(ev.PartFetchFailed(part.digest, peer, str(error) or "silent"))
            return
        self.parts.put(stored)
        self.on_event(ev.PartHeld(b"", part))

    async def _part(self, part: PartDone, peer: PeerId, header: bulk.StreamHeader) -> StoredPart:
        frames: list[bytes] = []
        codec, round, nbytes, hasher = "", 0, 0, None
        async for reply, frame in self._frames(peer, header, 10.0):
            if hasher is None:
                codec, round = CODEC_NAMES[reply.index], max(0, reply.round)
                hasher = PartHasher(codec, reply.stage, part.start, part.stop)
            nbytes += len(frame)
            if nbytes > part.nbytes:
                raise ProtocolError(f"{short(peer)} sends more than the part's {part.nbytes} bytes")
            _, payload = bulk.parse_frame(frame)
            hasher.update(payload)
            frames.append(frame)
        expected = chunk_count(part.stop - part.start, chunk_values_of(codec)) if codec else -1
        if hasher is None or hasher.digest() != part.digest or len(frames) != expected:
            raise ProtocolError(f"a part from {short(peer)} does not match its digest")
        return StoredPart(part, codec, round, tuple(frames))

    async def _pull_chunk(self, effect: ev.PullChunk) -> None:
        started = time.monotonic()
        header = bulk.StreamHeader(bulk.StreamKind.CHUNK, self.run, effect.key, effect.info.stage, 0, effect.index)
        try:
            data = await self.pull_bytes(effect.peer, header, effect.info.chunk_bytes)
        except (P2PTrainError, asyncio.TimeoutError) as error:
            self.on_event(ev.ChunkFailed(effect.key, effect.index, effect.peer, str(error) or "silent"))
            return
        loop = asyncio.get_running_loop()
        good = await loop.run_in_executor(None, self.sink.write, effect.key, effect.index, bytes(data))
        if good:
            seconds = time.monotonic() - started
            self.on_event(ev.ChunkPulled(effect.key, effect.index, effect.peer, len(data), seconds))
        else:
            reason = f"chunk {effect.index} does not match its digest"
            self.on_event(ev.ChunkFailed(effect.key, effect.index, effect.peer, reason, corrupt=True))

    async def _frames(
        self, peer: PeerId, header: bulk.StreamHeader, silence_s: float
    ) -> AsyncIterator[tuple[bulk.StreamHeader, bytes]]:
        """DATA frames of one named thing, after its header and up to its END."""
        stream = await self.transport.open_bulk(peer, OPEN_S)
        try:
            await stream.send(bulk.pack_stream_header(header))
            await stream.finish()
            first = await asyncio.wait_for(stream.receive(), silence_s)
            if first is None:
                raise TransportError(f"{short(peer)} ended the stream at once")
            if len(first) != bulk.STREAM_HEADER_BYTES:
                _refused(peer, first)
            reply = bulk.parse_stream_header(first, self.run)
            if reply.digest != header.digest or reply.index >= len(CODEC_NAMES):
                raise ProtocolError(f"{short(peer)} answers something else than was asked")
            while (frame := await asyncio.wait_for(stream.receive(), silence_s)) is not None:
                kind = bulk.parse_frame(frame)[0].kind
                if kind is bulk.FrameKind.END:
                    return
                if kind is bulk.FrameKind.ERROR:
                    _refused(peer, frame)
                yield reply, frame
            raise TransportError(f"the stream from {short(peer)} was cut before its end")
        finally:
            stream.cancel("done")

    def _spawn(self, key: tuple[object, ...], coroutine: Coroutine[Any, Any, None]) -> None:
        old = self._running.pop(key, None)
        if old is not None:
            old.cancel()
        task = asyncio.ensure_future(coroutine)
        self._running[key] = task
        task.add_done_callback(lambda done: self._running.pop(key, None) if self._running.get(key) is done else None)


def frames_of(data: bytes) -> list[bytes]:
    """``data`` cut into DATA frames of at most ``PIECE_BYTES``."""
    pieces = [data[i : i + PIECE_BYTES] for i in range(0, len(data), PIECE_BYTES)] or [b""]
    return [bulk.pack_frame_header(len(p), chunk=i, offset=i * PIECE_BYTES) + p for i, p in enumerate(pieces)]


def _refused(peer: PeerId, frame: bytes) -> None:
    header, payload = bulk.parse_frame(frame)
    if header.kind is bulk.FrameKind.ERROR:
        raise TransferError(f"{short(peer)}: {bulk.parse_error(payload)}")
    raise ProtocolError(f"{short(peer)} sent a frame where a header was due")
