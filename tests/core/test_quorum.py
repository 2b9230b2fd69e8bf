"""The two commit policies: quorums of one electorate meet, and the table of the round protocol's section 5."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2ptrain.core.quorum import Electorate, drops_half, write_size
from p2ptrain.core.types import Policy, Voter

VOTERS = tuple(Voter(name, 1) for name in "abcdefg")


def electorate(policy: Policy, n: int, dead: str = "", k: int = 2, reform: str = "") -> Electorate:
    lives = frozenset(Voter(name, 1) for name in dead)
    return Electorate(policy, VOTERS[:n], k, lives, tuple(Voter(name, 1) for name in reform))


def names(text: str) -> list[Voter]:
    return [Voter(name, 1) for name in text]


def quorums(of: Electorate) -> list[set[Voter]]:
    everyone = [*of.voters, *of.reform]
    subsets = (set(some) for size in range(len(everyone) + 1) for some in combinations(everyone, size))
    return [some for some in subsets if of.is_quorum(some)]


SIZES = st.integers(1, 5)
COPIES = st.integers(1, 6)


@given(n=SIZES, k=COPIES, data=st.data())
def test_any_two_quorums_under_majority_meet_whatever_deaths_are_proven(n: int, k: int, data: st.DataObject) -> None:
    truly_dead = data.draw(st.sets(st.sampled_from("abcde"[:n])))
    first = data.draw(st.sets(st.sampled_from(sorted(truly_dead)))) if truly_dead else set()
    second = data.draw(st.sets(st.sampled_from(sorted(truly_dead)))) if truly_dead else set()
    for one in quorums(electorate(Policy.MAJORITY, n, "".join(sorted(first)), k)):
        for other in quorums(electorate(Policy.MAJORITY, n, "".join(sorted(second)), k)):
            # The dead answer nobody any more: two quorums meet in a voter, or the later one holds all who can know.
            later_asks_all_living = other >= set(VOTERS[:n]) - {Voter(name, 1) for name in second}
            assert one & other or later_asks_all_living


@given(n=SIZES, k=COPIES)
def test_two_quorums_of_one_ballot_meet(n: int, k: int) -> None:
    for policy in Policy:
        found = quorums(electorate(policy, n, k=k))
        assert found
        assert all(one & other for one in found for other in found)


@given(n=SIZES, k=COPIES, dead=st.sets(st.sampled_from("abcde")))
def test_under_any_all_who_are_not_held_dead_must_answer(n: int, k: int, dead: set[str]) -> None:
    some = electorate(Policy.ANY, n, "".join(sorted(dead)), k)
    alive = set(some.voters) - some.dead
    assert some.is_quorum(alive) == bool(alive)
    assert all(not some.is_quorum(alive - {voter}) for voter in alive)


@given(n=SIZES, k=COPIES, answered=st.sets(st.sampled_from("abcdefg")))
def test_answers_of_others_count_for_nothing(n: int, k: int, answered: set[str]) -> None:
    for policy in Policy:
        some = electorate(policy, n, k=k)
        own = [voter for voter in names("".join(answered)) if voter in some.voters]
        assert some.is_quorum(names("".join(answered))) == some.is_quorum(own)


def test_another_life_of_a_voter_has_no_vote() -> None:
    some = electorate(Policy.MAJORITY, 3)
    assert not some.is_quorum([Voter("a", 2), Voter("b", 2), Voter("c", 1)])


@pytest.mark.parametrize(
    ("policy", "n", "dead", "answered", "enough"),
    [
        (Policy.MAJORITY, 4, "", "abc", True),  # no verdict about the fourth is needed
        (Policy.MAJORITY, 4, "", "ab", False),
        (Policy.MAJORITY, 2, "", "a", False),  # silence is no proof
        (Policy.MAJORITY, 2, "b", "a", True),  # a goodbye is
        (Policy.MAJORITY, 4, "bcd", "a", False),  # as many as w died: only `resume` helps
        (Policy.MAJORITY, 4, "cd", "ab", True),
        (Policy.MAJORITY, 1, "", "a", True),
        (Policy.ANY, 4, "", "abc", False),
        (Policy.ANY, 4, "d", "abc", True),
        (Policy.ANY, 2, "b", "a", True),
        (Policy.ANY, 2, "ab", "", False),
    ],
)
def test_the_table(policy: Policy, n: int, dead: str, answered: str, enough: bool) -> None:
    assert electorate(policy, n, dead).is_quorum(names(answered)) is enough


def test_when_all_voters_are_dead_the_reformers_must_all_answer() -> None:
    some = electorate(Policy.ANY, 2, "ab", reform="ef")
    assert some.standing == tuple(names("ef"))
    assert some.is_quorum(names("ef"))
    assert not some.is_quorum(names("e"))
    assert electorate(Policy.MAJORITY, 2, "ab", reform="ef").standing == VOTERS[:2]


def test_write_size() -> None:
    assert [write_size(n, 2) for n in (1, 2, 3, 4, 5)] == [1, 2, 2, 3, 3]
    assert write_size(5, 4) == 4
    assert write_size(2, 9) == 2


def test_one_death_of_two_is_no_half_at_once() -> None:
    assert not drops_half(VOTERS[:2], names("b"))
    assert drops_half(VOTERS[:4], names("bc"))
    assert not drops_half(VOTERS[:5], names("bc"))
