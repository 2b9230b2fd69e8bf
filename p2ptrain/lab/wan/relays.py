"""The reduced mode: everything on loopback, no rights needed; a relay in front of each host's port. Decides nothing.

What is emulated: delay, jitter, rates, cuts and flipped bits of streams between hosts that listen. What is not: loss of
packets, NAT, a router's shared uplink, overflowing queues, the DHT. See ``relay_process``.
"""

from __future__ import annotations

import dataclasses
import socket
from collections.abc import Sequence
from typing import Any

from p2ptrain.errors import LabError
from p2ptrain.lab.wan import Host, Place, Shape
from p2ptrain.lab.wan.helper import HelperProcess


class RelayWan:
    """See ``lab.wan.Wan``. Ends with ``close``, or with this process. Raises LabError."""

    kind = "relays"

    def __init__(self, hosts: Sequence[Host], *, seed: int = 0) -> None:
        self._ports = {host.name: port for host, port in zip(hosts, _free_ports(len(hosts)), strict=True)}
        if len(self._ports) != len(hosts):
            raise LabError("two hosts have one name", missing="names")
        self._process = HelperProcess("p2ptrain.lab.wan.relay_process")
        try:
            self._relays: dict[str, int] = self._process.ask(ports=self._ports, seed=seed)["relays"]
            for host in hosts:
                self.shape_uplink(host.name, host.up_mbps, host.down_mbps)
        except BaseException:
            self.close()
            raise

    def place(self, host: str) -> Place:
        return Place("", f"127.0.0.1:{self._ports[host]}", f"127.0.0.1:{self._relays[host]}")

    def shape(self, source: str, target: str, shape: Shape) -> None:
        self._process.tell(do="shape", source=source, target=target, shape=dataclasses.astuple(shape))

    def shape_uplink(self, name: str, up_mbps: float, down_mbps: float) -> None:
        self._process.tell(do="uplink", name=name, up=up_mbps, down=down_mbps)

    def cut(self, source: str, target: str, is_cut: bool = True) -> None:
        self._process.tell(do="cut", source=source, target=target, is_cut=is_cut)

    def corrupt(self, source: str, chance: float) -> None:
        self._process.tell(do="corrupt", source=source, chance=chance)

    def bytes_by_link(self) -> dict[tuple[str, str], int]:
        return {(source, target): nbytes for source, target, nbytes in self.measured()["bytes"]}

    def lateness_p99_s(self) -> float:
        return float(self.measured()["late_p99_s"])

    def measured(self) -> dict[str, Any]:
        """``bytes`` and ``late_p99_s``. Raises LabError: the relays have ended."""
        return self._process.ask(do="measure")

    def close(self) -> None:
        self._process.close()


def _free_ports(count: int) -> list[int]:
    """Ports that nobody listens on now. Somebody else may take one before the peer does; that peer says so."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [int(each.getsockname()[1]) for each in sockets]
    for each in sockets:
        each.close()
    return ports
