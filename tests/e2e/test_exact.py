"""G4 and G1 at their sharpest: a swarm that is hurt all the way ends in the bits of a loop that never met a network."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from p2ptrain.config import Manifest
from p2ptrain.lab.processes import Swarm
from tests.e2e.plants import CountsTwice
from tests.e2e.support import check, manifest, swarm_of, wait_voters

pytestmark = pytest.mark.e2e

ROUNDS = 45


def exact_run(rounds: int) -> Manifest:
    optimiser = {"lr": 3e-3, "warmup_rounds": 4, "schedule": "cosine", "total_rounds": 100, "clip_norm": 0.5}
    return manifest(rounds=rounds, sync={"codec": "none", "exact": True}, optimiser=optimiser)


def oracle(run: Manifest) -> dict[str, Any]:
    """The plain loop, in a process of its own."""
    from p2ptrain.runtime.outfit import optimizer_options
    from p2ptrain.runtime.spec import EXACT_SCALE, model_options

    plan = {
        "model": {"name": run.model.name, **model_options(run)},
        "data": {
            "name": run.data.name,
            **run.data.options,
            "seed": run.seed,
            "context": run.batch.sequence_length,
            "samples": run.batch.microbatch,
        },
        "optimizer": dataclasses.asdict(optimizer_options(run)),
        "microbatches": run.batch.microbatches,
        "rounds": run.rounds,
        "scale": EXACT_SCALE,
        "threads": 1,
    }
    command = [sys.executable, "-m", "tests.oracle.plain_loop", json.dumps(plan)]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=100, check=True)
    return json.loads(done.stdout)


def counted_by_round(swarm: Swarm) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for peer in (*swarm.past, *swarm.peers.values()):
        for fact in peer.of("decided"):
            assert fact["even"], f"round {fact['round']}: parts count different microbatches"
            assert found.setdefault(fact["round"], fact["counted"]) == fact["counted"]
    return found


def test_deaths_in_an_exchange_a_join_and_a_leave_leave_no_trace(tmp_path: Path) -> None:
    """Four peers; two die in one exchange after a part was averaged; one joins, one leaves."""
    run = exact_run(ROUNDS)
    with swarm_of(tmp_path, "abcd", run, extra_wait_s=0.03) as swarm:
        b, c = swarm.peers["b"], swarm.peers["c"]
        round = max(peer.round for peer in swarm.alive) + 2
        for peer in (b, c):
            peer.hold("reduced", when="after", from_round=round)
        held = [peer.wait_kind("held")["round"] for peer in (b, c)]
        killed = [peer.kill() for peer in (b, c)][-1]
        assert held[0] == held[1]
        wait_voters(swarm, 2, killed)
        swarm.refresh_invite()
        e = swarm.start("e", wait=False)
        e.wait_for(lambda f: f["ev"] == "round" and dict(f["contributions"]).get(e.peer), 60.0, "its contribution")
        swarm.peers["d"].terminate()
        assert swarm.peers["d"].wait_end()["error"] == ""
        ends = [swarm.peers[name].wait_end(90.0) for name in "ae"]
        check(swarm)
        counted = counted_by_round(swarm)
    expected = oracle(run)
    assert {end["rounds"] for end in ends} == {ROUNDS}
    assert {end["state"] for end in ends} == {expected["digest"]}
    assert [counted[round] for round in range(1, ROUNDS + 1)] == expected["counted"]


def test_one_microbatch_counted_twice_changes_the_digest(tmp_path: Path) -> None:
    run = exact_run(6)
    with Swarm(tmp_path, run) as swarm:
        swarm.start("a", setups=[CountsTwice(11)], wait=False)
        end = swarm.peers["a"].wait_end()
    assert end["rounds"] == 6
    assert end["state"] != oracle(run)["digest"]
    with Swarm(tmp_path / "honest", run) as swarm:
        swarm.start("a", wait=False)
        assert swarm.peers["a"].wait_end()["state"] == oracle(run)["digest"]
