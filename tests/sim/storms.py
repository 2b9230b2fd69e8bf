"""Building and blowing one storm from its seed: shared by the tests of storms, of roles and of single faults."""

from __future__ import annotations

from p2ptrain.core.types import Policy, RunSpec, Stage
from p2ptrain.sim.checks import Checks
from p2ptrain.sim.churn import Storm, Weather
from p2ptrain.sim.network import NetworkModel
from p2ptrain.sim.world import World

PART = 4096  # values in the smallest part


def spec(policy: Policy, exact: bool = False, microbatches: int = 8, size: int = 100_000, rounds: int = 0) -> RunSpec:
    return RunSpec("r", (Stage(0, 0, 3, size),), microbatches, policy=policy, exact=exact, rounds=rounds)


def swarm(
    policy: Policy,
    seed: int,
    peers: str = "abcd",
    exact: bool = False,
    network: NetworkModel | None = None,
    true_verdicts: bool = True,
    microbatches: int = 8,
    microbatch_s: float = 0.02,
    regions: str = "xyz",
    rounds: int = 0,
    until: float = 3.0,
) -> tuple[World, Checks]:
    """A founder and its joiners, run to virtual time ``until`` with every event checked."""
    world = World(spec(policy, exact, microbatches, rounds=rounds), seed, network)
    checks = Checks(true_verdicts=true_verdicts)
    world.watch.append(checks)
    world.start(peers[0], founds=True, region=regions[0], microbatch_s=microbatch_s)
    world.run(0.5)
    for i, peer in enumerate(peers[1:]):
        world.start(peer, region=regions[i % len(regions)], microbatch_s=microbatch_s)
    world.run(until)
    return world, checks


def storm(
    policy: Policy, seed: int, weather: Weather, exact: bool = False, drop: float = 0.0, seconds: float = 20.0
) -> tuple[str, World, Checks]:
    """Storm, then calm. Returns why the calm did not bring the swarm back, "" if it did."""
    lies = weather.lies or drop > 0
    world, checks = swarm(policy, seed, exact=exact, network=NetworkModel(drop=drop), true_verdicts=not lies)
    blown = Storm(world, weather)
    blown.blow(seconds)
    return blown.calm(60.0, checks), world, checks


def crowd(family: int, peers: int = 50, start_s: float = 1.0) -> tuple[World, Checks]:
    """Many peers that join at once, checked after every event. Families differ by policy, exactness and seed."""
    policy = Policy.ANY if family % 2 else Policy.MAJORITY
    run = spec(policy, exact=family % 4 < 2, microbatches=16, size=3 * PART)
    world = World(run, family, NetworkModel(local_s=0.004, remote_s=0.012))
    checks = Checks()
    world.watch.append(checks)
    names = [f"p{i:02}" for i in range(peers)]
    world.start(names[0], founds=True, region="r0", microbatch_s=0.01)
    world.run(0.01)
    for i, name in enumerate(names[1:]):
        world.start(name, region=f"r{i % 3}", contacts=(names[0],), microbatch_s=0.1)
    world.run(start_s)
    return world, checks


def storm_in_a_crowd(world: World, seed: int, seconds: float = 0.7) -> None:
    """Kills, goodbyes and joins by ``seed`` from here on; every draw of the world and of the nodes is its own."""
    world.rng.seed(seed)
    for peer, sim in sorted(world.peers.items()):
        sim.node.desk.rng.seed(f"{seed} {peer}")
    Storm(world, Weather(kills=6.0, joins=6.0, leaves=2.0, peers_max=len(world.peers))).blow(seconds)
