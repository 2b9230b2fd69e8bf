"""How far the simulator's times are from the lab's: the same scenarios, played by both.

Promised: round times and stalls of three scenarios within 25%. A stall is measured as the whole round that the event
fell into, from commit to commit, so that it does not hang on how much of that round was over; the time from the event
to the next commit is printed beside. ``ratio`` is lab by simulator.

    python bench/fidelity.py --short
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from common import ROOT, Results, arguments, note, scratch_folder

SCENARIOS = ("two-regions-and-a-kill", "region-outage", "slow-peer")
EVENTS = ("kill", "slow")
WITHIN = 0.25


def play(name: str, *, short: bool, reduced: bool) -> tuple[Any, Any]:
    """The two records, lab and simulator."""
    from p2ptrain.lab.conductor import conduct
    from p2ptrain.lab.scenario_checks import load_scenario
    from p2ptrain.lab.simulated import simulate
    from p2ptrain.lab.timeline import spell_out

    scenario = load_scenario(Path(ROOT) / "examples" / "churn" / f"{name}.toml")
    timeline = spell_out(scenario, short=short)
    with scratch_folder() as folder:
        lab = conduct(scenario, timeline, folder, reduced=reduced)
    for told in lab.notes:
        note(f"{name}: {told}")
    return lab, simulate(scenario, timeline)


def report(results: Results, name: str, lab: Any, sim: Any) -> None:
    from p2ptrain.lab.compare import after_s, around_s, round_time_s

    measures = [("round time, median", round_time_s(lab), round_time_s(sim), {})]
    for do in EVENTS:
        beside = {"next_commit_lab_s": after_s(lab, do), "next_commit_sim_s": after_s(sim, do)}
        measures.append((f"round with a {do} in it, median", around_s(lab, do), around_s(sim, do), beside))
    for what, real, simulated, beside in measures:
        if real is None and simulated is None:
            continue
        ratio = real / simulated if real and simulated else None
        results.add(
            f"{name}: {what}",
            real,
            "s",
            "the simulator",
            ratio,
            target="within 25%",
            met=ratio is not None and abs(ratio - 1.0) <= WITHIN and lab.valid,
            simulated_s=simulated,
            mode=lab.mode,
            valid=lab.valid,
            **beside,
        )


def main() -> None:
    parser = arguments("The simulator against the lab: round times and stalls of the same scenarios.")
    parser.add_argument("--scenarios", nargs="+", default=list(SCENARIOS), help="of examples/churn")
    parser.add_argument("--short", action="store_true", help="their short form")
    parser.add_argument("--reduced", action="store_true", help="relays on loopback instead of network namespaces")
    given = parser.parse_args()
    results = Results("fidelity", given.json)
    for name in given.scenarios:
        note(name)
        lab, sim = play(name, short=given.short, reduced=given.reduced)
        report(results, name, lab, sim)
    results.table()


if __name__ == "__main__":
    sys.exit(main())
