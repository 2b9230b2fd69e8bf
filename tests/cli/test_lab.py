"""``lab`` and what stands beside it: dispatch, exit codes, where the report goes. The run itself is replaced."""

from __future__ import annotations

import json
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from p2ptrain.errors import ConfigError, ExpectationError, LabError
from p2ptrain.lab.conductor import Progress
from tests.lab.records import record
from tests.lab.scenarios import PLAIN, RUN

Run = Callable[..., Any]

EXPECT = "[expect]\ndigests_equal = true\nrounds_at_least = {rounds}\nstall_per_kill_s = {stall}\n"


@pytest.fixture()
def conducted(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Every run that would have been conducted; each leaves the small test record."""
    from p2ptrain.cli import lab

    runs: list[dict[str, Any]] = []

    def conduct(scenario: Any, timeline: Any, folder: Path, **options: Any) -> Any:
        options["on_progress"](Progress(1.0, 10.0, 3, 4, 50.0, "kill -9 [a1]", "the end"))
        runs.append({"seconds": timeline.seconds, "folder": folder, **options})
        return record()

    monkeypatch.setattr(lab, "conduct", conduct)
    return runs


def written(folder: Path, *, rounds: int = 5, stall: float = 1.0) -> Path:
    path = folder / "x.toml"
    more = EXPECT.format(rounds=rounds, stall=stall)
    path.write_text(PLAIN.format(seconds=6.0, count=3, delay_ms=0, more=more, run=RUN))
    return path


def test_met(p2ptrain: Run, conducted: list[dict[str, Any]], tmp_path: Path) -> None:
    done = p2ptrain("lab", written(tmp_path), "--out", tmp_path / "out", "--json")
    assert done.exit_code == 0, done.stderr
    line = json.loads(done.stdout)
    assert line["kind"] == "lab" and line["rounds"] == 10 and line["happenings"][0]["next_commit_s"] == 0.5
    assert line["simulator"][0][0].startswith("round time")
    names = {"record.json", "report.json", "report.html", "sim.json"}
    assert {path.name for path in (tmp_path / "out").iterdir()} == names
    assert "kill -9 [a1]" in done.stderr and "report:" in done.stderr
    assert conducted[0]["reduced"] is False and conducted[0]["seconds"] == 6.0


def test_not_met_has_a_code_of_its_own_and_still_a_report(
    p2ptrain: Run, conducted: list[dict[str, Any]], tmp_path: Path
) -> None:
    done = p2ptrain("lab", written(tmp_path, rounds=11), "--out", tmp_path / "out", "--no-sim")
    assert done.exit_code == ExpectationError.exit_code == 10
    assert "rounds_at_least: asked 11, got 10" in done.stderr
    assert (tmp_path / "out" / "report.html").exists() and not (tmp_path / "out" / "sim.json").exists()


def test_times_decide_unless_they_are_only_to_be_printed(
    p2ptrain: Run, conducted: list[dict[str, Any]], tmp_path: Path
) -> None:
    path = written(tmp_path, stall=0.1)
    assert p2ptrain("lab", path, "--out", tmp_path / "1", "--no-sim").exit_code == 10
    done = p2ptrain("lab", path, "--out", tmp_path / "2", "--no-sim", "--times", "print")
    assert done.exit_code == 0 and "NOT MET (printed only)" in " ".join(done.stderr.split())


def test_options_stand_before_or_behind_the_file(
    p2ptrain: Run, conducted: list[dict[str, Any]], tmp_path: Path
) -> None:
    path = written(tmp_path)
    for number, words in enumerate((["--short", "--reduced", path], [path, "--short", "--reduced"])):
        assert p2ptrain("lab", *words, "--no-sim", "--out", tmp_path / str(number)).exit_code == 0
        assert (conducted[-1]["seconds"], conducted[-1]["reduced"]) == (3.0, True)


def test_without_out_a_new_folder_here(
    p2ptrain: Run, conducted: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert p2ptrain("lab", written(tmp_path), "--no-sim").exit_code == 0
    (folder,) = tmp_path.glob("lab-plain-*")
    assert (folder / "report.html").exists()


def test_nothing_starts_where_the_report_cannot_go_or_the_file_is_wrong(
    p2ptrain: Run, conducted: list[dict[str, Any]], tmp_path: Path
) -> None:
    path = written(tmp_path)
    (tmp_path / "used" / "peers").mkdir(parents=True)
    (tmp_path / "file").write_text("")
    wrong = tmp_path / "wrong.toml"
    wrong.write_text(path.read_text() + "\nrouns_at_least = 3\n")
    for words in ([path, "--out", tmp_path / "used"], [path, "--out", tmp_path / "file" / "x"], [wrong]):
        done = p2ptrain("lab", *words)
        assert done.exit_code == ConfigError.exit_code, done.stderr
    line = wrong.read_text().splitlines().index("rouns_at_least = 3") + 1
    assert f"wrong.toml:{line}" in done.stderr and conducted == []


def test_check_and_clean_are_commands_and_no_files(p2ptrain: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def check(**options: Any) -> None:
        asked.append(options)
        raise LabError("no tun device", hint="run as root, or --reduced")

    fake = types.ModuleType("p2ptrain.cli.lab_check")
    fake.check, fake.clean = check, lambda **_: asked.append("clean")  # type: ignore[attr-defined]
    from p2ptrain import cli

    monkeypatch.setitem(sys.modules, "p2ptrain.cli.lab_check", fake)
    monkeypatch.setattr(cli, "lab_check", fake, raising=False)
    done = p2ptrain("lab", "check", "--reduced", "--json")
    assert (done.exit_code, "LabError: no tun device" in done.stderr) == (LabError.exit_code, True)
    assert p2ptrain("lab", "clean").exit_code == 0
    assert asked == [{"reduced": True, "as_json": True}, "clean"]


def test_help_shows_what_there_is(p2ptrain: Run) -> None:
    told = p2ptrain("lab", "--help").stdout
    assert all(word in told for word in ("FILE", "check", "clean"))
    assert "--times" in p2ptrain("lab", "x.toml", "--help").stdout
