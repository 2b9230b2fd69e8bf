"""What is done with a layer list: forward, loss, held-out loss, and text from it. Decides nothing.

loss = next_token_loss(layers, inputs_BT, targets_BT); loss.backward()
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from p2ptrain.errors import ConfigError


def forward(layers: Sequence[nn.Module], inputs: Tensor) -> Tensor:
    for layer in layers:
        inputs = layer(inputs)
    return inputs


def next_token_loss(layers: Sequence[nn.Module], inputs_BT: Tensor, targets_BT: Tensor) -> Tensor:
    """Mean cross entropy in nats a token, a scalar. The layers map (B, T) int64 to (B, T, V) logits."""
    logits_BTV = forward(layers, inputs_BT)
    return F.cross_entropy(logits_BTV.reshape(-1, logits_BTV.shape[-1]), targets_BT.reshape(-1))


@torch.no_grad()
def held_out_loss(layers: Sequence[nn.Module], batches: Iterable[tuple[Tensor, Tensor]]) -> float:
    """Mean of the batches' losses; the batches should be of one size. Raises ConfigError if there are none."""
    losses = [next_token_loss(layers, inputs, targets).item() for inputs, targets in batches]
    if not losses:
        raise ConfigError("there is no held-out data to evaluate on", hint="raise the validation fraction")
    return sum(losses) / len(losses)


@torch.no_grad()
def generate(
    layers: Sequence[nn.Module], prompt: bytes, count: int, rng: torch.Generator, temperature: float = 0.8
) -> bytes:
    """Continue ``prompt`` by ``count`` bytes, sampled with ``rng`` (a CPU generator); returns prompt and continuation.

    Only the last ``context`` bytes are looked at. Deterministic for a seeded ``rng`` on one kind of device.
    """
    context = int(getattr(layers[0], "context", 128))
    device = next(layers[0].parameters()).device
    text = bytearray(prompt or b"\n")
    for _ in range(count):
        window = torch.tensor([list(text[-context:])], dtype=torch.int64, device=device)
        logits_V = forward(layers, window)[0, -1].float().cpu()
        chances_V = torch.softmax(logits_V[:256] / max(temperature, 1e-4), dim=-1)
        text.append(int(torch.multinomial(chances_V, 1, generator=rng).item()))
    return bytes(text)
