"""Real namespaces and packets, where this machine allows them: delays, cuts, NAT, and that nothing stays behind."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import pytest

from p2ptrain.errors import LabError
from p2ptrain.lab.owner import Owner
from p2ptrain.lab.wan import Host, Place, Shape
from p2ptrain.lab.wan import namespaces as ns
from p2ptrain.lab.wan.emulated import NamespaceWan
from p2ptrain.lab.wan.opening import open_wan
from tests.lab.waiting import eventually

WHY_NOT = ns.why_not()
needs_namespaces = pytest.mark.skipif(bool(WHY_NOT), reason=f"no namespaces here: {WHY_NOT}")
WAIT_S = 30.0
T = TypeVar("T")


def inside(place: Place, action: Callable[[], T]) -> T:
    """Run ``action`` in a thread that lives in the namespace."""

    def run() -> T:
        ns.enter(place.namespace)
        return action()

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(run).result(WAIT_S)


class Echo:
    """Answers every connection to a place with what it gets, until closed."""

    def __init__(self, place: Place) -> None:
        self.address = (place.listen.rpartition(":")[0], ns.PEER_PORT)
        self.server = inside(place, lambda: socket.create_server(self.address))
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                end, _ = self.server.accept()
            except OSError:
                return
            threading.Thread(target=self._answer, args=(end,), daemon=True).start()

    def _answer(self, end: socket.socket) -> None:
        with end:
            while data := end.recv(4096):
                end.sendall(data)

    def close(self) -> None:
        self.server.close()


def dial(place: Place, address: tuple[str, int], timeout_s: float = 5.0) -> socket.socket:
    return inside(place, lambda: socket.create_connection(address, timeout_s))


def said(end: socket.socket, word: bytes, timeout_s: float) -> bool:
    """Whether ``word`` comes back in time."""
    end.settimeout(timeout_s)
    end.sendall(word)
    try:
        return end.recv(100).endswith(word)
    except TimeoutError:
        return False


@pytest.fixture
def wan() -> Iterator[NamespaceWan]:
    made = NamespaceWan([Host("a"), Host("b"), Host("home", nat=True)], seed=1)
    yield made
    made.close()


@needs_namespaces
def test_packets_take_their_time_and_are_counted(wan: NamespaceWan) -> None:
    wan.shape("a", "b", Shape(0.03))
    wan.shape("b", "a", Shape(0.02))
    echo = Echo(wan.place("b"))
    with dial(wan.place("a"), echo.address) as end:
        begun = time.monotonic()
        assert said(end, b"hello", WAIT_S)
        assert time.monotonic() - begun >= 0.05
    echo.close()
    counted = wan.bytes_by_link()
    assert counted["a", "b"] > 5 and counted["b", "a"] > 5
    assert wan.lateness_p99_s() > 0.0


@needs_namespaces
def test_cut_one_way_and_heal(wan: NamespaceWan) -> None:
    echo = Echo(wan.place("b"))
    with dial(wan.place("a"), echo.address) as end:
        assert said(end, b"one", WAIT_S)
        wan.cut("b", "a")
        wan.measured()  # an answer: the order before it is carried out
        assert not said(end, b"two", 0.3)
        wan.cut("b", "a", False)
        end.settimeout(WAIT_S)
        assert end.recv(100) == b"two"  # nothing is lost for TCP
    echo.close()


@needs_namespaces
def test_nobody_dials_into_a_nat_but_it_dials_out(wan: NamespaceWan) -> None:
    behind, outside = Echo(wan.place("home")), Echo(wan.place("a"))
    with pytest.raises(OSError):
        dial(wan.place("a"), behind.address, 0.5)
    with dial(wan.place("home"), outside.address) as end:
        assert said(end, b"hello", WAIT_S)
    behind.close()
    outside.close()


@needs_namespaces
def test_a_flipped_bit_reaches_the_application(wan: NamespaceWan) -> None:
    echo = Echo(wan.place("b"))
    with dial(wan.place("a"), echo.address) as end:
        assert said(end, b"hello", WAIT_S)
        wan.corrupt("a", 1.0)
        wan.measured()
        end.sendall(b"hello")
        end.settimeout(WAIT_S)
        back = end.recv(100)
        assert len(back) == 5 and back != b"hello"
    echo.close()


@needs_namespaces
def test_nothing_is_left_after_close() -> None:
    wan = NamespaceWan([Host("a"), Host("b")])
    names = [Path(wan.place(host).namespace) for host in ("a", "b")]
    assert all(name.exists() for name in names)
    wan.close()
    assert not any(name.exists() for name in names) and not wan._note.exists()
    with pytest.raises(LabError):
        wan.cut("a", "b")


@needs_namespaces
def test_two_hosts_with_one_name_are_refused_and_nothing_stays() -> None:
    before = set(ns.NOTES.glob("*")) if ns.NOTES.is_dir() else set()
    with pytest.raises(LabError, match="one name"):
        NamespaceWan([Host("a"), Host("a")])
    assert set(ns.NOTES.glob("*")) - before == set()


OWNER = """
import sys, time
from p2ptrain.lab.wan import Host
from p2ptrain.lab.wan.emulated import NamespaceWan
wan = NamespaceWan([Host("a"), Host("b")])
print(wan._note, wan._router.pid, wan.place("a").namespace, wan.place("b").namespace, flush=True)
time.sleep(600)
"""


def owner() -> tuple[subprocess.Popen[str], Path, int, list[Path]]:
    process = subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    note, router, *names = process.stdout.readline().split()
    return process, Path(note), int(router), [Path(name) for name in names]


@needs_namespaces
def test_kill_of_the_owner_leaves_nothing() -> None:
    process, note, router, names = owner()
    assert all(name.exists() for name in names)
    process.kill()
    process.wait(WAIT_S)
    eventually(lambda: not any(name.exists() for name in names), "the namespaces are gone")
    eventually(lambda: not note.exists() and Owner.of(router).began == 0, "the router is gone")


@needs_namespaces
def test_clean_takes_what_a_dead_lab_left_and_nothing_else(wan: NamespaceWan) -> None:
    process, note, router, names = owner()
    os.kill(router, signal.SIGSTOP)  # it cannot clean up: as if the power had failed
    process.kill()
    process.wait(WAIT_S)
    foreign = ns.NOTES / "foreign.json"
    foreign.write_text("{}", encoding="utf-8")
    removed = ns.clean()
    assert not any(name.exists() for name in names) and not note.exists()
    assert len([line for line in removed if line.startswith("namespace")]) == 2
    eventually(lambda: Owner.of(router).began == 0, "the router has ended")
    assert Path(wan.place("a").namespace).exists() and wan._note.exists() and foreign.exists()
    foreign.unlink()


def test_missing_rights_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("p2ptrain.lab.wan.namespaces.os.geteuid", lambda: 1000)
    with pytest.raises(LabError, match="root") as caught:
        open_wan([Host("a")])
    assert "--reduced" in caught.value.hint and caught.value.exit_code == 9


def test_a_namespace_that_does_not_exist() -> None:
    with pytest.raises(LabError, match="nowhere"):
        ns.enter("/run/netns/nowhere")


def test_notes_that_are_no_notes_are_left_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(ns, "NOTES", tmp_path)
    (tmp_path / "a.json").write_text("not json", encoding="utf-8")
    (tmp_path / "b.json").write_text(json.dumps({"names": ["x"], "owner": [1, 1]}), encoding="utf-8")
    assert ns.clean() == [] and len(list(tmp_path.iterdir())) == 2
