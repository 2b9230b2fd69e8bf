"""The router process: one end of every host's TUN device; packets in, a wait, packets out. ``paths`` decides the waits.

Started by ``emulated`` as ``python -m p2ptrain.lab.wan.router``; told what to do by JSON lines on stdin, answers by
JSON lines on stdout. When stdin closes, for whatever reason, it removes its namespaces and ends: so they are gone when
the lab is killed.

    peer -> TUN -> read -> [heap: due time] -> write -> TUN -> other peer
"""

from __future__ import annotations

import contextlib
import fcntl
import heapq
import json
import os
import random
import select
import struct
import sys
import time
from pathlib import Path
from typing import Any

from p2ptrain.lab.wan import Host, Shape
from p2ptrain.lab.wan import namespaces as ns
from p2ptrain.lab.wan.paths import Lateness, Paths, flip_bit, flow_of

TUNSETIFF = 0x400454CA
IFF_TUN, IFF_NO_PI = 0x0001, 0x1000
BATCH = 64  # packets read from one device before the others have their turn
WAITING_MAX = 200_000  # packets on their way, in all
LINE_MAX = 1 << 20
IDLE_S = 1.0
OVERDUE_S = 2e-5  # select returns about so much after the time asked for


class Router:
    """``devices``: a non-blocking descriptor for each host, in the order of ``paths.hosts``."""

    def __init__(self, paths: Paths, devices: list[int], addresses: list[str], seed: int) -> None:
        self.paths = paths
        self.devices = devices
        self.by_address = {bytes(map(int, a.split("."))): i for i, a in enumerate(addresses)}
        self.lateness = Lateness()
        self.dropped = 0
        self._rng = random.Random(seed + 1)
        self._heap: list[tuple[float, int, bool, int, int, bytes]] = []
        self._serial = 0
        self._checks_flows = any(paths.nat)

    def take(self, source: int) -> None:
        """Read what the host has sent and see each packet off."""
        device, paths, heap = self.devices[source], self.paths, self._heap
        for _ in range(BATCH):
            try:
                packet = os.read(device, 65_536)
            except BlockingIOError:
                return
            if len(packet) < 20 or packet[0] >> 4 != 4:
                continue  # IPv6 neighbour discovery and the like
            target = self.by_address.get(packet[16:20])
            if target is None:
                continue
            now = time.monotonic()
            if self._checks_flows and not paths.lets_in(now, source, target, flow_of(packet)):
                continue
            at = paths.departs(now, source, target, len(packet))
            if at < 0.0 or len(heap) >= WAITING_MAX:
                self.dropped += 1
                continue
            chance = paths.corrupting.get(source)
            if chance and self._rng.random() < chance:
                packet = flip_bit(packet, self._rng)
            self._serial += 1
            heapq.heappush(heap, (at, self._serial, False, source, target, packet))

    def give(self) -> float:
        """Deliver what is due; returns how long until the next is."""
        heap, paths = self._heap, self.paths
        while heap:
            now = time.monotonic()
            if heap[0][0] > now:
                return heap[0][0] - now
            due, _, through, source, target, packet = heapq.heappop(heap)
            if not through:
                at = paths.arrives(due, source, target, len(packet))
                if at < 0.0:
                    self.dropped += 1
                    continue
                if at > now:
                    self._serial += 1
                    heapq.heappush(heap, (at, self._serial, True, source, target, packet))
                    continue
                due = at
            self.lateness.add(now - due)
            try:
                os.write(self.devices[target], packet)
            except OSError:
                self.dropped += 1  # its queue is full, or its namespace is going
        return IDLE_S

    def told(self, order: dict[str, Any]) -> dict[str, Any] | None:
        """Carry out one order; what to answer, if it asks."""
        paths, name = self.paths, order["do"]
        if name == "shape":
            pair = paths.pair(paths.index[order["source"]], paths.index[order["target"]])
            pair.set(Shape(*order["shape"]))
        elif name == "uplink":
            paths.shape_uplink(order["name"], order["up"], order["down"])
        elif name == "cut":
            paths.pair(paths.index[order["source"]], paths.index[order["target"]]).is_cut = order["is_cut"]
        elif name == "corrupt":
            paths.corrupting[paths.index[order["source"]]] = order["chance"]
        elif name == "measure":
            return self.measured(order.get("anew", False))
        return None

    def measured(self, anew: bool) -> dict[str, Any]:
        hosts = self.paths.hosts
        answer = {
            "bytes": [[hosts[s].name, hosts[t].name, pair.nbytes] for (s, t), pair in sorted(self.paths.pairs.items())],
            "late_p50_s": self.lateness.quantile_s(0.5),
            "late_p99_s": self.lateness.quantile_s(0.99),
            "packets": self.lateness.total,
            "dropped": self.dropped,
        }
        if anew:
            self.lateness = Lateness()
        return answer

    def run(self) -> None:
        """Until stdin closes."""
        stdin = sys.stdin.fileno()
        os.set_blocking(stdin, False)
        index = {device: i for i, device in enumerate(self.devices)}
        poller = _poller([stdin, *self.devices])
        rest = b""
        while True:
            wait_s = self.give()
            for descriptor in poller(max(0.0, wait_s - OVERDUE_S)):
                if descriptor != stdin:
                    self.take(index[descriptor])
                    continue
                data = os.read(stdin, 65_536)
                if not data:
                    return
                *lines, rest = (rest + data).split(b"\n")
                if len(rest) > LINE_MAX:
                    raise ValueError("an order longer than 1 MiB")
                for line in lines:
                    answer = self.told(json.loads(line))
                    if answer is not None:
                        _say(answer)


def main() -> None:
    """The first line of stdin says what the network is."""
    setup = json.loads(_first_line())
    names: list[str] = setup["namespaces"]
    home = os.open("/proc/self/ns/net", os.O_RDONLY)
    devices: list[int] = []
    try:
        for name in names:
            ns.enter(str(ns.NAMED / name))
            devices.append(_tun())
        ns.enter(f"/proc/self/fd/{home}")
        _hurry()
        hosts = [Host(**fields) for fields in setup["hosts"]]
        router = Router(Paths(hosts, setup["seed"]), devices, setup["addresses"], setup["seed"])
        _say({"ready": True})
        router.run()
    finally:
        for device in devices:
            os.close(device)
        ns.remove(names)
        Path(setup["note"]).unlink(missing_ok=True)


def _tun() -> int:
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH22x", ns.DEVICE.encode(), IFF_TUN | IFF_NO_PI))
    return device


def _poller(descriptors: list[int]) -> Any:
    """select knows microseconds, but no descriptor above 1023; poll knows milliseconds."""
    if max(descriptors) < 1024:
        return lambda wait_s: select.select(descriptors, (), (), wait_s)[0]
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    return lambda wait_s: [descriptor for descriptor, _ in poll.poll(wait_s * 1000.0)]


def _hurry() -> None:
    """Before the peers that it carries packets for: a busy machine must not look like a slow network."""
    with contextlib.suppress(OSError, AttributeError):
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
        return
    with contextlib.suppress(OSError):
        os.nice(-15)


def _first_line() -> bytes:
    """Byte by byte: what follows is read without a buffer."""
    line = b""
    while not line.endswith(b"\n"):
        byte = os.read(sys.stdin.fileno(), 1)
        if not byte:
            raise SystemExit(1)
        line += byte
    return line


def _say(answer: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
