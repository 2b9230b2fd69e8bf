"""Bulk frames: fixed headers, no copies, every damaged or foreign frame refused with ProtocolError."""

from __future__ import annotations

import math
import struct
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from p2ptrain.errors import ProtocolError
from p2ptrain.wire import bulk, limits
from p2ptrain.wire.bulk import FrameHeader, FrameKind, PartEnd, StreamHeader, StreamKind
from tests.strategies import DIGESTS, IDS, NORMS, exact

U32 = st.integers(0, (1 << 32) - 1)
HEADERS = st.builds(
    StreamHeader,
    kind=st.sampled_from(StreamKind),
    run=DIGESTS,
    digest=DIGESTS,
    stage=U32,
    round=st.integers(-1, (1 << 63) - 1),
    index=U32,
)
PLACES = st.fixed_dictionaries(
    {
        "kind": st.sampled_from(FrameKind),
        "chunk": U32,
        "bundle": st.integers(-1, (1 << 31) - 1),
        "weight": U32,
        "offset": st.integers(0, limits.MAX_WHOLE),
        "values": U32,
    }
)
RUN, DIGEST = b"r" * 32, b"d" * 32
HEADER = StreamHeader(StreamKind.EXCHANGE, RUN, DIGEST, stage=0, round=7, index=3)


@given(HEADERS)
def test_stream_header_round_trip(header: StreamHeader) -> None:
    data = bulk.pack_stream_header(header)
    assert len(data) == bulk.STREAM_HEADER_BYTES == 88
    assert bulk.parse_stream_header(data) == header == bulk.parse_stream_header(memoryview(data), header.run)


@given(PLACES, st.binary(max_size=100))
def test_frame_round_trip(place: dict[str, Any], payload: bytes) -> None:
    frame = b"".join((bulk.pack_frame_header(len(payload), **place), payload))
    header, view = bulk.parse_frame(frame)
    assert header == FrameHeader(payload_bytes=len(payload), **place)
    assert view == payload and view.obj is frame  # a view of the frame itself: nothing copied


def test_the_layout_is_fixed() -> None:
    """Other versions read these bytes: a change needs a new format number."""
    assert bulk.pack_stream_header(HEADER) == b"p2pb\1\0\1\0" + RUN + DIGEST + struct.pack("<IqI", 0, 7, 3)
    header = bulk.pack_frame_header(4, chunk=1, bundle=2, weight=3, offset=5, values=6)
    assert header == struct.pack("<IIiIQII", 1, 1, 2, 3, 5, 6, 4)
    assert bulk.FRAME_HEADER_BYTES == 32


@settings(deadline=None)
@given(DIGESTS, NORMS, IDS)
def test_end_round_trip(digest: bytes, norm_sq: float | int, counted: tuple[int, ...]) -> None:
    end = PartEnd(digest, norm_sq, counted)
    header, payload = bulk.parse_frame(bulk.pack_end(end))
    assert header.kind is FrameKind.END
    assert exact(bulk.parse_end(payload)) == exact(end)


def test_end_without_a_part() -> None:
    assert bulk.parse_frame(bulk.pack_end()) == (FrameHeader(FrameKind.END), b"")


def test_error_reasons_are_cut_and_cleaned() -> None:
    header, payload = bulk.parse_frame(bulk.pack_error("no such part\n\x1b[31m" + "ü" * 2000))
    assert header.kind is FrameKind.ERROR
    assert bulk.parse_error(payload) == ("no such part  [31m" + "ü" * 2000)[: limits.MAX_REASON_CHARS]


def _changed(data: bytes, at: int, to: bytes) -> bytes:
    return data[:at] + to + data[at + len(to) :]


STREAM = bulk.pack_stream_header(HEADER)
FRAME = bulk.pack_frame_header(4) + b"four"
END = bulk.pack_end(PartEnd(DIGEST, 1.0, (1, 2, 3)))[32:]
EXACT_END = bulk.pack_end(PartEnd(DIGEST, 258, ()))[32:]


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"", "0 bytes instead of 88"),
        (STREAM[:-1], "87 bytes instead of 88"),
        (STREAM + b"x", "89 bytes instead of 88"),
        (_changed(STREAM, 0, b"HTTP"), "starts with b'HTTP'"),
        (_changed(STREAM, 4, b"\2"), "bulk format 2, we speak 1"),
        (_changed(STREAM, 6, b"\0"), "unknown kind 0"),
        (_changed(STREAM, 6, b"\7"), "unknown kind 7"),
        (_changed(STREAM, 7, b"\1"), "flags 1"),
        (_changed(STREAM, 76, struct.pack("<q", -2)), "round -2"),
        (_changed(STREAM, 8, b"x"), "of another run"),
    ],
)
def test_bad_stream_headers(data: bytes, told: str) -> None:
    with pytest.raises(ProtocolError, match=f"bulk stream header: .*{told}"):
        bulk.parse_stream_header(data, RUN)


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"", "0 bytes, allowed are 32 to 8388608"),
        (FRAME[:31], "31 bytes, allowed"),
        (FRAME[:-1], "3 bytes of payload where 4 are announced"),
        (FRAME + b"x", "5 bytes of payload where 4 are announced"),
        (bytes(limits.MAX_FRAME_BYTES + 1), "8388609 bytes, allowed"),
        (_changed(FRAME, 0, b"\0"), "unknown kind 0"),
        (_changed(FRAME, 0, b"\4"), "unknown kind 4"),
        (_changed(FRAME, 2, b"\1"), "unknown kind 1"),
        (_changed(FRAME, 8, struct.pack("<i", -2)), "bundle -2"),
        (_changed(FRAME, 16, b"\xff" * 8), "offset 18446744073709551615"),
    ],
)
def test_bad_frames(data: bytes, told: str) -> None:
    with pytest.raises(ProtocolError, match=f"bulk frame: .*{told}"):
        bulk.parse_frame(data)


@pytest.mark.parametrize(
    ("payload", "told"),
    [
        (b"", "0 bytes, at least 40"),
        (END[:-1], "19 bytes where 20 are announced"),
        (END + b"x", "21 bytes where 20 are announced"),
        (_changed(END, 32, b"\x41"), "where 77 are announced"),
        (_changed(END, 36, b"\xff\xff\xff\xff"), "are announced"),
        (_changed(END, 40, struct.pack("<d", math.nan)), "norm nan"),
        (_changed(END, 40, struct.pack("<d", -1.0)), r"norm -1\.0"),
        (_changed(END, 48, struct.pack("<q", -1)), "has an empty run"),
        (_changed(END, 56, struct.pack("<I", 1 << 31)), "has 2147483648 ids"),
        (_changed(EXACT_END, 40, b"\0"), "without leading zeros"),
    ],
)
def test_bad_ends(payload: bytes, told: str) -> None:
    with pytest.raises(ProtocolError, match=f"bulk END frame: .*{told}"):
        bulk.parse_end(payload)


@pytest.mark.parametrize("payload", [b"\xff", b"x" * 1025, b"x" * 5000, b"\x1b[2J", "ü".encode()[:1]])
def test_bad_errors(payload: bytes) -> None:
    with pytest.raises(ProtocolError, match="bulk ERROR frame"):
        bulk.parse_error(payload)


@pytest.mark.parametrize(
    "pack",
    [
        lambda: bulk.pack_frame_header(bulk.MAX_PAYLOAD_BYTES + 1),
        lambda: bulk.pack_frame_header(-1),
        lambda: bulk.pack_frame_header(0, chunk=1 << 32),
        lambda: bulk.pack_frame_header(0, bundle=-2),
        lambda: bulk.pack_stream_header(StreamHeader(StreamKind.PART, b"short", DIGEST)),
        lambda: bulk.pack_stream_header(StreamHeader(StreamKind.PART, RUN, DIGEST, stage=-1)),
        lambda: bulk.pack_end(PartEnd(b"", 1.0, ())),
        lambda: bulk.pack_end(PartEnd(DIGEST, math.inf, ())),
        lambda: bulk.pack_end(PartEnd(DIGEST, 1 << 512, ())),
        lambda: bulk.pack_end(PartEnd(DIGEST, -1, ())),
        lambda: bulk.pack_end(PartEnd(DIGEST, 1.0, (1 << 64,))),
        lambda: bulk.pack_end(PartEnd(DIGEST, 1.0, (0,) * (limits.MAX_IDS + 1))),
    ],
)
def test_what_does_not_fit_is_not_packed(pack: Any) -> None:
    with pytest.raises(ProtocolError, match="bulk"):
        pack()


def test_the_largest_frame_fits() -> None:
    frame = bulk.pack_frame_header(bulk.MAX_PAYLOAD_BYTES) + bytes(bulk.MAX_PAYLOAD_BYTES)
    assert len(frame) == limits.MAX_FRAME_BYTES
    assert len(bulk.parse_frame(frame)[1]) == bulk.MAX_PAYLOAD_BYTES


@settings(max_examples=200, deadline=None)
@given(st.sampled_from([STREAM, FRAME, END, EXACT_END, b""]), st.binary(max_size=120), st.data())
def test_any_bytes(start: bytes, tail: bytes, draw: st.DataObject) -> None:
    """A value or ProtocolError, for random, cut and flipped bytes."""
    data = bytearray(start[: draw.draw(st.integers(0, len(start)))] + tail) if tail else bytearray(start)
    for _ in range(draw.draw(st.integers(0, 3)) if data else 0):
        data[draw.draw(st.integers(0, len(data) - 1))] ^= 1 << draw.draw(st.integers(0, 7))
    for parse in (bulk.parse_stream_header, bulk.parse_frame, bulk.parse_end, bulk.parse_error):
        try:
            parse(bytes(data))
        except ProtocolError as error:
            assert str(error).startswith("bulk ") and len(str(error)) < 200
