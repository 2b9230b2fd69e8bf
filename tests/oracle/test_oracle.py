"""The exact-mode oracle: whoever computes which bundle in which order, the bits are those of the plain loop."""

from __future__ import annotations

import ast
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from p2ptrain.train.optimizer import AdamWOptions
from p2ptrain.train.trainer import TrainerOptions
from tests.oracle import plain_loop
from tests.train.hand import TINY, Hand, Parts, record_of, tiny_corpus

SCALE = 2.0**-24
OPTIMIZER: dict[str, Any] = {"learning_rate": 5e-3, "warmup_rounds": 2, "decay_rounds": 8, "weight_decay": 0.1}
PLAN: dict[str, Any] = {
    "model": {"name": "byte_gpt", **TINY},
    "data": {"name": "python_stdlib", "context": 16, "samples": 2},
    "optimizer": OPTIMIZER,
    "microbatches": 6,
    "rounds": 4,
    "scale": SCALE,
    "threads": 1,
}


def swarm_digest(seed: int, planted: tuple[tuple[int, int], ...] = ()) -> str:
    """Two peers compute bundles cut and ordered at random; sums are added in random order; both apply each record."""
    rng = random.Random(seed)
    options = TrainerOptions(AdamWOptions(**OPTIMIZER), exact=True, microbatches=6, first_scale=SCALE)
    parts = Parts()
    with Hand(options, parts=parts) as first, Hand(options, parts=parts) as second:
        for round in range(PLAN["rounds"]):
            ids = [id for id in range(round * 6, round * 6 + 6) for _ in range(dict(planted).get(id, 1))]
            rng.shuffle(ids)
            bundles = []
            while ids:
                taken, ids = ids[:2], ids[2:]
                tensor, done = rng.choice((first, second)).compute(taken, index=len(bundles))
                bundles.append((tensor, done.ids))
            rng.shuffle(bundles)
            record = record_of(
                parts, round + 1, bundles, codec_name="exact", scale=SCALE, microbatches=6, pieces=rng.randint(1, 4)
            )
            assert first.apply(record).base == second.apply(record).base
        assert first.digest() == second.digest()
        return first.digest()


@pytest.fixture(scope="module")
def oracle() -> dict[str, Any]:
    return plain_loop.train(PLAN, tiny_corpus())


@pytest.mark.parametrize("seed", [1, 2])
def test_bundles_split_over_peers_in_any_order_end_in_the_oracles_digest(oracle: dict[str, Any], seed: int) -> None:
    assert swarm_digest(seed) == oracle["digest"]


def test_counted_ids_are_those_of_each_round(oracle: dict[str, Any]) -> None:
    assert oracle["counted"] == [list(range(6 * round, 6 * round + 6)) for round in range(4)]


@pytest.mark.parametrize("planted", [(9, 2), (9, 0)], ids=["doubled", "lost"])
def test_a_planted_microbatch_changes_the_digest(oracle: dict[str, Any], planted: tuple[int, int]) -> None:
    wrong = plain_loop.train(PLAN, tiny_corpus(), [planted])
    assert wrong["digest"] != oracle["digest"]
    assert swarm_digest(3, (planted,)) == wrong["digest"]  # the trainer counts what it is given, no more and no less


def test_the_oracle_is_short_and_knows_nothing_of_the_swarm() -> None:
    source = Path(plain_loop.__file__).read_text()
    assert len(source.splitlines()) <= 100
    named = {node.module for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ImportFrom) and node.module}
    allowed = ("p2ptrain.codec.exact", "p2ptrain.data", "p2ptrain.models", "p2ptrain.train.optimizer")
    assert all(name.startswith(allowed) for name in named if name.startswith("p2ptrain"))
    code = (
        "import sys, tests.oracle.plain_loop\n"
        "bad = ('core', 'runtime', 'net', 'ledger', 'wire', 'train.trainer', 'train.state')\n"
        "print([n for n in sys.modules if n.startswith(tuple('p2ptrain.' + b for b in bad)) or n == 'torch._dynamo'])"
    )
    root = Path(__file__).parents[2]
    command = [sys.executable, "-c", code]
    result = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=60, check=True)
    assert result.stdout.strip() == "[]"
