"""Plain sockets between two hosts of an emulated WAN: how long, how much, how many get lost. Bounded loops.

Each end is a thread that enters its host's namespace (a thread may, alone) and ends with the measurement.
"""

from __future__ import annotations

import contextlib
import socket
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from p2ptrain.errors import LabError
from p2ptrain.lab.wan import Place
from p2ptrain.lab.wan.namespaces import enter

PROBE_PORT = 7799
PATIENCE_S = 10.0
BLOCK = bytes(1 << 18)
DATAGRAM = bytes(64)
BURST = 32
T = TypeVar("T")


def delay_s(here: Place, there: Place, count: int = 30) -> float:
    """Median one-way delay: half of a datagram's way there and back. Raises LabError: nothing comes back."""
    stop = threading.Event()

    def echo() -> None:
        with _datagrams(there) as end:
            while not stop.is_set():
                with contextlib.suppress(socket.timeout):
                    data, sender = end.recvfrom(2048)
                    end.sendto(data, sender)

    def ask() -> list[float]:
        enter(here.namespace)
        found: list[float] = []
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as end:
            end.settimeout(2.0)
            for number in range(count + 3):
                begun = time.monotonic()
                end.sendto(number.to_bytes(4, "big"), (_address(there), PROBE_PORT))
                with contextlib.suppress(socket.timeout):
                    while int.from_bytes(end.recv(2048), "big") != number:
                        pass
                    found.append((time.monotonic() - begun) / 2)
        return found[3:]

    found = _together(ask, echo, stop)
    if not found:
        raise LabError("no datagram came back over the emulated network", missing="answers")
    return statistics.median(found)


def rates_mbps(pairs: Sequence[tuple[Place, Place]], seconds: float, skip_s: float = 0.5) -> list[float]:
    """What one TCP connection per pair carries, all at once, in Mbit/s, after ``skip_s`` of start-up."""
    begin = threading.Barrier(len(pairs) + 1)

    def receive(there: Place, ready: threading.Event) -> float:
        enter(there.namespace)
        with socket.create_server((_address(there), PROBE_PORT)) as server:
            server.settimeout(PATIENCE_S)
            ready.set()
            end, _ = server.accept()
        with end:
            end.settimeout(PATIENCE_S)
            got, from_s, last_s = 0, time.monotonic() + skip_s, 0.0
            while data := end.recv(1 << 18):
                last_s = time.monotonic()
                if last_s > from_s:
                    got += len(data)
            return got * 8e-6 / max(1e-9, last_s - from_s)

    def send(here: Place, there: Place, ready: threading.Event) -> None:
        enter(here.namespace)
        ready.wait(PATIENCE_S)
        with socket.create_connection((_address(there), PROBE_PORT), PATIENCE_S) as end:
            begin.wait(PATIENCE_S)
            until = time.monotonic() + skip_s + seconds
            while time.monotonic() < until:
                end.sendall(BLOCK)

    with ThreadPoolExecutor(2 * len(pairs)) as pool:
        receiving, sending = [], []
        for here, there in pairs:
            ready = threading.Event()
            receiving.append(pool.submit(receive, there, ready))
            sending.append(pool.submit(send, here, there, ready))
        with contextlib.suppress(threading.BrokenBarrierError):
            begin.wait(PATIENCE_S)  # broken: the error of who did not come is raised below
        for future in sending:
            future.result()
        return [future.result() for future in receiving]


def loss_share(here: Place, there: Place, count: int, packets_per_s: float = 8000.0) -> float:
    """Share of ``count`` datagrams that do not arrive."""
    stop = threading.Event()
    got = [0]

    def count_them() -> None:
        with _datagrams(there) as end:
            while not stop.is_set():
                with contextlib.suppress(socket.timeout):
                    while True:
                        end.recv(2048)
                        got[0] += 1

    def send() -> int:
        enter(here.namespace)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as end:
            begun = time.monotonic()
            for number in range(count):
                if number % BURST == 0:
                    time.sleep(max(0.0, begun + number / packets_per_s - time.monotonic()))
                end.sendto(DATAGRAM, (_address(there), PROBE_PORT))
        seen = -1
        while seen != got[0]:  # what is under way still comes
            seen = got[0]
            time.sleep(0.5)
        return seen

    return 1.0 - _together(send, count_them, stop) / count


def _together(ask: Callable[[], T], answer: Callable[[], None], stop: threading.Event) -> T:
    """Run both; the answering end is stopped when the asking one has its result."""
    with ThreadPoolExecutor(2) as pool:
        answering = pool.submit(answer)
        try:
            return pool.submit(ask).result()
        finally:
            stop.set()
            answering.result()


@contextlib.contextmanager
def _datagrams(there: Place) -> Iterator[socket.socket]:
    enter(there.namespace)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as end:
        end.setsockopt(socket.SOL_SOCKET, getattr(socket, "SO_RCVBUFFORCE", 33), 8 << 20)
        end.bind((_address(there), PROBE_PORT))
        end.settimeout(0.1)
        yield end


def _address(place: Place) -> str:
    return place.listen.rpartition(":")[0]
