"""The baselines of ``bench/goodput_sim.py`` on traces small enough to count by hand, and a miniature of the bench."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from p2ptrain.lab.traces import parse_trace

ROOT = Path(__file__).parents[2]


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    return importlib.import_module("goodput_sim")


def spans(bench: Any, rows: str, seconds: float) -> Any:
    trace = parse_trace("time_s,event,peer\n" + rows, name="t", file="t.csv")
    return bench.spans_of(trace.moves, seconds)


def test_spans_and_the_ideal(bench: Any) -> None:
    found = spans(bench, "0,join,a\n0,join,b\n30,kill,a\n50,join,c\n", 100.0)
    assert [(span.seconds, sorted(span.alive), sorted(span.killed)) for span in found] == [
        (30.0, ["a", "b"], []), (20.0, ["b"], ["a"]), (50.0, ["b", "c"], []),
    ]  # fmt: skip
    assert bench.ideal(found) == 30 * 2 + 20 + 50 * 2


def test_checkpoints_cost_and_a_kill_loses_what_is_since(bench: Any) -> None:
    calm = spans(bench, "0,join,a\n", 110.0)
    assert bench.checkpoint_and_restart(calm, 10.0) == pytest.approx(100 / 110)  # ten times ten seconds and one
    hit = spans(bench, "0,join,a\n0,join,b\n25,kill,b\n", 45.0 + 25.0)
    kept = 2 * 20  # two checkpoints at 10 and 21 s; the four seconds since are lost, then 20 s of restart
    assert bench.checkpoint_and_restart(hit, 10.0) == pytest.approx((kept + 10 + 10 + 3) / (50 + 45))


def test_waiting_for_everybody_stands_still_until_a_place_is_taken(bench: Any) -> None:
    found = spans(bench, "0,join,a\n0,join,b\n30,kill,a\n50,join,c\n", 100.0)
    assert bench.wait_for_everybody(found, 2) == pytest.approx((30 * 2 + 0 + 45 * 2) / 180)
    assert bench.wait_for_everybody(found, 1) == pytest.approx((30 + 15 + 50) / 180)  # b takes a's place after a load
    assert bench.wait_for_everybody(found, 3) == 0.0


def test_a_miniature(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "bench" / "goodput_sim.py"), "--json", "--trace", "aws-g4dn-spot-2021"]
    done = subprocess.run([*command, "--compress", "3000"], capture_output=True, text=True, timeout=110, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["against"] for line in found] == ["", "checkpoint and restart", "wait for everybody"]
    assert all("time / 3000" in line["case"] and line["digests_unequal"] == 0 for line in found[:1])
