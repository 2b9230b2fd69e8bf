"""Whose bits are damaged, by what the members show (R9)."""

from __future__ import annotations

from p2ptrain.core.diverging import damaged
from p2ptrain.core.messages import Filled
from p2ptrain.core.types import Ballot, BaseDigest, Fence, Voter

FENCE = Fence("r", 0, 0, 1, b"p", Ballot(0, "a", 1))


def answers(**slices: tuple[bytes, int, bytes]) -> dict[Voter, Filled]:
    return {Voter(peer, 1): Filled(FENCE, 1, base=BaseDigest(*base)) for peer, base in slices.items()}


def test_the_minority_pulls_from_the_majority() -> None:
    found = damaged(answers(a=(b"c", 3, b"1"), b=(b"c", 3, b"1"), c=(b"c", 3, b"2")), b"c", Voter("a", 1))
    assert [(d.voter.peer, d.slice, d.healthy, d.tie) for d in found] == [("c", 3, ("a", "b"), False)]


def test_the_leader_itself_may_be_the_minority() -> None:
    found = damaged(answers(a=(b"c", 3, b"2"), b=(b"c", 3, b"1"), c=(b"c", 3, b"1")), b"c", Voter("a", 1))
    assert [d.voter.peer for d in found] == ["a"]


def test_in_a_tie_the_leaders_bits_are_taken_and_it_is_told() -> None:
    found = damaged(answers(a=(b"c", 3, b"1"), b=(b"c", 3, b"2")), b"c", Voter("b", 1))
    assert [(d.voter.peer, d.tie) for d in found] == [("a", True)]


def test_another_slice_another_history_or_no_proof_is_no_damage() -> None:
    shown = answers(a=(b"c", 3, b"1"), b=(b"c", 4, b"2"), c=(b"x", 3, b"9"), d=(b"c", -1, b""))
    assert damaged(shown, b"c", Voter("a", 1)) == []
