"""What taking part means for this machine, told before anything is pulled; and the question whether to go on.

Decides that a run which needs more than ``--memory`` is refused, and that a question is asked on a terminal only.
"""

from __future__ import annotations

import sys
from typing import Any

from p2ptrain.config import Manifest, PeerSettings
from p2ptrain.errors import ConfigError
from p2ptrain.runtime.spec import Cost, cost_of

UNITS = ("bytes", "kB", "MB", "GB", "TB")
PRESENT = ("alive", "busy", "joining")


def lines(manifest: Manifest, settings: PeerSettings, seen: dict[str, Any], me: str = "") -> list[str]:
    """What will run, be downloaded, held and sent. ``seen``: a member's status, {} for a run that begins."""
    others = [m for m in seen.get("members", ()) if m.get("status") in PRESENT and m.get("peer") != me]
    peers = max(2, 1 + len(others))
    cost = cost_of(manifest, peers)
    foreign = manifest.untrusted_names()
    code = f"code from outside p2ptrain: {', '.join(foreign)}" if foreign else "no code comes from others"
    limit = f" (--memory allows {size(settings.memory_bytes)})" if settings.memory_bytes else ""
    down = (
        "nothing"
        if not seen
        else (
            f"the state, {size(cost.state_bytes)}; the run's text, at most {size(manifest.limits.max_data_bytes)}, "
            "only if this machine's own differs"
        )
    )
    return [
        f"run {manifest.name} ({manifest.run[:8]}): commit = {manifest.commit}, "
        + (f"{manifest.rounds} rounds" if manifest.rounds else "no end"),
        f"  runs here       model {manifest.model.name}, {cost.parameters:,} values; data {manifest.data.name}; {code}",
        f"  downloaded      {down}",
        f"  held in memory  {size(cost.memory_bytes)} for model and training{limit}, beside Python and torch",
        f"  sent            {_traffic(cost, peers, seen.get('round_s'))}; received: as much",
    ]


def check_memory(manifest: Manifest, settings: PeerSettings) -> None:
    """Raises ConfigError if the run needs more than ``--memory``."""
    need = cost_of(manifest).memory_bytes
    if settings.memory_bytes and need > settings.memory_bytes:
        raise ConfigError(
            f"the run needs {size(need)} for model and training, --memory allows {size(settings.memory_bytes)}",
            hint="allow more, or take part from a machine with more memory",
            key="--memory",
        )


def agreed(yes: bool) -> bool:
    """Asks on a terminal; elsewhere, or with ``--yes``, nobody is asked."""
    if yes or not (sys.stdin.isatty() and sys.stderr.isatty()):
        return True
    sys.stderr.write("take part? [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def size(nbytes: float) -> str:
    """12.3 MB, by 1000."""
    value, unit = float(nbytes), 0
    while value >= 1000 and unit < len(UNITS) - 1:
        value, unit = value / 1000, unit + 1
    return f"{value:.0f} {UNITS[unit]}" if unit == 0 or value >= 100 else f"{value:.1f} {UNITS[unit]}"


def _traffic(cost: Cost, peers: int, round_s: object) -> str:
    each = f"{size(cost.sent_per_round)} a round among {peers} peers"
    if isinstance(round_s, float | int) and round_s > 0:
        return f"{each}; {size(cost.sent_per_round * 3600 / round_s)} an hour at the present {round_s:.2f} s a round"
    return f"{each}; an hour: that times the rounds of an hour, which nobody has measured yet"
