"""How the DHT helper and its client talk: frames of msgpack over one local socket.

Decides the frame format and its bounds, for both sides. Does not decide what a message means.

    4 bytes, big endian: n      n bytes: one msgpack map
    00 00 00 0f                 {"id": 7, "op": "ping"}

Every message is a map with text keys. Requests carry ``id`` (from 1) and ``op``; answers repeat the ``id`` with ``ok``
and, when not ok, ``error``; events from the helper carry ``id`` 0 and ``event``. No pickle, no extension types.
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgpack

from p2ptrain.errors import ProtocolError

MAX_FRAME_BYTES = 4 * 1024 * 1024
HEADER_BYTES = 4

Frame = dict[str, Any]


def encode(message: Frame) -> bytes:
    """One whole frame. Raises ProtocolError if it would be larger than ``MAX_FRAME_BYTES``."""
    body: bytes = msgpack.packb(message, use_bin_type=True)
    if len(body) > MAX_FRAME_BYTES:
        raise ProtocolError(f"a DHT frame of {len(body)} bytes is over the bound of {MAX_FRAME_BYTES}")
    return len(body).to_bytes(HEADER_BYTES, "big") + body


def decode(body: bytes) -> Frame:
    """The map in one frame's body. Raises ProtocolError if the bytes are anything else."""
    try:
        message = msgpack.unpackb(body, raw=False, strict_map_key=True, use_list=False)
    except (ValueError, msgpack.UnpackException) as error:
        raise ProtocolError(f"a DHT frame of {len(body)} bytes is not msgpack: {error}") from error
    if not isinstance(message, dict) or not all(isinstance(key, str) for key in message):
        raise ProtocolError("a DHT frame is not a map with text keys")
    return message


async def read_body(reader: asyncio.StreamReader) -> bytes | None:
    """Body of the next frame, or None at a clean end. Raises ProtocolError (oversized, empty or cut off).

    After such an error the stream cannot be followed any more; the caller drops it.
    """
    try:
        header = await reader.readexactly(HEADER_BYTES)
    except asyncio.IncompleteReadError as error:
        if not error.partial:
            return None
        raise ProtocolError("a DHT frame was cut off in its header") from error
    size = int.from_bytes(header, "big")
    if not 0 < size <= MAX_FRAME_BYTES:
        raise ProtocolError(f"a DHT frame announces {size} bytes; the bound is {MAX_FRAME_BYTES}")
    try:
        return await reader.readexactly(size)
    except asyncio.IncompleteReadError as error:
        raise ProtocolError(f"a DHT frame was cut off after {len(error.partial)} of {size} bytes") from error
