"""Who is asked for state, and that a donor met late shares the load (field report hivemind#169)."""

from __future__ import annotations

import random

from p2ptrain.core.catchup import OUTRUN_MAX, RETRY_MAX_S, CatchUp
from p2ptrain.core.desk import Desk
from p2ptrain.core.events import Effect, PullChunk, Send
from p2ptrain.core.messages import SnapshotAsk, SnapshotOffer
from p2ptrain.core.node import genesis
from p2ptrain.core.rounds import StageRound
from p2ptrain.core.types import Head, RunSpec, SnapshotInfo, Stage, Voter

RUN = RunSpec("run", (Stage(0, 0, 3, 100),), 4)
HEAD = Head(0, 8, 2, b"c" * 32)
INFO = SnapshotInfo(
    0, genesis(RUN, Voter("a", 1)), b"c" * 32, 64 << 10, 1 << 10, tuple(bytes([i]) * 32 for i in range(64))
)


def joining() -> tuple[CatchUp, Desk, list[str]]:
    desk = Desk(Voter("z", 1), random.Random(0))
    stage = StageRound(RUN, RUN.stages[0], desk, lambda: ["a", "b", "z"])
    linked = ["a"]
    catchup = CatchUp(stage, donors=lambda: linked, loaded=lambda: None, heads={})
    catchup.note_head("a", HEAD)
    catchup.start("joins")
    return catchup, desk, linked


def asked(effects: list[Effect]) -> dict[str, int]:
    return {e.to: e.message.round for e in effects if isinstance(e, Send) and isinstance(e.message, SnapshotAsk)}


def test_a_donor_met_while_pulling_is_asked_once_for_the_same_round_and_pulled_from() -> None:
    catchup, desk, linked = joining()
    assert asked(desk.take()) == {"a": 2}
    catchup.on_offer(Voter("a", 1), SnapshotOffer(0, 2, INFO))
    assert catchup.phase == "pulling"
    assert {e.peer for e in desk.take() if isinstance(e, PullChunk)} == {"a"}
    linked.append("b")
    catchup.note_head("b", HEAD)
    catchup.note_head("b", HEAD)
    assert asked(desk.take()) == {"b": INFO.round}
    catchup.on_offer(Voter("b", 1), SnapshotOffer(0, INFO.round, INFO))
    assert {e.peer for e in desk.take() if isinstance(e, PullChunk)} == {"b"}


def test_a_donor_met_while_asking_is_asked_too() -> None:
    catchup, desk, linked = joining()
    desk.take()
    linked.append("b")
    catchup.note_head("b", HEAD)
    assert asked(desk.take()) == {"b": 2}
    assert set(catchup.asked) == {"a", "b"}


def test_rounds_that_are_quicker_than_what_we_know_of_them_are_asked_for_ahead() -> None:
    """Found with real processes: each question named a round that was past by the time it came, for ever."""
    catchup, desk, _ = joining()
    assert asked(desk.take()) == {"a": 2}
    tip = 30
    for ahead in (1, 2, 3):
        refusal = SnapshotOffer(0, 2, None, "past", Head(0, 4 * tip, tip, b"d" * 32))
        catchup.on_offer(Voter("a", 1), refusal)
        assert asked(desk.take()) == {"a": tip + ahead}, "at once, and one further each time"
        tip += 5
    for _ in range(OUTRUN_MAX):
        catchup.on_offer(Voter("a", 1), SnapshotOffer(0, 2, None, "past", Head(0, 4 * tip, tip, b"d" * 32)))
        tip += 50
    desk.take()
    assert not catchup.asked and desk.now < catchup.deadline() <= desk.now + RETRY_MAX_S, "then a pause"
    desk.now = catchup.deadline()
    catchup.tick()
    assert catchup.asked


def test_a_refusal_for_another_reason_is_followed_by_a_pause() -> None:
    catchup, desk, _ = joining()
    desk.take()
    catchup.on_offer(Voter("a", 1), SnapshotOffer(0, 2, None, "too many ask for state here", HEAD))
    assert asked(desk.take()) == {} and catchup.deadline() > desk.now
