from __future__ import annotations

import itertools

import pytest
import torch
from blake3 import blake3

from p2ptrain.core.types import Record, SnapshotInfo
from p2ptrain.errors import TransferError
from p2ptrain.train.flat import FlatStage
from p2ptrain.train.optimizer import Powers
from p2ptrain.train.state import HEADER_BYTES, SLICES, Assembly, StageState, StateHeader, chunk_digests
from tests.train.hand import tiny_layers


def record(round: int, scale: float = 1.0) -> Record:
    return Record(0, 0, round, b"", b"", (), (), 0.0, scale, (), 0, 0)


def state(seed: int = 0, round: int = 3) -> StageState:
    made = StageState(FlatStage(tiny_layers()))
    made.stage.values.copy_(torch.randn(made.stage.values.shape, generator=torch.Generator().manual_seed(seed)))
    made.header = StateHeader(round, 1.0, Powers(round + 1, 0.5, 0.25))
    return made


def test_image_is_header_then_values_little_endian() -> None:
    one = state()
    image = one.image()
    assert len(image) == one.total_bytes == 64 + 12 * one.stage.size
    assert StateHeader.from_bytes(bytes(image[:64]), one.stage.size) == one.header
    assert image[64:68] == one.stage.parameters[:1].numpy().astype("<f4").tobytes()
    assert blake3(image).digest() == one.digest()


def test_slices_cover_every_value_once() -> None:
    one = state()
    bounds = [one.slice_bounds(index) for index in range(SLICES)]
    assert bounds[0][0] == 0 and bounds[-1][1] == one.stage.size
    assert all(left[1] == right[0] for left, right in itertools.pairwise(bounds))
    with pytest.raises(IndexError):
        one.slice_digest(SLICES)


@pytest.mark.parametrize("place", ["parameters", "exp_avg", "exp_avg_sq"])
def test_a_flipped_bit_shows_in_one_slice_and_is_healed(place: str) -> None:
    healthy, damaged = state(), state()
    flat = getattr(damaged.stage, place)
    at = damaged.stage.size * 5 // SLICES + 3
    flat.view(torch.int32)[at] ^= 1
    differing = [i for i in range(SLICES) if healthy.slice_digest(i) != damaged.slice_digest(i)]
    assert differing == [5]
    damaged.heal_slice(5, healthy.slice_bytes(5))
    assert damaged.digest() == healthy.digest()


def test_damaged_scalars_show_in_every_slice() -> None:
    healthy, damaged = state(), state()
    damaged.header = StateHeader(3, 1.0, Powers(4, 0.5000001, 0.25))
    assert all(healthy.slice_digest(i) != damaged.slice_digest(i) for i in range(SLICES))
    damaged.heal_slice(0, healthy.slice_bytes(0))
    assert damaged.digest() == healthy.digest()


def test_slices_that_do_not_fit_are_refused() -> None:
    one = state()
    before = one.digest()
    with pytest.raises(TransferError, match="bytes"):
        one.heal_slice(2, one.slice_bytes(2)[:-1])
    with pytest.raises(TransferError, match="round 4, this state of 3"):
        one.heal_slice(2, state(1, round=4).slice_bytes(2))
    with pytest.raises(TransferError, match="no state"):
        one.heal_slice(2, b"\0" * HEADER_BYTES + one.slice_bytes(2)[HEADER_BYTES:])
    assert one.digest() == before


def test_load_takes_over_an_image_and_refuses_others_untouched() -> None:
    source, target = state(1, round=7), state(2)
    target.load(source.image(), record(7))
    assert target.digest() == source.digest()
    for image, of in [
        (source.image()[:-4], record(7)),
        (bytearray(len(source.image())), record(7)),
        (state(3, round=8).image(), record(7)),
        (source.image(), record(7, scale=2.0)),
    ]:
        with pytest.raises(TransferError):
            target.load(image, of)
    assert target.digest() == source.digest()


def offer(image: bytearray, chunk_bytes: int = 1000) -> SnapshotInfo:
    return SnapshotInfo(0, record(3), b"c", len(image), chunk_bytes, chunk_digests(image, chunk_bytes))


def test_assembly_verifies_each_chunk() -> None:
    image = state().image()
    info = offer(image)
    arriving = Assembly(info, len(image))
    order = list(range(len(info.chunk_digests)))
    for index in reversed(order):
        chunk = bytes(image[index * 1000 : (index + 1) * 1000])
        flipped = bytes([chunk[0] ^ 1]) + chunk[1:]
        assert not arriving.write(index, flipped)
        assert not arriving.write(index, chunk + b"x")
        assert index in arriving.missing
        assert arriving.write(index, chunk)
    assert not arriving.write(len(order), b"")
    assert not arriving.write(-1, b"")
    assert arriving.missing == set()
    assert arriving.image == image


def test_assembly_refuses_offers_of_another_size() -> None:
    image = state().image()
    info = offer(image)
    for wrong in (
        SnapshotInfo(0, info.record, b"", 1 << 50, 1000, info.chunk_digests),
        SnapshotInfo(0, info.record, b"", len(image), 0, info.chunk_digests),
        SnapshotInfo(0, info.record, b"", len(image), 1000, info.chunk_digests[:-1]),
    ):
        with pytest.raises(TransferError, match="another member"):
            Assembly(wrong, len(image))


def test_a_stage_with_fewer_values_than_slices() -> None:
    healthy, damaged = (StageState(FlatStage([torch.nn.Linear(2, 1)])) for _ in range(2))
    damaged.load(healthy.image(), record(0))
    damaged.stage.parameters[1] += 1.0
    differing = [i for i in range(SLICES) if healthy.slice_digest(i) != damaged.slice_digest(i)]
    assert len(differing) == 1
    for index in range(SLICES):
        damaged.heal_slice(index, healthy.slice_bytes(index))
    assert damaged.digest() == healthy.digest()
