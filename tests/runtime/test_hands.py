"""Each order of the core reaches the hand that carries it out, at the right time; failures come back as events."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from p2ptrain.codec.feedback import Counted
from p2ptrain.core import events as ev
from p2ptrain.core.messages import Begin
from p2ptrain.core.types import (
    Ballot,
    BaseDigest,
    Bundle,
    Fence,
    PartDone,
    PartOrder,
    Record,
    SnapshotInfo,
    Voter,
    digest_of,
)
from p2ptrain.errors import TransferError, TransportError
from p2ptrain.runtime.hands import Hands, PulledSlices
from p2ptrain.wire import bulk
from tests.runtime.wires import in_loop

RUN = b"r" * 32
PART = PartDone(0, 0, 10, digest_of("part"), (0, 1), 1.0, 40)
RECORD = Record(0, 0, 5, b"p", b"b", (PART,), (0, 1), 1.0, 1.0, (Voter("a", 1),), 2, 2)
INFO = SnapshotInfo(0, RECORD, b"c", 10, 10, (digest_of("chunk"),))


class Hand:
    """Notes what it is told to do; ``answers`` by name, an exception is raised."""

    def __init__(self, **answers: Any) -> None:
        self.did: list[tuple[Any, ...]] = []
        self.answers = answers

    def __getattr__(self, name: str) -> Any:
        def do(*args: Any) -> Any:
            self.did.append((name, *args))
            answer = self.answers.get(name)
            if isinstance(answer, Exception):
                raise answer
            return answer(*args) if callable(answer) else answer

        return do


class Pulls(Hand):
    run = RUN

    def __init__(self, sink: Hand | None = None, slices: dict[str, bytes] | None = None) -> None:
        super().__init__()
        self.sink = sink or Hand()
        self.slices = slices or {}
        self.asked: list[tuple[str, bulk.StreamHeader]] = []

    async def pull_bytes(self, peer: str, header: bulk.StreamHeader, limit: int) -> bytes:
        self.asked.append((peer, header))
        if peer not in self.slices:
            raise TransportError(f"{peer} is away")
        return self.slices[peer]


class Residuals(Hand):
    enabled = True


class Made:
    """``Hands`` with all of its neighbours noted."""

    def __init__(self, pool: ThreadPoolExecutor, pulls: Pulls | None = None, enabled: bool = True) -> None:
        self.trainer, self.exchanges, self.parts, self.residuals = Hand(), Hand(), Hand(), Residuals()
        self.residuals.enabled = enabled
        self.pulls, self.slices, self.posted = pulls or Pulls(), PulledSlices(), []
        self.hands = Hands(
            self.trainer,
            self.exchanges,  # type: ignore[arg-type]
            self.pulls,  # type: ignore[arg-type]
            self.parts,  # type: ignore[arg-type]
            self.residuals,  # type: ignore[arg-type]
            self.slices,
            pool,
            lambda: 7,
            self.posted.append,
        )


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as pool:
        yield pool


def exchange(attempt: int = 1) -> ev.Exchange:
    fence = Fence("aa" * 32, 0, 0, 6, b"p", Ballot(0, "a", 1))
    bundles = (Bundle("a", 1, 0, (2,)),)
    begin = Begin(fence, attempt, (Voter("a", 1),), bundles, (PartOrder(0, 0, 10, "a", (0,)),))
    return ev.Exchange(begin, 4.0)


def apply() -> ev.Apply:
    return ev.Apply(RECORD, b"chain", 5, ((0, (0, 2)),))


ORDERS: list[tuple[ev.Effect, str, str]] = [
    (ev.StopExchange(b"d"), "exchanges", "stop"),
    (ev.FetchPart(PART, "b"), "pulls", "fetch_part"),
    (ev.PullChunk(INFO.key, INFO, 0, "b"), "pulls", "pull_chunk"),
    (ev.StopChunk(INFO.key, 0, "b"), "pulls", "stop_chunk"),
    (ev.ReleaseParts(3), "parts", "release"),
    (ev.ReleaseParts(3), "exchanges", "release"),
    (ev.Compute(0, 6, 0, (2,)), "trainer", "submit"),
    (ev.Shrink(6, (2,)), "trainer", "submit"),
    (ev.Pin(0, RECORD, b"c"), "trainer", "submit"),
    (ev.Unpin(INFO.key), "trainer", "submit"),
    (ev.LoadState(INFO), "trainer", "submit"),
    (apply(), "trainer", "submit"),
    (exchange(), "exchanges", "start"),
]


@pytest.mark.parametrize(
    ("effect", "hand", "verb"), ORDERS, ids=lambda v: v if isinstance(v, str) else type(v).__name__
)
def test_each_order_reaches_its_hand(pool: ThreadPoolExecutor, effect: ev.Effect, hand: str, verb: str) -> None:
    @in_loop
    async def run() -> None:
        made = Made(pool)
        made.hands.do(effect)
        assert verb in [did[0] for did in getattr(made, hand).did]

    run()


def test_an_order_for_nobody_is_a_bug(pool: ThreadPoolExecutor) -> None:
    with pytest.raises(AssertionError, match="no hands for Say"):
        Made(pool).hands.do(ev.Say("info", "k", "text"))


def test_applying_settles_the_residuals_of_what_was_counted(pool: ThreadPoolExecutor) -> None:
    @in_loop
    async def run() -> None:
        made = Made(pool)
        made.hands.do(apply())
        assert made.trainer.did == [("submit", apply()), ("forget_round", 5)]
        assert made.hands._committing is not None
        await made.hands._committing
        counted = [Counted(0, 0, 10, 2.0), Counted(2, 0, 10, 2.0)]
        assert made.residuals.did == [("commit", 5, counted, {PART.digest})]

    run()


def test_without_error_feedback_nothing_is_settled(pool: ThreadPoolExecutor) -> None:
    made = Made(pool, enabled=False)
    made.hands.do(apply())
    made.hands.do(exchange())
    assert made.residuals.did == [] and [did[0] for did in made.exchanges.did] == ["start"]


class Held:
    """Residuals whose commit takes until it is let go."""

    def __init__(self, made: Made) -> None:
        self.go = threading.Event()
        made.residuals.answers["commit"] = lambda *_: self.go.wait(10.0)
        made.hands.do(apply())
        self.future = made.hands._committing

    async def settle(self) -> None:
        assert self.future is not None
        self.go.set()
        await self.future
        await asyncio.sleep(0)


def started(made: Made) -> list[int]:
    return [did[1].begin.attempt for did in made.exchanges.did if did[0] == "start"]


def test_an_exchange_waits_for_the_residuals_of_the_round_before(pool: ThreadPoolExecutor) -> None:
    @in_loop
    async def run() -> None:
        made = Made(pool)
        held = Held(made)
        made.hands.do(exchange())
        assert started(made) == []
        await held.settle()
        assert started(made) == [1]

    run()


def test_an_exchange_that_is_stopped_while_it_waits_never_starts(pool: ThreadPoolExecutor) -> None:
    @in_loop
    async def run() -> None:
        made = Made(pool)
        held = Held(made)
        made.hands.do(exchange())
        made.hands.do(ev.StopExchange(exchange().begin.digest))
        await held.settle()
        assert started(made) == []

    run()


def test_only_the_last_of_several_that_wait_is_started(pool: ThreadPoolExecutor) -> None:
    @in_loop
    async def run() -> None:
        made = Made(pool)
        held = Held(made)
        made.hands.do(exchange(1))
        made.hands.do(ev.StopExchange(exchange(1).begin.digest))
        made.hands.do(exchange(2))
        made.hands.do(ev.StopExchange(exchange(1).begin.digest))
        await held.settle()
        assert started(made) == [2]

    run()


def test_a_snapshot_for_which_there_is_no_room_is_a_failed_chunk(pool: ThreadPoolExecutor) -> None:
    made = Made(pool, Pulls(sink=Hand(open=TransferError("two are arriving already"))))
    made.hands.do(ev.PullChunk(INFO.key, INFO, 0, "b"))
    assert made.posted == [ev.ChunkFailed(INFO.key, 0, "b", "two are arriving already")]
    assert made.pulls.did == []


# --- healing ---------------------------------------------------------------------------------------------------------


def heal(made: Made, *healthy: str) -> ev.HealSlices:
    order = ev.HealSlices(0, (3, 9), healthy)
    made.hands.do(order)
    return order


def test_slices_are_pulled_from_the_first_healthy_peer_that_gives_them(pool: ThreadPoolExecutor) -> None:
    @in_loop
    async def run() -> None:
        made = Made(pool, Pulls(slices={"c": b"bits"}))
        order = heal(made, "b", "c")
        assert made.hands._healing is not None
        await made.hands._healing
        assert [(peer, header.index) for peer, header in made.pulls.asked] == [("b", 3), ("c", 3), ("b", 9), ("c", 9)]
        assert {header.kind for _, header in made.pulls.asked} == {bulk.StreamKind.SLICE}
        assert made.slices.slice_bytes(0, 7, 3) == made.slices.slice_bytes(0, 7, 9) == b"bits"
        assert made.trainer.did == [("submit", order)] and made.posted == []
        made.slices.clear()
        with pytest.raises(KeyError):
            made.slices.slice_bytes(0, 7, 3)

    run()


@pytest.mark.parametrize(("healthy", "told"), [(("b",), "b is away"), ((), "nobody to pull")])
def test_slices_that_nobody_gives_are_told(pool: ThreadPoolExecutor, healthy: tuple[str, ...], told: str) -> None:
    @in_loop
    async def run() -> None:
        made = Made(pool)
        heal(made, *healthy)
        assert made.hands._healing is not None
        await made.hands._healing
        ((healed),) = made.posted
        assert isinstance(healed, ev.SlicesHealed) and (healed.base, healed.healed) == (BaseDigest(b""), ())
        assert told in healed.reason and made.trainer.did == []

    run()
