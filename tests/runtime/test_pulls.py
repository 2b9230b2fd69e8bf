"""Pulls: nothing is believed before its digest or size, a cut is named, donors cap what they upload."""

from __future__ import annotations

import asyncio

import pytest
from blake3 import blake3

from p2ptrain.codec.digest import PartHasher
from p2ptrain.core import events as ev
from p2ptrain.core.types import PartDone, Record, SnapshotInfo
from p2ptrain.errors import ProtocolError, TransferError, TransportError
from p2ptrain.runtime.parts import PartStore, StoredPart
from p2ptrain.runtime.pulls import Pulls, Throttle, frames_of
from p2ptrain.wire import bulk
from tests.runtime.wires import Events, Wires, in_loop

RUN = b"r" * 32
KEY = b"k" * 32
DATA = bytes(range(256)) * 20
RECORD = Record(0, 0, 3, b"", b"", (), (), 0.0, 1.0, (), 0, 0)
INFO = SnapshotInfo(
    stage=0,
    record=RECORD,
    chain=b"c",
    total_bytes=len(DATA),
    chunk_bytes=len(DATA),
    chunk_digests=(blake3(DATA).digest(),),
)


class Held:
    """A donor's snapshot, slices and corpus; or a joiner's sink."""

    def __init__(self) -> None:
        self.written: dict[int, bytes] = {}

    def chunk(self, key: bytes, index: int) -> bytes:
        if (key, index) != (INFO.key, 0):
            raise KeyError("not pinned")
        return DATA

    def slice_bytes(self, stage: int, round: int, index: int) -> bytes:
        if round != 3:
            raise KeyError(f"round {round}")
        return DATA[: index + 1]

    def open(self, info: SnapshotInfo) -> None:
        pass

    def write(self, key: bytes, index: int, data: bytes) -> bool:
        if blake3(data).digest() != INFO.chunk_digests[index]:
            return False
        self.written[index] = data
        return True


class Two:
    """A donor and a joiner on fake wires."""

    def __init__(self, throttle: Throttle | None = None) -> None:
        self.wires, self.events, self.held = Wires(), Events(), Held()
        self.parts, self.donor_parts = PartStore(), PartStore()
        corpus = {b"f" * 32: DATA}
        self.donor = Pulls(
            self.wires.of("donor"),
            RUN,
            self.donor_parts,
            self.held,
            self.held,
            self.held,
            Events(),  # type: ignore[arg-type]
            corpus=lambda name, index: corpus[name],
            throttle=throttle,
        )
        self.joiner = Pulls(self.wires.of("joiner"), RUN, self.parts, self.held, self.held, self.held, self.events)  # type: ignore[arg-type]
        for name in ("donor", "other"):
            self.wires.serve[name] = self._serve

    async def _serve(self, stream) -> None:  # type: ignore[no-untyped-def]
        header = bulk.parse_stream_header(await stream.receive(), RUN)
        await self.donor.serve(stream, header)

    async def pull(self, kind: bulk.StreamKind, digest: bytes = KEY, **fields: int) -> bytes:
        header = bulk.StreamHeader(kind, RUN, digest, **fields)
        return bytes(await self.joiner.pull_bytes("donor", header, len(DATA), silence_s=2.0))


@in_loop
async def test_slices_and_corpus_chunks_arrive_whole() -> None:
    two = Two()
    assert await two.pull(bulk.StreamKind.SLICE, round=3, index=9) == DATA[:10]
    assert await two.pull(bulk.StreamKind.CORPUS, b"f" * 32) == DATA


@in_loop
async def test_what_is_not_held_is_said_not_guessed() -> None:
    two = Two()
    with pytest.raises(TransferError, match="not held here"):
        await two.pull(bulk.StreamKind.SLICE, round=4)
    with pytest.raises(TransferError, match="not held here"):
        await two.pull(bulk.StreamKind.CORPUS, b"g" * 32)


@in_loop
async def test_a_cut_stream_is_never_taken_for_a_short_one() -> None:
    two = Two()
    two.wires.change = lambda peer, number, frame: frame if number < 1 else None
    with pytest.raises(TransportError, match="cut"):
        await two.pull(bulk.StreamKind.SLICE, round=3, index=9)


@in_loop
async def test_an_end_without_its_frame_is_a_truncation() -> None:
    two = Two()

    async def ends_early(stream) -> None:  # type: ignore[no-untyped-def]
        header = bulk.parse_stream_header(await stream.receive(), RUN)
        await stream.send(bulk.pack_stream_header(header))
        await stream.send(frames_of(DATA)[0])
        await stream.finish()

    two.wires.serve["donor"] = ends_early
    with pytest.raises(TransportError, match="before its end"):
        await two.pull(bulk.StreamKind.SLICE, round=3)


@in_loop
async def test_silence_is_ended_by_its_limit() -> None:
    two = Two()

    async def silent(stream) -> None:  # type: ignore[no-untyped-def]
        await asyncio.sleep(60)

    two.wires.serve["donor"] = silent
    with pytest.raises(asyncio.TimeoutError):
        await two.joiner.pull_bytes("donor", bulk.StreamHeader(bulk.StreamKind.SLICE, RUN, KEY), 10, silence_s=0.05)


@in_loop
async def test_more_than_was_asked_for_is_refused() -> None:
    two = Two()
    header = bulk.StreamHeader(bulk.StreamKind.CORPUS, RUN, b"f" * 32)
    with pytest.raises(ProtocolError, match="more than"):
        await two.joiner.pull_bytes("donor", header, len(DATA) - 1)


@in_loop
async def test_a_chunk_with_a_flipped_bit_is_named_corrupt_and_pulled_elsewhere() -> None:
    two = Two()
    two.wires.change = lambda peer, number, frame: (
        frame[:-9] + bytes([frame[-9] ^ 1]) + frame[-8:] if (peer == "donor" and number == 1) else frame
    )
    two.joiner.pull_chunk(ev.PullChunk(INFO.key, INFO, 0, "donor"))
    failed = (await two.events.of(ev.ChunkFailed))[0]
    assert failed.corrupt and failed.peer == "donor" and not two.held.written
    two.joiner.pull_chunk(ev.PullChunk(INFO.key, INFO, 0, "other"))
    pulled = (await two.events.of(ev.ChunkPulled))[0]
    assert (pulled.peer, pulled.nbytes) == ("other", len(DATA)) and two.held.written == {0: DATA}


@in_loop
async def test_a_chunk_that_stops_in_the_middle_is_a_failure_without_corruption() -> None:
    two = Two()
    two.wires.change = lambda peer, number, frame: frame if number < 1 else None
    two.joiner.pull_chunk(ev.PullChunk(INFO.key, INFO, 0, "donor"))
    failed = (await two.events.of(ev.ChunkFailed))[0]
    assert not failed.corrupt and "cut" in failed.reason


@in_loop
async def test_a_stopped_chunk_says_nothing_more() -> None:
    two = Two()
    two.joiner.pull_chunk(ev.PullChunk(INFO.key, INFO, 0, "donor"))
    two.joiner.stop_chunk(ev.StopChunk(INFO.key, 0, "donor"))
    two.joiner.pull_chunk(ev.PullChunk(INFO.key, INFO, 0, "other"))
    assert (await two.events.of(ev.ChunkPulled))[0].peer == "other"
    assert [event.peer for event in two.events.all] == ["other"]


def part_of(payload: bytes) -> StoredPart:
    hasher = PartHasher("none", 0, 0, len(payload) // 4)
    hasher.update(memoryview(payload))
    frame = bulk.pack_frame_header(len(payload), values=len(payload) // 4) + payload
    return StoredPart(PartDone(0, 0, len(payload) // 4, hasher.digest(), (1,), 0.5, len(frame)), "none", 3, (frame,))


@in_loop
async def test_a_part_is_fetched_by_digest_and_verified() -> None:
    two = Two()
    stored = part_of(b"\1\2\3\4" * 8)
    two.donor_parts.put(stored)
    two.joiner.fetch_part(ev.FetchPart(stored.part, "donor"))
    assert (await two.events.of(ev.PartHeld))[0].part == stored.part
    assert two.parts.get(stored.part.digest).frames == stored.frames


@in_loop
async def test_a_part_with_other_bytes_is_refused() -> None:
    two = Two()
    stored = part_of(b"\1\2\3\4" * 8)
    two.donor_parts.put(stored)
    two.wires.change = lambda peer, number, frame: frame[:-1] + b"\xff" if number == 1 else frame
    two.joiner.fetch_part(ev.FetchPart(stored.part, "donor"))
    assert "does not match its digest" in (await two.events.of(ev.PartFetchFailed))[0].reason
    two.joiner.fetch_part(ev.FetchPart(part_of(b"\0" * 32).part, "donor"))
    assert "not held here" in (await two.events.of(ev.PartFetchFailed, 2))[1].reason


@in_loop
async def test_uploads_are_capped_in_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr("p2ptrain.runtime.pulls.time.monotonic", lambda: 100.0)
    monkeypatch.setattr("p2ptrain.runtime.pulls.asyncio.sleep", sleep)
    throttle = Throttle(mbps=8.0)  # a byte a microsecond
    for _ in range(3):
        await throttle.take(20_000)
    await Throttle().take(20_000)  # no cap, no wait
    assert slept == pytest.approx([0.0, 0.02, 0.04])
