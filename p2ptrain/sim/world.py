"""A deterministic world of production nodes: virtual time, links, processes that die, stop and come back.

Drives ``core.Node`` exactly as the runtime does, with effects turned into later events. One seed, one history.
What effects other than messages cost is in ``hands``; what must hold is in ``checks``; what goes wrong in ``churn``.

    world = World(run, seed=7); world.start("a", founds=True); world.start("b"); world.run(until=30.0)
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from p2ptrain.core import events as ev
from p2ptrain.core.messages import Hello, Message
from p2ptrain.core.node import Node
from p2ptrain.core.types import PeerId, PeerInfo, RoundResult, RunSpec, Voter
from p2ptrain.sim.hands import Costs, Hands
from p2ptrain.sim.network import NetworkModel

EPSILON_S = 1e-4


@dataclass(slots=True)
class SimPeer:
    """One process. ``backlog`` holds what arrives while it is stopped."""

    peer: PeerId
    node: Node
    info: PeerInfo
    hands: Hands
    alive: bool = True
    stopped: bool = False
    hung: bool = False
    halted: bool = False
    links: dict[PeerId, int] = field(default_factory=dict)  # peer -> link serial
    backlog: list[ev.Event] = field(default_factory=list)
    tick_at: float = float("inf")
    said: list[ev.Say] = field(default_factory=list)

    @property
    def life(self) -> int:
        return self.info.life

    @property
    def running(self) -> bool:
        return self.alive and not self.stopped and not self.halted


class World:
    """``peers``: by id, the current life of each. ``watch``: called after every handled event (checks, transcripts)."""

    def __init__(
        self, run: RunSpec, seed: int, network: NetworkModel | None = None, costs: Costs | None = None
    ) -> None:
        self.run_spec = run
        self.costs = costs or Costs()
        self.seed = seed
        self.rng = random.Random(seed)
        self.network = network or NetworkModel()
        self.now = 0.0
        self.peers: dict[PeerId, SimPeer] = {}
        self.regions: dict[PeerId, str] = {}
        self.settings: dict[PeerId, dict[str, Any]] = {}
        self.reports: list[tuple[float, PeerId, RoundResult]] = []
        self.abandoned: list[tuple[float, PeerId, ev.RoundsAbandoned]] = []
        self.halts: list[tuple[float, PeerId, ev.Halt]] = []
        self.exchanges: dict[bytes, Any] = {}
        self.watch: list[Callable[[World, SimPeer, ev.Event, list[ev.Effect]], None]] = []
        self.handled = 0
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._serial = itertools.count()
        self._arrival: dict[tuple[PeerId, PeerId], float] = {}
        self._graveyard: dict[PeerId, int] = {}

    # --- processes -------------------------------------------------------------------------------------------------

    def start(
        self, peer: PeerId, founds: bool = False, region: str = "", contacts: tuple[PeerId, ...] = (), **settings: Any
    ) -> SimPeer:
        """Start a process (a new life of ``peer`` if it lived before). It dials ``contacts``, or anybody alive."""
        life = self._graveyard.get(peer, 0) + 1
        self._graveyard[peer] = life
        self.regions.setdefault(peer, region)
        self.settings[peer] = settings or self.settings.get(peer, {})
        kept = self.settings[peer]
        info = PeerInfo(
            peer,
            life,
            () if kept.get("outbound_only") else (f"{peer}:1",),
            self.regions[peer],
            uplink_mbps=kept.get("uplink_mbps", 0.0),
        )
        node = Node(self.run_spec, info, random.Random(self.rng.random()))
        sim = SimPeer(peer, node, info, Hands(self, peer, kept.get("microbatch_s", 0.02)))
        self.peers[peer] = sim
        if not contacts and not founds:
            others = sorted(p for p, other in self.peers.items() if p != peer and other.alive and not other.halted)
            contacts = tuple(self.rng.sample(others, min(2, len(others))))
        self.post(sim, ev.Started(info, tuple(f"{c}:1" for c in contacts), founds))
        return sim

    def kill(self, peer: PeerId) -> None:
        """kill -9: links reset, later dials refused."""
        sim = self.peers[peer]
        if not sim.alive:
            return
        sim.alive = False
        for other in sorted(sim.links):
            self._break(peer, other, "reset")

    def stop(self, peer: PeerId) -> None:
        """SIGSTOP: silent; whatever arrives waits."""
        sim = self.peers[peer]
        if sim.running:
            sim.stopped = True
            for other in sorted(sim.links):
                self._go_silent(peer, other)

    def resume(self, peer: PeerId) -> None:
        """SIGCONT: the backlog first, then time that has passed."""
        sim = self.peers[peer]
        if sim.alive and sim.stopped:
            sim.stopped = sim.hung = False
            backlog, sim.backlog = sim.backlog, []
            for event in backlog:
                self.post(sim, event)
            self._schedule_tick(sim)

    def hang(self, peer: PeerId) -> None:
        """The process keeps its links (pings are answered) but handles nothing until ``resume``."""
        sim = self.peers[peer]
        if sim.running:
            sim.stopped = sim.hung = True

    def partition(self, side: frozenset[PeerId]) -> None:
        rest = frozenset(self.peers) - side
        self.network.halves = (side, rest)
        for one in sorted(side):
            for other in sorted(self.peers[one].links if one in self.peers else ()):
                if other in rest:
                    self._go_silent(one, other)

    def cut_link(self, one: PeerId, other: PeerId) -> None:
        self.network.cut.add(frozenset((one, other)))
        if one in self.peers and other in self.peers[one].links:
            self._go_silent(one, other)

    def silence(self, pairs: Iterable[tuple[PeerId, PeerId]]) -> None:
        """The network has just stopped to carry what is sent in these directions: their links fall silent."""
        for one, other in pairs:
            if one in self.peers and other in self.peers[one].links and other in self.peers:
                self._go_silent(one, other)

    def heal(self) -> None:
        self.network.halves = None
        self.network.cut.clear()

    # --- time ------------------------------------------------------------------------------------------------------

    def after(self, delay_s: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._heap, (self.now + delay_s, next(self._serial), action))

    def post(self, sim: SimPeer, event: ev.Event, delay_s: float = 0.0) -> None:
        """Let ``event`` reach this life of the peer later (nothing if it is dead by then)."""
        heapq.heappush(self._heap, (self.now + delay_s, next(self._serial), lambda: self._deliver(sim, event)))

    def run(self, until: float, stop_when: Callable[[World], bool] | None = None) -> bool:
        """Run to virtual time ``until`` or until ``stop_when``; True if it said stop."""
        while self._heap and self._heap[0][0] <= until:
            self.now, _, action = heapq.heappop(self._heap)
            action()
            if stop_when is not None and stop_when(self):
                return True
        self.now = max(self.now, until)
        return False

    # --- one event -------------------------------------------------------------------------------------------------

    def _deliver(self, sim: SimPeer, event: ev.Event) -> None:
        if not sim.alive or sim.halted:
            return
        if sim.stopped:
            sim.backlog.append(event)
            return
        effects = sim.node.handle(event, self.now)
        self.handled += 1
        for effect in effects:
            self._do(sim, effect)
        for watch in self.watch:
            watch(self, sim, event, effects)
        self._schedule_tick(sim)

    def _schedule_tick(self, sim: SimPeer) -> None:
        at = max(sim.node.deadline(), self.now + EPSILON_S)
        if at >= sim.tick_at - 1e-9 and sim.tick_at > self.now:
            return
        sim.tick_at = at
        if at < float("inf"):
            heapq.heappush(self._heap, (at, next(self._serial), lambda: self._tick(sim, at)))

    def _tick(self, sim: SimPeer, at: float) -> None:
        if sim.tick_at != at or not sim.running:
            return
        sim.tick_at = float("inf")
        if sim.node.deadline() > self.now:
            self._schedule_tick(sim)
        else:
            self._deliver(sim, ev.Ticked())

    def _do(self, sim: SimPeer, effect: ev.Effect) -> None:
        if isinstance(effect, ev.Send):
            self._send(sim, effect.to, effect.message)
        elif isinstance(effect, ev.Dial):
            self._dial(sim, effect)
        elif isinstance(effect, ev.Hangup):
            if effect.peer in sim.links:
                self._break(sim.peer, effect.peer, "closed")
        elif isinstance(effect, ev.Announce):
            sim.info = replace(effect.info)
        elif isinstance(effect, ev.Report):
            self.reports.append((self.now, sim.peer, effect.result))
        elif isinstance(effect, ev.RoundsAbandoned):
            self.abandoned.append((self.now, sim.peer, effect))
        elif isinstance(effect, ev.Say):
            sim.said.append(effect)
        elif isinstance(effect, ev.Halt):
            sim.halted = True
            self.halts.append((self.now, sim.peer, effect))
            for other in sorted(sim.links):
                self._break(sim.peer, other, "closed")
        else:
            sim.hands.do(sim, effect)

    # --- links -----------------------------------------------------------------------------------------------------

    def latency(self, one: PeerId, other: PeerId) -> float:
        return self.network.one_way_s(one, other, self.regions.get(one) == self.regions.get(other), self.rng)

    def carry(self, one: PeerId, other: PeerId, nbytes: int, ways: int = 1) -> float:
        """Seconds until ``nbytes`` of ``one`` are at ``other``; ``ways`` 2: they are asked for first."""
        return ways * self.latency(one, other) + self.network.carried_s(one, other, nbytes, self.now)

    def meets(self, one: PeerId, other: PeerId) -> bool:
        """Both ways, as a connection needs it."""
        return self.network.passes(one, other) and self.network.passes(other, one)

    def can_hear(self, one: PeerId, other: PeerId) -> bool:
        """Both run and the network lets them through."""
        a, b = self.peers.get(one), self.peers.get(other)
        return bool(a and b and a.running and b.running and self.meets(one, other))

    def _send(self, sim: SimPeer, to: PeerId, message: Message) -> None:
        serial = sim.links.get(to)
        if serial is None or self.rng.random() < self.network.drop:
            return
        at = max(self.now + self.latency(sim.peer, to), self._arrival.get((sim.peer, to), 0.0) + 1e-9)
        self._arrival[(sim.peer, to)] = at
        sender = Voter(sim.peer, sim.life)

        def arrive() -> None:
            target = self.peers.get(to)
            if target is not None and target.links.get(sender.peer) == serial and self.network.passes(sender.peer, to):
                self._deliver(target, ev.Received(sender, message))

        heapq.heappush(self._heap, (at, next(self._serial), arrive))

    def _dial(self, sim: SimPeer, effect: ev.Dial) -> None:
        names = [effect.peer] if effect.peer else [a.rsplit(":", 1)[0] for a in effect.addresses]
        to = names[0]
        address = effect.addresses[0] if effect.addresses else ""

        def outcome() -> None:
            target = self.peers.get(to)
            if target is None or not self.network.admits(sim.peer, to) or (target.alive and target.stopped):
                self.post(sim, ev.DialFailed(effect.peer, address, "timeout"), max(0.0, effect.timeout_s - latency))
            elif not target.alive or target.halted:
                self.post(sim, ev.DialFailed(effect.peer, address, "refused"))
            elif sim.running and to not in sim.links:
                self._connect(sim, target)

        latency = 2 * self.latency(sim.peer, to)
        self.after(latency, outcome)

    def _connect(self, one: SimPeer, other: SimPeer) -> None:
        serial = next(self._serial)
        one.links[other.peer] = other.links[one.peer] = serial
        for here, there, dialled in ((other, one, False), (one, other, True)):
            self._deliver(here, ev.LinkUp(there.info, there.node.roster.incarnation, dialled))
            hello = Hello(self.run_spec.run, there.info, there.node.roster.incarnation, there.node.stage.head)
            self._deliver(here, ev.Received(Voter(there.peer, there.life), hello))

    def _break(self, one: PeerId, other: PeerId, cause: ev.LossCause) -> None:
        """The link ends. A reset loses what is under way; a close comes after it. This side knows at once."""
        a, b = self.peers[one], self.peers.get(other)
        serial = a.links.pop(other, None)
        if b is None or serial is None or b.links.get(one) != serial:
            return
        if cause == "reset":
            del b.links[one]
            self.post(b, ev.LinkLost(one, a.life, cause), self.latency(one, other))
            return

        def closed() -> None:
            if b.links.get(one) == serial:
                del b.links[one]
                self._deliver(b, ev.LinkLost(one, a.life, cause))

        at = max(self.now + self.latency(one, other), self._arrival.get((one, other), 0.0))
        self.after(at - self.now + 1e-6, closed)

    def _go_silent(self, one: PeerId, other: PeerId) -> None:
        """Pings go unanswered: unless it passes by then, both sides lose the link."""
        a, b = self.peers[one], self.peers[other]
        serial = a.links.get(other)

        def timed_out() -> None:
            if a.links.get(other) != serial or self.can_hear(one, other):
                return
            if not a.alive or not b.alive:
                return
            del a.links[other]
            b.links.pop(one, None)
            self.post(b, ev.LinkLost(one, a.life, "silent"))
            self.post(a, ev.LinkLost(other, b.life, "silent"))

        self.after(self.network.ping_timeout_s, timed_out)
