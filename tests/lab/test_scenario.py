"""What a scenario may not say is refused with key, file and line, before anything is started."""

from __future__ import annotations

from pathlib import Path

import pytest

from p2ptrain.errors import ConfigError
from p2ptrain.lab.scenario import DO_FIELDS, Event, Scenario
from p2ptrain.lab.scenario_checks import load_scenario, parse_scenario

EXAMPLES = sorted((Path(__file__).parents[2] / "examples" / "churn").glob("*.toml"))

TEXT = """name = "try"
seconds = 40
short = 0.5
[run]
name = "try"
[run.model]
name = "byte_gpt"
options = { layers = 2, width = 64, heads = 4, context = 64 }
[run.data]
name = "python_stdlib"
[run.batch]
microbatch = 4
microbatches = 16
sequence_length = 64
[[regions]]
name = "oregon"
[[regions]]
name = "virginia"
[[links]]
between = ["oregon", "virginia"]
delay_ms = 33.5
[[routers]]
name = "home"
region = "virginia"
[[peers]]
name = "a"
count = 3
region = "oregon"
[[peers]]
name = "b"
count = 2
region = "virginia"
router = "home"
join_s = 2
[[events]]
at_s = 10
do = "kill"
peers = ["a1"]
[[events]]
at_s = 12
do = "partition"
region = "virginia"
[[events]]
at_s = 20
do = "heal"
"""


def line_of(text: str, part: str) -> int:
    return text[: text.index(part)].count("\n") + 1


def refused(old: str, new: str, text: str = TEXT) -> tuple[str, list[tuple[str, int]]]:
    """The error's text, and key and line of each problem, of the scenario with ``old`` replaced."""
    assert old in text
    with pytest.raises(ConfigError) as caught:
        parse_scenario(text.replace(old, new, 1), file="try.toml")
    problems = caught.value.fields["problems"]
    assert isinstance(problems, tuple)
    return caught.value.text, [(problem.key, problem.line) for problem in problems]


def test_the_plain_text_is_accepted() -> None:
    scenario = parse_scenario(TEXT)
    assert [group.name for group in scenario.peers] == ["a", "b"]
    assert scenario.events[1].region == "virginia"


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_example_is_accepted_and_expects_something(path: Path) -> None:
    scenario = load_scenario(path)
    assert scenario.name == path.stem
    assert scenario.expect.model_fields_set
    assert scenario.seconds * scenario.short < 60


def test_all_the_asked_for_examples_are_there() -> None:
    assert {path.stem for path in EXAMPLES} >= {
        "two-regions-and-a-kill", "four-regions-spot", "home-volunteers", "partition-any", "partition-majority",
        "flash-crowd", "region-outage", "slow-peer",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("old", "new", "key", "at", "why"),
    [
        ("short = 0.5", "shirt = 0.5", "shirt", "shirt", "did you mean 'short'"),
        ("count = 3", "cuont = 3", "peers.0.cuont", "cuont", "did you mean 'count'"),
        ('peers = ["a1"]', 'peers = ["c1"]', "events.0.peers", "peers = [", "unknown peer 'c1'"),
        ('do = "partition"\nregion = "virginia"', 'do = "partition"\nregion = "v"', "events.1.region", 'region = "v"\n',
         "unknown region"),
        ("at_s = 12", "at_s = 8", "events.1.at_s", "at_s = 8", "time goes back"),
        ("at_s = 20", "at_s = 41", "events.2.at_s", "at_s = 41", "after the scenario's end"),
        ('do = "heal"', 'do = "heal"\nloss = 0.5', "events.2.loss", "loss = 0.5", "takes no loss"),
        ('do = "heal"', 'do = "cut"', "events.2", "[[events]]\nat_s = 20", 'do = "cut" needs between'),
        ('do = "heal"', 'do = "slow"\npeers = ["a0"]', "events.2", "[[events]]\nat_s = 20", "needs microbatch_s"),
        ('do = "heal"', 'do = "kill"', "events.2", "[[events]]\nat_s = 20", "either peers or region"),
        ('do = "heal"', 'do = "explode"', "events.2.do", 'do = "explode"', "explode"),
        ('do = "heal"', 'do = "cut"\nbetween = ["oregon", "mars"]', "events.2.between",
         'between = ["oregon", "mars"]',
         "unknown peer, router or region 'mars'"),
        ('do = "heal"', 'do = "degrade"\nbetween = ["a0", "home"]', "events.2", "[[events]]\nat_s = 20", "at least"),
        ('name = "b"', 'name = "a"', "peers.1.name", 'name = "a"\ncount = 2', "already"),
        ('name = "b"\ncount = 2', 'name = "a1"', "peers.1.name", 'name = "a1"', "already"),
        ('name = "home"', 'name = "oregon"', "routers.0.name", 'name = "oregon"\nregion', "there is a region"),
        ('name = "home"\nregion = "virginia"', 'name = "home"\nregion = "oregon"', "peers.1.router", 'router = "home"',
         "router home is in oregon"),
        ('router = "home"', 'router = "hame"', "peers.1.router", 'router = "hame"', "unknown router"),
        ('region = "oregon"', 'region = "oregano"', "peers.0.region", "oregano", "unknown region"),
        ('between = ["oregon", "virginia"]', 'between = ["oregon", "utah"]', "links.0.between", "utah", "unknown"),
        ('between = ["oregon", "virginia"]', 'between = ["oregon", "oregon"]', "links.0.between", "between", "twice"),
        ("delay_ms = 33.5", "delay_ms = 33.5\none_way = true", "regions.0", "[[regions]]", "in this direction"),
        ('peers = ["a1"]', 'peers = ["b0", "b9"]', "events.0.peers", 'peers = ["b0"', "unknown peer 'b9'"),
        ("microbatch = 4", "microbatch = 0", "run.batch.microbatch", "microbatch = 0", "greater than or equal to 1"),
        ("sequence_length = 64", "", "run.batch.sequence_length", "[run.batch]", "is missing"),
        ('name = "byte_gpt"', 'name = "byte_gtp"', "run.model.name", 'name = "byte_gtp"', "unknown model"),
        ("width = 64", "widht = 64", "run.model.options", "options = {", "unknown option 'widht'"),
        ("count = 3", 'count = 3\nmemory = "lots"', "peers.0.memory", "memory", "lots"),
        ("join_s = 2", "join_s = 60", "peers.1", '[[peers]]\nname = "b"', "after the scenario's end"),
    ],
)  # fmt: skip
def test_a_contradiction_is_refused_at_its_line(old: str, new: str, key: str, at: str, why: str) -> None:
    text, problems = refused(old, new)
    assert (key, line_of(TEXT.replace(old, new, 1), at)) in problems
    assert why in text
    assert f"try.toml:{problems[0][1]}: " in text


def test_a_pair_of_regions_without_a_link_is_refused() -> None:
    text, problems = refused('[[links]]\nbetween = ["oregon", "virginia"]\ndelay_ms = 33.5\n', "")
    assert "no [[links]] entry from oregon to virginia" in text
    assert problems[0][0] == "regions.1"


def test_a_table_of_measured_regions_stands_for_links() -> None:
    text = TEXT.replace(
        '[[links]]\nbetween = ["oregon", "virginia"]\ndelay_ms = 33.5\n', '[network]\ntable = "aws-regions"\n'
    )
    assert parse_scenario(text).network.table == "aws-regions"
    text, _ = refused('name = "virginia"', 'name = "utah"', text.replace('region = "virginia"', 'region = "utah"'))
    assert "aws-regions has none either" in text


def test_the_first_peer_founds_at_zero() -> None:
    text, problems = refused("count = 3", "count = 3\njoin_s = 1")
    assert problems[0][0] == "peers.0.join_s" and "founds the run" in text


def test_a_scenario_that_leaves_no_peer_alive_says_when() -> None:
    both = (
        '[[events]]\nat_s = 30\ndo = "kill"\npeers = ["a"]\n[[events]]\nat_s = 31\ndo = "leave"\nregion = "virginia"\n'
    )
    text, problems = refused("[[events]]\nat_s = 20\n", both + "[[events]]\nat_s = 35\n")
    assert "at 31 s nobody is left" in text
    assert problems == [("events.3", line_of(TEXT.replace("[[events]]\nat_s = 20\n", both), "[[events]]\nat_s = 31"))]


def test_a_newcomer_of_that_very_moment_holds_no_state() -> None:
    text, _ = refused(
        '[[events]]\nat_s = 20\ndo = "heal"\n',
        '[[events]]\nat_s = 20\ndo = "kill"\npeers = ["b"]\n[[events]]\nat_s = 21\ndo = "join"\npeers = ["b0"]\n'
        '[[events]]\nat_s = 21\ndo = "kill"\npeers = ["a"]\n',
    )
    assert "at 21 s nobody who holds the state is left: b0 joined only" in text


@pytest.mark.parametrize(
    ("do", "peer", "why"),
    [
        ("kill", "a1", "not alive at 20 s"),
        ("stop", "a1", "not alive at 20 s"),
        ("join", "a0", "alive already at 20 s"),
        ("continue", "a0", "not stopped at 20 s"),
    ],
)
def test_an_event_that_cannot_happen_to_its_peer_is_refused(do: str, peer: str, why: str) -> None:
    text, problems = refused('do = "heal"', f'do = "{do}"\npeers = ["{peer}"]')
    assert why in text and problems[0][0] == "events.2.peers"


def test_a_trace_needs_a_known_group() -> None:
    trace = '\n[trace]\nname = "aws-p3-spot-2021"\n'
    for line, why in (
        ("", "either group or groups"),
        ('group = "x"', "unknown group"),
        ('groups = ["a", "a"]', "twice"),
    ):
        with pytest.raises(ConfigError, match=why):
            parse_scenario(TEXT + trace + line)


def test_a_trace_of_an_unknown_name_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"trace\.name"):
        parse_scenario(TEXT + '\n[trace]\nname = "azure"\ngroup = "a"\n')


@pytest.mark.parametrize(
    ("table", "why"),
    [
        ("[churn]\nfrom_s = 30\nto_s = 20\n", "after its end"),
        ("[churn]\nalive_min = 5\nalive_max = 4\n", "above alive_max"),
        ('[expect]\nstalled = ["z"]\n', "unknown peer 'z'"),
        ("[expect]\nrounds_at_least = -1\n", "greater than or equal to 0"),
    ],
)
def test_other_tables_are_checked_too(table: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        parse_scenario(TEXT + table)


def test_every_event_field_belongs_to_some_do() -> None:
    known = set().union(*(needs | may for needs, may in DO_FIELDS.values()))
    assert known == set(Event.model_fields) - {"at_s", "do"}
    assert set(DO_FIELDS) == set(Event.model_fields["do"].annotation.__args__)  # type: ignore[union-attr]


def test_a_file_that_is_not_there_or_no_toml(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        load_scenario(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_text("name = \n")
    with pytest.raises(ConfigError, match=r"bad\.toml: not TOML"):
        load_scenario(tmp_path / "bad.toml")


def test_all_problems_are_told_in_order_of_lines() -> None:
    text = TEXT.replace("at_s = 12", "at_s = 8").replace('router = "home"', 'router = "no"')
    with pytest.raises(ConfigError) as caught:
        parse_scenario(text)
    problems = caught.value.fields["problems"]
    assert [problem.key for problem in problems] == ["peers.1.router", "events.1.at_s"]  # type: ignore[attr-defined]


def test_the_model_is_plain_data() -> None:
    assert Scenario.model_validate(parse_scenario(TEXT).model_dump()) == parse_scenario(TEXT)
