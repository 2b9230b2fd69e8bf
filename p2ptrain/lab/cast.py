"""Who may appear in a scenario and what lies between them: steps, hosts, paths, the cast. Plain values.

Decides what a path between two peers is made of, and which of our names a machine of a trace gets. Not when anything
happens (``spelling``).

A path from a to b: a's own delay, its router's, the link between the regions (or the region's inside), b's router's,
b's own; delays and jitter add up, losses too (as chances), the rate is the link's. Access rates are the hosts'
(``PeerHost.host``) and the routers', shared by all that is sent through them.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

from p2ptrain.lab.networks import between
from p2ptrain.lab.scenario import PeerGroup, Router, Scenario
from p2ptrain.lab.traces import Replay, load_trace, replay
from p2ptrain.lab.wan import Host, Shape

Pair = tuple[str, str]

LAN = Shape(delay_s=0.0002, mbps=1_000.0)
"""Between two peers behind one router."""


@dataclass(frozen=True)
class Step:
    """One thing to do at ``at_s``: to ``peers`` (join, leave, kill, stop, continue, slow, corrupt, skew, fill_disk,
    free_disk), or to directed ``cuts``, ``heals`` (uncut) and ``shapes`` (degrade, cut, heal, partition).
    """

    at_s: float
    do: str
    peers: tuple[str, ...] = ()
    text: str = ""
    cuts: tuple[Pair, ...] = ()
    heals: tuple[Pair, ...] = ()
    shapes: tuple[tuple[str, str, Shape], ...] = ()
    microbatch_s: float | None = None
    seconds: float | None = None
    chance: float | None = None


@dataclass(frozen=True)
class PeerHost:
    """A peer and where it lives. ``outbound_only``: it is told so (a peer behind NAT always is)."""

    name: str
    region: str
    host: Host
    microbatch_s: float
    memory: str = ""
    outbound_only: bool = False
    group: str = ""
    delay_s: float = 0.0


@dataclass(frozen=True)
class Paths:
    """What the scenario's regions, routers, links and table say of a path between two hosts."""

    scenario: Scenario

    def shape(self, one: PeerHost, other: PeerHost) -> Shape:
        routers = [self._routers[h.host.router] for h in (one, other) if h.host.router]
        if len(routers) == 2 and routers[0].name == routers[1].name:
            return replace(LAN, delay_s=LAN.delay_s + one.delay_s + other.delay_s)
        link = self.link(one.region, other.region)
        passed = 1.0 - link.loss
        for router in routers:
            passed *= 1.0 - router.loss
        return Shape(
            delay_s=link.delay_s + one.delay_s + other.delay_s + sum(r.delay_ms for r in routers) / 1000.0,
            jitter_s=link.jitter_s + sum(r.jitter_ms for r in routers) / 1000.0,
            loss=round(1.0 - passed, 9),
            mbps=link.mbps,
        )

    def link(self, one: str, other: str) -> Shape:
        """Between two regions, or within one. Raises KeyError if nothing says."""
        if one == other:
            region = next(r for r in self.scenario.regions if r.name == one)
            return Shape(region.local_delay_ms / 1000.0, mbps=region.local_mbps)
        return self._links[one, other]

    def known(self, one: str, other: str) -> bool:
        return one == other or (one, other) in self._links

    @cached_property
    def _routers(self) -> dict[str, Router]:
        return {router.name: router for router in self.scenario.routers}

    @cached_property
    def _links(self) -> dict[Pair, Shape]:
        found: dict[Pair, Shape] = {}
        if self.scenario.network.table:
            for pair, measured in between(self.scenario.network.table).items():
                found[pair] = Shape(measured.delay_s, mbps=measured.mbps)
        for link in self.scenario.links:
            shape = Shape(link.delay_ms / 1000.0, link.jitter_ms / 1000.0, link.loss, link.mbps)
            for pair in (link.between,) if link.one_way else (link.between, link.between[::-1]):
                found[pair] = shape
        return found


@dataclass
class Cast:
    """Everybody who may appear: hosts by name, who belongs to a group, and the trace that is played."""

    scenario: Scenario
    hosts: dict[str, PeerHost] = field(default_factory=dict)
    members: dict[str, tuple[str, ...]] = field(default_factory=dict)
    replay: Replay | None = None
    named: dict[str, str] = field(default_factory=dict)  # the trace's name of a machine -> ours

    def add(self, group: PeerGroup, name: str) -> PeerHost:
        router = next((r for r in self.scenario.routers if r.name == group.router), None)
        nat = router is not None and router.nat
        host = Host(name, group.up_mbps or 0.0, group.down_mbps or 0.0, group.router, nat)
        self.hosts[name] = PeerHost(
            name, group.region, host, group.microbatch_s, group.memory,
            group.outbound_only or nat, group.name, group.delay_ms / 1000.0,
        )  # fmt: skip
        return self.hosts[name]


def cast_of(scenario: Scenario) -> Cast:
    """Raises ConfigError: a damaged trace file, nothing left of the trace."""
    cast = Cast(scenario)
    groups = {group.name: group for group in scenario.peers}
    traced = scenario.trace.all_groups if scenario.trace else ()
    for group in scenario.peers:
        if group.name not in traced:
            cast.members[group.name] = names_of(group)
            for name in cast.members[group.name]:
                cast.add(group, name)
    if scenario.trace is not None:
        trace = scenario.trace
        recorded = load_trace(trace.name, seed=scenario.seed)
        cast.replay = replay(recorded, from_s=trace.from_s, compress=trace.compress, alive_max=trace.alive_max)
        counts = dict.fromkeys(traced, 0)
        for move in cast.replay.moves:
            if move.peer not in cast.named:
                group = groups[traced[len(cast.named) % len(traced)]]
                cast.named[move.peer] = cast.add(group, f"{group.name}{counts[group.name]}").name
                counts[group.name] += 1
        for name in traced:
            cast.members[name] = tuple(h.name for h in cast.hosts.values() if h.group == name)
    return cast


def names_of(group: PeerGroup) -> tuple[str, ...]:
    """``a`` alone, or ``a0``, ``a1``, ..."""
    return (group.name,) if group.count == 1 else tuple(f"{group.name}{i}" for i in range(group.count))
