"""A scenario spelled out: concrete steps in order of time, the hosts, and the shape of each path. Same seed, same text.

Both drivers, real processes and the simulator, follow this and nothing else. Decides nothing itself: who is hit when is
``spelling``, what lies between two peers ``cast``.

    timeline = spell_out(load_scenario(path), short=True)
    for step in timeline.steps: ...                   # step.at_s, step.do, step.peers, step.cuts, step.shapes
    timeline.shape("a0", "b1")                         # Shape(delay_s=0.0335, ...), one direction
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from p2ptrain.config import Manifest
from p2ptrain.config_toml import check
from p2ptrain.errors import ConfigError
from p2ptrain.lab.cast import Pair, Paths, PeerHost, Step
from p2ptrain.lab.scenario import Scenario
from p2ptrain.lab.spelling import spell
from p2ptrain.lab.wan import Shape

__all__ = ["Pair", "PeerHost", "Shape", "Step", "Timeline", "spell_out"]


@dataclass(frozen=True)
class Timeline:
    """``founder``: who founds the run; its join is the first step. ``routers``: name -> (up, down) in Mbit/s."""

    name: str
    seed: int
    seconds: float
    manifest: Manifest
    founder: str
    steps: tuple[Step, ...]
    hosts: tuple[PeerHost, ...]
    routers: dict[str, tuple[float, float]]
    notes: tuple[str, ...]
    paths: Paths

    @cached_property
    def by_name(self) -> dict[str, PeerHost]:
        return {host.name: host for host in self.hosts}

    def shape(self, source: str, target: str) -> Shape:
        """One direction of a pair, as it is before any event. Raises KeyError for an unknown peer."""
        return self.paths.shape(self.by_name[source], self.by_name[target])

    @property
    def alive_max(self) -> int:
        """The most peers alive at once."""
        alive, most = 0, 0
        for step in self.steps:
            alive += {"join": 1, "kill": -1, "leave": -1}.get(step.do, 0) * len(step.peers)
            most = max(most, alive)
        return most


def spell_out(scenario: Scenario, *, short: bool = False) -> Timeline:
    """All of it, deterministic by the scenario's seed. Raises ConfigError: it contradicts itself, or a trace is bad.

    ``short`` multiplies every time by ``scenario.short``; what happens stays the same.
    """
    spelled = spell(scenario)
    if spelled.troubles:
        trouble = spelled.troubles[0]
        raise ConfigError(f"scenario {scenario.name}: {trouble.key}: {trouble.why}", key=trouble.key)
    factor = scenario.short if short else 1.0
    steps = tuple(replace(step, at_s=round(step.at_s * factor, 6)) for step in spelled.steps)
    notes = [spelled.cast.replay.note] if spelled.cast.replay else []
    if factor != 1.0:
        notes.append(f"short form: all times of the timeline are multiplied by {factor:g}")
    return Timeline(
        name=scenario.name,
        seed=scenario.seed,
        seconds=scenario.seconds * factor,
        manifest=check(Manifest, scenario.run, file=f"scenario {scenario.name}"),
        founder=spelled.founder,
        steps=steps,
        hosts=tuple(spelled.cast.hosts.values()),
        routers={router.name: (router.up_mbps, router.down_mbps) for router in scenario.routers},
        notes=tuple(notes),
        paths=Paths(scenario),
    )
