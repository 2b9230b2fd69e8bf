"""Measures the emulator itself: configured against measured, and what it carries. Decides what is close enough."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from p2ptrain.lab.wan import Host, Shape
from p2ptrain.lab.wan.emulated import NamespaceWan
from p2ptrain.lab.wan.probing import delay_s, loss_share, rates_mbps

CLOSE = 0.10
RATE_DELAY_S = 0.01
LOSS_PACKETS = 60_000


@dataclass(frozen=True)
class Row:
    """``off``: |measured - configured| / configured, 0 where nothing was configured (a total)."""

    what: str
    unit: str
    configured: float
    measured: float
    late_p99_s: float

    @property
    def off(self) -> float:
        return abs(self.measured - self.configured) / self.configured if self.configured else 0.0

    @property
    def close(self) -> bool:
        return self.off <= CLOSE


def check_rows(
    delays_ms: tuple[float, ...] = (5.0, 50.0, 150.0),
    rates_mbps_asked: tuple[float, ...] = (10.0, 100.0),
    losses: tuple[float, ...] = (0.02,),
    *,
    rate_seconds: float = 2.0,
    loss_packets: int = LOSS_PACKETS,
) -> Iterator[Row]:
    """One pair of hosts. A row as soon as it is measured. Raises LabError: no namespaces here."""
    wan = NamespaceWan([Host("a"), Host("b")], seed=1)
    try:
        here, there = wan.place("a"), wan.place("b")

        def shaped(shape: Shape) -> None:
            wan.shape("a", "b", shape)
            wan.shape("b", "a", Shape(shape.delay_s))
            wan.measured(anew=True)

        for delay in delays_ms:
            shaped(Shape(delay / 1e3))
            yield Row("delay", "ms", delay, delay_s(here, there) * 1e3, wan.lateness_p99_s())
        for rate in rates_mbps_asked:
            shaped(Shape(RATE_DELAY_S, mbps=rate))
            measured = rates_mbps([(here, there)], rate_seconds, skip_s=1.0)[0]
            yield Row("rate", "Mbit/s", rate, measured, wan.lateness_p99_s())
        for loss in losses:
            shaped(Shape(0.001, loss=loss))
            measured = loss_share(here, there, loss_packets, 12_000.0)
            yield Row("loss", "%", loss * 100, measured * 100, wan.lateness_p99_s())
    finally:
        wan.close()


def carried_mbps(pairs: int = 2, seconds: float = 2.0, delay: float = 0.01) -> float:
    """What ``pairs`` connections carry together where nothing is rated: the emulator's (or the machine's) own limit."""
    hosts = [Host(f"h{i}") for i in range(2 * pairs)]
    wan = NamespaceWan(hosts, seed=1)
    try:
        for one in hosts:
            for other in hosts:
                wan.shape(one.name, other.name, Shape(delay))
        places = [(wan.place(f"h{2 * i}"), wan.place(f"h{2 * i + 1}")) for i in range(pairs)]
        return sum(rates_mbps(places, seconds))
    finally:
        wan.close()
