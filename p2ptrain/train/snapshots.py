"""Pinned snapshots for donors, arriving ones for joiners; thread-safe. Decides how many of each may be held.

pin(image) -> hashed in a thread of its own -> on_event(SnapshotPinned) -> chunk(key, i) ... -> unpin(key)
open(info) -> write(key, i, bytes) ... -> take(info)
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from p2ptrain.core.events import Pin, PinFailed, SnapshotPinned
from p2ptrain.core.types import Digest, SnapshotInfo
from p2ptrain.errors import TransferError
from p2ptrain.ports import OnEvent
from p2ptrain.train.state import SNAPSHOT_CHUNK_BYTES, Assembly, chunk_digests

MAX_PINNED = 2
MAX_ARRIVING = 2


@dataclass(frozen=True, eq=False)
class _Pinned:
    info: SnapshotInfo
    image: bytearray


class Snapshots:
    """The trainer's ``SnapshotSource`` and ``SnapshotSink``."""

    def __init__(self, on_event: OnEvent, total_bytes: int, chunk_bytes: int = SNAPSHOT_CHUNK_BYTES) -> None:
        self._on_event = on_event
        self._total_bytes = total_bytes
        self._chunk_bytes = chunk_bytes
        self._lock = threading.Lock()
        self._pinned: dict[Digest, _Pinned] = {}
        self._being_pinned = 0
        self._arriving: dict[Digest, Assembly] = {}
        self._hashing = ThreadPoolExecutor(1, thread_name_prefix="p2ptrain-hash")

    # --- donors

    def pin(self, order: Pin, copy_image: Callable[[], bytearray]) -> None:
        """Copy the state now, hash it later. A snapshot of the same record and chain is kept once and told again."""
        with self._lock:
            same = (p for p in self._pinned.values() if (p.info.record, p.info.chain) == (order.record, order.chain))
            known = next(same, None)
            full = known is None and len(self._pinned) + self._being_pinned >= MAX_PINNED
            self._being_pinned += known is None and not full
        if known is not None:
            self._on_event(SnapshotPinned(known.info))
        elif full:
            self.refuse(order, f"{MAX_PINNED} snapshots are pinned already")
        else:
            self._copy_and_hash(order, copy_image)

    def refuse(self, order: Pin, reason: str) -> None:
        self._on_event(PinFailed(order.stage, order.record.round, reason))

    def unpin(self, key: Digest) -> None:
        with self._lock:
            self._pinned.pop(key, None)

    def chunk(self, key: Digest, index: int) -> bytes:
        """Raises KeyError if that snapshot is not pinned here (any more), or has no such chunk."""
        with self._lock:
            pinned = self._pinned[key]
        if not 0 <= index < len(pinned.info.chunk_digests):
            raise KeyError(f"chunk {index}")
        size = pinned.info.chunk_bytes
        return bytes(memoryview(pinned.image)[index * size : (index + 1) * size])

    # --- joiners

    def open(self, info: SnapshotInfo) -> None:
        """Make room for a snapshot; the oldest unfinished one goes if there are too many. Raises TransferError."""
        with self._lock:
            if info.key in self._arriving:
                return
            assembly = Assembly(info, self._total_bytes)
            while len(self._arriving) >= MAX_ARRIVING:
                self._arriving.pop(next(iter(self._arriving)))
            self._arriving[info.key] = assembly

    def write(self, key: Digest, index: int, data: bytes) -> bool:
        """False if the digest does not match, or that snapshot is not expected (nothing is written)."""
        with self._lock:
            assembly = self._arriving.get(key)
        return assembly is not None and assembly.write(index, data)

    def take(self, info: SnapshotInfo) -> bytearray:
        """The whole image, once. Raises TransferError if chunks are missing."""
        with self._lock:
            assembly = self._arriving.get(info.key)
            if assembly is None:
                raise TransferError(f"no snapshot of round {info.round} has arrived")
            if assembly.missing:
                raise TransferError(f"{len(assembly.missing)} of {len(info.chunk_digests)} chunks are missing")
            del self._arriving[info.key]
        return assembly.image

    def close(self) -> None:
        """Waits for the hashing thread."""
        self._hashing.shutdown(wait=True)

    def _copy_and_hash(self, order: Pin, copy_image: Callable[[], bytearray]) -> None:
        try:
            image = copy_image()
        except MemoryError:
            with self._lock:
                self._being_pinned -= 1
            self.refuse(order, "not enough memory for a copy of the state")
            return
        self._hashing.submit(self._hash, order, image)

    def _hash(self, order: Pin, image: bytearray) -> None:
        digests = chunk_digests(image, self._chunk_bytes)
        info = SnapshotInfo(order.stage, order.record, order.chain, len(image), self._chunk_bytes, digests)
        with self._lock:
            self._being_pinned -= 1
            self._pinned[info.key] = _Pinned(info, image)
        self._on_event(SnapshotPinned(info))
