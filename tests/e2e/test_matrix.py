"""Every role is killed in every phase, on a swarm that stays up and heals in between (lesson 5 of the field reports).

``make test`` runs each role and each phase at least once, paired by a seed that stands in the tests' names
(P2PTRAIN_MATRIX_SEED=n repeats it); ``make soak`` runs all pairs under both policies.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator

import pytest

from p2ptrain.lab.phases import LEADER_PHASES, MEMBER_PHASES
from p2ptrain.lab.processes import Peer, Swarm
from tests.e2e.support import check, heal, hold_one, manifest, marks, swarm_of, wait_commits

pytestmark = pytest.mark.e2e

SEED = int(os.environ.get("P2PTRAIN_MATRIX_SEED") or random.SystemRandom().randrange(1000))

MEMBER = list(MEMBER_PHASES)
PULL = ["pulled at 10%", "pulled at 50%", "pulled at 90%"]
CHUNKS = 21  # of this model's state, in chunks of 16 KiB
PHASES_OF: dict[str, list[str]] = {
    "contributor": MEMBER,
    "reducer": MEMBER,
    "leader": [phase for phase in MEMBER if phase != "having"]
    + list(LEADER_PHASES),  # it has no one to tell what it has
    "coordinator": MEMBER,
    "bootstrap": MEMBER,
    "source": ["asked", "pinned", *PULL],
    "joiner": ["asking", "pulling", *PULL, "loading", "loaded", "filling", "accepting"],
}
PAIRS = [(role, phase) for role, phases in PHASES_OF.items() for phase in phases]


def cover(seed: int) -> list[tuple[str, str]]:
    """Pairs in which every role and every phase occurs, as few as a greedy choice needs."""
    rng = random.Random(seed)

    def new(pair: tuple[str, str]) -> set[tuple[str, str]]:
        return {("role", pair[0]), ("phase", pair[1].partition(" at ")[0])}  # one of 10, 50, 90% will do

    left = set().union(*(new(pair) for pair in PAIRS))
    chosen = []
    while left:
        pair = max(PAIRS, key=lambda pair: (len(new(pair) & left), rng.random()))
        chosen.append(pair)
        left -= new(pair)
    return chosen


def cases() -> list[object]:
    quick = cover(SEED)
    found = []
    for policy in ("any", "majority"):
        for role, phase in PAIRS:
            often = policy == "any" and (role, phase) in quick
            often |= policy == "majority" and (role, phase) in MAJORITY_QUICK
            marks = [] if often else [pytest.mark.soak]
            found.append(pytest.param(policy, role, phase, marks=marks, id=f"seed{SEED}-{policy}-{role}-{phase}"))
    return found


_rng = random.Random(SEED)
MAJORITY_QUICK = {(role, _rng.choice(PHASES_OF[role])) for role in ("leader", "coordinator", "reducer", "source")}


@pytest.fixture(scope="module")
def swarms(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Swarm]]:
    """One swarm a policy, started when first asked for: four peers, one of which cannot be dialled."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("P2PTRAIN_HOME", str(tmp_path_factory.mktemp("home")))
        running: dict[str, object] = {}
        stacks = []

        class Lazy(dict):  # type: ignore[type-arg]
            def __missing__(self, policy: str) -> Swarm:
                stack = swarm_of(
                    tmp_path_factory.mktemp(policy),
                    "abcd",
                    manifest(commit=policy),
                    outbound_only="d",
                    snapshot_chunk_bytes=16 << 10,
                )
                self[policy] = stack.__enter__()
                stacks.append(stack)
                return self[policy]

        running = Lazy()
        yield running  # type: ignore[misc]
        for stack in stacks:
            stack.__exit__(None, None, None)


@pytest.mark.parametrize(("policy", "role", "phase"), cases())
def test_kill_9(swarms: dict[str, Swarm], policy: str, role: str, phase: str) -> None:
    swarm = swarms[policy]
    peers = swarm.alive
    assert len(peers) == 4, "the swarm did not heal after the case before"
    if role == "joiner":
        victim = kill_joiner(swarm, phase)
    elif role == "source":
        victim = kill_source(swarm, phase)
    elif role == "bootstrap":
        victim, _ = hold_one(swarm, [swarm.peers["a"]], phase)
        victim.kill()
    else:
        victim, _ = hold_one(swarm, peers, phase, role)
        victim.kill()
    assert victim.killed_at is not None
    survivors = [peer for peer in peers if peer is not victim]
    wait_commits(survivors, victim.killed_at)
    if victim in peers:
        heal(swarm, victim.name, 4, **({"outbound_only": True} if victim.name == "d" else {}))
    check(swarm)


def kill_joiner(swarm: Swarm, phase: str) -> Peer:
    """A fifth peer dies on its way in; its half-done business must not hold anybody up."""
    swarm.refresh_invite()
    joiner = swarm.start("joiner", wait=False, setups=[hold_early(phase)])
    joiner.wait_kind("held", 60.0)
    joiner.kill()
    return joiner


def kill_source(swarm: Swarm, phase: str) -> Peer:
    """The donor dies; the joiner gets its state from the others and takes part."""
    peers = swarm.alive
    swarm.refresh_invite()
    if phase in PULL:
        joiner = swarm.start("joiner", wait=False, setups=[hold_early(phase)])
        donor = joiner.wait_kind("held", 60.0)["peer"]
        victim = next(peer for peer in peers if peer.peer == donor)
        victim.kill()
        joiner.go()
    else:
        since = marks(peers)
        for peer in peers:
            peer.hold(phase)
        joiner = swarm.start("joiner", wait=False)
        victim, _ = swarm.first_held(peers, 60.0, phase, since)
        victim.kill()
        for peer in peers:
            peer.go()
    joiner.wait_for(lambda e: e["ev"] == "round" and joiner.peer in e["voters_next"], 60.0, "its first vote")
    joiner.terminate()
    joiner.wait_end()
    return victim


class hold_early:
    """A setup: the peer holds at ``phase`` from its very first event on (picklable)."""

    def __init__(self, phase: str) -> None:
        self.phase = phase

    def __call__(self, child: object, hooks: object) -> None:
        phase, _, share = self.phase.partition(" at ")
        times = max(1, CHUNKS * int(share.rstrip("%")) // 100) if share else 1
        child.hold_now(phase=phase, times=times)  # type: ignore[attr-defined]
