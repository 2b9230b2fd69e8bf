"""An emulated WAN for real processes: ``Wan`` is what the lab asks of it; two kinds give it.

``namespaces`` (root): every peer in a network namespace of its own, packets delayed by a user-space TUN router, rates
kept by the kernel. ``relays`` (anybody): everything on loopback, each peer's port behind a relay that delays bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Shape:
    """One direction of one pair. Times in seconds, one way; ``loss`` a chance per packet; ``mbps`` 0: unlimited."""

    delay_s: float = 0.0
    jitter_s: float = 0.0
    loss: float = 0.0
    mbps: float = 0.0


@dataclass(frozen=True)
class Host:
    """Where a peer lives. ``router``: the shared home router, or "". ``nat``: cannot be dialled from outside it."""

    name: str
    up_mbps: float = 0.0
    down_mbps: float = 0.0
    router: str = ""
    nat: bool = False


@dataclass(frozen=True)
class Place:
    """What a peer's process needs. ``namespace``: path to enter ("" for relays); ``listen``/``announce``: HOST:PORT."""

    namespace: str
    listen: str
    announce: str


class Wan(Protocol):
    """Names are hosts' names. Every method may be called while traffic runs; changes hold within one delay."""

    kind: str

    def place(self, host: str) -> Place: ...

    def shape(self, source: str, target: str, shape: Shape) -> None:
        """One direction of a pair from now on."""

    def shape_uplink(self, name: str, up_mbps: float, down_mbps: float) -> None:
        """Of a host, or of a router (shared by the hosts behind it)."""

    def cut(self, source: str, target: str, is_cut: bool = True) -> None:
        """Nothing passes in this direction (silently dropped, as a black hole does)."""

    def corrupt(self, source: str, chance: float) -> None:
        """Flip a bit in this share of what leaves ``source``, so that TCP does not notice."""

    def bytes_by_link(self) -> dict[tuple[str, str], int]: ...

    def lateness_p99_s(self) -> float:
        """How late the emulator itself was, beyond the delay asked for."""

    def close(self) -> None:
        """Everything it made is gone afterwards."""
