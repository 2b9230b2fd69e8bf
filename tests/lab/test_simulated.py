"""A scenario in the simulator: the record it leaves, what the wide network does, and the command."""

from __future__ import annotations

import dataclasses
import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

from p2ptrain.cli import simulate as command
from p2ptrain.errors import P2PTrainError
from p2ptrain.lab.expectations import is_met, judge
from p2ptrain.lab.record import Record
from p2ptrain.lab.scenario_checks import load_scenario, parse_scenario
from p2ptrain.lab.simulated import simulate
from p2ptrain.lab.timeline import spell_out
from p2ptrain.lab.wan import Shape
from p2ptrain.sim.wide import SEGMENT_BYTES, Access, WideNetwork, mathis_mbps
from tests.lab.test_scenario import EXAMPLES, TEXT

PLAIN = TEXT.split("[[events]]")[0].replace('router = "home"\n', "")


def event(at_s: float, do: str, more: str) -> str:
    return f'[[events]]\nat_s = {at_s}\ndo = "{do}"\n{more}\n'


def played(text: str) -> Record:
    scenario = parse_scenario(text)
    return simulate(scenario, spell_out(scenario))


# --- the record -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_example_meets_its_expectations_in_its_short_form(path: Path) -> None:
    scenario = load_scenario(path)
    record = simulate(scenario, spell_out(scenario, short=True))
    missed = [verdict for verdict in judge(record, scenario.expect, times_decide=True) if verdict.failed]
    assert not missed


def test_the_same_scenario_leaves_the_same_record() -> None:
    text = PLAIN + "[churn]\nkills_per_min = 10\njoins_per_min = 10\nalive_min = 2\nalive_max = 6\n"
    one, two = (dataclasses.replace(played(text), wall_s=0.0) for _ in range(2))
    assert one == two
    assert one.rounds and one.links


def test_the_record_tells_lives_rounds_and_happenings() -> None:
    record = played(TEXT.split("[[events]]\nat_s = 12")[0] + event(30, "join", 'peers = ["a1"]'))
    assert (record.kind, record.mode, record.seconds) == ("sim", "virtual", 40.0)
    assert [(life.name, life.ended) for life in record.lives] == [
        ("a0", ""), ("a1", "kill"), ("a2", ""), ("b0", ""), ("b1", ""), ("a1", ""),
    ]  # fmt: skip
    assert record.lives[1].ended_s == 10.0 and record.lives[5].began_s == 30.0
    assert all(life.first_counted_s is not None and life.rounds for life in record.lives)
    assert record.lives[0].own_samples_per_s == pytest.approx(4 / 0.05)
    assert {fact.expected for fact in record.rounds} == {16}
    kill = next(h for h in record.happenings if h.do == "kill")
    assert (kill.t, kill.peers) == (10.0, ["a1"])
    assert kill.next_commit_s is not None and 0 < kill.next_commit_s < 3.0
    assert json.dumps(record.as_json(), allow_nan=False)


def test_bytes_are_the_models_and_the_codecs() -> None:
    one, other = (played(PLAIN.replace('[[regions]]\nname = "oregon"', codec + '[[regions]]\nname = "oregon"', 1))
                  for codec in ('[run.sync]\ncodec = "none"\n', '[run.sync]\ncodec = "fp16"\n'))  # fmt: skip
    per_round = [sum(link.nbytes for link in r.links) / len(r.rounds) for r in (one, other)]
    assert per_round[0] / per_round[1] == pytest.approx(2.0, rel=0.1)
    values = 2 * 256 * 64 + 2 * 12 * 64 * 64
    assert 2 * 2 * values < per_round[1] < 2 * 2 * 5 * values  # out and back, among at most five, a few pulls beside


def test_policy_any_gives_up_the_smaller_history_and_majority_nothing() -> None:
    parted = event(14, "partition", 'region = "virginia"') + event(26, "heal", "")
    given_up = played(PLAIN + parted).abandoned
    assert {name for _, name, _, _ in given_up} == {"b0", "b1"}
    assert all(t > 26.0 for t, _, _, _ in given_up)
    held = played(PLAIN.replace('name = "try"\n[run.model]', 'name = "try"\ncommit = "majority"\n[run.model]') + parted)
    assert not held.abandoned
    alone = [t for t, life, _, _ in held.applied if held.lives[life].name == "b0" and 17 < t < 26]
    assert not alone
    assert [t for t, life, _, _ in held.applied if held.lives[life].name == "b0" and t > 30]


def test_a_one_way_cut_is_noticed_by_both_and_the_run_goes_on() -> None:
    record = played(PLAIN + event(14, "cut", 'between = ["b0", "oregon"]\none_way = true'))
    assert sum(1 for fact in record.rounds if fact.t > 16) >= 5
    applied = {record.lives[life].name for t, life, _, _ in record.applied if t > 30}
    assert applied == {"a0", "a1", "a2", "b0", "b1"}


def test_a_slower_peer_counts_less_and_its_own_speed_is_the_mean() -> None:
    record = played(PLAIN + event(20, "slow", 'peers = ["a1"]\nmicrobatch_s = 0.1'))
    assert record.lives[1].own_samples_per_s == pytest.approx((4 / 0.05 + 4 / 0.1) / 2, rel=0.02)


def test_a_stopped_peer_comes_back() -> None:
    record = played(PLAIN + event(15, "stop", 'peers = ["a1"]') + event(22, "continue", 'peers = ["a1"]'))
    rounds = [t for t, life, _, _ in record.applied if record.lives[life].name == "a1"]
    assert not [t for t in rounds if 15.01 < t < 22] and [t for t in rounds if t > 30]


def test_what_has_no_effect_here_is_said() -> None:
    record = played(PLAIN + event(5, "fill_disk", 'peers = ["a0"]') + event(6, "skew", 'peers = ["a0"]\nseconds = 60'))
    assert "without effect in the simulator: fill_disk, skew" in record.notes


def test_a_peer_killed_or_told_to_leave_before_it_stands_never_joins() -> None:
    record = played(
        PLAIN.replace("join_s = 2", "join_s = 5")
        + event(5.1, "kill", 'peers = ["b0"]')
        + event(5.2, "leave", 'peers = ["b1"]')
    )
    assert [(life.name, life.ended, life.ready_s) for life in record.lives[3:]] == [
        ("b0", "kill", None), ("b1", "leave", None),
    ]  # fmt: skip


def test_corruption_slows_and_breaks_nothing() -> None:
    record = played(PLAIN + event(12, "corrupt", 'peers = ["a0", "b0"]\nchance = 0.5'))
    assert is_met(judge(record, parse_scenario(PLAIN + "[expect]\ndigests_equal = true\n").expect, times_decide=True))
    assert max(fact.t for fact in record.rounds) > 36


# --- the wide network -------------------------------------------------------------------------------------------------


def wide(**shapes: float) -> WideNetwork:
    return WideNetwork(path=lambda one, other: Shape(**{"delay_s": 0.02, **shapes}))


def test_a_first_transfer_pays_for_the_connection_and_slow_start_once() -> None:
    network = wide()
    first, second = network.carried_s("a", "b", 10_000, 0.0), network.carried_s("a", "b", 10_000, 0.2)
    assert (first, second) == pytest.approx((0.08, 0.0))
    assert network.carried_s("b", "c", 10 * SEGMENT_BYTES * 3, 0.0) == pytest.approx(0.08 + 0.04)  # two windows


def test_transfers_share_an_uplink_and_a_router() -> None:
    network = wide(delay_s=0.0)
    network.access = {"a": Access(10.0), "b": Access(router="home"), "c": Access(router="home")}
    network.routers = {"home": (10.0, 100.0)}
    assert network.carried_s("a", "x", 1_250_000, 0.0) == pytest.approx(1.0)
    assert network.carried_s("a", "y", 1_250_000, 0.0) == pytest.approx(2.0)  # waits for the first
    assert network.carried_s("a", "y", 1_250_000, 9.0) == pytest.approx(1.0)
    assert network.carried_s("b", "x", 1_250_000, 0.0) == pytest.approx(1.0)
    assert network.carried_s("c", "y", 1_250_000, 0.0) == pytest.approx(2.0)  # the router is shared
    assert network.carried_s("b", "c", 1_250_000, 0.0) == pytest.approx(0.0)  # behind it
    assert network.carried[("a", "y")] == 2_500_000


def test_the_slowest_thing_on_the_way_decides() -> None:
    network = wide(mbps=50.0, delay_s=0.0)
    network.access = {"a": Access(up_mbps=100.0), "b": Access(down_mbps=20.0)}
    assert network.carried_s("a", "b", 2_500_000, 0.0) == pytest.approx(1.0)
    assert network.carried_s("a", "c", 2_500_000, 5.0) == pytest.approx(0.4)


def test_loss_caps_a_long_path() -> None:
    assert mathis_mbps(0.1, 0.0) == 0.0
    assert mathis_mbps(0.1, 0.01) == pytest.approx(1448 * 8e-6 / 0.1 * 150**0.5)
    network = wide(loss=0.01, mbps=1000.0)
    assert network.carried_s("a", "b", 1_000_000, 0.0) > 1_000_000 * 8e-6 / mathis_mbps(0.04, 0.01)


def test_cuts_have_a_direction_and_nat_one_side() -> None:
    network = wide()
    network.access = {"n": Access(router="home", nat=True), "m": Access(router="home", nat=True)}
    network.cut_off([("a", "b")])
    assert not network.passes("a", "b") and network.passes("b", "a")
    assert not network.admits("b", "a")
    network.mend([("a", "b")])
    assert network.passes("a", "b") and network.admits("b", "a")
    assert not network.admits("a", "n") and network.admits("n", "a") and network.admits("m", "n")


def test_jitter_and_loss_are_the_seeds() -> None:
    network = wide(jitter_s=0.005, loss=0.2)
    drawn = [[network.one_way_s("a", "b", False, random.Random(seed)) for seed in range(200)] for _ in range(2)]
    assert drawn[0] == drawn[1]
    assert 0.02 <= min(drawn[0]) < 0.021 < max(drawn[0]) <= 0.025 + 4 * 0.02 + 0.01
    assert 20 < sum(delay > 0.05 for delay in drawn[0]) < 60


# --- the command ------------------------------------------------------------------------------------------------------


def test_the_command_shows_and_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "s.toml").write_text(TEXT + "[expect]\nrounds_at_least = 5\n")
    command.run(tmp_path / "s.toml", short=True, out=tmp_path / "out", as_json=True)
    told = json.loads(capsys.readouterr().out)
    assert told["seconds"] == 20.0 and told["rounds"] >= 5
    assert told["expectations"][-1] == {"name": "rounds_at_least", "asked": "5", "got": str(told["rounds"]), "ok": True}
    saved = json.loads((tmp_path / "out" / "record.json").read_text())
    assert saved["name"] == "try" and len(saved["rounds"]) == told["rounds"]
    command.run(tmp_path / "s.toml", short=True)
    shown = capsys.readouterr().out
    assert "kill -9 a1" in shown and "rounds_at_least" in shown


def test_the_command_fails_where_an_expectation_is_missed(tmp_path: Path) -> None:
    (tmp_path / "s.toml").write_text(TEXT + "[expect]\nrounds_at_least = 100000\n")
    with pytest.raises(P2PTrainError, match="rounds_at_least: asked 100000") as caught:
        command.run(tmp_path / "s.toml", short=True, as_json=True)
    assert caught.value.exit_code == 10


def test_no_torch_and_no_network_are_imported() -> None:
    code = "import sys; import p2ptrain.cli.simulate; print({'torch', 'grpc', 'hivemind'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True,
                          env={"PYTHONPATH": str(Path(__file__).parents[2])})  # fmt: skip
    assert done.stdout == "set()\n"
