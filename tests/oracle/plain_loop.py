"""Exact mode's oracle: the run of a manifest in one process that never met the network, for comparison of digests.

    python -m tests.oracle.plain_loop '{"model": {"name": "byte_gpt"}, "data": {"name": "python_stdlib", "context": 64,
        "samples": 2}, "optimizer": {}, "microbatches": 4, "rounds": 3, "scale": 5.9604644775390625e-08, "threads": 1}'

Knows the model, the data, fixed-point arithmetic and the optimiser; nothing of peers, of the round protocol or ledgers.
Prints one JSON object: the digest of the final state, and the microbatch ids counted in each round.
"""

from __future__ import annotations

import json
import math
import struct
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from blake3 import blake3

from p2ptrain.codec.exact import dequantise_mean, norm_sq_int, quantise
from p2ptrain.data import Corpus, dataset_by_name
from p2ptrain.models import model_by_name
from p2ptrain.models.forward import next_token_loss
from p2ptrain.train.optimizer import AdamWOptions, AdamWStep, Powers, clip_factor

Planted = Sequence[tuple[int, int]]


def train(plan: Mapping[str, Any], corpus: Corpus | None = None, planted: Planted = ()) -> dict[str, Any]:
    """``planted``: (id, times) of microbatches that are wrongly counted that many times instead of once."""
    torch.set_num_threads(plan["threads"])
    layers = model_by_name(**plan["model"])
    data = dataset_by_name(**plan["data"], corpus=corpus)
    options = AdamWOptions(**plan["optimizer"])
    scale, per_round = plan["scale"], plan["microbatches"]
    trained = [parameter for layer in layers for parameter in layer.parameters() if parameter.requires_grad]
    values = torch.cat([parameter.detach().flatten() for parameter in trained])
    exp_avg, exp_avg_sq, powers = torch.zeros_like(values), torch.zeros_like(values), Powers()
    counted: list[list[int]] = []

    for round in range(plan["rounds"]):
        sums, ids = torch.zeros(values.numel(), dtype=torch.int64), []
        for id in range(round * per_round, (round + 1) * per_round):
            for _ in range(dict(planted).get(id, 1)):
                if quantise(gradient_of(layers, trained, data, id), scale, sums, per_round):
                    ids.append(id)
        norm = math.sqrt(norm_sq_int(sums)) * scale / max(1, len(ids))
        mean = dequantise_mean(sums, scale, max(1, len(ids)))
        step = AdamWStep(options, powers, round, clip_factor(norm, options.clip_norm), values.device)
        step.apply(values, exp_avg, exp_avg_sq, mean)
        powers = step.powers
        put_back(trained, values)
        counted.append(ids)

    header = (values.numel(), plan["rounds"], powers.steps, powers.beta1_power, powers.beta2_power, scale)
    hasher = blake3(struct.pack("<8sqqqddd8x", b"p2pstat1", *header))
    for piece in (values, exp_avg, exp_avg_sq):
        hasher.update(piece.numpy().tobytes())
    return {"digest": hasher.hexdigest(), "counted": counted}


def gradient_of(layers: Sequence[Any], trained: Sequence[torch.Tensor], data: Any, id: int) -> torch.Tensor:
    """Flat gradient of one microbatch, computed alone."""
    for parameter in trained:
        parameter.grad = torch.zeros_like(parameter)
    next_token_loss(layers, *data.microbatch(id)).backward()
    return torch.cat([parameter.grad.flatten() for parameter in trained if parameter.grad is not None])


@torch.no_grad()
def put_back(trained: Sequence[torch.Tensor], values: torch.Tensor) -> None:
    start = 0
    for parameter in trained:
        parameter.copy_(values[start : start + parameter.numel()].view_as(parameter))
        start += parameter.numel()


if __name__ == "__main__":
    print(json.dumps(train(json.loads(sys.argv[1]))))
