"""A fake transport within one process: bulk streams are pairs of queues, and can be cut, damaged or held back."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable
from typing import Any

from p2ptrain.core.events import Event
from p2ptrain.errors import TransportError
from p2ptrain.ports import BulkStream

WAIT_S = 10.0


def in_loop(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Run an async test in a loop of its own, with a deadline."""

    @functools.wraps(test)
    def run(*args: Any, **named: Any) -> None:
        asyncio.run(asyncio.wait_for(test(*args, **named), 30.0))

    return run


class End:
    """One end of a stream."""

    def __init__(
        self, peer: str, inbox: asyncio.Queue[bytes | str | None], outbox: asyncio.Queue[bytes | str | None]
    ) -> None:
        self.peer = peer
        self._inbox = inbox
        self._outbox = outbox

    async def send(self, frame: bytes) -> None:
        await self._outbox.put(bytes(frame))

    async def receive(self) -> bytes | None:
        found = await self._inbox.get()
        if isinstance(found, str):
            raise TransportError(found)
        return found

    async def finish(self) -> None:
        await self._outbox.put(None)

    def cancel(self, reason: str) -> None:
        self._inbox.put_nowait(f"cancelled: {reason}")
        self._outbox.put_nowait("the other side has cancelled")


class Wires:
    """All peers of a test. ``serve[peer]``: what it does with streams opened to it. ``change``: damages frames."""

    def __init__(self) -> None:
        self.serve: dict[str, Callable[[BulkStream], Awaitable[None]]] = {}
        self.change: Callable[[str, int, bytes], bytes | None] = lambda peer, number, frame: frame
        self._tasks: set[asyncio.Task[None]] = set()

    def of(self, me: str) -> Wire:
        return Wire(self, me)


class Wire:
    """``ports.Transport`` of one peer, as far as bulk streams go."""

    def __init__(self, wires: Wires, me: str) -> None:
        self.wires = wires
        self.me = me

    async def open_bulk(self, peer: str, timeout_s: float) -> BulkStream:
        if peer not in self.wires.serve:
            raise TransportError(f"no link to {peer}")
        there: asyncio.Queue[bytes | str | None] = asyncio.Queue()
        back = _Changing(self.wires, peer)
        task = asyncio.ensure_future(self.wires.serve[peer](End(self.me, there, back)))
        self.wires._tasks.add(task)
        task.add_done_callback(self.wires._tasks.discard)
        return End(peer, back, there)


class _Changing(asyncio.Queue):  # type: ignore[type-arg]
    """What ``peer`` answers; ``change`` may damage a frame, or cut the stream by returning None."""

    def __init__(self, wires: Wires, peer: str) -> None:
        super().__init__()
        self.wires, self.peer, self.number, self.cut = wires, peer, 0, False

    async def put(self, item: Any) -> None:
        if isinstance(item, bytes) and not self.cut:
            changed = self.wires.change(self.peer, self.number, item)
            self.number += 1
            if changed is None:
                self.cut = True
                item = "cut in the middle"
            else:
                item = changed
        elif self.cut:
            return
        await super().put(item)


class Events:
    """An ``on_event`` that can be waited on."""

    def __init__(self) -> None:
        self.all: list[Event] = []
        self._news = asyncio.Event()

    def __call__(self, event: Event) -> None:
        self.all.append(event)
        self._news.set()

    async def of(self, kind: type, count: int = 1) -> list[Any]:
        """The first ``count`` events of a kind."""

        async def enough() -> list[Any]:
            while True:
                found = [event for event in self.all if isinstance(event, kind)]
                if len(found) >= count:
                    return found
                self._news.clear()
                await self._news.wait()

        try:
            return await asyncio.wait_for(enough(), WAIT_S)
        except asyncio.TimeoutError:
            raise AssertionError(f"waited for {count} {kind.__name__}, had {self.all}") from None
