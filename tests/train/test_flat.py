from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from p2ptrain.errors import ConfigError
from p2ptrain.models.forward import next_token_loss
from p2ptrain.train.flat import FlatStage
from tests.train.hand import tiny_layers, tiny_windows


class Tied(nn.Module):
    def __init__(self, table: nn.Parameter) -> None:
        super().__init__()
        self.table = table
        self.scale = nn.Parameter(torch.full((4,), 2.0), requires_grad=False)
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x @ self.table) * self.scale


def test_loss_and_gradients_equal_those_of_plain_torch() -> None:
    plain = tiny_layers()
    stage = FlatStage(copy.deepcopy(plain))
    windows = tiny_windows()
    for id in range(3):  # accumulated in place
        loss = next_token_loss(plain, *windows.microbatch(id))
        flat_loss = next_token_loss(stage.layers, *windows.microbatch(id))
        loss.backward()
        flat_loss.backward()
        assert torch.equal(loss, flat_loss)
    gradients = torch.cat([p.grad.flatten() for layer in plain for p in layer.parameters()])  # type: ignore[union-attr]
    assert torch.equal(stage.gradients, gradients)
    assert gradients.abs().sum() > 0


def test_parameters_and_gradients_are_views_of_the_flat_buffers() -> None:
    stage = FlatStage(tiny_layers())
    table = stage.layers[0].table
    stage.parameters[0] = 7.0
    assert table.flatten()[0] == 7.0
    other = stage.new_gradients()
    first = stage.gradients
    stage.use_gradients(other)
    next_token_loss(stage.layers, *tiny_windows().microbatch(0)).backward()
    assert other.abs().sum() > 0
    assert first.abs().sum() == 0
    stage.use_gradients(first)
    assert table.grad.data_ptr() == first.data_ptr()


def test_tied_frozen_and_buffers() -> None:
    first = nn.Linear(4, 3)
    tied = Tied(first.weight)
    stage = FlatStage([first, tied], first_layer=5)
    assert stage.size == 12 + 3  # the tied table once; the frozen scale not at all
    assert [name for name, _, _ in stage.layout.trainable] == ["5.weight", "5.bias"]
    assert stage.layout.frozen == ("6.scale",)
    assert stage.layout.buffers == ("6.seen",)
    assert "frozen" in stage.layout.describe() and "6.seen" in stage.layout.describe()
    assert len(stage.values) == 3 * 15
    assert tied.table.data_ptr() == first.weight.data_ptr() == stage.parameters.data_ptr()
    tied(first(torch.ones(2, 4))).sum().backward()
    assert first.weight.grad is tied.table.grad
    assert stage.gradients.abs().sum() > 0


def test_refuses_what_it_cannot_keep_bit_identical() -> None:
    with pytest.raises(ConfigError, match=r"0\.weight is torch\.float64"):
        FlatStage([nn.Linear(2, 2).double()])
    with pytest.raises(ConfigError, match="no trainable"):
        FlatStage([nn.ReLU()])
