"""Digest of an averaged part as it travels: BLAKE3 over what the part is, then its encoded chunks in order.

    hasher = PartHasher("int8", stage=0, start=0, stop=2_500_000)
    for payload in payloads: hasher.update(payload)      # payloads only, without frame headers
    hasher.digest()                                      # 32 bytes

The head binds codec, stage and range, so that equal bytes of another place have another digest. Chunk borders are not
hashed: they follow from codec and range.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from blake3 import blake3

if TYPE_CHECKING:  # torch stays out: a joiner hashes and talks before it is imported
    from p2ptrain.codec.buffers import Payload

_DOMAIN = b"p2ptrain part v1"


class PartHasher:
    """Incremental. Large updates release the GIL. Not for use by two threads at once."""

    def __init__(self, codec: str, stage: int, start: int, stop: int) -> None:
        name = codec.encode()
        self._hasher = blake3(_DOMAIN + struct.pack("<HIQQ", len(name), stage, start, stop) + name)

    def update(self, payload: Payload) -> None:
        """Add the next chunk's payload."""
        self._hasher.update(payload)

    def digest(self) -> bytes:
        """32 bytes over everything so far; more may follow."""
        return self._hasher.digest()
