"""``p2ptrain lab FILE``: a scenario with real peer processes on an emulated WAN, judged, with a report.

Decides where the report goes and the exit code: 0 if every expectation that decides is met, else that of
``ExpectationError``. The same file is played in the simulator afterwards, and the report shows how far its times are.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from rich.console import Console

from p2ptrain.errors import ConfigError, ExpectationError
from p2ptrain.lab.compare import Comparison, compare
from p2ptrain.lab.conductor import conduct
from p2ptrain.lab.expectations import Verdict, goodput, judge, last_round
from p2ptrain.lab.record import Record
from p2ptrain.lab.report import write_report
from p2ptrain.lab.scenario import Scenario
from p2ptrain.lab.scenario_checks import load_scenario
from p2ptrain.lab.summary import LiveProgress, show
from p2ptrain.lab.timeline import Timeline, spell_out


def run(
    file: Path,
    *,
    short: bool = False,
    reduced: bool = False,
    out: Path | None = None,
    times_decide: bool = True,
    simulated: bool = True,
    as_json: bool = False,
) -> None:
    """Run it, write ``report.html`` and its JSON into ``out`` (default: a new folder here), show a summary.

    Raises ConfigError (the file, or more than this machine can carry), LabError (no WAN here), ExpectationError.
    """
    scenario = load_scenario(file)
    timeline = spell_out(scenario, short=short)
    folder = _folder(out, scenario.name)
    console = Console(stderr=True, highlight=False)
    try:
        with LiveProgress(console) as tell:
            record = conduct(scenario, timeline, folder / "peers", reduced=reduced, on_progress=tell)
    except KeyboardInterrupt:
        console.print("interrupted: everything that the lab made is gone; no report")
        raise
    comparison = _simulated(scenario, timeline, record, folder) if simulated else None
    verdicts = judge(record, scenario.expect, times_decide=times_decide)
    report = write_report(folder, record, verdicts, comparison, scenario.about)
    show(record, verdicts, console, comparison)
    console.print(f"report: {report}", markup=False, soft_wrap=True)
    if as_json:
        print(json.dumps(numbers(record, verdicts, comparison, report)), flush=True)
    missed = [verdict for verdict in verdicts if verdict.failed]
    if missed:
        told = "; ".join(f"{verdict.name}: asked {verdict.asked}, got {verdict.got}" for verdict in missed)
        raise ExpectationError(
            f"scenario {scenario.name}: not as expected: {told}",
            hint=f"the report: {report}; the peers' logs and journals: {folder / 'peers'}",
            missed=[verdict.name for verdict in missed],
        )


def numbers(record: Record, verdicts: list[Verdict], comparison: Comparison | None, report: Path) -> dict[str, Any]:
    """The one line of ``--json``."""
    share = goodput(record)
    stalls = [
        {"t": round(h.t, 3), "do": h.do, "peers": h.peers, "next_commit_s": _rounded(h.next_commit_s)}
        for h in record.happenings
    ]
    return {
        "name": record.name,
        "kind": record.kind,
        "mode": record.mode,
        "seed": record.seed,
        "seconds": round(record.seconds, 3),
        "wall_s": round(record.wall_s, 3),
        "valid": record.valid,
        "rounds": last_round(record),
        "lives": len(record.lives),
        "goodput": _rounded(share),
        "abandoned": len(record.abandoned),
        "happenings": stalls,
        "expectations": [
            {"name": v.name, "asked": v.asked, "got": v.got, "ok": v.ok, "decides": v.decides} for v in verdicts
        ],
        "simulator": comparison.as_json() if comparison is not None else None,
        "notes": record.notes,
        "report": str(report),
    }


# --- helpers ----------------------------------------------------------------------------------------------------------


def _folder(out: Path | None, name: str) -> Path:
    """Made here and now, so that a place nobody can write to is told before anything runs. Raises ConfigError."""
    folder = out or Path(f"lab-{name}-{time.strftime('%Y%m%d-%H%M%S')}")
    try:
        if (folder / "peers").exists():
            raise ConfigError(
                f"{folder} holds the peers of an earlier run", hint="another --out, or remove it", key="--out"
            )
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{folder}: {error.strerror or error}", hint="another --out", key="--out") from None
    return folder


def _simulated(scenario: Scenario, timeline: Timeline, record: Record, folder: Path) -> Comparison | None:
    """The same scenario in virtual time; a model whose size is not known cannot be simulated: noted."""
    from p2ptrain.lab.simulated import simulate

    try:
        simulated = simulate(scenario, timeline)
    except ConfigError as error:
        record.notes.append(f"not simulated: {error.text}")
        return None
    simulated.save(folder / "sim.json")
    return compare(record, simulated)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
