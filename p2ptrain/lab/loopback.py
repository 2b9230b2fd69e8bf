"""No WAN at all: the machine's own loopback, for scenarios that ask for no network. Decides which those are."""

from __future__ import annotations

from p2ptrain.errors import LabError
from p2ptrain.lab.timeline import Timeline
from p2ptrain.lab.wan import Place, Shape

LOOPBACK_MBPS = 1_000.0
"""A path with this rate or more is as good as unlimited."""


def is_plain(timeline: Timeline) -> bool:
    """Nothing to emulate: no delay, loss or low rate anywhere, and no event that needs a WAN."""
    paths = (timeline.shape(a.name, b.name) for a in timeline.hosts for b in timeline.hosts if a is not b)
    shaped = any(s.delay_s or s.jitter_s or s.loss or 0 < s.mbps < LOOPBACK_MBPS for s in paths)
    rated = any(h.host.up_mbps or h.host.down_mbps or h.host.router for h in timeline.hosts)
    asked = any(step.cuts or step.shapes or step.do == "corrupt" for step in timeline.steps)
    return not (shaped or rated or asked)


class NoWan:
    """The machine's own loopback: for scenarios that ask for no network at all."""

    kind = "loopback"

    def place(self, host: str) -> Place:
        return Place("", "127.0.0.1:0", "")

    def shape(self, source: str, target: str, shape: Shape) -> None:
        """Nothing is emulated."""

    def shape_uplink(self, name: str, up_mbps: float, down_mbps: float) -> None:
        """Nothing is emulated."""

    def cut(self, source: str, target: str, is_cut: bool = True) -> None:
        raise LabError("loopback cannot be cut")

    def corrupt(self, source: str, chance: float) -> None:
        raise LabError("loopback corrupts nothing")

    def bytes_by_link(self) -> dict[tuple[str, str], int]:
        return {}

    def lateness_p99_s(self) -> float:
        return 0.0

    def close(self) -> None:
        """Nothing was made."""
