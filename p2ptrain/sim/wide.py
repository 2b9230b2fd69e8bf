"""A wide-area network for the simulator: every ordered pair has its delay, jitter, loss and rate; access is shared.

Decides how long bytes take. A transfer waits its turn at each thing that it shares with others (the sender's uplink,
its home router's, the path itself, the router's and the receiver's downlink), first come first served, and is through
when the slowest of them is:

    a ── a's uplink ── router's uplink ── path a -> b ── router's downlink ── b's downlink ── b

TCP's part, per pair: a connection that starts (or has been idle, RFC 2861) sends ten segments and doubles each round
trip (RFC 6928, 5681); on a path that loses packets its rate is at most MSS / RTT * sqrt(3/2) / sqrt(p) (Mathis,
Semke, Mahdavi, Ott 1997). A lost small message is sent again after two round trips (tail loss probe, RFC 8985).

Deterministic by the world's random numbers. Not modelled: queues of small messages behind large ones, fairness.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol

from p2ptrain.sim.network import NetworkModel

SEGMENT_BYTES = 1448
FIRST_WINDOW_BYTES = 10 * SEGMENT_BYTES
LEAST_TIMEOUT_S = 0.2
PROBE_S = 0.01


class PathShape(Protocol):
    """One direction of a pair: seconds one way (up to ``jitter_s`` more), a chance per packet, Mbit/s (0: no limit)."""

    @property
    def delay_s(self) -> float: ...
    @property
    def jitter_s(self) -> float: ...
    @property
    def loss(self) -> float: ...
    @property
    def mbps(self) -> float: ...


@dataclass(frozen=True)
class Access:
    """How a peer hangs on the network. ``router``: shared, "" for none; ``nat``: not dialled from outside it."""

    up_mbps: float = 0.0
    down_mbps: float = 0.0
    router: str = ""
    nat: bool = False


@dataclass(slots=True)
class _Window:
    """A connection's congestion window, as it was at ``at``."""

    nbytes: float = 0.0
    at: float = -math.inf


@dataclass(slots=True)
class WideNetwork(NetworkModel):
    """``path(source, target)``: the shape of a pair unless ``shapes`` says otherwise. ``routers``: name -> (up, down).

    ``handling_s``: what both ends need for a message, beside its way. ``carried``: bytes by directed pair.
    """

    path: Callable[[str, str], PathShape] = field(kw_only=True)
    handling_s: float = 0.0
    access: dict[str, Access] = field(default_factory=dict)
    routers: dict[str, tuple[float, float]] = field(default_factory=dict)
    shapes: dict[tuple[str, str], PathShape] = field(default_factory=dict)
    cut_ways: dict[tuple[str, str], None] = field(default_factory=dict)
    corrupting: dict[str, float] = field(default_factory=dict)
    carried: dict[tuple[str, str], int] = field(default_factory=dict)
    _free: dict[tuple[str, str, str], float] = field(default_factory=dict)
    _windows: dict[tuple[str, str], _Window] = field(default_factory=dict)
    _plain: dict[tuple[str, str], PathShape] = field(default_factory=dict)

    # --- what changes while it runs ---

    def cut_off(self, pairs: Iterable[tuple[str, str]]) -> None:
        """Nothing passes in these directions; ``World.silence`` lets their links notice."""
        self.cut_ways.update(dict.fromkeys(pairs))

    def mend(self, pairs: Iterable[tuple[str, str]]) -> None:
        for pair in pairs:
            self.cut_ways.pop(pair, None)

    def shape(self, one: str, other: str) -> PathShape:
        """As it is now."""
        changed = self.shapes.get((one, other))
        if changed is not None:
            return changed
        plain = self._plain.get((one, other))
        if plain is None:
            plain = self._plain[one, other] = self.path(one, other)
        return plain

    # --- what the world asks ---

    def reachable(self, one: str, other: str) -> bool:
        return one == other or ((one, other) not in self.cut_ways and (other, one) not in self.cut_ways)

    def passes(self, one: str, other: str) -> bool:
        return (one, other) not in self.cut_ways

    def admits(self, one: str, other: str) -> bool:
        target = self.access.get(other)
        if target is not None and target.nat and self._router(one) != target.router:
            return False
        return self.reachable(one, other)

    def one_way_s(self, one: str, other: str, same_region: bool, rng: random.Random) -> float:
        if one == other:
            return 0.0
        shape = self.shape(one, other)
        delay = shape.delay_s
        if shape.jitter_s:
            delay += shape.jitter_s * rng.random()
        if shape.loss and rng.random() < shape.loss:
            delay += 4.0 * shape.delay_s + PROBE_S
        return delay + self.handling_s

    def carried_s(self, one: str, other: str, nbytes: int, now: float) -> float:
        if one == other:
            return 0.0
        self.carried[one, other] = self.carried.get((one, other), 0) + nbytes
        round_trip_s = self.shape(one, other).delay_s + self.shape(other, one).delay_s
        ends = now
        begins = now
        slowest = math.inf
        for place, mbps in self._places(one, other, round_trip_s):
            if not mbps:
                continue
            slowest = min(slowest, mbps)
            begins = max(begins, self._free.get(place, 0.0))
            takes = nbytes * 8e-6 / mbps
            self._free[place] = begins + takes
            ends = max(ends, begins + takes)
        return ends - now + self._growing_s(one, other, nbytes, round_trip_s, slowest, now)

    def spoils(self, one: str, rng: random.Random) -> bool:
        chance = self.corrupting.get(one, 0.0)
        return bool(chance) and rng.random() < chance

    # --- helpers ---

    def _places(self, one: str, other: str, round_trip_s: float) -> list[tuple[tuple[str, str, str], float]]:
        up, down = self.access.get(one, Access()), self.access.get(other, Access())
        places = [(("up", one, ""), up.up_mbps)]
        if up.router != down.router:
            places.append((("up", up.router, "router"), self.routers.get(up.router, (0.0, 0.0))[0]))
        shape = self.shape(one, other)
        places.append((("path", one, other), least(shape.mbps, mathis_mbps(round_trip_s, shape.loss))))
        if up.router != down.router:
            places.append((("down", down.router, "router"), self.routers.get(down.router, (0.0, 0.0))[1]))
        return [*places, (("down", other, ""), down.down_mbps)]

    def _router(self, peer: str) -> str:
        access = self.access.get(peer)
        return access.router if access is not None else ""

    def _growing_s(self, one: str, other: str, nbytes: int, round_trip_s: float, mbps: float, now: float) -> float:
        """What slow start adds: whole round trips in which the window, not the rate, is what limits."""
        window = self._windows.setdefault((one, other), _Window())
        started = window.at > -math.inf
        idle = now - window.at
        size = window.nbytes
        if idle > 0:
            size = size * 0.5 ** min(60.0, idle // (LEAST_TIMEOUT_S + round_trip_s)) if started else 0.0
        size = max(size, FIRST_WINDOW_BYTES)
        full = mbps * 1e6 / 8.0 * round_trip_s  # what fits into the path in one round trip
        trips, sent = 0, 0.0
        while sent + size < nbytes and size < full:
            sent += size
            size *= 2.0
            trips += 1
        spent = sent * 8e-6 / mbps if mbps < math.inf else 0.0  # those bytes are counted in the rate as well
        added = max(0.0, trips * round_trip_s - spent)
        if not started:
            added += 2.0 * round_trip_s  # TCP's and TLS's own
        window.nbytes, window.at = size, now + added
        return added


def mathis_mbps(round_trip_s: float, loss: float) -> float:
    """The rate at which TCP (Reno) settles on a path with random loss; 0: no limit."""
    if loss <= 0.0 or round_trip_s <= 0.0:
        return 0.0
    return SEGMENT_BYTES * 8e-6 / round_trip_s * math.sqrt(1.5 / loss)


def least(one: float, other: float) -> float:
    """The smaller of two rates, of which 0 means unlimited."""
    return min(one, other) if one and other else one or other
