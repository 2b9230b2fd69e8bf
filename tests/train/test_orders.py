from __future__ import annotations

import pytest

from p2ptrain.core.events import Apply, Compute, HealSlices, LoadState, Pin, Shrink, Unpin
from p2ptrain.core.types import Record, SnapshotInfo
from p2ptrain.train.orders import Job, OrderQueue, Question


def record(round: int) -> Record:
    return Record(0, 0, round, b"", b"", (), (), 0.0, 1.0, (), 0, 0)


def compute(round: int, index: int = 0) -> Compute:
    return Compute(0, round, index, (1, 2, 3))


LOAD = LoadState(SnapshotInfo(0, record(4), b"", 0, 1, ()))
HEAL = HealSlices(0, (1,), ())


def taken(queue: OrderQueue, applied: int = -1) -> Job:
    job = queue.take(applied)
    assert isinstance(job, Job)
    return job


def test_urgent_orders_keep_their_order_and_overtake_bundles() -> None:
    queue = OrderQueue()
    orders = [Apply(record(0), b"", 0), Pin(0, record(0), b""), Unpin(b"k"), HEAL, LOAD]
    queue.put(compute(1))
    for order in orders:
        queue.put(order)
    assert [queue.take(-1) for _ in orders] == orders
    assert taken(queue).order.round == 1


@pytest.mark.parametrize(
    ("order", "marked"),
    [
        (Apply(record(1), b"", 0), [True, True, False]),
        (LOAD, [True, True, True]),
        (HEAL, [True, True, True]),
        (Unpin(b""), [False, False, False]),
    ],
)
def test_who_is_overtaken(order: Apply | LoadState | HealSlices | Unpin, marked: list[bool]) -> None:
    queue = OrderQueue()
    for round in range(3):
        queue.put(compute(round))
    running = taken(queue)
    queue.put(order)
    queue.put(compute(0, index=9))  # given afterwards: not meant
    assert queue.take(0) == order
    waiting = [taken(queue, 5) for _ in range(3)]
    assert [job.overtaken != "" for job in [running, *waiting]] == [*marked, False]


def test_a_bundle_of_a_later_round_waits_but_lets_others_pass() -> None:
    queue = OrderQueue()
    queue.put(compute(2))
    queue.put(compute(1))
    assert taken(queue, 0).order.round == 1
    assert taken(queue, 1).order.round == 2


def test_shrink_is_for_bundles_of_its_round_given_before() -> None:
    queue = OrderQueue()
    queue.put(compute(0, 0))
    queue.put(compute(1, 1))
    running = taken(queue)
    queue.put(Shrink(0, (2,)))
    queue.put(compute(0, 2))
    assert [running.wants(id) for id in (1, 2, 3)] == [True, False, True]
    queue.put(Shrink(0, (), seal=True))
    assert not running.wants(1)
    others = [taken(queue, 0), taken(queue, 0)]
    assert [(job.order.index, job.wants(2)) for job in others] == [(1, True), (2, False)]


def test_only_reading_orders_are_taken_in_the_middle_of_a_bundle() -> None:
    queue = OrderQueue()
    pin = Pin(0, record(0), b"")
    queue.put(pin)
    queue.put(HEAL)
    queue.put(Unpin(b""))
    assert queue.take_reading() == pin
    assert queue.take_reading() is None  # HEAL is next, and order is kept


def test_close_wakes_and_cancels() -> None:
    queue = OrderQueue()
    asked = [Question(lambda: 1), Question(lambda: 2)]
    queue.put(asked[0])
    queue.put(compute(0))
    queue.close()
    queue.put(asked[1])
    assert queue.take(0) is None
    assert queue.take_reading() is None
    assert all(question.answer.cancelled() for question in asked)
    queue.pause(3600.0)  # returns at once
