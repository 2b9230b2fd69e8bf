"""Every bench explains itself, and a miniature case of each prints well-formed lines. No times are asserted."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
BENCHES = ("allreduce", "recovery", "success", "overhead", "fidelity", "goodput")
KEYS = {"bench", "case", "value", "unit", "against", "ratio"}


def run(name: str, *words: str) -> str:
    command = [sys.executable, str(ROOT / "bench" / f"{name}.py"), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def lines(name: str, *words: str) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in run(name, *words, "--json").splitlines()]
    assert found and all(line["bench"] == name and line.keys() >= KEYS for line in found)
    return found


@pytest.mark.parametrize("name", BENCHES)
def test_help(name: str) -> None:
    text = run(name, "--help")
    assert "--json" in text and "usage" in text


def test_a_miniature_all_reduce() -> None:
    (case,) = lines(
        "allreduce",
        "--params",
        "100000",
        "--rounds",
        "2",
        "--blocks",
        "1",
        "--warm-up",
        "1",
        "--codecs",
        "int8",
        "--only",
        "tls",
        "--no-others",
    )
    assert case["case"] == "int8, TLS" and case["unit"] == "s" and case["value"] > 0 and case["rounds"] == 2


def test_one_kill() -> None:
    found = lines(
        "recovery", "--kills", "1", "--stops", "0", "--policies", "any", "--quiet-minutes", "0", "--hivemind-kills", "0"
    )
    (lost,) = (line for line in found if line["case"] == "any: committed rounds lost")
    assert lost["value"] == 0 and lost["met"] and lost["digests_compared"] > 0
    assert any(line["case"] == "any: kill -9, worst" and line["value"] > 0 for line in found)


def test_a_few_rounds_succeed() -> None:
    case, by_peer = lines("success", "--peers", "3", "--rounds", "3", "--hivemind-rounds", "0")
    assert case["reported"] == case["rounds"] == 3 and case["unexplained"] == 0 and 0 < by_peer["value"] <= 1


def test_a_small_overhead() -> None:
    case, by_processor = lines(
        "overhead",
        "--blocks",
        "1",
        "--rounds",
        "6",
        "--layers",
        "1",
        "--width",
        "32",
        "--microbatch",
        "1",
        "--microbatches",
        "2",
        "--sequence",
        "16",
    )
    assert case["value"] > 0 and case["ratio"] > 0 and by_processor["ratio"] > 0
