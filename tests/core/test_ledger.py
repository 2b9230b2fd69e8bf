"""Ids follow from the record; leases are accounted for exactly once, whatever happens in whatever order."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from p2ptrain.core.ledger import Lease, Letters, RoundLedger, after_round, ids_of_round
from p2ptrain.core.messages import Grant, Progress, Revoke
from p2ptrain.core.types import Knobs

KNOBS = Knobs()


def ledger(microbatches: int = 8) -> RoundLedger:
    return RoundLedger(0, 5, microbatches, KNOBS)


def progress(*done: int, pending: tuple[int, ...] = (), microbatch_s: float = 0.0, round: int = 5) -> Progress:
    return Progress(0, round, done, pending, microbatch_s)


def granted(letters: Letters) -> dict[str, tuple[int, ...]]:
    return {peer: letter.positions for peer, letter in letters if isinstance(letter, Grant)}


def revoked(letters: Letters) -> dict[str, tuple[int, ...]]:
    return {peer: letter.positions for peer, letter in letters if isinstance(letter, Revoke)}


# --- ids of a round --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("next_id", "owed", "ids"),
    [
        (0, (), (0, 1, 2, 3)),
        (8, (5, 2), (5, 2, 8, 9)),
        (8, (1, 2, 3, 4, 5), (1, 2, 3, 4)),
    ],
)
def test_ids_of_round(next_id: int, owed: tuple[int, ...], ids: tuple[int, ...]) -> None:
    assert ids_of_round(next_id, owed, 4) == ids


def test_unspent_ids_are_owed_and_fresh_ones_advance() -> None:
    ids = ids_of_round(8, (5, 2), 4)
    assert after_round(ids, (5, 8, 9), 8, (5, 2), 4) == (10, (2,))
    assert after_round((1, 2, 3, 4), (1, 2, 3, 4), 8, (1, 2, 3, 4, 5), 4) == (8, (5,))


@given(st.integers(1, 6), st.lists(st.sets(st.integers(0, 5)), max_size=30))
def test_every_id_is_spent_at_most_once_and_none_is_forgotten(microbatches: int, misses: list[set[int]]) -> None:
    next_id, owed = 0, ()
    spent: list[int] = []
    for missed in misses:
        ids = ids_of_round(next_id, owed, microbatches)
        assert len(ids) == len(set(ids)) == microbatches
        counted = [id for index, id in enumerate(ids) if index not in missed]
        spent += counted
        next_id, owed = after_round(ids, counted, next_id, owed, microbatches)
    assert len(spent) == len(set(spent))
    assert sorted([*spent, *owed]) == list(range(next_id))


# --- leases ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("speeds", "expected"),
    [
        ({"b": 0.0, "a": 0.0}, {"a": (0, 1, 2, 3), "b": (4, 5, 6, 7)}),
        ({"a": 1.0, "b": 3.0}, {"a": (0, 1, 2, 3, 4, 5), "b": (6, 7)}),
        ({"a": 1.0, "b": 0.0, "c": 1.0}, {"a": (0, 1, 2), "b": (3, 4), "c": (5, 6, 7)}),  # b: little, at first
        ({"a": 1.0, "b": 1000.0}, {"a": (0, 1, 2, 3, 4, 5, 6, 7), "b": ()}),
        ({}, {}),
    ],
)
def test_deal_in_proportion_to_speed(speeds: dict[str, float], expected: dict[str, tuple[int, ...]]) -> None:
    book = ledger()
    assert granted(book.deal(speeds)) == expected
    book.check()


def test_the_dead_ones_work_goes_to_the_living_at_once_but_for_what_is_safe() -> None:
    book = ledger()
    book.deal({"a": 1.0, "b": 1.0}, 0.0)
    book.progressed("a", progress(0, 1), 2.0)
    letters = book.lost("a", safe=(0,), now=2.0)
    assert granted(letters) == {"b": (1, 2, 3)}
    assert book.state_of(0) == (Lease.DONE, "a")
    assert book.lost("a", now=2.0) == []
    book.check()


def test_the_last_one_lost_leaves_positions_free_until_somebody_joins() -> None:
    book = ledger(2)
    book.deal({"a": 1.0}, 0.0)
    assert book.lost("a") == []
    assert book.expected_fill_end(0.0) == math.inf
    assert granted(book.joined("b", 0.0, 1.0)) == {"b": (0, 1)}


def test_a_newcomer_takes_unstarted_ones_only_if_that_ends_the_round_sooner() -> None:
    book = ledger()
    book.deal({"a": 1.0}, 0.0)
    letters = book.joined("b", 1.0, 0.0)
    assert revoked(letters) == {"a": (4, 5, 6, 7)}
    assert granted(letters) == {"b": (4, 5, 6, 7)}
    late = ledger(2)
    late.deal({"a": 1.0}, 0.0)
    assert granted(late.joined("b", 30.0, 0.0)) == {"b": ()}, "a slow newcomer would only delay the round"
    late.check()


def test_idle_takes_from_the_slow_with_hysteresis() -> None:
    book = ledger()
    book.deal({"a": 1.0, "b": 1.0}, 0.0)
    book.progressed("a", progress(0, 1, 2, 3, microbatch_s=0.5), 2.0)
    letters = book.rebalance(2.0)  # b is late with its first: it keeps that one
    assert revoked(letters) == {"b": (5, 6, 7)} and granted(letters) == {"a": (5, 6, 7)}
    assert book.rebalance(2.0) == [], "moved once, then left alone"
    near = ledger(2)
    near.deal({"a": 1.0, "b": 1.0}, 0.0)
    near.progressed("a", progress(0), 1.0)
    assert near.rebalance(1.0) == [], "what runs is never taken away"


def test_what_comes_back_from_the_dead_may_be_moved_again() -> None:
    book = ledger(6)
    book.deal({"b": 1.0}, 0.0)
    assert granted(book.joined("a", 1.0, 0.0)) == {"a": (3, 4, 5)}
    assert granted(book.lost("a", now=0.0)) == {"b": (3, 4, 5)}
    assert granted(book.joined("c", 1.0, 0.0)) == {"c": (3, 4, 5)}


def test_a_position_done_elsewhere_is_revoked() -> None:
    book = ledger()
    book.deal({"a": 1.0, "b": 1.0}, 0.0)
    letters = book.progressed("a", progress(7), 1.0)
    assert revoked(letters) == {"b": (7,)}
    assert book.open_of("b") == (4, 5, 6)


def test_refused_work_goes_to_another() -> None:
    book = ledger(2)
    book.deal({"a": 1.0, "b": 1.0}, 0.0)
    assert granted(book.filled("a", (), 1.0, refused=(0,))) == {"b": (0,)}
    lone = ledger(1)
    lone.deal({"a": 1.0})
    assert granted(lone.filled("a", (), 1.0, refused=(0,))) == {"a": (0,)}


def test_uncovered_leases_exactly_those() -> None:
    book = ledger()
    book.deal({"a": 1.0, "b": 1.0}, 0.0)
    book.filled("a", (0, 1, 2, 3), 4.0)
    book.filled("b", (4, 5), 4.0)
    letters = book.uncovered((0, 1, 4, 5), now=4.0)
    positions = sorted(p for _, letter in letters for p in letter.positions)
    assert positions == [2, 3, 6, 7]
    assert set(granted(letters)["b"]) >= {6, 7}, "what b is still at stays with it"
    assert granted(book.uncovered((0, 1, 4, 5), exclude=("b",), now=4.0)) == {"a": (2, 3, 6, 7)}
    book.check()


def test_a_grant_that_never_arrived_is_repeated() -> None:
    book = ledger(4)
    book.deal({"a": 1.0}, 0.0)
    book.progressed("a", progress(0, pending=(1,)), 1.0)
    assert granted(book.rebalance(1.0)) == {"a": (1, 2, 3)}
    book.progressed("a", progress(0, pending=(1, 2, 3)), 1.1)
    assert book.rebalance(9.0) == []
    assert granted(book.joined("a", 1.0, 9.0)) == {"a": (1, 2, 3)}, "a new link: the same once more"


def test_a_successor_goes_on_from_the_reports() -> None:
    book, letters = RoundLedger.rebuild(
        0, 5, 6, KNOBS, {"a": 1.0, "b": 1.0}, done={"a": (0,), "c": (5,)}, leased={"a": (1,), "b": (2, 3)}, serial=7
    )
    assert granted(letters) == {"a": (4,)}
    assert letters[0][1].serial == 8  # type: ignore[union-attr]
    assert book.state_of(5) == (Lease.DONE, "c")
    book.check()


@pytest.mark.parametrize(
    "stale", [progress(0, round=4), Progress(1, 5, (0,), (), 0.0), progress(-1, 99, pending=(77,))]
)
def test_stale_or_absurd_reports_change_nothing(stale: Progress) -> None:
    book = ledger()
    book.deal({"a": 1.0})
    assert book.progressed("a", stale) == []
    assert book.progressed("stranger", progress(0)) == []
    assert book.done_positions() == ()


def test_expected_end_follows_progress_and_lateness() -> None:
    book = ledger(4)
    book.deal({"a": 1.0}, 0.0)
    assert book.expected_fill_end(0.0) == 4.0
    book.progressed("a", progress(0, microbatch_s=2.0, pending=(1, 2, 3)), 1.0)
    assert book.expected_fill_end(1.0) == 7.0
    assert book.expected_fill_end(10.0) > 10.0, "a late one is expected later, not now"
    assert "1/4 done" in book.describe()


def act(book: RoundLedger, what: str, peer: str, positions: list[int], now: float, rng) -> Letters:
    """One event of the given kind."""
    return {
        "joined": lambda: book.joined(peer, rng.choice([0.0, 0.5, 4.0]), now),
        "deal": lambda: book.deal({peer: 1.0, "a": 0.0}, now),
        "progress": lambda: book.progressed(peer, progress(*positions, microbatch_s=rng.random()), now),
        "filled": lambda: book.filled(peer, positions, now),
        "refused": lambda: book.filled(peer, (), now, refused=positions),
        "lost": lambda: book.lost(peer, positions, now),
        "rebalance": lambda: book.rebalance(now),
        "uncovered": lambda: book.uncovered(positions, now=now),
    }[what]()


Step = tuple[str, int, list[int]]
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["joined", "progress", "filled", "lost", "rebalance", "uncovered", "refused", "deal"]),
        st.integers(0, 3),
        st.lists(st.integers(-1, 12), max_size=6),
    ),
    max_size=40,
)


@settings(max_examples=150, deadline=None)
@given(st.integers(1, 12), STEPS, st.randoms(use_true_random=False))
def test_every_position_is_with_at_most_one_peer_whatever_happens(microbatches: int, steps: list[Step], rng) -> None:
    book = RoundLedger(0, 5, microbatches, KNOBS)
    serials: dict[str, int] = {}
    holds: dict[str, set[int]] = {peer: set() for peer in "abcd"}  # what each peer means to compute, by its letters
    now = 0.0
    for what, which, positions in steps:
        now += rng.choice([0.0, 0.1, 3.0])
        peer = "abcd"[which]
        done_before = set(book.done_positions())
        letters = act(book, what, peer, positions, now, rng)
        book.check()
        if what in ("progress", "filled", "refused"):
            holds[peer] -= set(positions)
        if what == "lost":
            holds[peer].clear()
        for to, letter in letters:
            assert all(0 <= p < microbatches for p in letter.positions)
            if isinstance(letter, Grant):
                assert letter.serial > serials.get(to, 0)
                serials[to] = letter.serial
                holds[to] |= set(letter.positions)
            else:
                holds[to] -= set(letter.positions)
        for other in book.peers:
            assert set(book.open_of(other)) <= holds[other] <= {*book.open_of(other), *book.done_positions()}
        if what not in ("lost", "uncovered", "refused"):
            assert done_before <= set(book.done_positions()), "done work never becomes free by itself"
    if book.peers and book.expected_fill_end(now) < math.inf:
        for peer in book.peers:
            book.filled(peer, book.open_of(peer), now)
        assert book.all_done
