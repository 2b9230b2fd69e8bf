"""``p2ptrain sim FILE``: a scenario in the simulator. What is shown comes from its record; no torch is imported.

Decides the exit code: 0 if every expectation is met (those on times too: virtual time is exact), else that of
``ExpectationError``.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from p2ptrain.errors import ExpectationError
from p2ptrain.lab.expectations import Verdict, goodput, is_met, judge
from p2ptrain.lab.record import Record
from p2ptrain.lab.scenario_checks import load_scenario
from p2ptrain.lab.simulated import simulate
from p2ptrain.lab.summary import show
from p2ptrain.lab.timeline import spell_out


def run(file: Path, *, short: bool = False, out: Path | None = None, as_json: bool = False) -> None:
    """Play it, show a summary, write ``record.json`` into ``out``. Raises ConfigError; ExpectationError
    where one is not met.
    """
    scenario = load_scenario(file)
    timeline = spell_out(scenario, short=short)
    console = Console(stderr=as_json, highlight=False)
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[told]}"))
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(f"{scenario.name}", total=timeline.seconds, told="")

        def tell(now: float, seconds: float, alive: int) -> None:
            bar.update(task, completed=now, told=f"{now:.0f} of {seconds:.0f} virtual s, {alive} alive")

        record = simulate(scenario, timeline, on_progress=tell)
    verdicts = judge(record, scenario.expect, times_decide=True)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        record.save(out / "record.json")
    if as_json:
        print(json.dumps(numbers(record, verdicts)), flush=True)
    else:
        show(record, verdicts, console)
    if not is_met(verdicts):
        missed = "; ".join(f"{v.name}: asked {v.asked}, got {v.got}" for v in verdicts if v.failed)
        names = [v.name for v in verdicts if v.failed]
        raise ExpectationError(f"scenario {scenario.name}, simulated: not as expected: {missed}", missed=names)


def numbers(record: Record, verdicts: list[Verdict]) -> dict[str, Any]:
    """The one line of ``--json``."""
    share = goodput(record)
    return {
        "name": record.name,
        "kind": record.kind,
        "seed": record.seed,
        "seconds": round(record.seconds, 3),
        "wall_s": round(record.wall_s, 3),
        "rounds": len(record.rounds),
        "lives": len(record.lives),
        "goodput": None if share is None else round(share, 4),
        "abandoned": len(record.abandoned),
        "happenings": [
            {
                "t": round(h.t, 3),
                "do": h.do,
                "peers": h.peers,
                "next_commit_s": None if h.next_commit_s is None else round(h.next_commit_s, 3),
            }
            for h in record.happenings
        ],
        "expectations": [{"name": v.name, "asked": v.asked, "got": v.got, "ok": v.ok} for v in verdicts],
        "notes": record.notes,
    }
