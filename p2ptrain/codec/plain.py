"""Codecs that store each value by itself: ``none`` (float32), ``fp16``, ``bf16``. Payload: n values, little-endian.

Decides what becomes of values that the narrow type cannot hold: finite values beyond its range saturate to its largest
(error feedback then carries the rest into later rounds), values that are not finite raise TrainingError. ``none``
carries every bit as it is, NaN included.

    fp16: 1e6 -> 65504.0      -1e6 -> -65504.0      1e-8 -> 0.0      inf -> TrainingError
"""

from __future__ import annotations

import math

import torch

from p2ptrain.codec.base import Codec
from p2ptrain.codec.buffers import Blob, Payload, view_of

_WIRE_DTYPES = {"none": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


class PlainCodec(Codec):
    """Rounds to nearest even, once, while copying."""

    def __init__(self, name: str, chunk_values: int | None = None) -> None:
        self.name = name
        self.lossless = name == "none"
        self.wire_dtype = _WIRE_DTYPES[name]
        super().__init__(chunk_values)

    def decode(self, payload: Payload, n_values: int) -> torch.Tensor:
        """As in the base; for ``none`` without a copy."""
        return self._view(payload, n_values).to(torch.float32)

    def decode_into(self, payload: Payload, out: torch.Tensor) -> None:
        out.copy_(self._view(payload, out.numel()))

    def accumulate(self, payload: Payload, acc: torch.Tensor, weight: float, first: bool = False) -> None:
        view = self._view(payload, acc.numel())
        if acc.device.type != "cpu":
            view = view.to(acc.device)
        if first:
            torch.mul(view, weight, out=acc) if self.lossless else acc.copy_(view).mul_(weight)
        else:
            acc.add_(view, alpha=weight)

    def _write(self, values: torch.Tensor, blob: Blob) -> None:
        written = blob.put(0, values, self.wire_dtype)
        if self.lossless:
            return
        low, high = torch.aminmax(written)
        if math.isfinite(float(low)) and math.isfinite(float(high)):
            return
        if not bool(torch.isfinite(values).all()):
            raise self._not_finite()
        bound = torch.finfo(self.wire_dtype).max
        blob.put(0, values.clamp(-bound, bound), self.wire_dtype)

    def _view(self, payload: Payload, n_values: int) -> torch.Tensor:
        self._check_length(payload, n_values)
        return view_of(payload, self.wire_dtype, 0, n_values)
