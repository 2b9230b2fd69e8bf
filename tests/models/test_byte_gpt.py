from __future__ import annotations

import math

import pytest
import torch
from blake3 import blake3

from p2ptrain.errors import ConfigError
from p2ptrain.models import ByteGPTShape, model_by_name, training_memory
from p2ptrain.models.forward import forward, generate, held_out_loss, next_token_loss
from tests.train.hand import TINY, tiny_windows


def flat(**options: int) -> torch.Tensor:
    layers = model_by_name("byte_gpt", **{**TINY, **options})
    return torch.cat([p.detach().flatten() for layer in layers for p in layer.parameters()])


def test_initial_values_are_pinned_bit_by_bit() -> None:
    """The same on every platform and torch release: a change here is a change of every run's first state."""
    digest = blake3(flat().numpy().tobytes()).hexdigest()[:16]
    assert digest == "1795a05d62c0651a"
    assert torch.equal(flat(), flat())
    assert not torch.equal(flat(), flat(seed=1))


def test_global_rng_is_neither_used_nor_changed() -> None:
    torch.manual_seed(3)
    before = torch.get_rng_state()
    flat()
    assert torch.equal(torch.get_rng_state(), before)


def test_layers_do_not_depend_on_how_many_there_are() -> None:
    short, long = model_by_name("byte_gpt", **TINY), model_by_name("byte_gpt", **{**TINY, "layers": 3})
    assert torch.equal(short[1].query_key_value, long[1].query_key_value)
    assert not torch.equal(long[1].query_key_value, long[2].query_key_value)


@pytest.mark.parametrize("shape", [ByteGPTShape(2, 32, 4, 8), ByteGPTShape(1, 16, 2, 16, vocabulary=300)])
def test_counted_parameters_are_the_built_ones(shape: ByteGPTShape) -> None:
    layers = model_by_name("byte_gpt", **vars(shape))
    built = tuple(sum(p.numel() for p in layer.parameters()) for layer in layers)
    assert built == shape.layer_parameters()
    assert sum(built) == shape.parameters()


def test_a_span_is_a_slice() -> None:
    layers = model_by_name("byte_gpt", **{**TINY, "layers": 3})
    inputs, _ = tiny_windows().microbatch(0)
    whole = forward(layers, inputs)
    assert torch.equal(forward(layers[3:], forward(layers[:3], inputs)), whole)
    assert whole.shape == (2, 16, 256)


def test_first_loss_is_that_of_a_uniform_guess() -> None:
    layers = model_by_name("byte_gpt", **TINY)
    assert next_token_loss(layers, *tiny_windows().microbatch(0)).item() == pytest.approx(math.log(256), abs=0.1)


def test_attention_sees_no_future() -> None:
    layers = model_by_name("byte_gpt", **TINY)
    with torch.no_grad():
        layers[1].mix.normal_(generator=torch.Generator().manual_seed(0))
    inputs, _ = tiny_windows().microbatch(0)
    changed = inputs.clone()
    changed[:, 10:] = 1
    before, after = forward(layers, inputs), forward(layers, changed)
    torch.testing.assert_close(before[:, :10], after[:, :10])
    assert not torch.equal(before[:, 10:], after[:, 10:])


def test_gradients_repeat_bit_by_bit() -> None:
    layers = model_by_name("byte_gpt", **TINY)
    parameters = [p for layer in layers for p in layer.parameters()]
    batch = tiny_windows(8).microbatch(1)
    first = torch.autograd.grad(next_token_loss(layers, *batch), parameters)
    second = torch.autograd.grad(next_token_loss(layers, *batch), parameters)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_sampling_is_seeded_and_continues_the_prompt() -> None:
    layers = model_by_name("byte_gpt", **TINY)
    texts = [generate(layers, b"def ", 30, torch.Generator().manual_seed(seed)) for seed in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]
    assert texts[0].startswith(b"def ") and len(texts[0]) == 34
    assert len(generate(layers, b"", 3, torch.Generator())) == 4


def test_held_out_loss_needs_data() -> None:
    with pytest.raises(ConfigError, match="no held-out"):
        held_out_loss(model_by_name("byte_gpt", **TINY), [])


def test_memory_follows_trained_values() -> None:
    ordinary, exact = training_memory(1000, 10), training_memory(1000, 10, exact=True)
    assert (ordinary.state_bytes, ordinary.gradient_bytes, ordinary.total_bytes) == (12_000, 8_000, 20_010)
    assert exact.gradient_bytes == 4_000 + 16_000
