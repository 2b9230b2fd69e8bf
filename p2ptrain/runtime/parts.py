"""Averaged parts held here, by digest, as the frames they travelled in (nothing is copied to keep or to serve them).

Decides nothing: the core says when a part may go (``ReleaseParts``). Thread-safe by single dict operations.
"""

from __future__ import annotations

from dataclasses import dataclass

from p2ptrain.core.types import Digest, PartDone
from p2ptrain.wire.bulk import FRAME_HEADER_BYTES


@dataclass(frozen=True)
class StoredPart:
    """``frames``: header and payload of each chunk, in order, ready to be sent again."""

    part: PartDone
    codec: str
    round: int
    frames: tuple[bytes, ...]


class PartStore:
    """``ports.PartSource``, and what is served to those who fetch."""

    def __init__(self) -> None:
        self._parts: dict[Digest, StoredPart] = {}

    def put(self, stored: StoredPart) -> None:
        """Keep a part under its digest; a second put of the same digest keeps the later round."""
        known = self._parts.get(stored.part.digest)
        if known is None or known.round < stored.round:
            self._parts[stored.part.digest] = stored

    def get(self, digest: Digest) -> StoredPart:
        """Raises KeyError if it is not held (any more)."""
        return self._parts[digest]

    def payloads(self, digest: Digest) -> list[memoryview]:
        """See ``ports.PartSource.payloads``: views, not copies."""
        return [memoryview(frame)[FRAME_HEADER_BYTES:] for frame in self._parts[digest].frames]

    def codec_name(self, digest: Digest) -> str:
        return self._parts[digest].codec

    def release(self, before_round: int) -> None:
        """Forget the parts of rounds below ``before_round``."""
        for digest in [d for d, stored in list(self._parts.items()) if stored.round < before_round]:
            self._parts.pop(digest, None)

    @property
    def nbytes(self) -> int:
        """Bytes held, for status."""
        return sum(stored.part.nbytes for stored in list(self._parts.values()))
