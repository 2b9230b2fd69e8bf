"""Keeps the helper in touch with the run's initial DHT peers. Part of the helper program.

Decides when an address is tried (again): each on its own, so that a dead or black-holed one delays nobody; after 2, 4,
8 ... 60 seconds, for ever, since the first peer of a run may come back. Does not decide what is stored where. libp2p's
own bootstrap list is not used: it ends the daemon when no address answers.

    /ip4/192.0.2.7/tcp/4001/p2p/12D3...   "connected"
    /ip4/198.51.100.9/tcp/4001/p2p/12D3...  "connection refused"
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

CONNECT_TIMEOUT_S = 10.0
RETRY_MIN_S = 2.0
RETRY_MAX_S = 60.0
RECHECK_S = 30.0
MAX_ADDRESSES = 64
MAX_REASON = 240
CONNECTED = "connected"
UNTRIED = "not tried yet"

Reach = Callable[[str], Awaitable[str]]
"""(address) -> ``CONNECTED`` or why not. May raise ``ValueError`` for an address that can never work."""


class Contacts:
    """One task per initial peer; ``state`` says what happened to each, ``on_change`` is called when that changes."""

    def __init__(self, reach: Reach, on_change: Callable[[], None]) -> None:
        self.state: dict[str, str] = {}
        self._reach = reach
        self._on_change = on_change
        self._tasks: set[asyncio.Task[None]] = set()

    def add(self, addresses: tuple[str, ...]) -> None:
        """Begin to reach these as well; known ones and all over ``MAX_ADDRESSES`` are left out."""
        for address in addresses:
            if address not in self.state and len(self.state) < MAX_ADDRESSES:
                self.state[address] = UNTRIED
                task = asyncio.create_task(self._keep(address))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _keep(self, address: str) -> None:
        pause_s = RETRY_MIN_S
        while True:
            try:
                result = await asyncio.wait_for(self._reach(address), CONNECT_TIMEOUT_S)
            except asyncio.TimeoutError:
                result = f"no answer within {CONNECT_TIMEOUT_S:g} s"
            except ValueError as error:
                self._set(address, f"not usable: {shorten(str(error))}")
                return
            self._set(address, result)
            if result == CONNECTED:
                pause_s = RETRY_MIN_S
                await asyncio.sleep(RECHECK_S)
            else:
                await asyncio.sleep(pause_s * random.uniform(0.75, 1.25))
                pause_s = min(2 * pause_s, RETRY_MAX_S)

    def _set(self, address: str, result: str) -> None:
        if "dial backoff" in result and self.state[address] not in (UNTRIED, CONNECTED):
            return  # libp2p tells only that it tried a moment ago: what happened then says more
        if self.state[address] != result:
            self.state[address] = result
            self._on_change()


def shorten(text: str, limit: int = MAX_REASON) -> str:
    """One line of at most ``limit`` characters."""
    line = " ".join(text.split())
    return line if len(line) <= limit else line[: limit - 3] + "..."
