"""Hashes what arrives, in order, in the pool, without the arrival waiting for it.

add(chunk 0) -> pool: 0        add(1), add(2) meanwhile -> pool: 1, 2        digest() -> when all are hashed
"""

from __future__ import annotations

import asyncio
from collections import deque
from concurrent.futures import Executor

from p2ptrain.codec.digest import PartHasher
from p2ptrain.core.types import Digest


class Hashing:
    """Lives in the loop; at most one job of it is in ``pool``, which takes everything that has come by then."""

    def __init__(self, hasher: PartHasher, pool: Executor) -> None:
        self._hasher = hasher
        self._pool = pool
        self._waiting: deque[memoryview] = deque()
        self._job: asyncio.Future[None] | None = None

    def add(self, payload: memoryview) -> None:
        """The next chunk's payload."""
        self._waiting.append(payload)
        if self._job is None or self._job.done():
            self._job = asyncio.get_running_loop().run_in_executor(self._pool, self._drain)

    async def digest(self) -> Digest:
        """Over everything that was added."""
        while self._waiting or (self._job is not None and not self._job.done()):
            if self._job is None or self._job.done():
                self._job = asyncio.get_running_loop().run_in_executor(self._pool, self._drain)
            await self._job
        return self._hasher.digest()

    def _drain(self) -> None:
        while self._waiting:
            self._hasher.update(self._waiting.popleft())
