"""What a run of a scenario left behind, the same from real processes and from the simulator: plain data, JSON.

Decides nothing. Expectations, the report and the comparison of the two read this and nothing else. Times are seconds
since the scenario's start (virtual in the simulator); sizes are bytes.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal


@dataclass
class PeerLife:
    """One life of a peer: ``ended``: "" while alive at the end, "kill", "leave", or an error's name."""

    name: str
    peer: str
    region: str
    began_s: float
    ready_s: float | None = None
    first_counted_s: float | None = None
    ended_s: float | None = None
    ended: str = ""
    own_samples_per_s: float = 0.0
    rounds: int = 0
    microbatch_s: float = 0.0  # as measured, the median; 0: never told


@dataclass
class RoundFact:
    """One round as its first reporter saw it. ``samples``: microbatches counted; ``stall_s``: from begin to commit."""

    round: int
    t: float
    members: int
    counted: int
    expected: int
    attempts: int
    loss: float | None
    stall_s: float
    fill_s: float
    left_out: list[tuple[str, str]] = field(default_factory=list)


@dataclass
class Happening:
    """Something that the scenario did. ``next_commit_s``: from here to the next round applied by any survivor."""

    t: float
    do: str
    peers: list[str]
    text: str = ""
    next_commit_s: float | None = None
    all_on_s: float | None = None  # until every survivor has applied a later round


@dataclass
class LinkBytes:
    source: str
    target: str
    nbytes: int


@dataclass
class Record:
    """Everything. ``applied``: (t, life index, round, chain digest) of every round applied by anybody."""

    name: str
    kind: Literal["lab", "sim"]
    mode: str  # "namespaces", "relays", "virtual"
    seed: int
    planned_s: float
    seconds: float = 0.0
    wall_s: float = 0.0
    lives: list[PeerLife] = field(default_factory=list)
    rounds: list[RoundFact] = field(default_factory=list)
    happenings: list[Happening] = field(default_factory=list)
    applied: list[tuple[float, int, int, str]] = field(default_factory=list)
    losses: list[tuple[float, int, float]] = field(default_factory=list)  # t, round, held-out loss
    abandoned: list[tuple[float, str, int, int]] = field(default_factory=list)  # t, peer name, first, last round
    links: list[LinkBytes] = field(default_factory=list)
    lateness_p99_s: float | None = None  # of the emulator's router
    smallest_delay_s: float | None = None
    microbatch_samples: int = 1
    valid: bool = True
    notes: list[str] = field(default_factory=list)  # what differs from the scenario, why it is not valid

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(dataclasses.asdict(self), separators=(",", ":"), allow_nan=False), encoding="utf-8")

    def as_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)
