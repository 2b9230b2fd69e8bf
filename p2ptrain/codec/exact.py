"""Exact mode: gradients as fixed-point integers, their sums, and the lossless codec that carries the sums.

    q = clamp(round_half_even(x / scale), -2**bits, 2**bits)      per microbatch, in double
    sum of q over microbatches (int64: any order, any grouping, same bits)      mean = float32(sum * scale / count)

    payload = width, 7 zero bytes, then planes of the low 4, 2, 1 bytes (or one of 8) of every integer, low plane first
              width 3: int16 plane, int8 plane             the top plane carries the sign (two's complement)

Decides rounding, clamping and the wire format. Does not decide the scale: the round agreed on it beforehand. Clamping
and refusal depend on the microbatch alone, not on who computed it or when. Overflow is impossible: the clamp
is budgeted from the most microbatches that a sum may hold, and the codec refuses a payload beyond the budget.
"""

from __future__ import annotations

import math

import torch

from p2ptrain.codec.base import Codec
from p2ptrain.codec.buffers import Blob, Payload, view_of
from p2ptrain.codec.reduce import is_finite
from p2ptrain.codec.sizes import EXACT_HEAD_BYTES, exact_bytes
from p2ptrain.errors import ConfigError

PIECE_VALUES = 1 << 18
_SUM_BITS = 62  # count * 2**bits stays at or below 2**62
_DOUBLE_BITS = 52  # integers up to 2**53 are exact in double
_LIMB_BITS = 21
_LIMB_MASK = (1 << _LIMB_BITS) - 1
_PLANES = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def clamp_bits(max_count: int) -> int:
    """Bits b such that ``max_count`` integers within +-2**b can never overflow an int64 sum; at most 52.

    Raises ConfigError if fewer than 16 bits would be left.
    """
    bits = min(_DOUBLE_BITS, _SUM_BITS - max(max_count - 1, 0).bit_length())
    if max_count < 1 or bits < 16:
        raise ConfigError(
            f"no exact sum of {max_count} microbatches", hint="at least 1, at most 2**46", key="batch.microbatches"
        )
    return bits


def quantise(gradient: torch.Tensor, scale: float, sums: torch.Tensor, max_count: int) -> bool:
    """Add one microbatch's flat float gradient (n,) to int64 ``sums`` (n,). False: not finite, nothing was added.

    Each value becomes round_half_even(x / scale), clamped to +-2**clamp_bits(max_count): double arithmetic, each
    operation correctly rounded, so the same bits on every device and thread count. ValueError for a scale that is not
    positive and within 2**+-300.
    """
    _check_scale(scale)
    if gradient.shape != sums.shape or gradient.dim() != 1 or sums.dtype != torch.int64:
        raise ValueError(f"flat gradient {gradient.shape} into int64 sums, not {sums.dtype} {sums.shape}")
    if not is_finite(gradient):
        return False
    bound = float(1 << clamp_bits(max_count))
    # a host scalar as divisor would become a multiplication on CUDA
    divisor = torch.full((1,), scale, dtype=torch.float64, device=sums.device)
    for first in range(0, sums.numel(), PIECE_VALUES):
        piece = gradient[first : first + PIECE_VALUES].to(torch.float64)
        sums[first : first + PIECE_VALUES].add_(piece.div_(divisor).round_().clamp_(-bound, bound).to(torch.int64))
    return True


def dequantise_mean(sums: torch.Tensor, scale: float, count: int) -> torch.Tensor:
    """float32 (n,) mean of ``count`` microbatches: double(sum) * scale / count, then rounded to float32 once.

    Sums below 2**53 enter the double exactly; with a scale that is a power of two the product is exact too. Same bits
    on every device and thread count.
    """
    _check_scale(scale)
    if count < 1 or sums.dtype != torch.int64:
        raise ValueError(f"mean of {count} microbatches from {sums.dtype}")
    divisor = torch.full((1,), float(count), dtype=torch.float64, device=sums.device)
    mean = torch.empty(sums.shape, dtype=torch.float32, device=sums.device)
    for first in range(0, sums.numel(), PIECE_VALUES):
        piece = sums[first : first + PIECE_VALUES].to(torch.float64)
        mean[first : first + PIECE_VALUES].copy_(piece.mul_(scale).div_(divisor))
    return mean


def norm_sq_int(values: torch.Tensor) -> int:
    """Sum of squares of flat int64 ``values`` as an exact int: any split into chunks or order adds up to the same.

    Values are split into limbs of 21 bits; sums of products over a piece of 2**18 stay below 2**62.
    """
    total = 0
    for first in range(0, values.numel(), PIECE_VALUES):
        piece = values[first : first + PIECE_VALUES]
        limbs = _limbs(piece)
        for i, left in enumerate(limbs):
            for j, right in enumerate(limbs[i:], i):
                product = int((left * right).sum()) << (_LIMB_BITS * (i + j))
                total += product if i == j else 2 * product
    return total


class ExactCodec(Codec):
    """Lossless for int64 sums of at most ``max_count`` microbatches; each chunk takes the fewest bytes per integer."""

    name = "exact"
    lossless = True
    dtype = torch.int64

    def __init__(self, max_count: int = 1, chunk_values: int | None = None) -> None:
        super().__init__(chunk_values)
        self.max_count = max_count
        self.bound = 1 << clamp_bits(max_count)

    def encode(self, values: torch.Tensor, header: bytes = b"") -> bytes:
        """As in the base; the length is ``exact_bytes(n, width_of(values))``."""
        self._check_values(values)
        width = width_of(values)
        blob = Blob(header, exact_bytes(values.numel(), width))
        blob.put(0, torch.tensor([width]), torch.int64)  # little-endian: the width, then seven zero bytes
        offset, shift = EXACT_HEAD_BYTES, 0
        for size in _plane_sizes(width):
            blob.put(offset, values >> shift if shift else values, _PLANES[size])
            offset += size * values.numel()
            shift += 8 * size
        return blob.data

    def decode_into(self, payload: Payload, out: torch.Tensor) -> None:
        """Raises ProtocolError also for values that no sum of ``max_count`` microbatches can reach."""
        out.copy_(self._open(payload, out.numel(), self.max_count))

    def accumulate(self, payload: Payload, acc: torch.Tensor, weight: float, first: bool = False) -> None:
        """``acc += decoded``: never multiplied. ``weight`` is the integer number of microbatches in the payload."""
        if weight != int(weight) or not 1 <= weight <= self.max_count:
            raise ValueError(f"{weight} microbatches in a payload of a run with {self.max_count}")
        opened = self._open(payload, acc.numel(), int(weight)).to(acc.device)
        acc.copy_(opened) if first else acc.add_(opened)

    def _open(self, payload: Payload, n_values: int, count: int) -> torch.Tensor:
        """Flat integers of any int dtype. Their range is checked against ``count`` microbatches."""
        data = memoryview(payload)
        head = bytes(data[:EXACT_HEAD_BYTES])
        width = int.from_bytes(head, "little")
        if len(head) < EXACT_HEAD_BYTES or not 1 <= width <= 8:
            raise self._malformed("it does not begin with a width of 1 to 8 bytes")
        if data.nbytes != exact_bytes(n_values, width):
            raise self._malformed(f"{data.nbytes} bytes for {n_values} values of width {width}")
        values = _join_planes(data, n_values, width)
        if n_values:
            low, high = torch.aminmax(values)
            if max(-int(low), int(high)) > self.bound * count:
                raise self._malformed(f"a value beyond what {count} microbatches can sum to")
        return values

    def _write(self, values: torch.Tensor, blob: Blob) -> None:
        raise NotImplementedError("ExactCodec.encode sizes its own blob")


def width_of(values: torch.Tensor) -> int:
    """Fewest bytes (1 to 8) that hold every integer of ``values`` in two's complement."""
    if not values.numel():
        return 1
    low, high = (int(edge) for edge in torch.aminmax(values))
    return max(low.bit_length() if low >= 0 else (-low - 1).bit_length(), max(high, 0).bit_length()) // 8 + 1


def _plane_sizes(width: int) -> list[int]:
    return [size for size in (8, 4, 2, 1) if width & size]


def _join_planes(data: memoryview, n_values: int, width: int) -> torch.Tensor:
    sizes = _plane_sizes(width)
    if len(sizes) == 1:
        return view_of(data, _PLANES[width], EXACT_HEAD_BYTES, n_values)
    joined = torch.zeros(n_values, dtype=torch.int64)
    offset, shift = EXACT_HEAD_BYTES, 0
    for size in sizes:
        plane = view_of(data, _PLANES[size], offset, n_values).to(torch.int64)
        if size != sizes[-1]:
            plane.bitwise_and_((1 << 8 * size) - 1)
        joined.bitwise_or_(plane.bitwise_left_shift_(shift) if shift else plane)
        offset += size * n_values
        shift += 8 * size
    return joined


def _limbs(piece: torch.Tensor) -> list[torch.Tensor]:
    """``piece`` = limbs[0] + limbs[1] * 2**21 + limbs[2] * 2**42, as few as its range needs; the last is signed."""
    low, high = (int(edge) for edge in torch.aminmax(piece))
    limbs = []
    while max(-low, high) > 1 << _LIMB_BITS:
        limbs.append(piece & _LIMB_MASK)
        piece = piece >> _LIMB_BITS
        low, high = low >> _LIMB_BITS, high >> _LIMB_BITS
    return [*limbs, piece]


def _check_scale(scale: float) -> None:
    if not (math.isfinite(scale) and 2.0**-300 <= scale <= 2.0**300):
        raise ValueError(f"an exact scale of {scale}")
