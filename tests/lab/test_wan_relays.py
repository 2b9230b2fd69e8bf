"""The reduced mode: relays on loopback, with real sockets. The dialling peer is told by the port that it listens on."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from p2ptrain.errors import LabError
from p2ptrain.lab.wan import Host, Shape
from p2ptrain.lab.wan.relays import RelayWan

WAIT_S = 30.0

PEER = """
import socket, sys, threading
host, port = sys.argv[1].split(":")
server = socket.create_server((host, int(port)))
def echo(end):
    while data := end.recv(4096):
        end.sendall(data)
def serve():
    while True:
        end, _ = server.accept()
        threading.Thread(target=echo, args=(end,), daemon=True).start()
threading.Thread(target=serve, daemon=True).start()
print("ready", flush=True)
ends = {}
for line in sys.stdin:
    to, word, timeout = line.split()
    if to not in ends:
        h, p = to.split(":")
        ends[to] = socket.create_connection((h, int(p)), 5)
    end = ends[to]
    end.settimeout(float(timeout))
    if word != "-":
        end.sendall(word.encode())
    try:
        print(end.recv(4096).decode("latin-1") or "closed", flush=True)
    except OSError as error:
        print(type(error).__name__, flush=True)
"""


class Peer:
    """A process that listens at a host's place, echoes, and says what it is told to say to others."""

    def __init__(self, wan: RelayWan, host: str) -> None:
        command = [sys.executable, "-c", PEER, wan.place(host).listen]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.announce = wan.place(host).announce
        assert self._line() == "ready"

    def say(self, to: Peer, word: str, timeout_s: float = WAIT_S) -> str:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{to.announce} {word} {timeout_s}\n")
        self.process.stdin.flush()
        return self._line()

    def _line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def wan() -> Iterator[RelayWan]:
    made = RelayWan([Host("a"), Host("b")], seed=1)
    yield made
    made.close()


@pytest.fixture
def peers(wan: RelayWan) -> Iterator[tuple[Peer, Peer]]:
    made = Peer(wan, "a"), Peer(wan, "b")
    yield made
    for peer in made:
        peer.close()


needs_proc = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="who dials is found in /proc")


@needs_proc
def test_bytes_take_their_time_and_are_counted_by_pair(wan: RelayWan, peers: tuple[Peer, Peer]) -> None:
    a, b = peers
    wan.shape("a", "b", Shape(0.04))
    wan.shape("b", "a", Shape(0.03))
    wan.measured()
    assert a.say(b, "hello") == "hello"
    begun = time.monotonic()
    assert a.say(b, "again") == "again"
    assert time.monotonic() - begun >= 0.07
    assert wan.bytes_by_link() == {("a", "b"): 10, ("b", "a"): 10}
    assert wan.lateness_p99_s() > 0.0


@needs_proc
def test_a_cut_is_silence_and_heals(wan: RelayWan, peers: tuple[Peer, Peer]) -> None:
    a, b = peers
    assert a.say(b, "one") == "one"
    wan.cut("b", "a")
    wan.measured()
    assert "imeout" in a.say(b, "two", 0.3)
    assert b.say(a, "other", 0.3) != "other"  # its words do not get through either: b to a is cut
    wan.cut("b", "a", False)
    assert a.say(b, "-") == "two"
    assert b.say(a, "-") == "other"


@needs_proc
def test_flipped_bits(wan: RelayWan, peers: tuple[Peer, Peer]) -> None:
    a, b = peers
    assert a.say(b, "hello") == "hello"
    wan.corrupt("a", 1.0)
    wan.measured()
    assert a.say(b, "hello") != "hello"


def test_a_peer_that_is_gone_is_refused_through_the_relay(wan: RelayWan, peers: tuple[Peer, Peer]) -> None:
    a, b = peers
    b.close()
    assert a.say(b, "hello") in ("closed", "ConnectionResetError", "BrokenPipeError")


def test_closed_means_closed() -> None:
    wan = RelayWan([Host("a")])
    wan.close()
    with pytest.raises(LabError):
        wan.measured()


def test_two_hosts_with_one_name() -> None:
    with pytest.raises(LabError, match="one name"):
        RelayWan([Host("a"), Host("a")])
