"""The acting coordinator is a function of the roster."""

from __future__ import annotations

import itertools

from p2ptrain.core.seniority import by_seniority, coordinator_of, seniority_key
from p2ptrain.core.types import Member, PeerInfo, Status


def member(peer: str, joined_round: int, life: int = 1, status: Status = Status.ALIVE, dialled: bool = True) -> Member:
    addresses = ("127.0.0.1:1",) if dialled else ()
    return Member(PeerInfo(peer, life, addresses, joined_round=joined_round), 0, status)


def test_order_is_joined_round_then_life_then_id_and_never_joined_comes_last() -> None:
    infos = [
        PeerInfo("z", 9, joined_round=0),
        PeerInfo("c", 1, joined_round=4),
        PeerInfo("a", 2, joined_round=4),
        PeerInfo("b", 2, joined_round=4),
        PeerInfo("a", 1, joined_round=-1),
    ]
    for order in itertools.permutations(infos):
        assert sorted(order, key=seniority_key) == infos


def test_the_next_takes_over_without_an_election() -> None:
    members = [member("a", 3), member("b", 1), member("c", 2)]
    assert coordinator_of(members) == "b"
    members[1] = member("b", 1, status=Status.DEAD)
    assert coordinator_of(members) == "c"
    members[2] = member("c", 2, status=Status.LEFT)
    assert coordinator_of(members) == "a"
    assert [m.info.peer for m in by_seniority(members)] == ["a"]


def test_one_that_can_be_dialled_goes_before_one_that_cannot() -> None:
    assert coordinator_of([member("a", 0, dialled=False), member("b", 5)]) == "b"
    assert coordinator_of([member("a", 0, dialled=False)]) == "a"


def test_nobody_present() -> None:
    assert coordinator_of([]) is None
    assert coordinator_of([member("a", 0, status=Status.DEAD)]) is None
