"""Storms by seed: random churn against the simulator and against real processes, for as long as one likes.

    P2PTRAIN_STORM_S=3600 pytest tests/lab/test_storms.py -m soak      # an hour of them; `make soak` does it
    P2PTRAIN_STORM_SEED=7 pytest tests/lab/test_storms.py -m soak      # one seed again

A failure prints the seed's command, and where the peers' journals lie and whether they replay into the core.
"""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import pytest

from p2ptrain.errors import P2PTrainError
from p2ptrain.lab.conductor import conduct
from p2ptrain.lab.expectations import judge
from p2ptrain.lab.record import Record
from p2ptrain.lab.replay import replay
from p2ptrain.lab.scenario import Scenario
from p2ptrain.lab.scenario_checks import parse_scenario
from p2ptrain.lab.simulated import simulate
from p2ptrain.lab.timeline import spell_out

STORM = """
name = "storm"
seconds = {seconds}
seed = {seed}
[run]
name = "storm"
commit = "any"
[run.model]
name = "byte_gpt"
options = {{ layers = 2, width = 32, heads = 2 }}
[run.data]
name = "python_stdlib"
options = {{ max_bytes = 300000 }}
[run.batch]
microbatch = 4
microbatches = 8
sequence_length = 32
[run.sync]
codec = "{codec}"
[[regions]]
name = "here"
local_delay_ms = 0.0
[[peers]]
name = "p"
region = "here"
count = 5
microbatch_s = 0.05
[churn]
from_s = 8.0
to_s = {calm_s}
kills_per_min = {kills}
leaves_per_min = {leaves}
joins_per_min = {joins}
stops_per_min = {stops}
stop_s = {stop_s}
alive_min = 2
alive_max = 6
[expect]
digests_equal = true
committed_never_drop = true
all_alive_train = true
rounds_at_least = 3
"""
SEED = os.environ.get("P2PTRAIN_STORM_SEED")  # read here: tests run without the user's own variables
STORM_S = float(os.environ.get("P2PTRAIN_STORM_S", "120"))
REAL_S = 40.0
SIMULATED_S = 40.0
CALM_S = 12.0


def scenario_of(seed: int, seconds: float) -> Scenario:
    rng = random.Random(seed)
    values = {
        "seed": seed,
        "seconds": seconds,
        "calm_s": seconds - CALM_S,
        "codec": rng.choice(("none", "fp16", "int8")),
        "kills": rng.choice((2, 6, 12)),
        "leaves": rng.choice((0, 3)),
        "joins": rng.choice((6, 12)),
        "stops": rng.choice((0, 0, 4)),
        "stop_s": rng.choice((0.5, 1.0, 4.0)),
    }
    return parse_scenario(STORM.format(**values), file=f"storm {seed}")


def missed(record: Record, scenario: Scenario) -> list[str]:
    verdicts = judge(record, scenario.expect, times_decide=False)
    return [f"{verdict.name}: asked {verdict.asked}, got {verdict.got}" for verdict in verdicts if verdict.failed]


def told(seed: int, what: str, problems: list[str], folder: Path | None) -> str:
    command = f"P2PTRAIN_STORM_SEED={seed} pytest tests/lab/test_storms.py -m soak -k {what}"
    lines = [f"seed {seed}: {'; '.join(problems)}", f"again: {command}"]
    for journal in sorted(folder.glob("*/journal.jsonl")) if folder is not None else ():
        try:
            found = replay(journal)
            verdict = "replays with equal effects" if found.equal else f"{found.differs_at}: {found.text}"
        except P2PTrainError as error:
            verdict = str(error)
        lines.append(f"{journal}: {verdict}")
    return "\n".join(lines)


def seeds() -> list[int]:
    first = int(SEED) if SEED else int(time.time())
    return [first] if SEED else list(range(first, first + 100_000))


def until() -> float:
    return time.monotonic() + STORM_S / 2


@pytest.mark.parametrize("seed", [1, 2])
def test_a_few_seeds_in_the_simulator(seed: int) -> None:
    scenario = scenario_of(seed, SIMULATED_S)
    problems = missed(simulate(scenario, spell_out(scenario)), scenario)
    assert not problems, told(seed, "simulated", problems, None)


@pytest.mark.soak
@pytest.mark.timeout(36_000)
def test_simulated_for_an_hour() -> None:
    end = until()
    for seed in seeds():
        scenario = scenario_of(seed, SIMULATED_S)
        problems = missed(simulate(scenario, spell_out(scenario)), scenario)
        assert not problems, told(seed, "simulated", problems, None)
        if time.monotonic() > end:
            break


@pytest.mark.soak
@pytest.mark.e2e
@pytest.mark.timeout(36_000)
def test_processes_for_an_hour(tmp_path: Path) -> None:
    end = until()
    for seed in seeds():
        scenario, folder = scenario_of(seed, REAL_S), tmp_path / str(seed)
        problems = missed(conduct(scenario, spell_out(scenario), folder), scenario)
        assert not problems, told(seed, "processes", problems, folder)
        if time.monotonic() > end:
            break
