"""Storms by seed: what goes wrong, when, to whom; then calm, in which the swarm must find back (I10).

Decides only the weather. ``may_lose`` keeps a storm within what the commit policy survives, where a test wants that.
"""

from __future__ import annotations

from dataclasses import dataclass

from p2ptrain.core.events import LeaveAsked, PeersFound
from p2ptrain.core.quorum import write_size
from p2ptrain.core.rounds import StageRound
from p2ptrain.core.types import PeerId, Policy, Record
from p2ptrain.sim.checks import Checks, heads
from p2ptrain.sim.world import World


@dataclass(frozen=True)
class Weather:
    """Events per virtual second over the whole swarm, and what may happen."""

    kills: float = 0.5
    joins: float = 0.6
    leaves: float = 0.1
    stops: float = 0.0
    stop_s: float = 3.0
    partitions: float = 0.0
    partition_s: float = 5.0
    flips: float = 0.0
    peers_max: int = 8
    step_s: float = 0.05

    @property
    def lies(self) -> bool:
        """Whether a live peer may be taken for dead."""
        return self.stops > 0 or self.partitions > 0


@dataclass
class Storm:
    """``blow`` for some virtual seconds, then ``calm`` until commits resume and all heads are one."""

    world: World
    weather: Weather
    counted: int = 0
    stopped: dict[PeerId, float] = None  # type: ignore[assignment]
    partition_until: float = -1.0

    def __post_init__(self) -> None:
        self.stopped = {}
        self.leaving: set[tuple[PeerId, int]] = set()

    def blow(self, seconds: float) -> None:
        world, weather = self.world, self.weather
        end = world.now + seconds
        while world.now < end:
            world.run(world.now + weather.step_s)
            self._come_back()
            for name in ("kills", "joins", "leaves", "stops", "partitions", "flips"):
                if world.rng.random() < getattr(weather, name) * weather.step_s:
                    getattr(self, f"_{name}")()

    def calm(self, seconds: float, checks: Checks) -> str:
        """Heal everything; "" if within ``seconds`` commits go on and all running peers share one history."""
        world = self.world
        world.heal()
        for peer in list(self.stopped):
            world.resume(peer)
        self.stopped.clear()
        if not heads(world):
            return "no copy left"
        self._found()
        for peer, sim in sorted(world.peers.items()):
            if (not sim.alive or sim.halted) and world.run_spec.policy is Policy.MAJORITY:
                world.start(peer)
        self._find_each_other()
        before = max(round for round, _ in heads(world).values())
        target = before + 3

        def settled(w: World) -> bool:
            tops = heads(w)
            if not tops:
                return False
            running = [p for p, sim in w.peers.items() if sim.running]
            if set(tops) != set(running) or min(r for r, _ in tops.values()) < target:
                return False
            return max(r for r, _ in tops.values()) - min(r for r, _ in tops.values()) <= 2 and _one_history(w)

        ok = world.run(world.now + seconds, settled)
        if ok:
            return ""
        return "; ".join(
            f"{p}: {sim.node.describe()} waits {[w.what + ' on ' + ','.join(w.on) for w in sim.node.waits()]}"
            for p, sim in sorted(world.peers.items())
            if sim.running
        )

    def _find_each_other(self) -> None:
        """What the DHT is for: a peer all of whose contacts have died learns of those that live."""
        world = self.world
        known = tuple(sorted((sim.info for sim in world.peers.values() if sim.running), key=lambda info: info.peer))
        for _, sim in sorted(world.peers.items()):
            if sim.running and not sim.links:
                world.post(sim, PeersFound(known))

    def _found(self) -> None:
        """What the DHT does beside: whoever has no state finds some of the others."""
        running = self._running()
        infos = tuple(self.world.peers[peer].info for peer in running)
        for peer in running:
            if self.world.peers[peer].node.stage.tip is None:
                self.world.post(self.world.peers[peer], PeersFound(infos))

    # --- single strokes --------------------------------------------------------------------------------------------

    def _running(self) -> list[PeerId]:
        return sorted(peer for peer, sim in self.world.peers.items() if sim.running)

    def _kills(self) -> None:
        victims = [peer for peer in self._running() if self._may_lose(peer)]
        if victims:
            self.counted += 1
            self.world.kill(self.world.rng.choice(victims))

    def _joins(self) -> None:
        world = self.world
        if len(self._running()) >= self.weather.peers_max:
            return
        gone = sorted(peer for peer, sim in world.peers.items() if not sim.alive or sim.halted)
        fresh = f"n{len(world.peers)}"
        world.start(world.rng.choice([*gone, fresh]))

    def _leaves(self) -> None:
        victims = [peer for peer in self._running() if self._may_lose(peer)]
        if len(victims) > 1:
            peer = self.world.rng.choice(victims)
            self.leaving.add((peer, self.world.peers[peer].life))
            self.world.post(self.world.peers[peer], LeaveAsked("asked by the storm"))

    def _stops(self) -> None:
        running = self._running()
        if len(running) > 2:
            peer = self.world.rng.choice(running)
            self.world.stop(peer)
            self.stopped[peer] = self.world.now + self.weather.stop_s * self.world.rng.uniform(0.2, 2.0)

    def _partitions(self) -> None:
        running = self._running()
        if self.world.network.halves is None and len(running) > 2:
            side = self.world.rng.sample(running, self.world.rng.randint(1, len(running) - 1))
            self.world.partition(frozenset(side))
            self.partition_until = self.world.now + self.weather.partition_s * self.world.rng.uniform(0.2, 2.0)

    def _flips(self) -> None:
        peer = self.world.rng.choice(self._running())
        self.world.peers[peer].hands.corrupt_slices.add(self.world.rng.randrange(16))

    def _come_back(self) -> None:
        world = self.world
        for peer in [p for p, until in self.stopped.items() if world.now >= until]:
            del self.stopped[peer]
            world.resume(peer)
        if world.network.halves is not None and world.now >= self.partition_until:
            world.heal()

    def _may_lose(self, peer: PeerId) -> bool:
        """Whether the commit policy survives the loss of ``peer`` now: a quorum (or a copy of the tip) stays."""
        world = self.world
        others = {
            p: sim
            for p, sim in world.peers.items()
            if sim.alive and not sim.halted and p != peer and (p, sim.life) not in self.leaving
        }
        tops = {p: sim.node.stage for p, sim in others.items() if sim.node.stage.tip is not None}
        if not tops:
            return False
        best = max(stage.tip.round for stage in tops.values() if stage.tip)
        mine = world.peers[peer].node.stage
        if mine.tip is not None and mine.tip.round > best:
            return False
        if world.run_spec.policy is Policy.ANY:
            mine_decided = mine.decided.record if mine.decided is not None else None
            if mine_decided is not None and not any(_knows(stage, mine_decided) for stage in tops.values()):
                return False  # decided by this one alone: it would be the last copy
            return any(s.tip is not None and s.tip.round == best for p, s in tops.items() if p not in self.stopped)
        records = {s.tip.digest: s.tip for s in [*tops.values(), mine] if s.tip is not None}
        for sim in [*others.values(), world.peers[peer]]:
            stage = sim.node.stage
            if stage.decided is not None:
                records[stage.decided.record.digest] = stage.decided.record
            for record in stage.proposals.values():
                records[record.digest] = record
        for tip in records.values():
            alive = [v for v in tip.voters_next if v.peer in others and others[v.peer].life == v.life]
            if len(alive) < write_size(len(tip.voters_next), world.run_spec.replication):
                return False
        return True


def _knows(stage: StageRound, record: Record) -> bool:
    """Whether ``record`` survives with this member: applied, decided or accepted here."""
    if stage.tip is not None and stage.tip.round >= record.round:
        return True
    if stage.accepted is not None and stage.accepted[1].digest == record.digest:
        return True
    return stage.decided is not None and stage.decided.record.digest == record.digest


def _one_history(world: World) -> bool:
    """All running peers lie on one chain of cuts, as far as they remember it."""
    stages = [sim.node.stage for sim in world.peers.values() if sim.running and sim.node.stage.tip is not None]
    top = max(stages, key=lambda s: s.tip.round if s.tip else -1)
    for stage in stages:
        assert stage.tip is not None and top.tip is not None
        if stage.tip.round == top.tip.round:
            if stage.cut != top.cut:
                return False
        else:
            following = top.archive.recent.get(stage.tip.round + 1)
            if following is not None and following.record.parent != stage.cut:
                return False
    return True
