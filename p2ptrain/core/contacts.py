"""What a roster knows of the way to one peer: link, dials, and the suspicion that runs against it.

Decides when a suspicion ends (Lifeguard: independent witnesses shrink it). It does not decide statuses.

    nobody can be asked            suspicion_s
    a helper has not answered yet  suspicion_max_s   (its own link to the peer still stands: busy, or not noticed yet)
    all helpers lost it too        suspicion_s / 2
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from p2ptrain.core.types import Knobs, PeerId, PeerInfo

SHRINK = 0.5
"""Share of ``suspicion_s`` that is left when every helper confirms."""


@dataclass(slots=True)
class Suspicion:
    """Runs against one silent peer. ``asked``: helpers without an answer yet; ``witnesses``: those that lost it too."""

    since: float
    why: str
    patience_s: float  # without witnesses
    asked: set[PeerId] = field(default_factory=set)
    witnesses: set[PeerId] = field(default_factory=set)
    helpers: int = 0

    def ends(self, knobs: Knobs) -> float:
        """Time at which the peer is held dead, as things stand."""
        if self.asked:
            return self.since + max(knobs.suspicion_max_s, self.patience_s)
        least_s = self.patience_s * SHRINK
        confirmed = min(1.0, math.log(len(self.witnesses) + 1) / math.log(max(self.helpers, 1) + 1))
        return self.since + self.patience_s - (self.patience_s - least_s) * confirmed


@dataclass(slots=True)
class Contact:
    """The way to one peer. Times are absolute, ``math.inf`` means never."""

    info: PeerInfo | None = None  # where to dial while the roster has no line of the peer
    linked: bool = False
    met: bool = False  # a link stood in this life
    dialling_until: float = math.inf  # a dial runs: its answer is overdue at this time
    redial_at: float = math.inf
    redials: int = 0
    heard_at: float = -math.inf  # by ourselves, or by another that told us
    asked_at: float = -math.inf
    suspicion: Suspicion | None = None
    warned: int = -1  # incarnation in which it was told that others suspect it

    @property
    def dialling(self) -> bool:
        return self.dialling_until < math.inf

    @property
    def idle(self) -> bool:
        """Nothing runs: the contact can be forgotten."""
        return not self.linked and not self.dialling and self.suspicion is None and self.redial_at == math.inf

    def wakes(self, knobs: Knobs) -> float:
        """When this contact next wants to be looked at."""
        ends = self.suspicion.ends(knobs) if self.suspicion else math.inf
        return min(ends, self.redial_at, self.dialling_until)


def shortest_suspicion_s(knobs: Knobs) -> float:
    return knobs.suspicion_s * SHRINK
