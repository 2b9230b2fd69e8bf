"""Plays a timeline in the simulator: the production ``Node`` in virtual time, and the same ``Record`` as from the lab.

Decides what a real peer's own work costs in virtual time (``START_S``, ``costs_of``), as seen in lab runs of four peers
with a small model on two cores. Sizes are the run's own: the model's values, the codec's bytes. There is no learning,
so no loss.

    record = simulate(scenario, spell_out(scenario))           # deterministic: same scenario, same record

Invariants of the round protocol are checked after every event; a broken one is a bug and raises.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from p2ptrain.codec.sizes import part_bytes
from p2ptrain.config import Manifest
from p2ptrain.core import events as ev
from p2ptrain.core.types import PeerId
from p2ptrain.errors import P2PTrainError
from p2ptrain.lab.collecting import Collector
from p2ptrain.lab.record import LinkBytes, Record
from p2ptrain.lab.scenario import Scenario
from p2ptrain.lab.timeline import Step, Timeline
from p2ptrain.runtime.spec import manifest_spec
from p2ptrain.sim.checks import Checks, Violation
from p2ptrain.sim.hands import Costs
from p2ptrain.sim.wide import Access, WideNetwork
from p2ptrain.sim.world import SimPeer, World

START_S = 0.8
"""From the start of a process to its first dial."""

HANDLING_S = 0.002
"""Of one message, at both ends together."""

BESIDE_S = 0.0025
"""What a microbatch takes beyond the time that is stated for it."""

PING_TIMEOUT_S = 1.35
"""From a cut to the loss of its links: a second after the last pulse (at most 0.5 s old), then 0.6 s for a ping."""

CONTACTS = 3
LIES = frozenset({"stop", "cut", "partition", "degrade", "corrupt"})
"""What may make a live peer be taken for dead: then policy ``any`` may decide a round twice, and gives one up."""

NO_EFFECT = frozenset({"skew", "fill_disk", "free_disk"})
"""The core sees no wall clock and no disk."""

OnProgress = Callable[[float, float, int], None]
"""(virtual seconds done, of how many, peers alive)"""


def simulate(
    scenario: Scenario, timeline: Timeline, *, checked: bool = True, on_progress: OnProgress | None = None
) -> Record:
    """The record of the whole timeline. Raises P2PTrainError: an invariant breaks (a bug). ConfigError: the model."""
    began = time.monotonic()
    run = _Run(scenario, timeline, checked)
    try:
        run.play(on_progress)
    except Violation as broken:
        raise P2PTrainError(
            f"the simulator found a bug: {broken}",
            hint=f"please report it with the scenario file and seed {timeline.seed}: the same run breaks again",
        ) from broken
    record = run.finish()
    record.wall_s = time.monotonic() - began
    return record


def costs_of(manifest: Manifest) -> Costs:
    """What a real peer's work takes, for a small model. Bytes are exact (in exact mode an upper bound)."""
    codec = "exact" if manifest.sync.exact else manifest.sync.codec
    return Costs(
        wire_bytes=lambda values: part_bytes(codec, values),
        apply_s=0.02,
        pin_s=0.01,
        load_s=0.03,
        exchange_s=0.025,
        chunk_bytes=4 << 20,
    )


@dataclass
class _Told:
    """What one life tells, as a real peer's pipe would carry it."""

    facts: list[dict[str, Any]] = field(default_factory=list)


class _Run:
    def __init__(self, scenario: Scenario, timeline: Timeline, checked: bool) -> None:
        self.timeline = timeline
        hosts = timeline.hosts
        self.network = WideNetwork(
            path=timeline.shape,
            access={h.name: Access(h.host.up_mbps, h.host.down_mbps, h.host.router, h.host.nat) for h in hosts},
            routers=timeline.routers,
            ping_timeout_s=PING_TIMEOUT_S,
            handling_s=HANDLING_S,
        )
        manifest = timeline.manifest
        self.world = World(manifest_spec(manifest), timeline.seed, self.network, costs_of(manifest))
        if checked:
            self.world.watch.append(Checks(true_verdicts=not any(step.do in LIES for step in timeline.steps)))
        self.world.watch.append(self._watch)
        record = Record(
            name=timeline.name,
            kind="sim",
            mode="virtual",
            seed=timeline.seed,
            planned_s=timeline.seconds,
            microbatch_samples=manifest.batch.microbatch,
            notes=list(timeline.notes),
        )
        self.collector = Collector(record, 0.0)
        self.told: dict[tuple[PeerId, int], _Told] = {}
        self.lives: dict[PeerId, int] = {}  # name -> index of its last life
        self.starting: dict[PeerId, int] = {}  # name -> index of the life whose process comes up
        self.idle: set[str] = set()

    def play(self, on_progress: OnProgress | None) -> None:
        for step in self.timeline.steps:
            self.world.after(step.at_s, lambda step=step: self._carry_out(step))  # type: ignore[misc]
        slices = 100
        for part in range(1, slices + 1):
            self.world.run(self.timeline.seconds * part / slices)
            if on_progress is not None:
                alive = sum(1 for sim in self.world.peers.values() if sim.alive and not sim.halted)
                on_progress(self.world.now, self.timeline.seconds, alive)

    def finish(self) -> Record:
        self.collector.freeze(self.timeline.seconds)
        self.collector.finish()
        record = self.collector.record
        record.links = [LinkBytes(*pair, nbytes) for pair, nbytes in sorted(self.network.carried.items())]
        if self.idle:
            record.notes.append(f"without effect in the simulator: {', '.join(sorted(self.idle))}")
        return record

    # --- steps

    def _carry_out(self, step: Step) -> None:
        now = self.world.now
        if step.do in NO_EFFECT:
            self.idle.add(step.do)
        for name in step.peers if step.do != "partition" else ():
            self._hit(name, step, now)
        if step.cuts:
            self.network.cut_off(step.cuts)
            self.world.silence(step.cuts)
        self.network.mend(step.heals)
        for source, target, shape in step.shapes:
            self.network.shapes[source, target] = shape
        self.collector.happened(step.do, list(step.peers), step.text, now)

    def _hit(self, name: PeerId, step: Step, now: float) -> None:
        if step.do == "join":
            self._join(name, now)
            return
        if step.do == "corrupt":
            self.network.corrupting[name] = step.chance or 0.0
            return
        if step.do == "kill":
            self.collector.end_life(self.lives[name], "kill", now)
        starting = self.starting.get(name) == self.lives.get(name)
        if starting and step.do in ("kill", "leave", "stop"):
            self._end_start(name, step, now)
            return
        sim = self.world.peers.get(name)
        if sim is None or not sim.alive or sim.halted:
            return
        if step.do == "kill":
            self.world.kill(name)
        elif step.do == "leave":
            self.world.post(sim, ev.LeaveAsked("asked by the lab"))
        elif step.do == "stop":
            self.world.stop(name)
        elif step.do == "continue":
            self.world.resume(name)
        elif step.do == "slow":
            sim.hands.microbatch_s = (step.microbatch_s or 0.0) + BESIDE_S
            self.collector.pace(self.lives[name], step.microbatch_s or 0.0, now)

    def _end_start(self, name: PeerId, step: Step, now: float) -> None:
        """Its process has not come up yet: killed it never will; a stop comes after it."""
        if step.do == "stop":
            self.world.after(START_S, lambda: self._hit(name, step, self.world.now))
            return
        del self.starting[name]
        self.collector.end_life(self.lives[name], step.do, now)

    def _join(self, name: PeerId, now: float) -> None:
        host = self.timeline.by_name[name]
        told = _Told()
        index = self.collector.add_life(name, host.region, told, host.microbatch_s, now)
        self.lives[name] = self.starting[name] = index
        founds = name == self.timeline.founder and index == 0

        def start() -> None:
            if self.starting.get(name) != index:
                return
            del self.starting[name]
            told.facts.append({"ev": "ready", "t": self.world.now, "peer": name})
            sim = self.world.start(
                name,
                founds=founds,
                region=host.region,
                contacts=() if founds else self._contacts(name),
                microbatch_s=host.microbatch_s + BESIDE_S,
                outbound_only=host.outbound_only,
            )
            self.told[name, sim.life] = told

        self.world.after(0.0 if founds else START_S, start)

    def _contacts(self, name: PeerId) -> tuple[PeerId, ...]:
        """Whom an invite made now would name: members with state that can be dialled."""
        world = self.world
        able = sorted(
            peer
            for peer, sim in world.peers.items()
            if peer != name and sim.running and sim.info.addresses and sim.node.stage.tip is not None
        )
        near = [peer for peer in able if self.network.admits(name, peer)] or able
        return tuple(world.rng.sample(near, min(CONTACTS, len(near))))

    # --- what peers tell

    def _watch(self, world: World, sim: SimPeer, event: ev.Event, effects: list[ev.Effect]) -> None:
        facts = self.told[sim.peer, sim.life].facts
        now = world.now
        if isinstance(event, ev.Applied):
            facts.append({"ev": "applied", "t": now, "round": event.round, "chain": event.base.chain.hex()})
        if isinstance(event, ev.LinkLost) or any(isinstance(effect, ev.Exchange) for effect in effects):
            sim.hands.look_for_links(sim)
        for effect in effects:
            if isinstance(effect, ev.Report):
                facts.append(_round(effect, now))
            elif isinstance(effect, ev.Say) and effect.key == "stalled":
                facts.append({"ev": "say", "t": now, "key": effect.key, "text": effect.text})
            elif isinstance(effect, ev.RoundsAbandoned):
                tip = sim.node.stage.tip
                rounds = effect.rounds or ((tip.round,) if tip is not None else (0,))
                facts.append({"ev": "abandoned", "t": now, "first": min(rounds), "last": max(rounds)})
            elif isinstance(effect, ev.Halt):
                facts.append({"ev": "ended", "t": now, "error": effect.error})


def _round(effect: ev.Report, now: float) -> dict[str, Any]:
    result = effect.result
    return {
        "ev": "round",
        "t": now,
        "round": result.round,
        "members": list(result.members),
        "counted": result.counted,
        "expected": result.expected,
        "attempts": result.attempts,
        "loss": None,
        "stall_s": result.stall_s,
        "fill_s": result.fill_s,
        "contributions": dict(result.contributions),
        "left_out": [tuple(item) for item in result.left_out],
    }
