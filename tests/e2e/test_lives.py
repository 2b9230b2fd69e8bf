"""Deaths, silences and returns that are more than one kill: whole lives of a small swarm."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from p2ptrain.core.types import Knobs
from p2ptrain.lab.processes import Swarm
from tests.e2e.support import (
    check,
    heal,
    hold_one,
    manifest,
    marks,
    swarm_of,
    wait_commits,
    wait_stalled,
    wait_voters,
)

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def swarm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Swarm]:
    """Three peers under ``any``; each test leaves three behind."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("P2PTRAIN_HOME", str(tmp_path_factory.mktemp("home")))
        with swarm_of(tmp_path_factory.mktemp("any"), "abc") as swarm:
            yield swarm


def test_a_stopped_peer_comes_back_and_does_not_believe_that_it_is_current(swarm: Swarm) -> None:
    victim, _ = hold_one(swarm, swarm.alive, "exchanging", "leader")
    others = [peer for peer in swarm.alive if peer is not victim]
    victim.stop()
    stopped = time.monotonic()
    victim.go()
    wait_commits(others, stopped, rounds=8)
    behind = others[0].round
    back = time.monotonic()
    victim.cont()
    victim.wait_for(lambda e: e["ev"] == "applied" and e["t"] > back and e["round"] >= behind, 30.0, "what it missed")
    wait_voters(swarm, 3, since=back)
    check(swarm)


def test_a_machine_that_comes_back_at_once_replaces_its_ghost(swarm: Swarm) -> None:
    """Same key, a new life, from its last known peers: the old life's vote dies by that proof."""
    victim = swarm.peers["b"]
    killed = victim.kill()
    victim.process.join(10)
    swarm.start("b", wait=False, invite=swarm.invite)
    wait_commits([swarm.peers["a"], swarm.peers["c"]], killed)
    fresh = swarm.peers["b"]
    fresh.wait_kind("ready")
    fresh.wait_for(lambda e: e["ev"] == "round" and fresh.peer in e["voters_next"], 30.0, "its vote")
    wait_voters(swarm, 3, since=killed)
    check(swarm)


@pytest.mark.parametrize("role", ["leader", "coordinator"])
def test_leaving_in_the_middle_of_a_round_is_no_fault(swarm: Swarm, role: str) -> None:
    """SIGTERM: it contributes, says goodbye with a signature, and ends with a clean fact; nobody suspects anybody."""
    leaver, _ = hold_one(swarm, swarm.alive, "filling", role)
    others = [peer for peer in swarm.alive if peer is not leaver]
    since = marks(others)
    leaver.terminate()
    leaver.go()
    end = leaver.wait_end()
    assert end["ev"] == "ended" and end["error"] == ""
    wait_commits(others, end["t"], rounds=3)
    for peer in others:
        said = [
            fact["text"]
            for fact in peer.facts[since[peer.name] :]
            if fact["ev"] == "say" and fact["key"] == "peer-lost"
        ]
        assert all("left" in text or "goodbye" in text or "leav" in text for text in said), said
    heal(swarm, leaver.name, 3)
    check(swarm)


def test_two_deaths_at_once_leave_one_that_goes_on_alone(swarm: Swarm) -> None:
    """Under ``any`` down to one peer, and up again."""
    leader, _ = hold_one(swarm, swarm.alive, "exchanging", "leader")
    last = next(peer for peer in swarm.alive if peer is not leader and peer is not swarm.peers["a"])
    others = [peer for peer in swarm.alive if peer is not last]
    for peer in others:
        killed = peer.kill()
    wait_commits([last], killed, rounds=4)
    alone = last.of("round")[-1]
    assert list(alone["contributions"]) == [last.peer] and alone["counted"] == 8
    for count, peer in enumerate(others, start=2):
        heal(swarm, peer.name, count)
    check(swarm)


def test_one_peer_is_leader_and_coordinator_and_dies_in_every_phase_of_the_round_that_takes_a_newcomer_in(
    tmp_path: Path,
) -> None:
    """Alone, a peer has both roles; the newcomer holds the state but no vote yet: it reforms (section 5, ``any``)."""
    with swarm_of(tmp_path, "a") as swarm:
        for both, newcomer, phase in [("a", "b", "exchanging"), ("b", "c", "proposing"), ("c", "d", "deciding")]:
            peer = swarm.peers[both]
            peer.hold(phase, role="both")
            swarm.refresh_invite()
            other = swarm.start(newcomer, wait=False)
            peer.wait_kind("held", since=0, phase=phase)
            killed = peer.kill()
            last = peer.round
            wait_commits([other], killed, rounds=3)
            applied = [fact["round"] for fact in other.of("applied")]
            assert last + 1 in applied and applied[0] <= last + 1, (
                "it goes on from the dead peer's last committed round"
            )
            swarm.check_digests()


def test_the_first_peer_is_gone_for_good_and_others_still_get_in(tmp_path: Path) -> None:
    """A fresh invite of any member; and last known peers, without an invite that is good for anything."""
    with swarm_of(tmp_path, "abc") as swarm:
        first = swarm.invite
        swarm.peers["a"].kill()
        swarm.peers.pop("a").close()
        heal(swarm, "d", 3)
        b = swarm.peers["b"]
        b.terminate()
        b.wait_end()
        since = time.monotonic()
        swarm.start("b", wait=False, invite=first).wait_kind("ready")  # it names only the dead starter
        wait_voters(swarm, 3, since)
        check(swarm)


def test_majority_stalls_with_a_reason_and_goes_on_once_enough_lives_are_back(tmp_path: Path) -> None:
    """Two of four die: the others are no quorum until both are back, which proves that the old lives are dead."""
    with swarm_of(tmp_path, "abcd", manifest(commit="majority"), knobs=Knobs(stalled_after_s=2.0)) as swarm:
        a, b, c, d = (swarm.peers[name] for name in "abcd")
        invite = swarm.refresh_invite()
        for peer in (b, c):
            killed = peer.kill()
        stalled = wait_stalled(a, killed)
        assert "StalledError" in stalled["text"] and "needs 3 of 4 voters" in stalled["text"]
        assert b.peer[:8] in stalled["text"] and c.peer[:8] in stalled["text"] and "all of them" in stalled["text"]
        round = a.round
        a.do("status")
        status = a.wait_kind("status")["status"]
        assert status["stalled"] and status["round"] == round
        assert any(wait["what"] == "a quorum" and set(wait["on"]) == {b.peer, c.peer} for wait in status["waits"])
        first = swarm.start("b", wait=False, invite=invite)
        first.wait_kind("ready", 60.0)
        assert (a.round, d.round) == (round, round), "three lives of four are no quorum while one silence is unproven"
        back = time.monotonic()
        swarm.start("c", wait=False, invite=invite)
        wait_commits([a, d], back, rounds=3, timeout_s=60.0)
        a.wait_for(lambda e: e["ev"] == "say" and e["key"] == "resumed" and e["t"] > back, 10.0, "that it goes on")
        wait_voters(swarm, 4, back)
        check(swarm)


def test_two_of_a_majority_wait_for_a_goodbye_or_a_return(tmp_path: Path) -> None:
    """With two voters a silent death proves nothing; a leave does."""
    with swarm_of(tmp_path, "ab", manifest(commit="majority")) as swarm:
        a, b = swarm.peers["a"], swarm.peers["b"]
        b.terminate()
        end = b.wait_end()
        wait_commits([a], end["t"], rounds=3)
        heal(swarm, "b", 2)
        check(swarm)
