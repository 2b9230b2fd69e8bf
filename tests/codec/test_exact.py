"""Exact mode: fixed-point arithmetic that no order changes, and its lossless codec."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from p2ptrain.codec import codec_by_name
from p2ptrain.codec.exact import clamp_bits, dequantise_mean, norm_sq_int, quantise, width_of
from p2ptrain.codec.sizes import exact_bytes
from p2ptrain.errors import ConfigError, ProtocolError

torch.set_num_threads(1)
INT64 = st.integers(-(2**63), 2**63 - 1)
SCALE = 2.0**-24


def normal(n: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(n, generator=torch.Generator().manual_seed(seed))


@given(st.integers(1, 2**46))
def test_the_clamp_leaves_no_room_for_overflow(count: int) -> None:
    bits = clamp_bits(count)
    assert 16 <= bits <= 52
    assert count << bits <= 2**62


@pytest.mark.parametrize("count", [0, -1, 2**47])
def test_a_sum_without_room_is_a_config_error(count: int) -> None:
    with pytest.raises(ConfigError):
        clamp_bits(count)


@settings(deadline=None)
@given(
    st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=20),
    st.floats(2.0**-40, 2.0**10),
)
def test_quantise_rounds_half_to_even_and_clamps(values: list[float], scale: float) -> None:
    sums = torch.zeros(len(values), dtype=torch.int64)
    assert quantise(torch.tensor(values), scale, sums, 1000)
    bound = 1 << clamp_bits(1000)
    for value, got in zip(values, sums.tolist(), strict=True):
        wanted = round(Fraction(value / scale))  # a correctly rounded double division, then half to even
        assert got == max(-bound, min(bound, wanted))


def test_the_largest_sum_fits() -> None:
    sums = torch.zeros(2, dtype=torch.int64)
    for _ in range(5):
        assert quantise(torch.tensor([3e38, -3e38]), 1e-30, sums, 5)
    assert sums.tolist() == [5 << clamp_bits(5), -(5 << clamp_bits(5))]


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_a_microbatch_that_is_not_finite_adds_nothing(bad: float) -> None:
    gradient, sums = normal(300_000), torch.arange(300_000)
    gradient[-1] = bad
    assert quantise(gradient, SCALE, sums, 8) is False
    assert torch.equal(sums, torch.arange(300_000))


def test_huge_finite_values_are_not_taken_for_infinite() -> None:
    sums = torch.zeros(4, dtype=torch.int64)
    assert quantise(torch.full((4,), 3e38), SCALE, sums, 8)
    assert sums.ne(0).all()


@pytest.mark.parametrize("scale", [0.0, -1.0, float("nan"), float("inf"), 1e-200])
def test_a_senseless_scale_is_refused(scale: float) -> None:
    with pytest.raises(ValueError):
        quantise(normal(3), scale, torch.zeros(3, dtype=torch.int64), 8)


@given(st.permutations(range(8)), st.integers(0, 8))
def test_neither_order_nor_grouping_changes_the_sum(order: list[int], cut: int) -> None:
    straight = torch.zeros(1000, dtype=torch.int64)
    for seed in range(8):
        quantise(normal(1000, seed), SCALE, straight, 8)
    groups = [torch.zeros(1000, dtype=torch.int64) for _ in range(2)]
    for place, seed in enumerate(order):
        quantise(normal(1000, seed), SCALE, groups[place >= cut], 8)
    codec, merged = codec_by_name("exact", max_count=8), torch.zeros(1000, dtype=torch.int64)
    for group, count in ((groups[1], 8 - cut), (groups[0], cut)):
        if count:
            codec.accumulate(codec.encode(group), merged, count)
    assert torch.equal(merged, straight)


def test_the_mean_is_close_and_the_same_whatever_the_threads() -> None:
    gradients = [normal(600_000, seed) for seed in range(3)]
    means = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        try:
            sums = torch.zeros(600_000, dtype=torch.int64)
            for gradient in gradients:
                quantise(gradient, SCALE, sums, 3)
            means.append(dequantise_mean(sums, SCALE, 3))
        finally:
            torch.set_num_threads(1)
    assert torch.equal(means[0], means[1])
    wanted = torch.stack(gradients).double().mean(0)
    assert float((means[0].double() - wanted).abs().max()) < 1e-6


@given(st.integers(-(2**52), 2**52), st.integers(1, 1000))
def test_the_mean_is_rounded_as_stated(total: int, count: int) -> None:
    got = dequantise_mean(torch.tensor([total]), SCALE, count)
    assert got.item() == torch.tensor(total * SCALE / count, dtype=torch.float64).float().item()


@settings(deadline=None)
@given(st.lists(INT64, min_size=1, max_size=30), st.integers(0, 30))
def test_the_norm_is_exact_and_adds_up(values: list[int], cut: int) -> None:
    tensor = torch.tensor(values, dtype=torch.int64)
    wanted = sum(v * v for v in values)
    assert norm_sq_int(tensor) == wanted
    assert norm_sq_int(tensor[:cut]) + norm_sq_int(tensor[cut:]) == wanted if 0 < cut < len(values) else True


@pytest.mark.parametrize("value", [2**63 - 1, -(2**63), 2**42, 2**21 - 1, -(2**21)])
def test_the_norm_of_a_long_tensor_does_not_overflow(value: int) -> None:
    assert norm_sq_int(torch.full((600_001,), value)) == 600_001 * value * value


def test_the_norm_of_nothing_is_zero() -> None:
    assert norm_sq_int(torch.zeros(0, dtype=torch.int64)) == 0


@settings(deadline=None)
@given(st.lists(st.integers(-(2**62), 2**62), max_size=20), st.sampled_from([b"", b"h" * 16, b"odd"]))
def test_the_codec_is_lossless_and_as_narrow_as_it_can_be(values: list[int], header: bytes) -> None:
    codec = codec_by_name("exact", max_count=1 << 12)
    tensor = torch.tensor(values, dtype=torch.int64)
    frame = codec.encode(tensor, header)
    width = max([1, *(next(w for w in range(1, 9) if -(1 << 8 * w - 1) <= v < 1 << 8 * w - 1) for v in values)])
    assert width_of(tensor) == width
    assert len(frame) == len(header) + exact_bytes(len(values), width)
    payload = memoryview(frame)[len(header) :]
    assert codec.decode(payload, len(values)).tolist() == values
    acc = torch.full((len(values),), 5)
    codec.accumulate(payload, acc, 1 << 12)
    assert acc.tolist() == [v + 5 for v in values]
    codec.accumulate(payload, acc, 1 << 12, first=True)
    assert acc.tolist() == values


@pytest.mark.parametrize("sign", [1, -1])
def test_more_than_its_microbatches_can_sum_to_is_malformed(sign: int) -> None:
    codec = codec_by_name("exact", max_count=8)
    bound = 1 << clamp_bits(8)
    acc = torch.zeros(1, dtype=torch.int64)
    codec.accumulate(codec.encode(torch.tensor([3 * bound * sign])), acc, 3)
    with pytest.raises(ProtocolError):
        codec.accumulate(codec.encode(torch.tensor([(3 * bound + 1) * sign])), acc, 3)
    assert acc.item() == 3 * bound * sign
    with pytest.raises(ProtocolError):
        codec.decode(codec.encode(torch.tensor([-(2**63)])), 1)


@pytest.mark.parametrize("weight", [0, 9, 1.5, -1])
def test_a_weight_that_is_no_count_of_microbatches_is_refused(weight: float) -> None:
    codec = codec_by_name("exact", max_count=8)
    with pytest.raises(ValueError):
        codec.accumulate(codec.encode(torch.tensor([1])), torch.zeros(1, dtype=torch.int64), weight)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=60), st.integers(0, 7))
def test_any_bytes_decode_or_are_malformed(noise: bytes, n: int) -> None:
    try:
        values = codec_by_name("exact", max_count=8).decode(noise, n)
    except ProtocolError:
        return
    assert len(noise) == exact_bytes(n, noise[0])
    assert values.numel() == n


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_cuda_gives_the_same_bits() -> None:
    codec, gradient = codec_by_name("exact", max_count=8), normal(400_001)
    cpu, cuda = (torch.zeros(400_001, dtype=torch.int64, device=device) for device in ("cpu", "cuda"))
    for scale in (SCALE, 1e-7):
        quantise(gradient, scale, cpu, 8)
        quantise(gradient.cuda(), scale, cuda, 8)
    assert torch.equal(cpu, cuda.cpu())
    assert torch.equal(dequantise_mean(cpu, 1e-7, 3), dequantise_mean(cuda, 1e-7, 3).cpu())
    assert norm_sq_int(cpu) == norm_sq_int(cuda)
    assert codec.encode(cpu) == codec.encode(cuda)
