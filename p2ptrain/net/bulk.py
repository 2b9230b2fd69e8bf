"""Bulk streams: raw frames between two peers, on connections of their own, over whichever side can dial.

Decides: how a stream reaches its peer and how many may be open. It does not know what the frames are.

    we can dial it      Bulk call ───────────────► its on_bulk
    we cannot           BulkPlease(token) on the link ───► it calls Bulk with the token ───► our open_bulk returns

An empty frame marks the end of one direction, so that a cut stream is never taken for a finished one. Back-pressure is
gRPC's: a frame is taken when it fits the peer's window (``bulk_window_bytes`` per unread stream).
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from p2ptrain.core.types import PeerId, short
from p2ptrain.errors import ProtocolError, TransportError
from p2ptrain.net import frames
from p2ptrain.net.dialing import DialError, reach
from p2ptrain.net.links import Link
from p2ptrain.net.pipes import CallPipe, ContextPipe, Pipe, PipeBroken
from p2ptrain.net.settings import BULK_METHOD, PULSE_METHOD, NetSettings
from p2ptrain.ports import OnBulk

logger = logging.getLogger(__name__)

END = b""


class GrpcBulkStream:
    """See ``ports.BulkStream``."""

    def __init__(
        self, peer: PeerId, pipe: Pipe, frame_max_bytes: int, on_over: Callable[[GrpcBulkStream], None]
    ) -> None:
        self._peer = peer
        self._pipe = pipe
        self._frame_max_bytes = frame_max_bytes
        self._on_over = on_over
        self._reason = ""
        self._sent_end = False
        self._received_end = False
        self.prove: Callable[[], Any] | None = None  # awaited once, before the first frame is believed

    @property
    def peer(self) -> PeerId:
        return self._peer

    async def send(self, frame: bytes) -> None:
        if not 0 < len(frame) <= self._frame_max_bytes:
            raise ProtocolError(f"a bulk frame of {len(frame)} bytes cannot be sent (1 to {self._frame_max_bytes})")
        if self._sent_end:
            raise TransportError("this side has finished the bulk stream already")
        await self._write(frame)

    async def receive(self) -> bytes | None:
        if self._received_end:
            return None
        try:
            prove, self.prove = self.prove, None
            proven = prove is None or await prove()
            frame = await self._pipe.read()
            if not proven:
                raise ProtocolError(f"who answered does not prove to be {short(self._peer)}")
        except PipeBroken as broken:
            raise self._failed(broken) from None
        except ProtocolError as error:
            self.cancel(error.text)
            raise
        if frame is None:
            raise self._failed(PipeBroken("it was cut off before its end"))
        if len(frame) > self._frame_max_bytes:
            self.cancel("oversized frame")
            raise ProtocolError(f"a bulk frame of {len(frame)} bytes, the limit is {self._frame_max_bytes}")
        if frame == END:
            self._received_end = True
            self._check_over()
            return None
        return frame

    async def finish(self) -> None:
        if self._sent_end:
            return
        self._sent_end = True
        await self._write(END)
        try:
            await self._pipe.finish()
        except PipeBroken as broken:
            raise self._failed(broken) from None
        self._check_over()

    def cancel(self, reason: str) -> None:
        if not self._reason:
            self._reason = reason or "cancelled"
            self._pipe.end(self._reason)
            self._on_over(self)

    async def _write(self, frame: bytes) -> None:
        if self._reason:
            raise self._failed(PipeBroken(self._reason))
        try:
            await self._pipe.write(frame)
        except PipeBroken as broken:
            raise self._failed(broken) from None

    def _check_over(self) -> None:
        if self._sent_end and self._received_end and not self._reason:
            self._reason = "finished"
            if isinstance(self._pipe, ContextPipe) and not self._pipe.ended.done():
                self._pipe.ended.set_result("finished")
            self._on_over(self)

    def _failed(self, broken: PipeBroken) -> Exception:
        why = self._reason or broken.detail or "it broke"
        self.cancel(why)
        if broken.code == "RESOURCE_EXHAUSTED" and "larger than max" in broken.detail:
            return ProtocolError(f"bulk stream with {short(self._peer)}: oversized frame ({broken.detail})")
        return TransportError(f"bulk stream with {short(self._peer)}: {why}", hint="try another peer", peer=self._peer)


class BulkHub:
    """Opens, accepts, matches and counts bulk streams. ``connect(peer, target)`` gives a channel for bulk."""

    def __init__(
        self,
        settings: NetSettings,
        link_of: Callable[[PeerId], Link | None],
        connect: Callable[[PeerId, str], Any],
        call_metadata: Callable[[], tuple[list[tuple[str, Any]], Any]],
        on_bulk: OnBulk,
    ) -> None:
        self._settings = settings
        self._link_of = link_of
        self._connect = connect
        self._call_metadata = call_metadata
        self._on_bulk = on_bulk
        self._channels: dict[PeerId, tuple[str, Any, asyncio.Task[None]]] = {}
        self._streams: dict[PeerId, set[GrpcBulkStream]] = {}
        self._targets: dict[PeerId, tuple[Link, str]] = {}  # found by trying; "" when its addresses do not answer
        self._wanted: dict[bytes, tuple[PeerId, asyncio.Future[GrpcBulkStream]]] = {}
        self._serving: set[asyncio.Task[None]] = set()
        self.refused: Counter[str] = Counter()

    async def open(self, peer: PeerId, timeout_s: float) -> GrpcBulkStream:
        """See ``ports.Transport.open_bulk``."""
        deadline = time.monotonic() + timeout_s
        link = self._link_of(peer)
        if link is None:
            raise TransportError(f"no link to {short(peer)}: no bulk stream", peer=peer)
        if self._full(peer):
            text = f"{self._settings.bulk_streams_max} bulk streams with {short(peer)} are open"
            raise TransportError(text, peer=peer)
        target = await self._target(link, deadline)
        if self._link_of(peer) is not link:
            raise TransportError(f"the link to {short(peer)} was lost meanwhile", peer=peer)
        return self._dial(peer, target, b"") if target else await self._ask(link, deadline)

    def answer_please(self, link: Link, token: bytes) -> None:
        """The peer cannot dial us: open a stream to it and serve it as if it had."""
        if not link.target or self._full(link.peer) or len(token) != 16:
            self.refused["please"] += 1
            return
        stream = self._dial(link.peer, link.target, token)
        self._serve(stream)

    async def accept(self, peer: PeerId, pipe: ContextPipe, token: bytes) -> None:
        """An incoming Bulk call of a linked peer; returns when the stream is over."""
        if self._full(peer):
            self.refused["full"] += 1
            pipe.end(f"{self._settings.bulk_streams_max} bulk streams are open already")
            return
        stream = self._add(GrpcBulkStream(peer, pipe, self._settings.frame_max_bytes, self._over))
        if token:
            wanted = self._wanted.pop(token, None)
            if wanted is None or wanted[0] != peer or wanted[1].done():
                stream.cancel("nobody waits for this stream any more")
                return
            wanted[1].set_result(stream)
        else:
            self._serve(stream)
        try:
            await asyncio.shield(pipe.ended)
        finally:
            stream.cancel("the connection ended")

    def drop_peer(self, peer: PeerId, reason: str) -> None:
        """The link is gone: so are its streams, at once."""
        for stream in list(self._streams.pop(peer, ())):
            stream.cancel(reason)
        for token, (wanted, future) in list(self._wanted.items()):
            if wanted == peer and not future.done():
                future.set_exception(TransportError(reason, peer=peer))
                del self._wanted[token]
        self._targets.pop(peer, None)
        entry = self._channels.pop(peer, None)
        if entry is not None:
            entry[2].cancel()
            task = asyncio.ensure_future(entry[1].close())
            self._keep(task)

    async def stop(self) -> None:
        for peer in set(self._streams) | set(self._channels):
            self.drop_peer(peer, "this peer is stopping")
        tasks = list(self._serving)
        if tasks:
            await asyncio.wait(tasks, timeout=self._settings.close_grace_s)
        for task in tasks:
            task.cancel()

    # --- ways to a peer ----------------------------------------------------------------------------------------------

    async def _target(self, link: Link, deadline: float) -> str:
        """Where to dial the peer's bulk port; "" if we cannot."""
        if link.target:
            return link.target
        known = self._targets.get(link.peer)
        if known is not None and known[0] is link:
            return known[1]
        target = ""
        until = min(deadline, time.monotonic() + 1.0)
        attempts = [asyncio.ensure_future(reach(a, until)) for a in link.hello.info.addresses[:8]]
        try:
            for done in asyncio.as_completed(attempts):
                try:
                    target = (await done).target
                    break
                except DialError as error:
                    logger.debug("bulk to %s: %s", short(link.peer), error.detail)
        finally:
            for attempt in attempts:
                attempt.cancel()
            await asyncio.gather(*attempts, return_exceptions=True)
        self._targets[link.peer] = (link, target)
        return target

    def _dial(self, peer: PeerId, target: str, token: bytes) -> GrpcBulkStream:
        channel = self._channel(peer, target)
        metadata, prove = self._call_metadata()
        if token:
            metadata.append(("p2p-token-bin", token))
        call = channel.stream_stream(BULK_METHOD)(metadata=metadata)
        stream = self._add(GrpcBulkStream(peer, CallPipe(call), self._settings.frame_max_bytes, self._over))

        stream.prove = lambda: prove(call, peer)
        return stream

    async def _ask(self, link: Link, deadline: float) -> GrpcBulkStream:
        token = secrets.token_bytes(16)
        future: asyncio.Future[GrpcBulkStream] = asyncio.get_running_loop().create_future()
        self._wanted[token] = (link.peer, future)
        link.send(frames.pack(frames.BulkPlease(token)))
        try:
            return await asyncio.wait_for(future, max(0.001, deadline - time.monotonic()))
        except asyncio.TimeoutError:
            text = f"{short(link.peer)} was asked to open a bulk stream and did not in time"
            raise TransportError(text, peer=link.peer) from None
        finally:
            self._wanted.pop(token, None)

    def _channel(self, peer: PeerId, target: str) -> Any:
        entry = self._channels.get(peer)
        if entry is None:
            channel = self._connect(peer, target)
            entry = (target, channel, asyncio.ensure_future(self._pulse(channel)))
            self._channels[peer] = entry
        return entry[1]

    async def _pulse(self, channel: Any) -> None:
        """Bytes towards the other side even while we only read, so that its pings never wait behind its own chunks."""
        try:
            call = channel.stream_stream(PULSE_METHOD)()
            while True:
                await call.write(b"p")
                await asyncio.sleep(self._settings.pulse_s)
        except Exception as error:  # the streams themselves tell what broke
            logger.debug("bulk pulse ended: %s", type(error).__name__)

    # --- bookkeeping -------------------------------------------------------------------------------------------------

    def _serve(self, stream: GrpcBulkStream) -> None:
        self._keep(asyncio.ensure_future(self._served(stream)))

    async def _served(self, stream: GrpcBulkStream) -> None:
        try:
            await self._on_bulk(stream)
            await stream.finish()
        except (TransportError, ProtocolError) as error:
            logger.debug("bulk stream of %s ended: %s", short(stream.peer), error)
            stream.cancel(error.text)
        except Exception:
            logger.exception("bulk stream of %s could not be served", short(stream.peer))
            stream.cancel("the other side failed to serve this stream")

    def _keep(self, task: asyncio.Task[None]) -> None:
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    def _full(self, peer: PeerId) -> bool:
        return len(self._streams.get(peer, ())) >= self._settings.bulk_streams_max

    def _add(self, stream: GrpcBulkStream) -> GrpcBulkStream:
        self._streams.setdefault(stream.peer, set()).add(stream)
        return stream

    def _over(self, stream: GrpcBulkStream) -> None:
        streams = self._streams.get(stream.peer)
        if streams is not None:
            streams.discard(stream)
            if not streams:
                del self._streams[stream.peer]
