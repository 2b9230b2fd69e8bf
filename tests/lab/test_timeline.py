"""A scenario spelled out: who joins and is hit when, by seed; what lies between two peers."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from p2ptrain.errors import ConfigError
from p2ptrain.lab.scenario_checks import parse_scenario
from p2ptrain.lab.timeline import Step, Timeline, spell_out
from p2ptrain.lab.wan import Shape
from tests.lab.test_scenario import TEXT

CHURN = """
[churn]
kills_per_min = 20
joins_per_min = 20
leaves_per_min = 4
stops_per_min = 4
stop_s = 2
alive_min = 2
alive_max = 6
"""


def timeline(more: str = "", text: str = TEXT, short: bool = False) -> Timeline:
    return spell_out(parse_scenario(text + more), short=short)


def alive_over_time(steps: Iterable[Step]) -> list[tuple[float, set[str]]]:
    alive: set[str] = set()
    seen = []
    for step in steps:
        if step.do == "join":
            assert alive.isdisjoint(step.peers)
            alive |= set(step.peers)
        elif step.do in ("kill", "leave"):
            assert alive >= set(step.peers)
            alive -= set(step.peers)
        seen.append((step.at_s, set(alive)))
    return seen


def test_groups_and_events_become_steps_in_order() -> None:
    made = timeline()
    assert [(step.at_s, step.do, step.peers) for step in made.steps] == [
        (0.0, "join", ("a0", "a1", "a2")),
        (2.0, "join", ("b0", "b1")),
        (10.0, "kill", ("a1",)),
        (12.0, "partition", ("b0", "b1")),
        (20.0, "heal", ()),
    ]
    assert made.founder == "a0"
    assert made.alive_max == 5


def test_a_partition_cuts_both_ways_and_heal_mends_just_that() -> None:
    cut, heal = timeline().steps[3:]
    sides = {(a, b) for a in ("a0", "a1", "a2") for b in ("b0", "b1")}
    assert set(cut.cuts) == sides | {(b, a) for a, b in sides}
    assert heal.heals == cut.cuts


def test_a_flash_crowd_joins_one_by_one() -> None:
    made = timeline(text=TEXT.replace("join_s = 2", "join_s = 2\nevery_s = 1.5"))
    assert [(step.at_s, step.peers) for step in made.steps[1:3]] == [(2.0, ("b0",)), (3.5, ("b1",))]


def test_short_multiplies_every_time_and_changes_nothing_else() -> None:
    long, short = timeline(CHURN), timeline(CHURN, short=True)
    assert short.seconds == long.seconds * 0.5
    assert [step.at_s for step in short.steps] == pytest.approx([step.at_s * 0.5 for step in long.steps], abs=1e-5)
    assert [(step.do, step.peers) for step in short.steps] == [(step.do, step.peers) for step in long.steps]
    assert any("short form" in note for note in short.notes)


# --- paths ------------------------------------------------------------------------------------------------------------


def test_a_path_adds_up_what_lies_on_it() -> None:
    text = TEXT.replace('region = "virginia"\n[[peers]]', 'region = "virginia"\njitter_ms = 2\nloss = 0.01\n[[peers]]')
    text = text.replace("delay_ms = 33.5", "delay_ms = 33.5\nloss = 0.02\nmbps = 100").replace(
        "count = 3", "count = 3\ndelay_ms = 4"
    )
    made = timeline(text=text)
    assert made.shape("a0", "b1") == made.shape("b1", "a0")
    assert made.shape("a0", "b1").delay_s == pytest.approx(0.0335 + 0.004 + 0.015)
    assert made.shape("a0", "b1").loss == pytest.approx(1 - 0.98 * 0.99)
    assert made.shape("a0", "b1").jitter_s == pytest.approx(0.002)
    assert made.shape("a0", "b1").mbps == 100
    assert made.shape("a0", "a2") == Shape(0.0005 + 0.008, mbps=2000)
    assert made.shape("b0", "b1").delay_s < 0.001  # behind one router


def test_hosts_say_where_they_live() -> None:
    made = timeline(text=TEXT.replace("count = 3", "count = 3\nup_mbps = 30\ndown_mbps = 200\nmemory = '2GB'"))
    a, b = made.by_name["a0"], made.by_name["b0"]
    assert (a.host.up_mbps, a.host.down_mbps, a.host.router, a.host.nat) == (30, 200, "", False)
    assert (a.region, a.memory, a.outbound_only) == ("oregon", "2GB", False)
    assert (b.host.router, b.host.nat, b.outbound_only) == ("home", True, True)
    assert made.routers == {"home": (40.0, 200.0)}


def test_one_way_links_and_the_measured_table() -> None:
    link = '[[links]]\nbetween = ["oregon", "virginia"]\ndelay_ms = 33.5\n'
    ways = link + "one_way = true\n" + '[[links]]\nbetween = ["virginia", "oregon"]\ndelay_ms = 90\none_way = true\n'
    made = timeline(text=TEXT.replace(link, ways).replace('router = "home"\n', ""))
    assert (made.shape("a0", "b0").delay_s, made.shape("b0", "a0").delay_s) == (0.0335, 0.09)
    made = timeline(text=TEXT.replace(link, '[network]\ntable = "aws-regions"\n').replace('router = "home"\n', ""))
    assert made.shape("a0", "b0") == Shape(0.0335, mbps=790)


def test_degrade_and_heal_of_a_router() -> None:
    more = (
        '[[events]]\nat_s = 22\ndo = "degrade"\nbetween = ["home", "oregon"]\nmbps = 5\nloss = 0.02\none_way = true\n'
    )
    more += '[[events]]\nat_s = 25\ndo = "heal"\nbetween = ["home", "oregon"]\n'
    made = timeline(more)
    worse, heal = made.steps[-2:]
    plain = made.shape("b0", "a0")
    assert {(a, b) for a, b, _ in worse.shapes} == {(b, a) for b in ("b0", "b1") for a in ("a0", "a1", "a2")}
    assert all((s.mbps, s.loss, s.delay_s) == (5, 0.02, plain.delay_s) for _, _, s in worse.shapes)
    assert heal.shapes == tuple((a, b, plain) for a, b, _ in worse.shapes)
    assert heal.heals == ()


def test_a_one_way_cut_cuts_one_way() -> None:
    made = timeline('[[events]]\nat_s = 22\ndo = "cut"\nbetween = ["a0", "virginia"]\none_way = true\n')
    assert made.steps[-1].cuts == (("a0", "b0"), ("a0", "b1"))


def test_heal_ends_corruption_too() -> None:
    text = TEXT.replace('do = "partition"\nregion = "virginia"', 'do = "corrupt"\npeers = ["a0"]\nchance = 0.5')
    made = timeline(text=text)
    assert [(s.do, s.peers, s.chance) for s in made.steps[-3:]] == [
        ("corrupt", ("a0",), 0.5), ("heal", (), None), ("corrupt", ("a0",), 0.0),
    ]  # fmt: skip


# --- random churn -----------------------------------------------------------------------------------------------------


def test_churn_is_the_seeds_and_nothing_elses() -> None:
    assert timeline(CHURN).steps == timeline(CHURN).steps
    other = timeline(CHURN, TEXT.replace("short = 0.5", "short = 0.5\nseed = 8"))
    assert other.steps != timeline(CHURN).steps


def test_churn_is_the_same_in_another_process(tmp_path: Path) -> None:
    (tmp_path / "churn.toml").write_text(TEXT + CHURN)
    code = (
        "import sys; from p2ptrain.lab.scenario_checks import load_scenario\n"
        "from p2ptrain.lab.timeline import spell_out\n"
        "print(repr(spell_out(load_scenario(sys.argv[1])).steps))"
    )
    told = {
        subprocess.run(
            [sys.executable, "-c", code, str(tmp_path / "churn.toml")],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": str(Path(__file__).parents[2])},
            capture_output=True, text=True, timeout=60, check=True,
        ).stdout
        for seed in ("1", "2")
    }  # fmt: skip
    assert told == {repr(timeline(CHURN).steps) + "\n"}


@pytest.mark.parametrize("seed", range(20))
def test_churn_keeps_its_bounds(seed: int) -> None:
    text = TEXT.replace("short = 0.5", f"short = 0.5\nseed = {seed}").replace("seconds = 40", "seconds = 300")
    made = timeline(CHURN, text)
    assert [step.at_s for step in made.steps] == sorted(step.at_s for step in made.steps)
    assert {"kill", "join", "leave", "stop", "continue"} <= {step.do for step in made.steps}
    counts = [len(alive) for at, alive in alive_over_time(made.steps) if at > 10]
    assert min(counts) >= 1 and max(counts) <= 6
    assert {name for step in made.steps for name in step.peers} <= set(made.by_name)


def test_asking_for_more_kills_moves_no_join() -> None:
    def joins(made: Timeline) -> list[float]:
        return [step.at_s for step in made.steps if step.do == "join" and step.at_s > 3]

    few = timeline("[churn]\njoins_per_min = 9\nalive_max = 100\n")
    many = timeline("[churn]\njoins_per_min = 9\nkills_per_min = 9\nalive_max = 100\n")
    assert joins(few) == joins(many)


def test_random_churn_never_takes_the_last_that_holds_the_state() -> None:
    text = TEXT.replace("count = 3\n", "").replace("count = 2\n", "").split("[[events]]")[0]
    for seed in range(10):
        scenario = text.replace("short = 0.5", f"short = 0.5\nseed = {seed}")
        made = timeline("[churn]\nkills_per_min = 60\njoins_per_min = 30\nalive_max = 3\n", scenario)
        assert all(alive for _, alive in alive_over_time(made.steps))


# --- traces -----------------------------------------------------------------------------------------------------------

TRACE = '[trace]\nname = "aws-p3-spot-2021"\ngroups = ["o", "v"]\ncompress = 600\nalive_max = 5\n'
GROUPS = '[[peers]]\nname = "o"\nregion = "oregon"\n[[peers]]\nname = "v"\nregion = "virginia"\n'


def test_a_trace_is_dealt_out_to_its_groups() -> None:
    made = timeline(GROUPS + TRACE, TEXT.split("[[events]]")[0])
    named = [host for host in made.hosts if host.group in ("o", "v")]
    assert {host.region for host in named} == {"oregon", "virginia"}
    assert abs(sum(1 if host.group == "o" else -1 for host in named)) <= 1
    assert {host.name for host in named} >= {"o0", "v0", "o1"}
    seen = [{n for n in alive if n[0] in "ov"} for _, alive in alive_over_time(made.steps)]
    assert max(map(len, seen)) == 5
    assert "compressed 600 times" in made.notes[0] and "at most 5 of 32 alive" in made.notes[0]


def test_a_trace_alone_founds_the_run_with_its_first_machine() -> None:
    text = TEXT.split("[[peers]]")[0] + GROUPS + TRACE.replace("alive_max = 5\n", "")
    made = timeline(text=text)
    assert made.founder == made.steps[0].peers[0] and made.steps[0].at_s == 0.0


def test_a_thinned_trace_that_leaves_nobody_is_refused() -> None:
    text = TEXT.split("[[peers]]")[0] + GROUPS + TRACE.replace("alive_max = 5", "alive_max = 1")
    with pytest.raises(ConfigError, match="nobody is left"):
        timeline(text=text)


def test_a_scenario_made_by_code_is_checked_as_well() -> None:
    scenario = parse_scenario(TEXT)
    bad = scenario.model_copy(update={"events": (scenario.events[0].model_copy(update={"peers": ("a",)}),)})
    everybody = bad.model_copy(update={"peers": scenario.peers[:1]})
    with pytest.raises(ConfigError, match="nobody is left"):
        spell_out(everybody)
