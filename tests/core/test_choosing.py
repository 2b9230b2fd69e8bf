"""A leader's choices: who computes what is missing, whose refusal counts, who reduces, whom a round waits for."""

from __future__ import annotations

from p2ptrain.core import choosing
from p2ptrain.core.deadlines import Arrivals
from p2ptrain.core.messages import Filled
from p2ptrain.core.types import Ballot, Fence, Knobs, Member, PeerInfo, Status, Voter

FENCE = Fence("r", 0, 0, 5, b"p", Ballot(0, "a", 1))
A, B, C, D = (Voter(name, 1) for name in "abcd")


def filled(refused: tuple[int, ...] = (), more: bool = False) -> Filled:
    return Filled(FENCE, 1, refused=refused, expects_more=more)


def roster(**status: Status) -> dict[str, Member]:
    return {
        name: Member(PeerInfo(name, 1, ("x:1",), joined_round=0, uplink_mbps=10.0), 0, status.get(name, Status.ALIVE))
        for name in "abcd"
    }


def outlook(**status: Status) -> choosing.Outlook:
    knobs, members = Knobs(), roster(**status)
    return choosing.Outlook(lambda: members, lambda voter: False, Arrivals(knobs), Arrivals(knobs))


def test_what_is_missing_goes_to_those_who_can() -> None:
    answers = {A: filled(more=True), B: filled(refused=(8,)), C: filled(), D: filled()}
    assert choosing.takers([7, 8, 9], answers, {A}, {"d"}) == {"b": [7, 9], "c": [8]}


def test_with_nobody_else_even_the_failed_take() -> None:
    assert choosing.takers([7], {A: filled(refused=(7,))}, {A}, {"a"}) == {"a": [7]}


def test_in_exact_mode_one_refusal_is_not_enough_where_there_are_two() -> None:
    assert choosing.refused_ids({A: filled((1,)), B: filled()}, exact=False) == {1}
    assert choosing.refused_ids({A: filled((1,)), B: filled()}, exact=True) == set()
    assert choosing.refused_ids({A: filled((1, 2)), B: filled((1,))}, exact=True) == {1}
    assert choosing.refused_ids({A: filled((1,))}, exact=True) == {1}


def test_reducers_answer_and_were_reached() -> None:
    members = (A, B, C, D)
    assert [p for p, _ in choosing.reducers(members, roster(b=Status.BUSY), {"c"})] == ["a", "d"]
    assert [p for p, _ in choosing.reducers(members, roster(), set("abcd"))] == ["a", "b", "c", "d"]


def test_a_round_waits_for_voters_members_and_once_for_a_follower() -> None:
    seen, follower = outlook(d=Status.DEAD), Voter("f", 1)
    answers = {A: filled(), C: filled(more=True)}
    assert choosing.awaited(answers, [A, B], seen, [follower], 5) == ["b", "c", "f"]
    assert choosing.awaited(answers, [A, B], seen, [follower], 5) == ["b", "c", "f"]  # still the same round
    assert choosing.awaited(answers, [A, B], seen, [follower], 6) == ["b", "c"]
    seen.slow.add(B)
    assert choosing.awaited(answers, [A, B], seen, [], 6) == ["c"]
