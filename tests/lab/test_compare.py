"""Lab against simulator: what is compared, and what a ratio means."""

from __future__ import annotations

import pytest

from p2ptrain.lab.compare import after_s, around_s, compare, round_time_s
from p2ptrain.lab.record import Happening
from tests.lab.records import record


def test_a_simulator_that_is_twice_as_fast_has_half_the_ratio() -> None:
    fast = record(kind="sim", happenings=[Happening(3.0, "kill", ["c"], "", 0.25)])
    for fact in fast.rounds:
        fact.t /= 2
    lines = {line.name: line for line in compare(record(), fast).lines}
    assert lines["round time, median, s"].ratio == pytest.approx(0.5)
    assert lines["from kill to the next commit, median, s"].ratio == pytest.approx(0.5)
    assert compare(record(), fast).as_json()[0] == ["round time, median, s", 1.0, 0.5, 0.5]


def test_a_round_that_is_missing_is_no_long_round() -> None:
    found = record()
    del found.rounds[4]
    assert round_time_s(found) == pytest.approx(1.0)
    assert round_time_s(record(rounds=[])) is None


def test_what_never_went_on_has_no_time_and_no_ratio() -> None:
    dead = record(happenings=[Happening(5.5, "kill", ["c"])])
    assert after_s(dead, "kill") is None
    line = compare(record(), dead).lines[-1]
    assert (line.sim, line.ratio) == (None, None) and compare(record(), dead).as_json()[-1][2:] == ["", ""]


def test_the_round_that_a_kill_fell_into_is_measured_from_commit_to_commit() -> None:
    assert around_s(record(), "kill") == pytest.approx(1.0)
    assert around_s(record(), "leave") is None and around_s(record(rounds=[]), "kill") is None
