"""One link: the control stream of a pair of peers once both Hellos are verified.

Decides: when the stream is over and how it ended (``LossCause``), how much may wait to be sent. It does not decide
whether a link may stand (``table``) or what a message means (the core).

    Link.send ─► bounded queue ─► writer task ─► pipe ═══ peer
    table.received ◄─ reader task ◄──────────── pipe
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from p2ptrain.core.events import LossCause
from p2ptrain.core.types import PeerId, short
from p2ptrain.errors import ProtocolError
from p2ptrain.net import frames
from p2ptrain.net.pipes import ContextPipe, Pipe, PipeBroken
from p2ptrain.net.settings import NetSettings

if TYPE_CHECKING:
    from p2ptrain.core.messages import Hello

logger = logging.getLogger(__name__)


class Link:
    """Made by the table for a verified pair of Hellos. ``ended`` is called exactly once, unless ``abandon`` is."""

    def __init__(
        self,
        peer: PeerId,
        hello: Hello,
        pipe: Pipe,
        settings: NetSettings,
        *,
        process: bytes,
        target: str = "",
        address: str = "",
        channel: Any = None,
        invite: int = 0,
    ) -> None:
        self.peer = peer
        self.hello = hello
        self.process = process  # tells processes of one life apart
        self.target = target  # where we dialled it, for gRPC; "" if it dialled us
        self.address = address
        self.channel = channel
        self.invite = invite  # serial of the invite by which the peer has joined; 0: it showed none (no TLS)
        self.received: Callable[[Link, bytes], None] = _unset
        self.asked_bulk: Callable[[Link, bytes], None] = _unset
        self.ended: Callable[[Link, LossCause, str], None] = _unset
        self.refused_here: Callable[[Link], Awaitable[bool]] = _never
        self._pipe = pipe
        self._settings = settings
        self._queue: deque[bytes] = deque()
        self._queued_bytes = 0
        self._wake = asyncio.Event()
        self._drained = asyncio.Event()
        self._over = False
        self._closing = False
        self._judging = False
        self._sent_at = self._heard_at = time.monotonic()
        self._answers: dict[int, asyncio.Future[bool]] = {}
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def life(self) -> int:
        return self.hello.info.life

    @property
    def we_dialled(self) -> bool:
        return bool(self.target)

    @property
    def queued_bytes(self) -> int:
        return self._queued_bytes

    def connection_ended(self) -> None:
        """gRPC says so on the answering side; how, is found out beside."""
        if not self._over:
            _background(self.judge("the connection ended"))

    def start(self) -> None:
        self._tasks = [asyncio.ensure_future(work()) for work in (self._read, self._write, self._pulse)]

    def send(self, frame: bytes) -> None:
        """Queue a frame. If the other side does not keep up, the link ends: memory is bounded."""
        if self._over or self._closing:
            return
        settings = self._settings
        too_many = len(self._queue) >= settings.queue_max_messages
        if too_many or self._queued_bytes + len(frame) > settings.queue_max_bytes:
            self._end("silent", f"slow reader: {len(self._queue)} messages, {self._queued_bytes} bytes wait to be sent")
            return
        self._queue.append(frame)
        self._queued_bytes += len(frame)
        self._wake.set()

    async def alive(self, timeout_s: float) -> bool:
        """Ask the process at the other end whether it is there."""
        if self._over:
            return False
        number = len(self._answers) + int(time.monotonic() * 1e6)
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        self.send(frames.pack(frames.Pulse(number, True)))
        try:
            return await asyncio.wait_for(answer, timeout_s)
        except asyncio.TimeoutError:
            return False
        finally:
            self._answers.pop(number, None)

    async def close(self, reason: str) -> None:
        """Say goodbye and end; ``ended`` is not called."""
        if self._over or self._closing:
            return
        self.send(frames.pack(frames.Bye(reason)))
        self._closing = True
        self.ended = _unset
        try:
            await asyncio.wait_for(self._drained.wait(), self._settings.close_grace_s)
        except asyncio.TimeoutError:
            logger.debug("link to %s: no time left to say goodbye", short(self.peer))
        self._end("closed", reason)

    def abandon(self, reason: str) -> None:
        """End at once without a goodbye; ``ended`` is not called."""
        self.ended = _unset
        self._end("closed", reason)

    def cut(self, cause: LossCause, detail: str) -> None:
        """End at once; ``ended`` is called."""
        self._end(cause, detail)

    # --- tasks -------------------------------------------------------------------------------------------------------

    async def _read(self) -> None:
        try:
            while True:
                frame = await self._pipe.read()
                if frame is None:
                    return await self.judge("the other side ended the stream")
                self._heard_at = time.monotonic()
                side = frames.unpack(frame)
                if side is None:
                    self.received(self, frame)
                elif isinstance(side, frames.Bye):
                    return self._end("closed", side.reason)
                else:
                    self._on_side(side)
        except PipeBroken as broken:
            await self._on_broken(broken)
        except ProtocolError as error:
            logger.warning("link to %s: dropped, it broke the rules: %s", short(self.peer), error)
            self.send(frames.pack(frames.Bye(f"refused: {error.text}")))
            await asyncio.sleep(0)
            self._end("closed", f"protocol: {error.text}")
        except Exception:
            logger.exception("link to %s: a received message could not be handled", short(self.peer))
            self._end("closed", "internal error")

    async def _write(self) -> None:
        try:
            while True:
                while self._queue:
                    frame = self._queue.popleft()
                    await self._pipe.write(frame)
                    self._queued_bytes -= len(frame)
                    self._sent_at = time.monotonic()
                if self._closing:
                    await self._pipe.finish()
                    self._drained.set()
                    return
                self._wake.clear()
                await self._wake.wait()
        except PipeBroken as broken:
            # the reader knows the cause better; it gets a moment to tell
            await asyncio.sleep(self._settings.close_grace_s)
            await self._on_broken(broken)

    async def _pulse(self) -> None:
        pause = self._settings.pulse_s
        while not self._over:
            idle = time.monotonic() - self._sent_at
            if idle >= pause:
                if not self._queue:
                    self.send(frames.pack(frames.Pulse()))
                idle = 0.0
            await asyncio.sleep(pause - idle)

    def _on_side(self, side: frames.Side) -> None:
        if isinstance(side, frames.BulkPlease):
            self.asked_bulk(self, side.token)
        elif isinstance(side, frames.Pulse) and side.asks:
            self.send(frames.pack(frames.Pulse(side.number, False)))
        elif isinstance(side, frames.Pulse):
            answer = self._answers.get(side.number)
            if answer and not answer.done():
                answer.set_result(True)

    async def _on_broken(self, broken: PipeBroken) -> None:
        text = broken.detail.lower()
        if isinstance(self._pipe, ContextPipe):
            await self.judge(broken.detail)
        elif "ping timeout" in text or "keepalive" in text:
            self._end("silent", "HTTP/2 pings went unanswered")
        elif broken.code in ("RESOURCE_EXHAUSTED", "FAILED_PRECONDITION"):
            self._end("closed", broken.detail)
        else:
            self._end("reset", broken.detail or "the stream broke")

    async def judge(self, detail: str) -> None:
        """The stream ended without a goodbye: how? gRPC tells the dialler, the answering side has to find out.

        If anything was heard so lately that no ping can have gone unanswered, the other end's socket ended. Otherwise
        its own port is asked.
        """
        if self._over or self._judging:
            return
        self._judging = True
        quiet_s = time.monotonic() - self._heard_at
        if not isinstance(self._pipe, ContextPipe):
            self._end("closed", detail)
        elif quiet_s < self._settings.ping_after_s + 0.5 * self._settings.ping_timeout_s:
            self._end("reset", "the connection ended without a goodbye")
        elif await self.refused_here(self):
            self._end("reset", "the connection ended without a goodbye, and its port is closed")
        else:
            self._end("silent", f"nothing heard for {quiet_s:.1f} s, then the connection ended")

    def _end(self, cause: LossCause, detail: str) -> None:
        if self._over:
            return
        self._over = True
        self._queue.clear()
        self._queued_bytes = 0
        self._drained.set()
        self._pipe.end(detail)
        current = asyncio.current_task()
        for task in self._tasks:
            if task is not current:
                task.cancel()
        if self.channel is not None:
            _background(self.channel.close())
        if self.ended is not _unset:
            self.ended(self, cause, detail)


def _unset(*_: object) -> None:
    """Before the table has set its callbacks, and after it lost interest."""


async def _never(_: Link) -> bool:
    return False


_kept: set[asyncio.Future[Any]] = set()


def _background(work: Any) -> None:
    """Run to the end without anybody waiting; kept from the garbage collector."""
    future = asyncio.ensure_future(work)
    _kept.add(future)
    future.add_done_callback(_kept.discard)
