"""A stage's layers laid into flat float32 buffers: one for values, one (exchangeable) for gradients.

    values (3P):  [ parameters (P) | exp_avg (P) | exp_avg_sq (P) ]        gradients (P): swapped, never copied

Every trainable parameter is a view into ``parameters`` and its ``.grad`` a view into the current gradient buffer, so a
backward pass accumulates straight into the tensor that is sent. Decides the order of the values: layer by layer, each
parameter once (tied ones where they are first met). Frozen parameters and module buffers have no place in it: they are
not averaged and not in the state digest, memory follows what is trained, and ``StageLayout`` says which they are.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from p2ptrain.errors import ConfigError


@dataclass(frozen=True)
class StageLayout:
    """Where each trainable parameter lies: (name, shape, start); and what is left out."""

    size: int
    trainable: tuple[tuple[str, tuple[int, ...], int], ...]
    frozen: tuple[str, ...]
    buffers: tuple[str, ...]

    def describe(self) -> str:
        text = f"{self.size:,} trained values in {len(self.trainable)} parameters"
        if self.frozen:
            text += f"; frozen, kept as built: {', '.join(self.frozen)}"
        if self.buffers:
            text += f"; buffers, local to each peer: {', '.join(self.buffers)}"
        return text


class FlatStage:
    """``layers`` of one stage, their trainable values and optimiser state in flat buffers on ``device``."""

    def __init__(self, layers: Sequence[nn.Module], *, first_layer: int = 0, device: str = "cpu") -> None:
        """Takes over the layers' memory. Raises ConfigError: nothing to train, or a parameter that is not float32."""
        self.layers = [layer.to(device) for layer in layers]
        named = [
            (f"{first_layer + index}.{name}", parameter)
            for index, layer in enumerate(self.layers)
            for name, parameter in layer.named_parameters()
        ]
        seen: dict[int, tuple[str, nn.Parameter]] = {}
        for name, parameter in named:
            seen.setdefault(id(parameter), (name, parameter))
        trained = [(name, parameter) for name, parameter in seen.values() if parameter.requires_grad]
        for name, parameter in trained:
            if parameter.dtype != torch.float32:
                raise ConfigError(f"parameter {name} is {parameter.dtype}; trained values must be float32", key=name)
        if not trained:
            raise ConfigError("the stage has no trainable parameter")
        self.layout = _layout(trained, seen.values(), self.layers, first_layer)
        self._trained = [parameter for _, parameter in trained]
        self.device = torch.device(device)
        size = self.layout.size
        self.values = torch.zeros(3 * size, dtype=torch.float32, device=self.device)
        self.parameters, self.exp_avg, self.exp_avg_sq = self.values.split(size)
        with torch.no_grad():
            for parameter, (_, shape, start) in zip(self._trained, self.layout.trainable, strict=True):
                view = self.parameters[start : start + parameter.numel()].view(shape)
                view.copy_(parameter)
                parameter.data = view
        self._views: dict[int, tuple[weakref.ref[Tensor], list[Tensor]]] = {}
        self.gradients = self.new_gradients()
        self.use_gradients(self.gradients)

    @property
    def size(self) -> int:
        """P, the number of trained values."""
        return self.layout.size

    def new_gradients(self) -> Tensor:
        """A zeroed (P,) buffer for ``use_gradients``."""
        return torch.zeros(self.size, dtype=torch.float32, device=self.device)

    def use_gradients(self, buffer: Tensor) -> None:
        """From now on backward passes accumulate into ``buffer``, (P,) float32; the one before is the caller's."""
        self.gradients = buffer
        for parameter, view in zip(self._trained, self._views_of(buffer), strict=True):
            parameter.grad = view

    def _views_of(self, buffer: Tensor) -> list[Tensor]:
        known = self._views.get(id(buffer))
        if known is not None and known[0]() is buffer:
            return known[1]
        views = [
            buffer[start : start + parameter.numel()].view(shape)
            for parameter, (_, shape, start) in zip(self._trained, self.layout.trainable, strict=True)
        ]
        self._views = {key: item for key, item in self._views.items() if item[0]() is not None}
        self._views[id(buffer)] = (weakref.ref(buffer), views)
        return views


def _layout(
    trained: Sequence[tuple[str, nn.Parameter]],
    all_parameters: object,
    layers: Sequence[nn.Module],
    first_layer: int,
) -> StageLayout:
    trainable: list[tuple[str, tuple[int, ...], int]] = []
    start = 0
    for name, parameter in trained:
        trainable.append((name, tuple(parameter.shape), start))
        start += parameter.numel()
    frozen = tuple(name for name, parameter in all_parameters if not parameter.requires_grad)  # type: ignore[attr-defined]
    buffers = tuple(
        f"{first_layer + index}.{name}" for index, layer in enumerate(layers) for name, _ in layer.named_buffers()
    )
    return StageLayout(start, tuple(trainable), frozen, buffers)
