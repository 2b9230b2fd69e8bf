"""Plans are functions: same inputs, same plan; unchanged inputs, the very same plan; always a reason."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2ptrain.core.groups import group_of, split_parts
from p2ptrain.core.plan import plan
from p2ptrain.core.stages import single_stage, whole_span
from p2ptrain.core.types import Member, PeerInfo, RunSpec, Span, Status

RUN = RunSpec("run", single_stage(1000, 6), microbatches=8)
ME = PeerInfo("a", 1)


def members(peers: str, dead: str = "") -> list[Member]:
    return [Member(PeerInfo(p, 1), 0, Status.DEAD if p in dead else Status.ALIVE) for p in peers]


def test_a_stage_of_everything() -> None:
    (stage,) = single_stage(1000, 6)
    assert (stage.first, stage.last, stage.size) == (0, 5, 1000)
    assert whole_span((stage,)) == Span(0, 0)
    with pytest.raises(ValueError, match="layers"):
        single_stage(10, 0)


def test_everybody_present_serves_all_stages() -> None:
    made, reason = plan(RUN, members("cab"), None, ME)
    assert made is not None and made.order == (0, "a", 1, 0)
    assert [(a.peer, a.span) for a in made.assignments] == [(p, Span(0, 0)) for p in "abc"]
    assert made.groups == ((0, ("a", "b", "c")),)
    assert reason == "first plan, a, b, c with all stages"


def test_nothing_changes_for_nothing() -> None:
    first, _ = plan(RUN, members("abc"), None, ME)
    again, reason = plan(RUN, random.Random(1).sample(members("abc"), 3), first, PeerInfo("b", 9))
    assert again is first and reason == "nothing changed"


def test_changes_raise_the_epoch_and_another_coordinator_the_term() -> None:
    first, _ = plan(RUN, members("abc"), None, ME)
    second, reason = plan(RUN, members("abcd", dead="c"), first, ME)
    assert second is not None and second.order == (0, "a", 1, 1)
    assert reason == "d joined, c gone"
    third, reason = plan(RUN, members("abcd", dead="ac"), second, PeerInfo("b", 5))
    assert third is not None and third.order == (1, "b", 5, 0) and third.order > second.order
    assert reason == "a gone"


def test_no_plan_says_why() -> None:
    assert plan(RUN, members("a", dead="a"), None, ME) == (None, "no member is present")
    assert plan(RunSpec("run", (), 8), members("a"), None, ME) == (None, "the run has no stages")


def test_group_of() -> None:
    assert group_of(1, [("c", Span(0, 1)), ("a", Span(1, 2)), ("b", Span(2, 2))]) == ("a", "c")


@pytest.mark.parametrize(
    ("size", "reducers", "align", "parts"),
    [
        (1000, [("a", 3.0), ("b", 1.0)], 100, [(0, 800, "a"), (800, 1000, "b")]),
        (1000, [("a", 0.0), ("b", 0.0)], 1, [(0, 500, "a"), (500, 1000, "b")]),
        (1050, [("a", 1.0), ("b", 1.0)], 100, [(0, 600, "a"), (600, 1050, "b")]),
        (10, [("a", 1.0), ("b", 2.0)], 100, [(0, 10, "b")]),
        (100, [("a", 1e9), ("b", 1.0), ("c", 1.0)], 10, [(0, 80, "a"), (80, 90, "b"), (90, 100, "c")]),
    ],
)
def test_split_parts(size: int, reducers: list[tuple[str, float]], align: int, parts: list) -> None:
    assert split_parts(size, reducers, align) == parts


@given(
    st.integers(1, 5000),
    st.lists(st.one_of(st.floats(0, 1e6), st.sampled_from([-1.0, float("nan"), 5e-324])), min_size=1, max_size=9),
    st.integers(1, 300),
)
def test_parts_cover_everything_once_aligned_and_none_is_empty(size: int, weights: list[float], align: int) -> None:
    reducers = [(f"p{i}", weight) for i, weight in enumerate(weights)]
    parts = split_parts(size, reducers, align)
    assert [start for start, _, _ in parts] == [0, *(stop for _, stop, _ in parts[:-1])]
    assert parts[-1][1] == size
    assert all(start < stop and start % align == 0 for start, stop, _ in parts)
    assert len(parts) == min(len(reducers), -(-size // align))
    assert [peer for _, _, peer in parts] == sorted({peer for _, _, peer in parts})
    assert parts == split_parts(size, reducers, align)


@pytest.mark.parametrize(("size", "reducers", "align"), [(0, [("a", 1.0)], 1), (1, [], 1), (1, [("a", 1.0)], 0)])
def test_a_split_of_nothing_is_refused(size: int, reducers: list[tuple[str, float]], align: int) -> None:
    with pytest.raises(ValueError, match="cannot split"):
        split_parts(size, reducers, align)
