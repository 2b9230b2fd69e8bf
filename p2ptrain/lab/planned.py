"""What a scenario will ask of this machine, and whether it can: told before anything is started.

Decides when to refuse: more real processes than a machine should run, or more traffic than the emulator carries. The
traffic is the run's own: what its peers exchange in a round, by the time a round takes at their stated speeds.
"""

from __future__ import annotations

from p2ptrain.errors import ConfigError
from p2ptrain.lab.timeline import Timeline
from p2ptrain.models import model_shape
from p2ptrain.runtime.spec import cost_of, model_options

PROCESSES_MAX = 64


def check_fits(timeline: Timeline, capacity_mbps: float) -> None:
    """Raises ConfigError: too many peers at once, or more than ``capacity_mbps`` (0: not known, not checked)."""
    if timeline.alive_max > PROCESSES_MAX:
        raise ConfigError(
            f"scenario {timeline.name}: {timeline.alive_max} peers alive at once; the lab runs {PROCESSES_MAX} at most",
            hint="thin it ([trace] alive_max, [churn] alive_max), or run it in the simulator: p2ptrain sim",
            key="peers",
        )
    planned = planned_mbps(timeline)
    if capacity_mbps and planned > capacity_mbps:
        raise ConfigError(
            f"scenario {timeline.name} plans {planned:.0f} Mbit/s in all; "
            f"the emulator carries {capacity_mbps:.0f} Mbit/s here",
            hint="fewer peers, a smaller model, a longer microbatch_s; `p2ptrain lab check` measures this machine",
            key="peers",
        )


def planned_mbps(timeline: Timeline) -> float:
    """The run's own traffic, all peers together, when the most of them are alive.

    Rounds cannot be shorter than their microbatches take at the stated speeds plus two of the smallest delays; a peer
    that states no speed is taken to need 1 ms a microbatch. No path carries more than its rate.
    """
    peers = max(1, timeline.alive_max)
    model = timeline.manifest.model.name
    if peers < 2 or model_shape(model, model_options(timeline.manifest)) is None:  # a model of one's own: not known
        return 0.0
    speeds = sorted((1.0 / max(host.microbatch_s, 0.001) for host in timeline.hosts), reverse=True)[:peers]
    shapes = [timeline.shape(a.name, b.name) for a in timeline.hosts[:peers] for b in timeline.hosts[:peers] if a != b]
    delay_s = min((shape.delay_s for shape in shapes), default=0.0)
    round_s = timeline.manifest.batch.microbatches / sum(speeds) + 2 * delay_s
    sent = cost_of(timeline.manifest, peers).sent_per_round
    wanted = peers * sent * 8 / 1e6 / round_s
    carried = sum(shape.mbps or float("inf") for shape in shapes)
    return min(wanted, carried)
