"""The WAN out of network namespaces: makes them, starts the router process, passes on what changes. Decides nothing."""

from __future__ import annotations

import dataclasses
import os
import secrets
from collections.abc import Sequence
from typing import Any

from p2ptrain.errors import LabError
from p2ptrain.lab.owner import Owner
from p2ptrain.lab.wan import Host, Place, Shape
from p2ptrain.lab.wan import namespaces as ns
from p2ptrain.lab.wan.helper import HelperProcess


class NamespaceWan:
    """A namespace for each host, one router process between them. See ``lab.wan.Wan``.

    Raises LabError: missing rights, no TUN devices, a command that failed. Ends with ``close``, or with this process.
    """

    kind = "namespaces"

    def __init__(self, hosts: Sequence[Host], *, seed: int = 0) -> None:
        self.hosts = list(hosts)
        key = secrets.token_hex(4)
        self._names = {host.name: f"{ns.PREFIX}{key}-{i}" for i, host in enumerate(hosts)}
        self._addresses = {host.name: ns.address(i) for i, host in enumerate(hosts)}
        if len(self._names) != len(hosts):
            raise LabError("two hosts have one name", missing="names")
        self._router: HelperProcess | None = None
        names, me = list(self._names.values()), Owner.of(os.getpid())
        self._note = ns.write_note(key, names, me, Owner(0, 0))
        try:
            ns.make(names)
            self._router = HelperProcess("p2ptrain.lab.wan.router")
            ns.write_note(key, names, me, Owner.of(self._router.pid))
            self._router.ask(
                namespaces=names,
                addresses=[self._addresses[host.name] for host in hosts],
                hosts=[dataclasses.asdict(host) for host in hosts],
                seed=seed,
                note=str(self._note),
            )
            for host in hosts:
                ns.give_address(self._names[host.name], self._addresses[host.name])
        except BaseException:
            self.close()
            raise

    def place(self, host: str) -> Place:
        address = f"{self._addresses[host]}:{ns.PEER_PORT}"
        return Place(str(ns.NAMED / self._names[host]), address, address)

    def shape(self, source: str, target: str, shape: Shape) -> None:
        self._tell(do="shape", source=source, target=target, shape=dataclasses.astuple(shape))

    def shape_uplink(self, name: str, up_mbps: float, down_mbps: float) -> None:
        self._tell(do="uplink", name=name, up=up_mbps, down=down_mbps)

    def cut(self, source: str, target: str, is_cut: bool = True) -> None:
        self._tell(do="cut", source=source, target=target, is_cut=is_cut)

    def corrupt(self, source: str, chance: float) -> None:
        self._tell(do="corrupt", source=source, chance=chance)

    def bytes_by_link(self) -> dict[tuple[str, str], int]:
        return {(source, target): nbytes for source, target, nbytes in self.measured()["bytes"]}

    def lateness_p99_s(self) -> float:
        return float(self.measured()["late_p99_s"])

    def measured(self, *, anew: bool = False) -> dict[str, Any]:
        """What the router has counted: ``bytes``, ``late_p50_s``, ``late_p99_s``, ``packets``, ``dropped``.

        ``anew``: its lateness is counted from zero afterwards. Raises LabError: the router has ended.
        """
        assert self._router is not None
        return self._router.ask(do="measure", anew=anew)

    def close(self) -> None:
        if self._router is not None:
            self._router.close()
        ns.remove(list(self._names.values()))
        self._note.unlink(missing_ok=True)

    def _tell(self, **order: Any) -> None:
        assert self._router is not None
        self._router.tell(**order)
