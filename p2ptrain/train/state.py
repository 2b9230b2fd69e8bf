"""A stage's state as bytes: digests of slices, immutable snapshots, and taking one over.

    image:  header (64) | parameters (4P) | exp_avg (4P) | exp_avg_sq (4P)        float32, little endian
    slice i of 16:  header | the same range of values out of each of the three

A slice holds everything that belongs to its values: a damaged value spreads to its own parameter and moments at the
next update, never into another slice, so healing that slice heals the damage. BLAKE3 throughout. Decides no
policy: which slice is due and who is right is the core's.
"""

from __future__ import annotations

import struct
import sys
from dataclasses import dataclass, field
from typing import Any

import torch
from blake3 import blake3
from torch import Tensor

from p2ptrain.core.types import Digest, Record, SnapshotInfo
from p2ptrain.errors import TrainingError, TransferError
from p2ptrain.train.flat import FlatStage
from p2ptrain.train.optimizer import Powers

SLICES = 16
SNAPSHOT_CHUNK_BYTES = 4 << 20
_HEADER = struct.Struct("<8sqqqddd8x")
_MAGIC = b"p2pstat1"
HEADER_BYTES = _HEADER.size
assert HEADER_BYTES == 64


@dataclass(frozen=True)
class StateHeader:
    """The scalars of the state. ``round``: last applied, 0 before the first; ``scale``: exact mode's, next round."""

    round: int = 0
    scale: float = 1.0
    powers: Powers = field(default_factory=Powers)

    def to_bytes(self, size: int) -> bytes:
        p = self.powers
        return _HEADER.pack(_MAGIC, size, self.round, p.steps, p.beta1_power, p.beta2_power, self.scale)

    @classmethod
    def from_bytes(cls, data: bytes, size: int) -> StateHeader:
        """Raises TransferError if this is no header of a stage with ``size`` values."""
        if len(data) != HEADER_BYTES:
            raise TransferError(f"a state header has {HEADER_BYTES} bytes, not {len(data)}")
        magic, found, round, steps, beta1_power, beta2_power, scale = _HEADER.unpack(data)
        if magic != _MAGIC or found != size or round < 0 or steps < 0:
            raise TransferError(f"the bytes are no state of a stage with {size} values")
        return cls(round, scale, Powers(steps, beta1_power, beta2_power))


class StageState:
    """Reads and replaces the state of a ``FlatStage``. Not thread-safe: the trainer guards it."""

    def __init__(self, stage: FlatStage, scale: float = 1.0) -> None:
        if sys.byteorder != "little":
            raise TrainingError("p2ptrain trains on little-endian machines only")
        self.stage = stage
        self.header = StateHeader(scale=scale)

    @property
    def total_bytes(self) -> int:
        return HEADER_BYTES + 12 * self.stage.size

    def slice_bounds(self, index: int) -> tuple[int, int]:
        """Values [start, stop) of slice ``index``. Raises IndexError."""
        if not 0 <= index < SLICES:
            raise IndexError(f"state slice {index}")
        size = self.stage.size
        return size * index // SLICES, size * (index + 1) // SLICES

    def slice_digest(self, index: int) -> Digest:
        hasher = blake3(self.header.to_bytes(self.stage.size))
        for piece in self._slice_views(index):
            hasher.update(as_bytes(piece))
        return hasher.digest()

    def slice_bytes(self, index: int) -> bytes:
        views = (as_bytes(piece) for piece in self._slice_views(index))
        return b"".join((self.header.to_bytes(self.stage.size), *views))

    def heal_slice(self, index: int, data: bytes) -> None:
        """Overwrite a slice with a healthy peer's bytes of the same round. Raises TransferError if they do not fit."""
        start, stop = self.slice_bounds(index)
        if len(data) != HEADER_BYTES + 12 * (stop - start):
            raise TransferError(f"state slice {index} has {len(data)} bytes, wanted {12 * (stop - start)} and a header")
        header = StateHeader.from_bytes(bytes(data[:HEADER_BYTES]), self.stage.size)
        if header.round != self.header.round:
            raise TransferError(f"state slice {index} is of round {header.round}, this state of {self.header.round}")
        values = torch.frombuffer(bytearray(data[HEADER_BYTES:]), dtype=torch.float32) if stop > start else None
        for position, piece in enumerate(self._slice_views(index)):
            if values is not None:
                piece.copy_(values[position * (stop - start) : (position + 1) * (stop - start)])
        self.header = header

    def digest(self) -> Digest:
        """BLAKE3 of the whole image."""
        hasher = blake3(self.header.to_bytes(self.stage.size), max_threads=1)
        hasher.update(as_bytes(self.stage.values))
        return hasher.digest()

    def image(self) -> bytearray:
        """A copy of the whole state."""
        copy = bytearray(self.total_bytes)
        copy[:HEADER_BYTES] = self.header.to_bytes(self.stage.size)
        torch.frombuffer(copy, dtype=torch.float32, offset=HEADER_BYTES).copy_(self.stage.values)
        return copy

    def load(self, image: bytearray, record: Record) -> None:
        """Take over a whole image. Raises TransferError (nothing changed) if it is not the state after ``record``."""
        if len(image) != self.total_bytes:
            raise TransferError(f"the state has {len(image)} bytes, this stage needs {self.total_bytes}")
        header = StateHeader.from_bytes(bytes(image[:HEADER_BYTES]), self.stage.size)
        if header.round != record.round or header.scale != record.next_scale:
            raise TransferError(f"the state is of round {header.round}, its record of round {record.round}")
        self.stage.values.copy_(torch.frombuffer(image, dtype=torch.float32, offset=HEADER_BYTES))
        self.header = header

    def _slice_views(self, index: int) -> tuple[Tensor, Tensor, Tensor]:
        start, stop = self.slice_bounds(index)
        stage = self.stage
        return stage.parameters[start:stop], stage.exp_avg[start:stop], stage.exp_avg_sq[start:stop]


def as_bytes(values: Tensor) -> memoryview:
    """The memory of a contiguous tensor, without a copy on the CPU."""
    array: Any = values.detach().cpu().contiguous().view(torch.uint8).numpy()
    return memoryview(array)


def chunk_digests(image: bytes | bytearray | memoryview, chunk_bytes: int) -> tuple[Digest, ...]:
    view = memoryview(image)
    return tuple(blake3(view[start : start + chunk_bytes]).digest() for start in range(0, len(view), chunk_bytes))


class Assembly:
    """A snapshot arriving in chunks, each verified before it is written; bounded by the size this stage has."""

    def __init__(self, info: SnapshotInfo, total_bytes: int) -> None:
        """Raises TransferError if ``info`` does not describe a state of ``total_bytes`` in digested chunks."""
        count = -(-info.total_bytes // info.chunk_bytes) if info.chunk_bytes > 0 else -1
        if info.total_bytes != total_bytes or count != len(info.chunk_digests):
            raise TransferError(
                f"snapshot of {info.total_bytes} bytes in {len(info.chunk_digests)} chunks of {info.chunk_bytes}: "
                f"this stage's state has {total_bytes} bytes",
                hint="the donor's model differs, or its offer is damaged; pull from another member",
            )
        self.info = info
        self.image = bytearray(total_bytes)
        self.missing = set(range(count))

    def write(self, index: int, data: bytes) -> bool:
        """False (nothing written) if these are not the bytes of that chunk."""
        if not 0 <= index < len(self.info.chunk_digests):
            return False
        start = index * self.info.chunk_bytes
        if len(data) != min(self.info.chunk_bytes, len(self.image) - start):
            return False
        if blake3(data).digest() != self.info.chunk_digests[index]:
            return False
        self.image[start : start + len(data)] = data
        self.missing.discard(index)
        return True
