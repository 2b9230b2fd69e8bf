"""Storms by seed on the production code: no invariant is ever broken, and in the calm the swarm finds back (I10).

A failure names its seed. To repeat one:  pytest tests/sim/test_storms.py -k 'any-stops and 7'
"""

from __future__ import annotations

import gc
import multiprocessing
from concurrent.futures import ProcessPoolExecutor

import pytest

from p2ptrain.core.types import Policy
from p2ptrain.sim.churn import Weather
from tests.sim.storms import large, storm

WEATHERS = {
    "kills": (Weather(), 0.0),
    "stops": (Weather(stops=0.2, partitions=0.1), 0.0),
    "flips": (Weather(stops=0.2, partitions=0.1, flips=0.1), 0.0),
    "drops": (Weather(stops=0.2, partitions=0.1), 0.02),
}
CASES = [(policy, name, exact) for policy in Policy for name in WEATHERS for exact in (False, True)]
NAMES = [f"{policy.value}-{name}{'-exact' if exact else ''}" for policy, name, exact in CASES]
LARGE_SEEDS = 200


@pytest.mark.parametrize("seed", [0])
@pytest.mark.parametrize(("policy", "name", "exact"), CASES, ids=NAMES)
def test_a_storm_breaks_nothing_and_the_calm_brings_the_swarm_back(
    policy: Policy, name: str, exact: bool, seed: int
) -> None:
    weather, drop = WEATHERS[name]
    stalled, _, checks = storm(policy, seed, weather, exact=exact, drop=drop, seconds=12.0)
    assert stalled == ""
    assert checks.commits > 0


# Each of these once stalled or broke an invariant (the fault is named); kept on the weather that showed it.
ONCE_BROKEN = [
    (Policy.ANY, 2, "flips", False),  # trouble of an exchange told once and lost: nobody mended it
    (Policy.ANY, 1, "flips", True),  # a joiner dialled its first contacts once only
    (Policy.MAJORITY, 2, "drops", True),  # overlapping bundles: the missing id was leased to who had it already
    (Policy.ANY, 10, "kills", False),  # a last holder said goodbye before anybody had what it had decided
    (Policy.ANY, 27, "kills", True),  # a follower fetched rounds one by one, slower than they were decided
    (Policy.MAJORITY, 12, "stops", False),  # the same; parts of a decided round released everywhere
]


@pytest.mark.parametrize(("policy", "seed", "name", "exact"), ONCE_BROKEN)
def test_seeds_that_once_broke(policy: Policy, seed: int, name: str, exact: bool) -> None:
    weather, drop = WEATHERS[name]
    stalled, _, _ = storm(policy, seed, weather, exact=exact, drop=drop)
    assert stalled == ""


@pytest.mark.timeout(1500)
def test_two_hundred_seeds_of_fifty_peers() -> None:
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(2, mp_context=context) as pool:
        outcomes = list(pool.map(_large, range(LARGE_SEEDS), chunksize=10))
    broken = [f"seed {seed}: {why}" for seed, (why, _) in enumerate(outcomes) if why]
    assert not broken, broken[:5]
    assert sum(commits for _, commits in outcomes) > 10 * LARGE_SEEDS


def _large(seed: int) -> tuple[str, int]:
    gc.disable()
    try:
        _, checks = large(seed)
    except AssertionError as error:
        return str(error), 0
    finally:
        gc.enable()
        gc.collect()
    return "", checks.commits


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("policy", "name", "exact"), CASES, ids=NAMES)
def test_many_seeds(policy: Policy, name: str, exact: bool) -> None:
    weather, drop = WEATHERS[name]
    stalled = {seed: storm(policy, seed, weather, exact=exact, drop=drop)[0] for seed in range(100, 140)}
    assert {seed: why[:300] for seed, why in stalled.items() if why} == {}
