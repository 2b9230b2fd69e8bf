from __future__ import annotations

import contextlib
import itertools
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from p2ptrain.errors import ConfigError, TrainingError
from p2ptrain.train.optimizer import (
    AdamWOptions,
    AdamWStep,
    Powers,
    check_arithmetic,
    clip_factor,
    cosine_of_half_turns,
)

OPTIONS = AdamWOptions(learning_rate=1e-2, weight_decay=0.1, warmup_rounds=3, decay_rounds=9)
CPU = torch.device("cpu")


def problem(size: int, steps: int) -> tuple[torch.Tensor, list[torch.Tensor]]:
    rng = torch.Generator().manual_seed(4)
    start = torch.randn(size, generator=rng)
    return start, [torch.randn(size, generator=rng) * 10.0 ** (step - 4) for step in range(steps)]


def run(size: int = 300_005, steps: int = 5, device: str = "cpu", ranges: int = 1) -> list[torch.Tensor]:
    start, gradients = problem(size, steps)
    p, m, v = start.to(device), torch.zeros(size, device=device), torch.zeros(size, device=device)
    powers = Powers()
    for round, gradient in enumerate(gradients):
        gradient = gradient.to(device)
        clip = clip_factor(float(gradient.cpu().double().norm()), 3.0)
        step = AdamWStep(OPTIONS, powers, round, clip, torch.device(device))
        borders = [size * index // ranges for index in range(ranges + 1)]
        for first, stop in reversed(list(itertools.pairwise(borders))):
            step.apply(p[first:stop], m[first:stop], v[first:stop], gradient[first:stop])
        powers = step.powers
    return [p.cpu(), m.cpu(), v.cpu()]


def same_bits(left: list[torch.Tensor], right: list[torch.Tensor]) -> bool:
    return all(torch.equal(a.view(torch.int32), b.view(torch.int32)) for a, b in zip(left, right, strict=True))


def test_every_operation_is_rounded_by_itself() -> None:
    """Against numpy, which rounds after each operator: any fused multiply-add would show."""
    size, f = 5000, np.float32
    start, gradients = problem(size, 5)
    p, m, v = start.numpy().copy(), np.zeros(size, f), np.zeros(size, f)
    b1t = b2t = 1.0
    for round, tensor in enumerate(gradients):
        clip = clip_factor(float(tensor.double().norm()), 3.0)
        g = tensor.numpy() * f(clip) if clip != 1.0 else tensor.numpy()
        b1t, b2t = b1t * OPTIONS.beta1, b2t * OPTIONS.beta2
        m = m * f(OPTIONS.beta1) + g * f(1.0 - OPTIONS.beta1)
        v = v * f(OPTIONS.beta2) + (g * g) * f(1.0 - OPTIONS.beta2)
        rate = OPTIONS.rate(round)
        k = (1.0 - b1t) / rate
        below = np.sqrt(v) * f(k / math.sqrt(1.0 - b2t)) + f(OPTIONS.epsilon * k)
        p = p * f(1.0 - rate * OPTIONS.weight_decay) - m / below
        assert p.dtype == m.dtype == v.dtype == f
    assert same_bits(run(size), [torch.from_numpy(array) for array in (p, m, v)])


def test_the_arithmetic_check_agrees_with_numpy_and_sees_another_rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    check_arithmetic(CPU)
    monkeypatch.setattr("p2ptrain.train.optimizer._root", lambda values, out: out.copy_(values.sqrt() * (1 + 1e-7)))
    with pytest.raises(TrainingError, match="not rounded as on other peers"):
        check_arithmetic(CPU)


@pytest.mark.parametrize("split_by_torch", [False, True])
def test_same_bits_with_one_and_two_threads_and_by_ranges(
    monkeypatch: pytest.MonkeyPatch, split_by_torch: bool
) -> None:
    if split_by_torch:
        monkeypatch.setattr("p2ptrain.train.optimizer.one_thread", contextlib.nullcontext)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        one = run()
        torch.set_num_threads(2)
        two = run()
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert same_bits(one, two)
    assert same_bits(one, run(ranges=7))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
def test_same_bits_on_cpu_and_cuda() -> None:
    assert same_bits(run(), run(device="cuda"))


def test_close_to_torchs_adamw() -> None:
    start, gradients = problem(2000, 8)
    options = AdamWOptions(learning_rate=1e-2, weight_decay=0.1, beta2=0.95, clip_norm=0.0)
    theirs = torch.nn.Parameter(start.clone())
    reference = torch.optim.AdamW([theirs], lr=1e-2, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
    ours, m, v, powers = start.clone(), torch.zeros(2000), torch.zeros(2000), Powers()
    for round, gradient in enumerate(gradients):
        theirs.grad = gradient.clone()
        reference.step()
        step = AdamWStep(options, powers, round, 1.0, CPU)
        step.apply(ours, m, v, gradient)
        powers = step.powers
    torch.testing.assert_close(ours, theirs.detach(), rtol=1e-5, atol=1e-6)
    assert not torch.equal(ours, start)


def test_learning_rate_is_a_function_of_the_round() -> None:
    rates = [OPTIONS.rate(round) for round in range(12)]
    assert rates[:3] == pytest.approx([1e-2 / 3, 2e-2 / 3, 1e-2])
    assert rates[3] == pytest.approx(1e-2)
    assert rates[6] == pytest.approx(1e-2 * (0.1 + 0.9 * 0.5))
    assert rates[9] == rates[11] == pytest.approx(1e-3)
    assert AdamWOptions(learning_rate=0.5).rate(10**9) == 0.5


def test_a_rate_of_zero_moves_the_moments_alone() -> None:
    options = AdamWOptions(decay_rounds=1, final_fraction=0.0)
    p, m, v = torch.ones(4), torch.zeros(4), torch.zeros(4)
    AdamWStep(options, Powers(), 1, 1.0, CPU).apply(p, m, v, torch.ones(4))
    assert torch.equal(p, torch.ones(4))
    assert (m > 0).all() and (v > 0).all()


def test_cosine_by_series() -> None:
    for step in range(101):
        assert cosine_of_half_turns(step / 100) == pytest.approx(math.cos(math.pi * step / 100), abs=1e-15)


def test_clip_factor() -> None:
    assert clip_factor(0.5, 1.0) == 1.0
    assert clip_factor(4.0, 1.0) == 0.25
    assert clip_factor(4.0, 0.0) == 1.0


@pytest.mark.parametrize(
    "wrong",
    [
        {"learning_rate": 0.0},
        {"beta1": 1.0},
        {"beta2": math.nan},
        {"epsilon": 0.0},
        {"clip_norm": -1.0},
        {"warmup_rounds": 5, "decay_rounds": 5},
        {"final_fraction": 1.5},
        {"weight_decay": 1e6},
    ],
)
def test_senseless_options_are_refused_by_name(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError) as caught:
        AdamWOptions(**wrong)  # type: ignore[arg-type]
    assert caught.value.fields["key"] in {*wrong, "decay_rounds"}


def test_the_trainer_needs_no_stock_optimiser() -> None:
    """A stock optimiser pulls in torch's compiler (over a second of imports)."""
    code = "import sys, p2ptrain.train.trainer; print('torch._dynamo' in sys.modules)"
    root = Path(__file__).parents[2]
    command = [sys.executable, "-c", code]
    result = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=60, check=True)
    assert result.stdout.strip() == "False"
    assert not [path for path in (root / "p2ptrain").rglob("*.py") if "import torch.optim" in path.read_text()]
