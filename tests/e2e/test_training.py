"""What is exchanged: codecs, damage that is found and healed, gradients that are refused."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from p2ptrain.lab.processes import Peer, Swarm
from tests.e2e.plants import BadGradients
from tests.e2e.support import check, heal, manifest, swarm_of, wait_voters

pytestmark = pytest.mark.e2e


def loss_of(peer: Peer, first: int, last: int) -> float:
    losses = [
        fact["loss"] for fact in peer.of("round") if first <= fact["round"] <= last and fact["loss"] == fact["loss"]
    ]
    return sum(losses) / len(losses)


@pytest.mark.parametrize(
    "codec",
    [
        "int8",
        pytest.param("fp16", marks=pytest.mark.soak),
        pytest.param("none", marks=pytest.mark.soak),
        pytest.param("bf16", marks=pytest.mark.soak),
    ],
)
def test_peers_learn_together_and_hold_the_same_bits(tmp_path: Path, codec: str) -> None:
    with swarm_of(tmp_path, "abc", manifest(sync={"codec": codec}), extra_wait_s=0.0) as swarm:
        start = swarm.peers["a"].round
        swarm.wait_round(start + 60)
        a = swarm.peers["a"]
        assert loss_of(a, start + 50, start + 60) < 0.9 * loss_of(a, 1, 3)
        assert swarm.check_digests() > 100
        assert a.of("round")[-1]["bytes_sent"] > 0


@pytest.mark.parametrize("policy", ["majority", pytest.param("any", marks=pytest.mark.soak)])
def test_a_flipped_bit_is_found_within_16_rounds_and_healed(tmp_path: Path, policy: str) -> None:
    """G1. Three peers: two agree, so the third pulls the slice again; its wrong digest stood for one round."""
    with swarm_of(tmp_path, "abc", manifest(commit=policy)) as swarm:
        victim = swarm.peers["b"]
        since = len(victim.facts)
        victim.do("corrupt", index=12_345)
        round = victim.wait_kind("corrupted", since=since)["round"]
        found = victim.wait_for(
            lambda f: f["ev"] == "say" and f["key"] == "healing", 30.0, "the damage to be found", since
        )
        assert round <= found["round"] <= round + 18
        swarm.wait_round(found["round"] + 18)
        told: dict[int, set[tuple[str, str]]] = {}
        for peer in swarm.alive:
            for fact in peer.of("applied"):
                told.setdefault(fact["round"], set()).add((fact["chain"], fact["slice"]))
        differ = [round for round, bases in told.items() if len(bases) > 1]
        assert differ == [found["round"] - 1], "one round showed the damage, none after it"


@pytest.mark.parametrize("unseen", [False, True], ids=["seen by itself", "seen by the reducers"])
def test_gradients_that_are_not_finite_are_refused_and_the_round_goes_on(tmp_path: Path, unseen: bool) -> None:
    with swarm_of(tmp_path, "abc") as swarm:
        since = time.monotonic()
        bad = heal_with(swarm, "bad", BadGradients(unseen), 4)
        named = [peer for peer in swarm.alive if peer is not bad]

        def is_named(fact: dict[str, object]) -> bool:
            left_out = fact["left_out"] if fact["ev"] == "round" else []
            return any(peer == bad.peer and "not finite" in reason for peer, reason in left_out)  # type: ignore[union-attr]

        for peer in named:
            peer.wait_round(peer.round + 10)
        assert any(is_named(fact) for peer in named for fact in peer.facts if fact["t"] > since)
        after = [fact for fact in named[0].of("round")[-5:] if fact["loss"] == fact["loss"]]
        assert after and all(0 < fact["loss"] < 8 for fact in after)
        assert all(fact["counted"] > 0 for fact in named[0].of("round"))
        check(swarm)


def heal_with(swarm: Swarm, name: str, plant: object, count: int) -> Peer:
    return heal(swarm, name, count, setups=[plant])


def test_in_exact_mode_a_peer_with_bad_gradients_costs_no_microbatch(tmp_path: Path) -> None:
    """What it refuses, others compute: every round still counts all of its ids (C3)."""
    run = manifest(sync={"codec": "none", "exact": True})
    with swarm_of(tmp_path, "ab", run) as swarm:
        heal_with(swarm, "bad", BadGradients(), 3)
        wait_voters(swarm, 3)
        a = swarm.peers["a"]
        a.wait_round(a.round + 8)
        assert all(fact["counted"] == fact["expected"] for fact in a.of("round"))
        check(swarm)
