"""Recorded churn and measured networks: both forms of trace files, thinning, bad files, and that they are shipped."""

from __future__ import annotations

import fnmatch
import shutil
import zipfile
from itertools import accumulate
from pathlib import Path

import pytest

from p2ptrain.config_toml import parse_toml
from p2ptrain.errors import ConfigError
from p2ptrain.lab.networks import between, parse_network, shipped_text
from p2ptrain.lab.traces import Move, load_trace, most_alive, parse_trace, replay

ROOT = Path(__file__).parents[2]
DATA = ROOT / "p2ptrain" / "lab" / "data"
TRACES = {"aws-p3-spot-2021": 32, "aws-g4dn-spot-2021": 24, "gcp-v100-spot-2021": 80, "gcp-a100-spot-2021": 64}


@pytest.mark.parametrize("name", sorted(TRACES))
def test_the_shipped_traces_are_whole(name: str) -> None:
    trace = load_trace(name)
    assert trace.alive_max == TRACES[name]
    assert trace.picked == name.startswith("gcp")
    assert [move.t for move in trace.moves] == sorted(move.t for move in trace.moves)
    alive: set[str] = set()
    for move in trace.moves:
        assert (move.peer in alive) != move.joins
        (alive.add if move.joins else alive.discard)(move.peer)


def test_a_counting_trace_counts_what_it_says() -> None:
    trace = load_trace("gcp-a100-spot-2021", seed=3)
    counts = dict(zip((m.t for m in trace.moves), accumulate(1 if m.joins else -1 for m in trace.moves), strict=True))
    rows = [line.split(",") for line in shipped_text("gcp-a100-spot-2021.csv").splitlines()[1:]]
    assert counts == {float(t): int(peers) for t, peers in rows if float(t) in counts}
    assert len(counts) > 60


def test_who_dies_of_a_counting_trace_is_the_seeds() -> None:
    text = "time_s,peers\n0,8\n10,3\n20,8\n"
    one, two = (parse_trace(text, name="t", file="t.csv", seed=seed) for seed in (1, 1))
    assert one == two
    assert any(parse_trace(text, name="t", file="t.csv", seed=seed) != one for seed in range(2, 6))


@pytest.mark.parametrize("name", sorted(TRACES))
@pytest.mark.parametrize("alive_max", [1, 3, 8])
def test_thinning_keeps_the_bound_and_is_a_matter_of_ids(name: str, alive_max: int) -> None:
    trace = load_trace(name)
    part = replay(trace, compress=10, alive_max=alive_max)
    assert most_alive(part.moves) == alive_max
    more = replay(trace, alive_max=alive_max + 1)
    assert {m.peer for m in part.moves} <= {m.peer for m in more.moves}
    assert 0 < part.share < 1 and f"at most {alive_max} of" in part.note


def test_all_of_a_trace_is_kept_unless_asked() -> None:
    trace = load_trace("aws-p3-spot-2021")
    part = replay(trace, compress=4)
    assert part.share == pytest.approx(1.0) and part.peers == trace.peers
    assert part.moves == tuple(Move(m.t / 4, m.joins, m.peer) for m in trace.moves)


def test_from_the_middle_whoever_is_alive_joins_at_zero() -> None:
    text = "time_s,event,peer\n0,join,a\n5,join,b\n8,kill,a\n30,join,c\n40,kill,b\n"
    trace = parse_trace(text, name="t", file="t.csv")
    assert replay(trace, from_s=20, compress=10).moves == (
        Move(0.0, True, "b"), Move(1.0, True, "c"), Move(2.0, False, "b"),
    )  # fmt: skip
    assert replay(parse_trace(text.replace("0,join,a\n", "", 1).replace("8,kill,a\n", ""), name="t", file="t")).moves[
        0
    ] == Move(0.0, True, "b")


def test_nothing_left_of_a_trace_is_an_error() -> None:
    with pytest.raises(ConfigError, match="nothing is left"):
        replay(parse_trace("time_s,event,peer\n0,join,a\n5,kill,a\n", name="t", file="t.csv"), from_s=10)


@pytest.mark.parametrize(
    ("text", "line", "why"),
    [
        ("", 1, "first line"),
        ("time,event,peer\n", 1, "first line"),
        ("time_s,event,peer\n0,join\n", 2, "2 fields"),
        ("time_s,event,peer\n0,join,a\nx,kill,a\n", 3, "a number"),
        ("time_s,event,peer\n0,join,a\n-1,kill,a\n", 3, "a number"),
        ("time_s,event,peer\nnan,join,a\n", 2, "a number"),
        ("time_s,event,peer\n9,join,a\n3,kill,a\n", 3, "time goes back"),
        ("time_s,event,peer\n0,leave,a\n", 2, "event"),
        ("time_s,event,peer\n0,join,\n", 2, "missing"),
        ("time_s,event,peer\n0,join,a\n1,join,a\n", 3, "join of a, which is alive"),
        ("time_s,event,peer\n0,join,a\n1,kill,b\n", 3, "kill of b, which is not alive"),
        ("time_s,peers\n0,4\n1,-2\n", 3, "a count"),
        ("time_s,peers\n0,4\n1,1000000000\n", 3, "a count"),
        ("time_s,peers\n5,4\n1,3\n", 3, "time goes back"),
        ('time_s,peers\n0,"4\n', 2, "not CSV"),
    ],
)
def test_a_bad_trace_names_file_and_line(text: str, line: int, why: str) -> None:
    with pytest.raises(ConfigError, match=why) as caught:
        parse_trace(text, name="t", file="t.csv")
    assert caught.value.text.startswith(f"t.csv:{line}: ")
    assert (caught.value.fields["file"], caught.value.fields["line"]) == ("t.csv", line)


def test_the_network_has_all_pairs_both_ways() -> None:
    table = between("aws-regions")
    regions = {one for one, _ in table}
    assert len(regions) == 10 and len(table) == 90
    assert table["oregon", "virginia"] == table["virginia", "oregon"] == (0.0335, 790.0)


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        ("a,b,1", "3 fields"),
        ("a,a,1,1", "two regions"),
        ("a,b,x,1", "a number"),
        ("a,b,1,0", "above 0"),
        ("a,b,1,1\nb,a,1,1", "twice"),
    ],
)
def test_a_bad_network_names_the_line(rows: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        parse_network(f"region_a,region_b,rtt_ms,bandwidth_mbps\n{rows}\n", file="n.csv")


def test_a_file_that_is_not_shipped() -> None:
    with pytest.raises(ConfigError, match="not among the files"):
        shipped_text("moon.csv")


# --- shipped ----------------------------------------------------------------------------------------------------------


def test_the_package_data_names_every_file() -> None:
    project, _ = parse_toml((ROOT / "pyproject.toml").read_bytes(), file="pyproject.toml", max_bytes=1 << 20)
    globs = project["tool"]["setuptools"]["package-data"]["p2ptrain.lab"]
    files = [path.name for path in DATA.iterdir() if path.is_file()]
    assert len(files) == 6
    assert all(any(fnmatch.fnmatch(f"data/{name}", glob) for glob in globs) for name in files)
    readme = (DATA / "README.md").read_text()
    assert "uclasystem/bamboo" in readme and "MIT" in readme and "DS3Lab/DT-FM" in readme
    assert all(name in readme for name in files if name.endswith(".csv"))


def test_the_wheel_has_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    meta = pytest.importorskip("setuptools.build_meta", reason="the wheel is built by setuptools")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    shutil.copytree(ROOT / "p2ptrain", tmp_path / "p2ptrain", ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.chdir(tmp_path)
    wheel = meta.build_wheel(str(tmp_path / "dist"))
    names = set(zipfile.ZipFile(tmp_path / "dist" / wheel).namelist())
    assert {f"p2ptrain/lab/data/{path.name}" for path in DATA.iterdir() if path.is_file()} <= names
