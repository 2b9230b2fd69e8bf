"""Who dies, stops or hangs, in which role, and how long the others stand still: in virtual time, so exact by seed."""

from __future__ import annotations

import pytest

from p2ptrain.core.events import BundleFailed, LeaveAsked
from p2ptrain.core.types import PeerId, Policy
from p2ptrain.sim.checks import heads
from p2ptrain.sim.network import NetworkModel
from p2ptrain.sim.world import World
from tests.sim.storms import swarm

ROLES = ("leader", "coordinator", "member")
POLICIES = pytest.mark.parametrize("policy", list(Policy), ids=lambda policy: policy.value)


def role_of(world: World, role: str) -> PeerId:
    node = world.peers["b"].node
    leader, coordinator = node.stage.promised.peer, node.coordinator
    if role == "leader":
        return leader
    if role == "coordinator":
        assert coordinator is not None
        return coordinator
    return next(peer for peer in "abcd" if peer not in (leader, coordinator))


def stands_still(world: World, without: PeerId, limit_s: float = 40.0) -> float:
    """Virtual seconds until all others have applied a round more than anybody had."""
    others = [peer for peer, sim in world.peers.items() if peer != without and sim.running]
    before = max(world.peers[peer].node.stage.round for peer in others)
    began = world.now
    moved = world.run(began + limit_s, lambda w: all(w.peers[peer].node.stage.round > before for peer in others))
    assert moved, "; ".join(world.peers[peer].node.describe() for peer in others)
    return world.now - began


def at_work(policy: Policy, seed: int) -> World:
    world, _ = swarm(
        policy, seed, regions="x", network=NetworkModel(local_s=0.002), microbatches=16, microbatch_s=0.03, until=5.0
    )
    world.run(5.0 + world.rng.random())
    assert len(world.peers["b"].node.stage.voters) == 4
    return world


@POLICIES
@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("seed", range(4))
def test_a_kill_costs_less_than_half_a_second(policy: Policy, role: str, seed: int) -> None:
    world = at_work(policy, seed)
    victim = role_of(world, role)
    world.kill(victim)
    assert stands_still(world, victim) < 0.5


@POLICIES
@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("seed", range(2))
def test_a_silent_stop_costs_less_than_two_and_a_half_seconds(policy: Policy, role: str, seed: int) -> None:
    world = at_work(policy, seed)
    victim = role_of(world, role)
    world.stop(victim)
    assert stands_still(world, victim) < 2.5
    world.resume(victim)
    world.run(world.now + 10.0)
    assert len({cut for _, cut in heads(world).values()}) <= 2  # it is back, at most a round behind


@POLICIES
@pytest.mark.parametrize("role", ROLES)
def test_the_work_of_a_silent_peer_is_done_again_while_the_suspicion_runs(policy: Policy, role: str) -> None:
    """Not after the verdict: with microbatches of a quarter of a second that costs the survivors one more of them."""
    world, _ = swarm(
        policy, 1, regions="x", network=NetworkModel(local_s=0.002), microbatches=8, microbatch_s=0.25, until=5.0
    )
    world.run(8.5)
    assert len(world.peers["b"].node.stage.voters) == 4
    victim = role_of(world, role)
    world.stop(victim)
    assert stands_still(world, victim) < 1.6


@POLICIES
@pytest.mark.parametrize("role", ROLES)
def test_a_hung_peer_stalls_nobody(policy: Policy, role: str) -> None:
    world = at_work(policy, 1)
    victim = role_of(world, role)
    world.hang(victim)
    assert stands_still(world, victim) < 15.0
    world.run(world.now + 20.0)
    first = max(sim.node.stage.round for sim in world.peers.values())
    world.run(world.now + 5.0)
    assert max(sim.node.stage.round for sim in world.peers.values()) - first >= 15  # full speed without it


def test_any_goes_on_down_to_one_peer_and_up_again() -> None:
    world, _ = swarm(Policy.ANY, 3)
    for victim in "bcd":
        world.kill(victim)
        world.run(world.now + 2.0)
    assert stands_still(world, "") < 2.0
    for peer in "bcd":
        world.start(peer)
    world.run(world.now + 6.0)
    assert len(world.peers["a"].node.stage.voters) == 4
    assert stands_still(world, "") < 2.0


def test_majority_stalls_with_a_reason_and_goes_on_when_lives_are_back() -> None:
    world, _ = swarm(Policy.MAJORITY, 3)
    world.kill("b")
    world.kill("c")  # two of four: no three can answer, and silence is no proof
    world.run(world.now + 3.0)
    round = world.peers["a"].node.stage.round
    world.run(world.now + 12.0)
    node = world.peers["a"].node
    assert node.stage.round == round
    assert "missing" in node.stalls.text and "b (life 1)" in node.stalls.text
    world.start("b")
    world.start("c")
    world.run(world.now + 8.0)
    assert node.stage.round > round + 3
    assert node.stalls.text == ""


def test_all_voters_die_and_the_learners_go_on_together() -> None:
    world, _ = swarm(Policy.ANY, 5, peers="abcdefghijkl", until=6.0)
    voters = {voter.peer for voter in world.peers["a"].node.stage.voters}
    learners = set(world.peers) - voters
    assert len(learners) == 3
    for peer in sorted(voters):
        world.kill(peer)
    world.run(world.now + 8.0)
    assert stands_still(world, "") < 2.0
    assert {voter.peer for voter in world.peers[min(learners)].node.stage.voters} == learners


@POLICIES
@pytest.mark.parametrize("role", ROLES)
def test_a_graceful_leave_in_each_role(policy: Policy, role: str) -> None:
    world = at_work(policy, 2)
    victim = role_of(world, role)
    world.post(world.peers[victim], LeaveAsked("enough"))
    world.run(world.now + 5.0)
    assert [halt.error for _, peer, halt in world.halts if peer == victim] == [""]
    assert stands_still(world, victim) < 1.0


@POLICIES
def test_the_last_round_ends_the_run_for_all(policy: Policy) -> None:
    world, _ = swarm(policy, 4, rounds=30, until=3.0)
    world.run(40.0)
    assert sorted(peer for _, peer, _ in world.halts) == ["a", "b", "c", "d"]
    assert {sim.node.stage.tip.round for sim in world.peers.values() if sim.node.stage.tip} == {30}
    assert len({sim.hands.state for sim in world.peers.values()}) == 1


@POLICIES
def test_a_flipped_slice_is_found_and_healed_within_a_rotation(policy: Policy) -> None:
    world, _ = swarm(policy, 6)
    world.peers["c"].hands.corrupt_slices.add(9)
    round = world.peers["a"].node.stage.round
    assert world.run(world.now + 30.0, lambda w: not w.peers["c"].hands.corrupt_slices)
    assert world.peers["a"].node.stage.round <= round + 17
    assert any(say.key == "healing" for say in world.peers["c"].said)


@POLICIES
def test_a_stopped_peer_that_believes_itself_current_changes_nothing(policy: Policy) -> None:
    world = at_work(policy, 7)
    world.stop("c")
    world.run(world.now + 10.0)
    world.resume("c")
    world.run(world.now + 5.0)
    tops = heads(world)
    assert max(round for round, _ in tops.values()) - tops["c"][0] <= 1
    assert not world.abandoned


def test_a_contribution_that_is_not_finite_is_refused_and_the_round_goes_on() -> None:
    world, _ = swarm(Policy.ANY, 8, peers="abc")
    sim = world.peers["c"]
    running = sim.node.filling.running
    assert running is not None or world.run(world.now + 2.0, lambda w: sim.node.filling.running is not None)
    running = sim.node.filling.running
    assert running is not None
    round = sim.node.stage.round
    sim.hands.job = None
    world.post(sim, BundleFailed(round, running[0], running[1], "not finite"))
    assert stands_still(world, "") < 2.0
    result = next(result for _, _, result in world.reports if result.round == round)
    assert result.counted == 8 - len(running[1])
    assert any("not finite" in left.reason for left in result.left_out)
