"""The ready scenarios, in their short form, with real processes: facts decide. All but one run in ``make soak``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from p2ptrain.lab.scenario_checks import load_scenario
from p2ptrain.lab.timeline import spell_out

EXAMPLES = sorted((Path(__file__).resolve().parents[2] / "examples" / "churn").glob("*.toml"))
IN_EVERY_TEST_RUN = "two-regions-and-a-kill"
RUNS = [
    pytest.param(path, id=path.stem, marks=[] if path.stem == IN_EVERY_TEST_RUN else [pytest.mark.soak])
    for path in EXAMPLES
]


def _namespaces_allowed() -> bool:
    from p2ptrain.lab.wan.opening import namespaces_allowed

    return not namespaces_allowed()


def test_they_are_there() -> None:
    assert IN_EVERY_TEST_RUN in {path.stem for path in EXAMPLES} and len(EXAMPLES) >= 7


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_each_has_expectations_and_a_short_form_under_a_minute(path: Path) -> None:
    scenario = load_scenario(path)
    assert any(value is not None for value in scenario.expect.model_dump().values()) and scenario.about
    assert spell_out(scenario, short=True).seconds < 60


@pytest.mark.e2e
@pytest.mark.timeout(240)
@pytest.mark.parametrize("path", RUNS)
def test_short_form_with_real_processes(path: Path, tmp_path: Path) -> None:
    from p2ptrain.cli.lab import run

    out = tmp_path / "out"
    run(path, short=True, out=out, times_decide=False, reduced=not _namespaces_allowed(), simulated=False)
    shown = json.loads((out / "report.json").read_text())
    assert shown["met"] and (out / "report.html").stat().st_size < 2_000_000
