"""AdamW with the same bits on unlike devices and thread counts (Loshchilov and Hutter, arXiv 1711.05101).

Stock kernels fuse multiply and add, use reciprocals and ``pow``, and differ in the last bit. Here every step is a
separate, correctly rounded elementwise operation (add, subtract, multiply, divide, square root of tensors; a scalar is
only multiplied or added), scalars are computed in double by +, -, *, / and square root alone, and nothing is reduced:
the norm for clipping comes in, taken once by the reducers. torch's own float32 square root on the CPU is *not* rounded
correctly where it goes through MKL's vector library (every sixth value was off by one unit in the last place), so it is
not used. ``check_arithmetic`` proves all this on the machine at hand. With rounding after every operator:

    m = m*b1 + g*(1-b1)        v = v*b2 + (g*g)*(1-b2)
    p = p*(1 - rate*decay)  -  m / (sqrt(v)*c + e)      c = k/sqrt(1-b2^t)   e = eps*k   k = (1-b1^t)/rate

Works on ranges, so that a record can be applied part by part as its chunks are decoded.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy
import torch
from torch import Tensor

from p2ptrain.errors import ConfigError, TrainingError

CHUNK_VALUES = 1 << 17
"""On the CPU: six arrays of this many float32 fit into a core's cache of a few MiB."""
DEVICE_CHUNK_VALUES = 1 << 22

ARITHMETIC_DIGEST = "a86911679f17bb3d662d7eb3c741a294"
"""What ``check_arithmetic`` must find; computed once with numpy, which rounds after each operator."""


@dataclass(frozen=True)
class AdamWOptions:
    """The swarm's optimiser, from the manifest. The learning rate is a function of the round alone."""

    learning_rate: float = 3e-3
    beta1: float = 0.9
    beta2: float = 0.95
    epsilon: float = 1e-8
    weight_decay: float = 0.0
    clip_norm: float = 1.0  # largest L2 norm of the mean gradient; 0: no clipping
    warmup_rounds: int = 0
    decay_rounds: int = 0  # cosine decay ends at this round; 0: constant after the warm-up
    final_fraction: float = 0.1  # of the learning rate, after the decay

    def __post_init__(self) -> None:
        checks = {
            "learning_rate": 0.0 < self.learning_rate < math.inf,
            "beta1": 0.0 <= self.beta1 < 1.0,
            "beta2": 0.0 <= self.beta2 < 1.0,
            "epsilon": 0.0 < self.epsilon < math.inf,
            "weight_decay": 0.0 <= self.weight_decay * self.learning_rate < 1.0,
            "clip_norm": 0.0 <= self.clip_norm < math.inf,
            "warmup_rounds": self.warmup_rounds >= 0,
            "decay_rounds": self.decay_rounds == 0 or self.decay_rounds > self.warmup_rounds,
            "final_fraction": 0.0 <= self.final_fraction <= 1.0,
        }
        for key, holds in checks.items():
            if not holds:
                raise ConfigError(f"optimizer: {key} = {getattr(self, key)!r} is out of range", key=key)

    def rate(self, round: int) -> float:
        """Learning rate of ``round`` (0 is the first): linear warm-up, then constant or cosine. Never 0 in warm-up."""
        if round < self.warmup_rounds:
            return self.learning_rate * ((round + 1) / self.warmup_rounds)
        if not self.decay_rounds:
            return self.learning_rate
        past = min(1.0, (round - self.warmup_rounds) / (self.decay_rounds - self.warmup_rounds))
        share = self.final_fraction + (1.0 - self.final_fraction) * (0.5 * (1.0 + cosine_of_half_turns(past)))
        return self.learning_rate * share


@dataclass(frozen=True)
class Powers:
    """The optimiser's scalar state: steps done, and beta^steps by repeated multiplication."""

    steps: int = 0
    beta1_power: float = 1.0
    beta2_power: float = 1.0

    def next(self, options: AdamWOptions) -> Powers:
        return Powers(self.steps + 1, self.beta1_power * options.beta1, self.beta2_power * options.beta2)


def clip_factor(norm: float, clip_norm: float) -> float:
    """What the mean gradient is multiplied by, in double; exactly 1.0 if it is not clipped."""
    return clip_norm / norm if clip_norm > 0.0 and norm > clip_norm else 1.0


class AdamWStep:
    """One update, its scalars fixed; ``apply`` it to disjoint ranges in any order. ``powers``: the state after it."""

    def __init__(self, options: AdamWOptions, powers: Powers, round: int, clip: float, device: torch.device) -> None:
        self.powers = powers.next(options)
        rate = options.rate(round)
        self._clip = clip
        self._beta1, self._rest1 = options.beta1, 1.0 - options.beta1
        self._beta2, self._rest2 = options.beta2, 1.0 - options.beta2
        self._keep = 1.0 - rate * options.weight_decay
        self._frozen = rate == 0.0  # a schedule may end at zero: moments move on, parameters stay
        stretch = 1.0 if self._frozen else (1.0 - self.powers.beta1_power) / rate
        self._root_factor = stretch / math.sqrt(1.0 - self.powers.beta2_power)
        self._epsilon = options.epsilon * stretch
        self._chunk = CHUNK_VALUES if device.type == "cpu" else DEVICE_CHUNK_VALUES
        self._scratch = torch.empty(2, self._chunk, dtype=torch.float32, device=device)

    @torch.no_grad()
    def apply(self, parameters: Tensor, exp_avg: Tensor, exp_avg_sq: Tensor, gradient: Tensor) -> None:
        """Update (n,) float32 views in place with the mean gradient (n,), which is left as it is."""
        with one_thread():
            for start in range(0, len(parameters), self._chunk):
                cut = slice(start, start + self._chunk)
                self._apply_chunk(parameters[cut], exp_avg[cut], exp_avg_sq[cut], gradient[cut])

    def _apply_chunk(self, p: Tensor, m: Tensor, v: Tensor, g: Tensor) -> None:
        one, two = self._scratch[0, : len(p)], self._scratch[1, : len(p)]
        if self._clip != 1.0:
            g = torch.mul(g, self._clip, out=one)
        torch.mul(g, self._rest1, out=two)
        m.mul_(self._beta1).add_(two)
        torch.mul(g, g, out=one).mul_(self._rest2)
        v.mul_(self._beta2).add_(one)
        if self._frozen:
            return
        _root(v, one).mul_(self._root_factor).add_(self._epsilon)
        torch.div(m, one, out=two)
        if self._keep != 1.0:
            p.mul_(self._keep)
        p.sub_(two)


@contextmanager
def one_thread() -> Iterator[None]:
    """torch stays in the calling thread meanwhile. Thousands of short operations would each meet at a barrier: with two
    threads on two cores that others use as well, an update of 25 M values took 4 s instead of 0.1 s."""
    threads = torch.get_num_threads()
    try:
        if threads > 1:
            torch.set_num_threads(1)
        yield
    finally:
        if threads > 1:
            torch.set_num_threads(threads)


def check_arithmetic(device: torch.device) -> None:
    """Raises TrainingError if this device's arithmetic gives other bits than all peers must have. Milliseconds."""
    count, steps = 4099, 3
    place = torch.arange(3 * count, dtype=torch.int64) * 2_654_435_761 % 2**32
    p, m, v = ((place - 2**31).to(torch.float32) * 2.0**-31).to(device).split(count)
    v.mul_(v)
    options, powers = AdamWOptions(weight_decay=0.1, decay_rounds=steps), Powers()
    for round in range(steps):
        step = AdamWStep(options, powers, round, 0.7, device)
        step.apply(p, m, v, m * p)
        powers = step.powers
    digest = hashlib.blake2b(b"".join(x.cpu().numpy().tobytes() for x in (p, m, v)), digest_size=16).hexdigest()
    if digest != ARITHMETIC_DIGEST:
        raise TrainingError(
            f"float32 arithmetic on {device} is not rounded as on other peers: every round would end in a re-pull",
            hint="train on the CPU, or with another build of torch and numpy",
            digest=digest,
        )


def _root(values: Tensor, out: Tensor) -> Tensor:
    """Correctly rounded float32 square root into ``out``. By way of double it stays correct even if the double root is
    off by a few units: no root of a float32 lies that near to the middle between two."""
    if values.device.type == "cpu":
        numpy.sqrt(values.numpy(), out=out.numpy())
        return out
    return out.copy_(values.to(torch.float64).sqrt_())


def cosine_of_half_turns(x: float) -> float:
    """cos(pi x) for x in [0, 1] by its series: only + and *, so the same double everywhere (libm's may differ)."""
    if x > 0.5:
        return -cosine_of_half_turns(1.0 - x)
    square = (math.pi * x) * (math.pi * x)
    total, term = 1.0, 1.0
    for k in range(1, 13):
        term = term * square / ((2 * k - 1) * (2 * k))
        total = total - term if k % 2 else total + term
    return total
