"""Bad input and faults, with real processes and sockets: a named error, an exit code, and nobody else disturbed."""

from __future__ import annotations

import dataclasses
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from p2ptrain.lab.processes import Fact, Swarm
from p2ptrain.net.invite import make_invite, parse_invite
from tests.e2e.plants import AsksFirst, Clock, FlipsAChunk, Impatient, OtherLibrary, Version
from tests.e2e.support import check, heal, manifest, swarm_of, wait_commits, wait_voters

pytestmark = pytest.mark.e2e

BLACK_HOLE = "10.255.255.1:7700"


@pytest.fixture(scope="module")
def swarm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Swarm]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("P2PTRAIN_HOME", str(tmp_path_factory.mktemp("home")))
        with swarm_of(tmp_path_factory.mktemp("run"), "ab", snapshot_chunk_bytes=16 << 10) as swarm:
            yield swarm


@pytest.fixture(autouse=True)
def _only_a_and_b_are_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """A case that fails leaves no peer behind for the next."""
    yield
    if "swarm" in request.fixturenames:
        swarm: Swarm = request.getfixturevalue("swarm")
        for name in [name for name in swarm.peers if name not in "ab"]:
            swarm.peers[name].kill()
            swarm.past.append(swarm.peers.pop(name))


def changed(swarm: Swarm, **fields: object) -> str:
    return make_invite(dataclasses.replace(parse_invite(swarm.refresh_invite()), **fields))


def refused(swarm: Swarm, name: str, invite: str, error: str, code: int, **options: object) -> Fact:
    """It ends with this error and exit code; the swarm goes on."""
    since = time.monotonic()
    peer = swarm.start(name, wait=False, invite=invite, **options)
    end = peer.wait_end(60.0)
    assert (end["ev"], end["error"]) == ("failed", error), end
    assert peer.process.exitcode == code
    wait_commits(swarm.alive, since, rounds=2)
    return end


def test_an_invite_of_another_run(swarm: Swarm, tmp_path: Path) -> None:
    """Its certificate is of another root: refused at the handshake, said by name."""
    with Swarm(tmp_path, manifest(name="other")) as other:
        a = other.start("a")
        a.do("leave")
        foreign = parse_invite(other.invite or "")
    good = parse_invite(swarm.refresh_invite())
    invite = make_invite(dataclasses.replace(foreign, addresses=good.addresses))
    end = refused(swarm, "stranger", invite, "AdmissionError", 4)
    assert "another run" in end["text"] and good.addresses[0] in end["text"]


def test_a_run_named_wrongly(swarm: Swarm) -> None:
    """The certificates' run and the invite's differ: the joiner checks its own chain before it dials."""
    invite = changed(swarm, run="0" * 64)
    peer = swarm.start("wrong", wait=False, invite=invite)
    end = peer.wait_end()
    assert end["ev"] == "failed" and end["error"] in ("AdmissionError", "ConfigError")
    assert peer.process.exitcode in (2, 4)


def test_another_version(swarm: Swarm) -> None:
    end = refused(swarm, "old", swarm.refresh_invite(), "AdmissionError", 4, setups=[Version("0.0.1")])
    assert "version" in end["text"] and "0.0.1" in end["text"]


def test_an_expired_invite(swarm: Swarm) -> None:
    """Seen by the joiner's own check of its chain: forty days from now this invite is over."""
    end = refused(swarm, "late", swarm.refresh_invite(), "AdmissionError", 4, setups=[Clock(40 * 86_400.0)])
    assert "expired" in end["text"]


def test_a_clock_that_is_minutes_off_is_no_obstacle(swarm: Swarm) -> None:
    """Certificates are backdated by a day; nothing else looks at the wall clock."""
    for off_s in (-900.0, 900.0):
        peer = heal(swarm, "skewed", 3, setups=[Clock(off_s)])
        peer.terminate()
        assert peer.wait_end()["error"] == ""
    check(swarm)


def test_a_port_in_use(swarm: Swarm) -> None:
    address = parse_invite(swarm.refresh_invite()).addresses[0]
    end = refused(swarm, "squatter", swarm.refresh_invite(), "TransportError", 5, listen=address)
    assert address in end["text"] and "in use" in end["text"]


def test_a_black_holed_address_beside_a_good_one(swarm: Swarm) -> None:
    """Dialled in parallel: the silent one costs nothing."""
    good = parse_invite(swarm.refresh_invite()).addresses
    peer = swarm.start("patient", wait=False, invite=changed(swarm, addresses=(BLACK_HOLE, *good)))
    peer.wait_kind("ready", 30.0)
    peer.wait_for(lambda f: f["ev"] == "round" and peer.peer in f["voters_next"], 60.0, "its vote")
    peer.terminate()
    peer.wait_end()
    check(swarm)


def test_nobody_reachable_names_each_address(swarm: Swarm) -> None:
    invite = changed(swarm, addresses=("127.0.0.1:1", "no-such-host.invalid:7"))
    peer = swarm.start("lonely", wait=False, invite=invite, setups=[Impatient()])
    end = peer.wait_end(90.0)
    assert end["error"] == "TransportError" and peer.process.exitcode == 5
    assert "127.0.0.1:1: refused" in end["text"] and "no-such-host.invalid:7: name" in end["text"]


def test_two_live_peers_with_one_key(swarm: Swarm) -> None:
    """The second one is refused by name, the first is not disturbed."""
    twin = swarm.folder / "twin"
    twin.mkdir(mode=0o700)
    (twin / "keys").mkdir(mode=0o700)
    for key in (swarm.folder / "b" / "keys").iterdir():
        (twin / "keys" / key.name).write_bytes(key.read_bytes())
        (twin / "keys" / key.name).chmod(0o600)
    end = refused(swarm, "twin", swarm.refresh_invite(), "AdmissionError", 4)
    assert "uses this key" in end["text"] or "live peer" in end["text"]
    assert swarm.peers["b"].alive


def test_a_peer_whose_library_differs_pulls_the_corpus(swarm: Swarm) -> None:
    peer = heal(swarm, "distro", 3, setups=[OtherLibrary()])
    log = swarm.log_of("distro").read_text()
    assert "own files differ" in log
    assert list((swarm.folder / "distro" / "data").glob("*.corpus"))
    peer.terminate()
    peer.wait_end()
    check(swarm)


def test_a_flipped_bit_in_a_state_chunk_is_refused_and_pulled_elsewhere(swarm: Swarm) -> None:
    """The liar has joined like anybody; whoever pulls from it does not believe it, and gets the state from others."""
    liar = heal(swarm, "liar", 3, setups=[FlipsAChunk()])
    joiner = heal(swarm, "believer", 4, setups=[AsksFirst(liar.peer)])
    assert {fact["peer"] for fact in joiner.of("lied")} == {liar.peer}
    for peer in (joiner, liar):
        peer.terminate()
        peer.wait_end()
    check(swarm)


def test_an_outbound_only_peer_takes_part(swarm: Swarm) -> None:
    """It contributes and votes over connections it opened; it reduces and leads nothing."""
    peer = heal(swarm, "hidden", 3, outbound_only=True)
    since = len(peer.facts)
    peer.wait_for(
        lambda f: f["ev"] == "round" and dict(f["contributions"]).get(peer.peer, 0) > 0, 30.0, "its work", since
    )
    swarm.wait_round(swarm.peers["a"].round + 6)
    assert peer.of("round")[-1]["voters_next"].count(peer.peer) == 1
    for fact in peer.of("begin"):
        assert peer.peer not in fact["reducers"] and fact["leader"] != peer.peer
    peer.terminate()
    peer.wait_end()
    check(swarm)


def test_a_joiner_that_cannot_be_dialled_finds_out_and_takes_part_outbound_only(swarm: Swarm) -> None:
    """The first member it meets dials back; it then announces no address and says so in one line."""
    peer = heal(swarm, "walled", 3, announce="127.0.0.1:9")
    lines = [
        line for line in swarm.log_of("walled").read_text().splitlines() if "cannot be dialled from outside" in line
    ]
    assert len(lines) == 1 and "127.0.0.1:9: refused" in lines[0]
    a = swarm.peers["a"]
    a.do("status")
    members = {member["peer"]: member for member in a.wait_kind("status")["status"]["members"]}
    assert members[peer.peer]["addresses"] == []
    swarm.wait_round(swarm.peers["a"].round + 6)
    assert all(peer.peer not in fact["reducers"] and fact["leader"] != peer.peer for fact in peer.of("begin"))
    assert sum(dict(fact["contributions"]).get(peer.peer, 0) > 0 for fact in peer.of("round")) >= 3
    check(swarm)


def test_an_ended_peer_leaves_nothing_behind(swarm: Swarm) -> None:
    """Port, threads and process are gone soon after the goodbye; its files are private."""
    peer = heal(swarm, "guest", 3)
    address = parse_invite(peer.of("ready")[0]["invite"]).addresses[0]
    since = time.monotonic()
    peer.terminate()
    end = peer.wait_end(20.0)
    assert (end["ev"], end["error"], peer.process.exitcode) == ("ended", "", 0)
    assert [name for name in end["threads"] if "_poll_wrapper" not in name] == [
        "MainThread"
    ]  # grpc.aio keeps its poller
    assert all(path.stat().st_mode & 0o077 == 0 for path in (swarm.folder / "guest" / "keys").iterdir())
    host, _, port = address.rpartition(":")
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, int(port)))
    wait_commits(swarm.alive, since)


@pytest.mark.parametrize("policy", ["any", pytest.param("majority", marks=pytest.mark.soak)])
def test_a_hung_peer_that_keeps_its_connections_is_gone_on_without(tmp_path: Path, policy: str) -> None:
    """Its sockets live (gRPC answers pings), its loop does not."""
    with swarm_of(tmp_path, "abc", manifest(commit=policy)) as swarm:
        hung = swarm.peers["b"]
        hung.hold("exchanging")
        hung.wait_kind("held")
        others = [peer for peer in swarm.alive if peer is not hung]
        wait_commits(others, time.monotonic(), rounds=4)
        hung.go()
        wait_voters(swarm, 3, time.monotonic())
        check(swarm)
