"""Tensors to bytes and back: codecs by name. Importing this package, or its ``sizes``, does not import torch.

Decides which codec a name means. Does not decide when to send, to whom, or what a chunk's frame header says.

    codec = codec_by_name("int8")
    frame = codec.encode(values, header)                        # bytes: header + payload, one allocation
    codec.accumulate(memoryview(frame)[len(header):], sums, weight=3)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from p2ptrain.codec.sizes import CODEC_NAMES, encoded_bytes

if TYPE_CHECKING:
    from p2ptrain.codec.base import Codec

__all__ = ["CODEC_NAMES", "codec_by_name"]


def codec_by_name(name: str, *, chunk_values: int | None = None, max_count: int = 1) -> Codec:
    """The codec called ``name`` (one of ``CODEC_NAMES``). Imports torch.

    ``chunk_values``: values per chunk (default ``sizes.chunk_values_of``; int8 wants a multiple of its block).
    ``max_count``: for ``exact`` only, the most microbatches that one sum may hold. Raises ConfigError with
    ``fields["key"]``.
    """
    encoded_bytes(name, 0)  # an unknown name is refused before torch is imported
    from p2ptrain.codec.block_int8 import Int8Codec
    from p2ptrain.codec.exact import ExactCodec
    from p2ptrain.codec.plain import PlainCodec

    if name == "exact":
        return ExactCodec(max_count, chunk_values)
    if name == "int8":
        return Int8Codec(chunk_values)
    return PlainCodec(name, chunk_values)
