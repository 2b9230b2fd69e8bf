"""The simulated network: who can reach whom, how long bytes take. Decides no policy of the product.

This one knows two kinds of paths, within a region and between regions; ``wide`` knows every pair.

Links are TCP-like: in order, no loss of single messages while they stand; a kill resets them, a stop or a partition
makes them silent until pings time out. ``drop`` additionally loses single messages (harsher than TCP).
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field


@dataclass(slots=True)
class NetworkModel:
    """Times in seconds, rates in Mbit/s. ``latency_s``: one way between regions; ``local_s`` within one."""

    local_s: float = 0.001
    remote_s: float = 0.03
    jitter: float = 0.1
    uplink_mbps: float = 100.0
    ping_timeout_s: float = 0.9
    connect_timeout_s: float = 1.0
    drop: float = 0.0
    cut: set[frozenset[str]] = field(default_factory=set)
    halves: tuple[frozenset[str], frozenset[str]] | None = None

    def reachable(self, one: str, other: str) -> bool:
        if one == other:
            return True
        if self.cut and frozenset((one, other)) in self.cut:
            return False
        if self.halves is not None:
            return (one in self.halves[0]) == (other in self.halves[0])
        return True

    def passes(self, one: str, other: str) -> bool:
        """Whether what ``one`` sends arrives at ``other``."""
        return self.reachable(one, other)

    def admits(self, one: str, other: str) -> bool:
        """Whether ``one`` can open a connection to ``other``, both alive."""
        return self.reachable(one, other)

    def one_way_s(self, one: str, other: str, same_region: bool, rng: random.Random) -> float:
        """A small message's way."""
        return self.latency_s(same_region, rng)

    def carried_s(self, one: str, other: str, nbytes: int, now: float) -> float:
        """Beyond the way of a small message: until the last of ``nbytes`` sent now is there."""
        return self.transfer_s(nbytes)

    def spoils(self, one: str, rng: random.Random) -> bool:
        """Whether a transfer from ``one`` is damaged on its way, so that its connection breaks."""
        return False

    def latency_s(self, same_region: bool, rng: random.Random) -> float:
        base = self.local_s if same_region else self.remote_s
        return base * (1.0 + self.jitter * rng.random())

    def transfer_s(self, nbytes: int, mbps: float = 0.0) -> float:
        return nbytes * 8e-6 / (mbps or self.uplink_mbps)
