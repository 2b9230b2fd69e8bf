"""Frames of bulk streams: raw bytes behind fixed little-endian headers, never protobuf, never copied to be parsed.

    first frame, each way   | magic  format  kind  0 | run | digest | stage  round  index |              88 bytes
    every later frame       | kind  0 | chunk | bundle | weight | offset | values | payload bytes |  32 bytes + payload

What a stream is about (``digest``, ``stage``, ``round``, ``index``, by kind; the unused are left 0):

    EXCHANGE   digest of Begin, stage, round, index of the part   contributions one way, averages back
    PART       digest of the part                                 an averaged part, pulled
    CHUNK      key of the snapshot, index of the chunk            a piece of a pinned snapshot
    SLICE      chain digest of the state, stage, round, slice     a slice of the state
    CORPUS     fingerprint of the corpus, index of the chunk
    BLOB       digest of the blob

A side ends with one END frame, which for an averaged part carries its ``PartEnd``, or one ERROR frame with a reason.
This module checks shapes and sizes and raises ``ProtocolError``. What a payload holds, and whether it was asked for, is
checked by whoever serves the stream.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple, NoReturn

from p2ptrain.core.types import Digest
from p2ptrain.errors import ProtocolError
from p2ptrain.wire import limits
from p2ptrain.wire.runs import Refused, check_runs, expand_runs, norm_bytes, norm_of, runs_of

MAGIC = b"p2pb"
FORMAT = 1

_STREAM = struct.Struct("<4sHBB32s32sIqI")
_FRAME = struct.Struct("<B3xIiIQII")
_END = struct.Struct("<32sB3xI")  # digest, bytes of the exact norm (0: a double), runs; then the norm, the runs
_DOUBLE = struct.Struct("<d")
_RUN = struct.Struct("<qI")  # gap, count (see ``runs``)

STREAM_HEADER_BYTES = _STREAM.size
FRAME_HEADER_BYTES = _FRAME.size
MAX_PAYLOAD_BYTES = limits.MAX_FRAME_BYTES - FRAME_HEADER_BYTES

_U32 = (1 << 32) - 1


class StreamKind(IntEnum):
    EXCHANGE = 1
    PART = 2
    CHUNK = 3
    SLICE = 4
    CORPUS = 5
    BLOB = 6


class FrameKind(IntEnum):
    DATA = 1
    END = 2
    ERROR = 3


_STREAM_KINDS = {int(kind): kind for kind in StreamKind}
_FRAME_KINDS = {int(kind): kind for kind in FrameKind}


@dataclass(frozen=True, slots=True)
class StreamHeader:
    """What a stream is about; the table above says which fields a kind uses. ``run``: 32 bytes, the run's digest."""

    kind: StreamKind
    run: bytes
    digest: Digest
    stage: int = 0
    round: int = 0
    index: int = 0


class FrameHeader(NamedTuple):
    """``bundle``: position in ``Begin.bundles``, -1 for an average or state. ``weight``: how many ids it sums.

    ``offset`` and ``values`` say which values of the part (or bytes of a chunk) the payload encodes.
    """

    kind: FrameKind
    chunk: int = 0
    bundle: int = -1
    weight: int = 0
    offset: int = 0
    values: int = 0
    payload_bytes: int = 0


class PartEnd(NamedTuple):
    """Ends an averaged part: digest of its encoded bytes, squared norm, and the ids it counts (as in ``PartDone``)."""

    digest: Digest
    norm_sq: float | int
    counted: tuple[int, ...]


# --- the first frame --------------------------------------------------------------------------------------------------


def pack_stream_header(header: StreamHeader) -> bytes:
    """88 bytes. Raises ProtocolError if a field does not fit."""
    if len(header.run) != 32 or len(header.digest) != 32:
        _refuse("stream header", f"run and digest must be 32 bytes, not {len(header.run)} and {len(header.digest)}")
    place = (header.stage, header.round, header.index)
    try:
        return _STREAM.pack(MAGIC, FORMAT, header.kind, 0, header.run, header.digest, *place)
    except struct.error as error:
        _refuse("stream header", f"{place}: {error}")


def parse_stream_header(frame: bytes | memoryview, run: bytes | None = None) -> StreamHeader:
    """The first frame of a stream. With ``run``, another run's stream is refused. Raises ProtocolError."""
    if len(frame) != STREAM_HEADER_BYTES:
        _refuse("stream header", f"{len(frame)} bytes instead of {STREAM_HEADER_BYTES}")
    magic, found_format, kind_number, zero, its_run, digest, stage, round_, index = _STREAM.unpack(frame)
    if magic != MAGIC:
        _refuse("stream header", f"starts with {magic!r}: no bulk stream of p2ptrain")
    if found_format != FORMAT:
        _refuse("stream header", f"bulk format {found_format}, we speak {FORMAT}", "update p2ptrain on the older side")
    kind = _STREAM_KINDS.get(kind_number)
    if kind is None or zero:
        _refuse("stream header", f"unknown kind {kind_number} (flags {zero})")
    if round_ < -1:
        _refuse("stream header", f"round {round_}")
    if run is not None and its_run != run:
        _refuse("stream header", f"of another run, {its_run.hex()[:8]}")
    return StreamHeader(kind, its_run, digest, stage, round_, index)


# --- later frames -----------------------------------------------------------------------------------------------------


def pack_frame_header(
    payload_bytes: int,
    *,
    kind: FrameKind = FrameKind.DATA,
    chunk: int = 0,
    bundle: int = -1,
    weight: int = 0,
    offset: int = 0,
    values: int = 0,
) -> bytes:
    """32 bytes, to be joined with the payload: ``b"".join((header, payload))``. Raises ProtocolError above a limit."""
    if not 0 <= payload_bytes <= MAX_PAYLOAD_BYTES:
        _refuse("frame", f"payload of {payload_bytes} bytes, the limit is {MAX_PAYLOAD_BYTES}")
    if bundle < -1:
        _refuse("frame", f"bundle {bundle}")
    try:
        return _FRAME.pack(kind, chunk, bundle, weight, offset, values, payload_bytes)
    except struct.error as error:
        _refuse("frame", f"{(chunk, bundle, weight, offset, values)}: {error}")


def parse_frame(frame: bytes | memoryview) -> tuple[FrameHeader, memoryview]:
    """Header, and the payload as a view into ``frame`` (no copy). Raises ProtocolError on a foreign or cut frame."""
    size = len(frame)
    if not FRAME_HEADER_BYTES <= size <= limits.MAX_FRAME_BYTES:
        _refuse("frame", f"{size} bytes, allowed are {FRAME_HEADER_BYTES} to {limits.MAX_FRAME_BYTES}")
    kind_number, chunk, bundle, weight, offset, values, payload_bytes = _FRAME.unpack_from(frame)
    kind = _FRAME_KINDS.get(kind_number)
    if kind is None or frame[1] or frame[2] or frame[3]:
        _refuse("frame", f"unknown kind {kind_number}")
    if payload_bytes != size - FRAME_HEADER_BYTES:
        _refuse("frame", f"{size - FRAME_HEADER_BYTES} bytes of payload where {payload_bytes} are announced")
    if bundle < -1 or offset > limits.MAX_WHOLE:
        _refuse("frame", f"bundle {bundle}, offset {offset}")
    header = FrameHeader(kind, chunk, bundle, weight, offset, values, payload_bytes)
    return header, memoryview(frame)[FRAME_HEADER_BYTES:]


def pack_end(end: PartEnd | None = None) -> bytes:
    """A whole END frame; without ``end`` its payload is empty. Raises ProtocolError above a limit."""
    payload = b"" if end is None else _pack_part_end(end)
    return pack_frame_header(len(payload), kind=FrameKind.END) + payload


def parse_end(payload: bytes | memoryview) -> PartEnd:
    """The payload of an END frame that ends an averaged part. Raises ProtocolError."""
    if len(payload) < _END.size:
        _refuse("END frame", f"{len(payload)} bytes, at least {_END.size} are needed")
    digest, norm_size, runs = _END.unpack_from(payload)
    real = norm_size == 0
    body = bytes(payload[_END.size :])
    norm_size = norm_size or _DOUBLE.size
    if len(body) != norm_size + runs * _RUN.size:
        _refuse("END frame", f"{len(body)} bytes where {norm_size + runs * _RUN.size} are announced")
    try:
        norm_sq = _DOUBLE.unpack_from(body)[0] if real else norm_of(body[:norm_size])
        pairs = list(_RUN.iter_unpack(body[norm_size:]))
        gaps, counts = [gap for gap, _ in pairs], [count for _, count in pairs]
        check_runs(gaps, counts, limits.MAX_IDS)
    except Refused as refused:
        _refuse("END frame", refused.told("PartEnd"))
    if real and not (math.isfinite(norm_sq) and norm_sq >= 0):
        _refuse("END frame", f"norm {norm_sq}")
    return PartEnd(digest, norm_sq, expand_runs(gaps, counts))


def pack_error(reason: str) -> bytes:
    """A whole ERROR frame. The reason is for people: cut to ``MAX_REASON_CHARS``, cleaned of what cannot be printed."""
    text = "".join(c if c.isprintable() else " " for c in reason[: limits.MAX_REASON_CHARS]).encode()
    return pack_frame_header(len(text), kind=FrameKind.ERROR) + text


def parse_error(payload: bytes | memoryview) -> str:
    """The reason in an ERROR frame. Raises ProtocolError if it is no printable text of bounded length."""
    if len(payload) > 4 * limits.MAX_REASON_CHARS:
        _refuse("ERROR frame", f"a reason of {len(payload)} bytes")
    try:
        reason = bytes(payload).decode()
    except UnicodeDecodeError:
        _refuse("ERROR frame", "a reason that is no UTF-8")
    if len(reason) > limits.MAX_REASON_CHARS or not reason.isprintable():
        _refuse("ERROR frame", "a reason too long, or with characters that cannot be printed")
    return reason


# --- helpers ----------------------------------------------------------------------------------------------------------


def _pack_part_end(end: PartEnd) -> bytes:
    if len(end.digest) != 32 or len(end.counted) > limits.MAX_IDS:
        _refuse("END frame", f"digest of {len(end.digest)} bytes, {len(end.counted)} ids counted")
    if isinstance(end.norm_sq, float):
        valid, norm, exact_size = math.isfinite(end.norm_sq) and end.norm_sq >= 0, _DOUBLE.pack(end.norm_sq), 0
    else:
        valid = 0 <= end.norm_sq < 1 << (8 * limits.MAX_NORM_BYTES)
        norm = norm_bytes(end.norm_sq) if valid else b""
        exact_size = len(norm)
    if not valid:
        _refuse("END frame", "norm negative, not finite or too large")
    gaps, counts = runs_of(end.counted) if end.counted else ([], [])
    try:
        runs = b"".join(map(_RUN.pack, gaps, counts))
    except struct.error as error:
        _refuse("END frame", f"counted ids: {error}")
    return _END.pack(end.digest, exact_size, len(gaps)) + norm + runs


def _refuse(what: str, why: str, hint: str = "") -> NoReturn:
    raise ProtocolError(f"bulk {what}: {why}", hint=hint, frame=what)
