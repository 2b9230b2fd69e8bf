"""Every codec: sizes, round trips, saturation, malformed payloads, determinism, the same bits on CUDA."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from p2ptrain.codec import CODEC_NAMES, codec_by_name
from p2ptrain.codec.block_int8 import LARGEST_SCALE
from p2ptrain.codec.sizes import (
    CHUNK_VALUES,
    INT8_BLOCK,
    chunk_count,
    chunk_ranges,
    chunk_values_of,
    encoded_bytes,
    exact_bytes,
    part_bytes,
)
from p2ptrain.errors import ConfigError, ProtocolError, TrainingError

torch.set_num_threads(1)
FLOAT_CODECS = ("none", "fp16", "bf16", "int8")
LOSSY = ("fp16", "bf16", "int8")
SIZES = (0, 1, 2, 7, 511, 512, 513, 1024, 5000)
HEADERS = (b"", b"h" * 8, b"odd")


def normal(n: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(n, generator=torch.Generator().manual_seed(seed))


def test_sizes_come_without_torch() -> None:
    code = "import sys; import p2ptrain.codec.sizes, p2ptrain.codec; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


@pytest.mark.parametrize("name", FLOAT_CODECS)
@pytest.mark.parametrize("header", HEADERS)
def test_length_is_the_formula_and_the_header_comes_first(name: str, header: bytes) -> None:
    codec = codec_by_name(name)
    for n in SIZES:
        frame = codec.encode(normal(n), header)
        assert type(frame) is bytes
        assert len(frame) == len(header) + encoded_bytes(name, n) == len(header) + codec.encoded_bytes(n)
        assert frame[: len(header)] == header
        assert frame[len(header) :] == codec.encode(normal(n))


@given(st.sampled_from(CODEC_NAMES), st.integers(0, 5_000), st.integers(1, 4), st.integers(0, 40))
def test_a_part_is_the_sum_of_its_chunks(name: str, n: int, blocks: int, header: int) -> None:
    chunk = blocks * INT8_BLOCK
    ranges = list(chunk_ranges(10, 10 + n, chunk))
    assert len(ranges) == chunk_count(n, chunk)
    assert sum(b - a for a, b in ranges) == n
    assert part_bytes(name, n, header, chunk) == sum(encoded_bytes(name, b - a) + header for a, b in ranges)


def test_chunks_are_one_to_two_mib() -> None:
    for name in CODEC_NAMES:
        size = chunk_values_of(name)
        assert size % INT8_BLOCK == 0 and size <= CHUNK_VALUES
        assert 1 << 20 <= encoded_bytes(name, size) <= (2 << 20) + 64


@pytest.mark.parametrize("call", [codec_by_name, lambda name: encoded_bytes(name, 1)])
def test_an_unknown_name_is_a_config_error_with_its_key(call: object) -> None:
    with pytest.raises(ConfigError) as caught:
        call("zip")  # type: ignore[operator]
    assert caught.value.fields["key"] == "sync.codec"
    assert "int8" in caught.value.hint


@pytest.mark.parametrize("values", [0, -512, 700])
def test_int8_chunks_are_multiples_of_the_block(values: int) -> None:
    with pytest.raises(ConfigError):
        codec_by_name("int8", chunk_values=values)


@pytest.mark.parametrize("header", HEADERS)
def test_none_is_bit_exact(header: bytes) -> None:
    values = torch.tensor([0.0, -0.0, 1e-45, float("inf"), float("nan"), 3.4e38])
    frame = codec_by_name("none").encode(values, header)
    back = codec_by_name("none").decode(memoryview(frame)[len(header) :], 6)
    assert torch.equal(back.view(torch.int32), values.view(torch.int32))
    assert frame[len(header) :] == values.numpy().astype("<f4").tobytes()


@pytest.mark.parametrize(("name", "dtype"), [("fp16", torch.float16), ("bf16", torch.bfloat16)])
@pytest.mark.parametrize("header", HEADERS)
def test_half_rounds_to_nearest(name: str, dtype: torch.dtype, header: bytes) -> None:
    values = normal(5000)
    frame = codec_by_name(name).encode(values, header)
    assert torch.equal(codec_by_name(name).decode(memoryview(frame)[len(header) :], 5000), values.to(dtype).float())


@pytest.mark.parametrize(("name", "dtype"), [("fp16", torch.float16), ("bf16", torch.bfloat16)])
def test_half_saturates_finite_values(name: str, dtype: torch.dtype) -> None:
    big = torch.finfo(torch.float32).max
    back = codec_by_name(name).decode(codec_by_name(name).encode(torch.tensor([big, -big, 1.0])), 3)
    assert back.tolist() == [torch.finfo(dtype).max, -torch.finfo(dtype).max, 1.0]


@pytest.mark.parametrize("name", LOSSY)
@pytest.mark.parametrize("bad", [float("inf"), float("-inf"), float("nan")])
@pytest.mark.parametrize("at", [0, 300, 1023, 1024])
def test_lossy_codecs_refuse_what_is_not_finite(name: str, bad: float, at: int) -> None:
    values = normal(1025)
    values[at] = bad
    with pytest.raises(TrainingError):
        codec_by_name(name).encode(values)


@pytest.mark.parametrize("n", [n for n in SIZES if n])
def test_int8_error_is_within_half_a_step_of_its_block(n: int) -> None:
    values = normal(n) * torch.logspace(-20, 20, n)
    back = codec_by_name("int8").decode(codec_by_name("int8").encode(values), n)
    for first in range(0, n, INT8_BLOCK):
        block = slice(first, first + INT8_BLOCK)
        step = values[block].abs().max().double() / 127
        assert float((back[block].double() - values[block].double()).abs().max()) <= float(step) * 0.500_02


def test_int8_mean_squared_error_on_normal_values() -> None:
    values = normal(1 << 20)
    back = codec_by_name("int8").decode(codec_by_name("int8").encode(values), values.numel())
    assert float((back - values).double().square().mean()) < 6e-5  # hivemind's blockwise 8-bit: 1.7e-4


def test_int8_edges() -> None:
    codec = codec_by_name("int8")
    assert codec.decode(codec.encode(torch.zeros(600)), 600).eq(0).all()
    assert codec.decode(codec.encode(torch.full((5,), 1e-40)), 5).eq(0).all()
    for tiny in (0.0, 1e-40, -1e-35):  # no quotient by zero reaches the bytes
        assert codec.encode(torch.full((5,), tiny)) == bytes(9)
    exact = torch.arange(-127.0, 128.0)
    assert torch.allclose(codec.decode(codec.encode(exact), 255), exact, rtol=1e-6)
    halves = torch.tensor([127.0, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5])  # factor 1.0: half to even
    assert torch.frombuffer(bytearray(codec.encode(halves)[4:]), dtype=torch.int8).tolist() == [127, 0, 2, 2, 0, -2, -2]
    assert torch.isfinite(codec.decode(codec.encode(torch.full((4,), 2.0**120)), 4)).all()
    with pytest.raises(TrainingError):
        codec.encode(torch.full((4,), 2.0**121))


@pytest.mark.parametrize("name", FLOAT_CODECS)
@pytest.mark.parametrize("n", [1, 511, 1537])
def test_decode_into_and_accumulate_agree_with_decode(name: str, n: int) -> None:
    codec = codec_by_name(name)
    one, two = codec.encode(normal(n, 1)), codec.encode(normal(n, 2))
    out = torch.empty(n)
    codec.decode_into(one, out)
    assert torch.equal(out, codec.decode(one, n))
    acc = torch.full((n,), float("nan"))
    codec.accumulate(one, acc, 3.0, first=True)
    codec.accumulate(two, acc, 0.5)
    wanted = 3.0 * codec.decode(one, n).double() + 0.5 * codec.decode(two, n).double()
    assert torch.allclose(acc.double(), wanted, rtol=1e-6, atol=1e-6)


def test_decoding_none_copies_nothing_and_keeps_the_payload_alive() -> None:
    codec = codec_by_name("none")
    values = normal(1000)
    frame = bytearray(codec.encode(values))
    back = codec.decode(frame, 1000)
    frame[0:4] = b"\0\0\0\0"
    assert back[0] == 0
    kept = codec.decode(codec.encode(values), 1000)
    [codec.encode(torch.zeros(1000)) for _ in range(20)]
    assert torch.equal(kept, values)


@pytest.mark.parametrize(
    "values", [torch.zeros(2, 2), torch.zeros(4, dtype=torch.float64), torch.zeros(8)[::2], torch.zeros(1025)]
)
def test_only_flat_contiguous_chunks_are_encoded(values: torch.Tensor) -> None:
    with pytest.raises(ValueError):
        codec_by_name("int8", chunk_values=1024).encode(values)


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(FLOAT_CODECS), st.integers(0, 2000), st.integers(0, 2000), st.binary(max_size=64))
def test_any_other_length_is_malformed(name: str, n: int, claimed: int, noise: bytes) -> None:
    codec = codec_by_name(name)
    acc = torch.ones(claimed)
    for payload in (codec.encode(normal(n)), noise):
        if len(payload) == encoded_bytes(name, claimed):
            continue
        with pytest.raises(ProtocolError):
            codec.decode(payload, claimed)
        with pytest.raises(ProtocolError):
            codec.decode_into(memoryview(payload), acc)
        with pytest.raises(ProtocolError):
            codec.accumulate(payload, acc, 1.0)
    assert acc.eq(1).all()


@settings(deadline=None)
@given(st.integers(0, 2), st.sampled_from([float("nan"), float("inf"), -1.0, -1e-30, 2 * LARGEST_SCALE]))
def test_a_bad_int8_scale_is_malformed_and_touches_nothing(block: int, scale: float) -> None:
    codec = codec_by_name("int8")
    payload = bytearray(codec.encode(normal(1100)))
    payload[4 * block : 4 * block + 4] = torch.tensor([scale]).numpy().tobytes()
    acc = torch.ones(1100)
    for first in (False, True):
        with pytest.raises(ProtocolError):
            codec.accumulate(bytes(payload), acc, 1.0, first=first)
    with pytest.raises(ProtocolError):
        codec.decode_into(bytes(payload), acc)
    assert acc.eq(1).all()


@settings(max_examples=100, deadline=None)
@given(st.binary(min_size=1, max_size=300))
def test_any_int8_bytes_of_the_right_length_decode_finite_or_raise(noise: bytes) -> None:
    n = len(noise) - 4
    if n < 1:
        return
    try:
        back = codec_by_name("int8").decode(noise, n)
    except ProtocolError:
        return
    assert torch.isfinite(back).all()


@pytest.mark.parametrize("name", FLOAT_CODECS)
def test_threads_change_no_bit(name: str) -> None:
    codec, values = codec_by_name(name, chunk_values=1 << 20), normal(1_000_001)
    results = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        try:
            frame, acc = codec.encode(values), values.clone()
            codec.accumulate(frame, acc, 0.3)
            results.append((frame, codec.decode(frame, values.numel()), acc))
        finally:
            torch.set_num_threads(1)
    assert results[0][0] == results[1][0]
    assert torch.equal(results[0][1], results[1][1])
    assert torch.equal(results[0][2], results[1][2])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("name", FLOAT_CODECS)
def test_cuda_gives_the_same_bits(name: str) -> None:
    codec, values = codec_by_name(name), normal(100_001) * torch.logspace(-10, 10, 100_001).clamp(max=6e4)
    frame = codec.encode(values, b"h" * 8)
    assert codec.encode(values.cuda(), b"h" * 8) == frame
    out = torch.empty(values.numel(), device="cuda")
    codec.decode_into(frame[8:], out)
    assert torch.equal(out.cpu(), codec.decode(frame[8:], values.numel()))
    codec.accumulate(frame[8:], out, 0.5)
    assert torch.allclose(out.cpu(), 1.5 * codec.decode(frame[8:], values.numel()))


def test_exact_length_is_the_formula_of_its_width() -> None:
    codec = codec_by_name("exact", max_count=8)
    for width in range(1, 8):
        values = torch.tensor([0, -1, (1 << (8 * width - 1)) - 1, -(1 << (8 * width - 1))])
        assert len(codec.encode(values, b"x" * 5)) == 5 + exact_bytes(4, width) <= 5 + encoded_bytes("exact", 4)
