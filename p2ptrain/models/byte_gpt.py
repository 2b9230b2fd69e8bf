"""A small decoder-only transformer over bytes: rotary positions, normalised queries and keys, squared ReLU.

Layers: ``Embedding``, N times ``Block``, ``Head``. Only matrices are trained (the norms have no gains), so weight decay
treats all values alike. Output projections start at zero: the first loss is about ln(vocabulary).

Initial values come from BLAKE3's output stream, keyed by seed, layer and parameter name, not from torch's generator:
the same bits on every platform, torch release and device, and each layer's values without building the others.

Shape suffixes: B samples, T positions, C width, H heads, D values a head, V vocabulary.
"""

from __future__ import annotations

import math

import torch
from blake3 import blake3
from torch import Tensor, nn
from torch.nn import functional as F

from p2ptrain.models.shapes import ByteGPTShape


def build(shape: ByteGPTShape) -> list[nn.Module]:
    """The layer list, in float32 on the CPU; a deterministic function of ``shape``."""
    layers: list[nn.Module] = [Embedding(shape), *(Block(shape) for _ in range(shape.layers)), Head(shape)]
    for index, layer in enumerate(layers):
        for name, parameter in layer.named_parameters():
            _fill(parameter, layer.initial_deviation(name), f"{shape.seed}/{index}/{name}")  # type: ignore[operator]
    return layers


class Embedding(nn.Module):
    def __init__(self, shape: ByteGPTShape) -> None:
        super().__init__()
        self.context = shape.context
        self.table = _empty(shape.vocabulary, shape.width)

    def initial_deviation(self, name: str) -> float:
        return 0.1

    def forward(self, tokens_BT: Tensor) -> Tensor:
        return _norm(F.embedding(tokens_BT, self.table))


class Block(nn.Module):
    def __init__(self, shape: ByteGPTShape) -> None:
        super().__init__()
        width = shape.width
        self.heads = shape.heads
        self.query_key_value = _empty(3 * width, width)
        self.mix = _empty(width, width)
        self.widen = _empty(4 * width, width)
        self.narrow = _empty(width, 4 * width)
        cosine_TD, sine_TD = _rotary_tables(shape.context, width // shape.heads)
        self.register_buffer("cosine_TD", cosine_TD, persistent=False)
        self.register_buffer("sine_TD", sine_TD, persistent=False)

    def initial_deviation(self, name: str) -> float:
        return 0.0 if name in ("mix", "narrow") else self.mix.shape[0] ** -0.5

    def forward(self, hidden_BTC: Tensor) -> Tensor:
        hidden_BTC = hidden_BTC + self._attention(_norm(hidden_BTC))
        return hidden_BTC + F.linear(F.relu(F.linear(_norm(hidden_BTC), self.widen)).square(), self.narrow)

    def _attention(self, hidden_BTC: Tensor) -> Tensor:
        samples, positions, width = hidden_BTC.shape
        fused = F.linear(hidden_BTC, self.query_key_value).view(samples, positions, 3 * self.heads, -1).transpose(1, 2)
        query_BHTD, key_BHTD, value_BHTD = fused.split(self.heads, dim=1)
        cosine_TD, sine_TD = self.cosine_TD[:positions], self.sine_TD[:positions]  # type: ignore[index]
        query_BHTD = _norm(_rotate(query_BHTD, cosine_TD, sine_TD))
        key_BHTD = _norm(_rotate(key_BHTD, cosine_TD, sine_TD))
        mixed_BHTD = F.scaled_dot_product_attention(query_BHTD, key_BHTD, value_BHTD, is_causal=True)
        return F.linear(mixed_BHTD.transpose(1, 2).reshape(samples, positions, width), self.mix)


class Head(nn.Module):
    def __init__(self, shape: ByteGPTShape) -> None:
        super().__init__()
        self.table = _empty(shape.vocabulary, shape.width)

    def initial_deviation(self, name: str) -> float:
        return 0.1 * self.table.shape[1] ** -0.5

    def forward(self, hidden_BTC: Tensor) -> Tensor:
        return F.linear(_norm(hidden_BTC), self.table)


def _empty(*sizes: int) -> nn.Parameter:
    return nn.Parameter(torch.empty(*sizes, dtype=torch.float32, device="cpu"))


def _norm(values: Tensor) -> Tensor:
    return F.rms_norm(values, (values.shape[-1],), eps=1e-6)


def _rotate(values_BHTD: Tensor, cosine_TD: Tensor, sine_TD: Tensor) -> Tensor:
    half = values_BHTD.shape[-1] // 2
    turned_BHTD = torch.cat((-values_BHTD[..., half:], values_BHTD[..., :half]), dim=-1)
    return values_BHTD * cosine_TD + turned_BHTD * sine_TD


def _rotary_tables(context: int, head_values: int) -> tuple[Tensor, Tensor]:
    """(T, D) each (RoFormer, arXiv 2104.09864, in the half-split layout)."""
    frequency = 10_000.0 ** (-torch.arange(0, head_values, 2, dtype=torch.float64) / head_values)
    angle = torch.outer(torch.arange(context, dtype=torch.float64), frequency)
    angle_TD = torch.cat((angle, angle), dim=-1)
    return angle_TD.cos().float(), angle_TD.sin().float()


@torch.no_grad()
def _fill(parameter: nn.Parameter, deviation: float, key: str) -> None:
    """Uniform values of this standard deviation, from BLAKE3 of ``key``."""
    if deviation == 0.0:
        parameter.zero_()
        return
    stream = blake3(b"p2ptrain initial values 1/" + key.encode()).digest(length=4 * parameter.numel())
    integers = torch.frombuffer(bytearray(stream), dtype=torch.int32).to(torch.float32)
    parameter.copy_(integers.mul_(deviation * math.sqrt(3.0) / 2.0**31).view(parameter.shape))
