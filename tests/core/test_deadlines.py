"""Deadlines follow what is observed, between stated bounds."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2ptrain.core.deadlines import RECENT, Arrivals
from p2ptrain.core.types import Knobs

KNOBS = Knobs(deadline_min_s=0.25, deadline_max_s=30.0, deadline_factor=6.0)


def test_before_any_observation_the_upper_bound_or_the_given_default() -> None:
    assert Arrivals(KNOBS).deadline_s() == 30.0
    assert Arrivals(KNOBS, default_s=2.0).deadline_s() == 2.0


@pytest.mark.parametrize(
    ("seen", "deadline_s"),
    [
        ([1.0, 1.1, 0.9], 1.6),  # median 1.0, deviation 0.1
        ([1.0] * 10, 1.25),  # a regular past still leaves a tolerance
        ([0.001], 0.25),  # lower bound
        ([100.0], 30.0),  # upper bound
        ([1.0] * 9 + [500.0], 1.25),  # one outlier does not move it
        ([-1.0], 0.25),  # a clock that was read twice
    ],
)
def test_table(seen: list[float], deadline_s: float) -> None:
    arrivals = Arrivals(KNOBS)
    for seconds in seen:
        arrivals.observe(seconds)
    assert arrivals.deadline_s() == pytest.approx(deadline_s)


def test_old_arrivals_are_forgotten() -> None:
    arrivals = Arrivals(KNOBS)
    for _ in range(100):
        arrivals.observe(20.0)
    for _ in range(RECENT):
        arrivals.observe(1.0)
    assert arrivals.deadline_s() == pytest.approx(1.25)
    assert len(arrivals) == RECENT


@pytest.mark.parametrize("seconds", [math.nan, math.inf, -math.inf])
def test_what_is_no_duration_is_refused(seconds: float) -> None:
    with pytest.raises(ValueError, match="finite"):
        Arrivals(KNOBS).observe(seconds)


@given(st.lists(st.floats(0.0, 1e6), max_size=50))
def test_always_within_bounds_and_never_below_the_median(seen: list[float]) -> None:
    arrivals = Arrivals(KNOBS)
    for seconds in seen:
        arrivals.observe(seconds)
    assert KNOBS.deadline_min_s <= arrivals.deadline_s() <= KNOBS.deadline_max_s
    recent = sorted(seen[-RECENT:])
    if recent:
        assert arrivals.deadline_s() >= min(recent[(len(recent) - 1) // 2], KNOBS.deadline_max_s)
