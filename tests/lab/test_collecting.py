"""From facts to the record, without a process."""

from __future__ import annotations

from typing import Any

import pytest

from p2ptrain.lab.collecting import STALLED, Collector
from p2ptrain.lab.record import Record

START = 1000.0


class Told:
    def __init__(self) -> None:
        self.facts: list[dict[str, Any]] = []

    def tell(self, t: float, ev: str, **fields: Any) -> None:
        self.facts.append({"t": START + t, "ev": ev, **fields})

    def ready(self, t: float, peer: str) -> None:
        self.tell(t, "ready", peer=peer)

    def applied(self, t: float, round: int, chain: str = "00") -> None:
        self.tell(t, "applied", round=round, chain=chain, slice="")

    def round(self, t: float, round: int, counts: dict[str, int], **changed: Any) -> None:
        fields = {
            "members": list(counts), "counted": sum(counts.values()), "expected": 6, "attempts": 1, "loss": 5.0,
            "stall_s": 0.1, "fill_s": 0.4, "left_out": [], "contributions": counts, "microbatch_s": 0.05,
        }  # fmt: skip
        self.tell(t, "round", round=round, **{**fields, **changed})


def collector(*names: str, pace_s: float = 0.05) -> tuple[Collector, list[Told]]:
    made = Collector(Record("x", "lab", "loopback", 0, 10.0, microbatch_samples=2), START)
    tellers = [Told() for _ in names]
    for name, teller in zip(names, tellers, strict=True):
        made.add_life(name, "home", teller, pace_s, START)
        teller.ready(0.5, name.upper())
    return made, tellers


def test_the_first_reporter_of_a_round_stands() -> None:
    made, (a, b) = collector("a", "b")
    b.round(2.0, 1, {"B": 6})
    made.absorb()
    a.round(1.5, 1, {"A": 2, "B": 3}, loss=float("nan"), left_out=[("C", "late")])
    made.absorb()
    made.freeze(START + 10)
    made.finish()
    (fact,) = made.record.rounds
    assert (fact.t, fact.members, fact.counted, fact.loss, fact.left_out) == (1.5, 2, 5, None, [("C", "late")])
    assert [life.first_counted_s for life in made.record.lives] == [1.5, 2.0]


def test_what_comes_after_the_end_is_not_part_of_the_run_and_leaving_then_is_no_end() -> None:
    made, (a, _) = collector("a", "b")
    a.applied(9.0, 1)
    made.freeze(START + 10)
    a.applied(10.5, 2)
    a.tell(11.0, "ended", error="", text="")
    made.absorb()
    made.finish()
    assert [entry[2] for entry in made.record.applied] == [1]
    assert (made.record.lives[0].ended, made.record.seconds) == ("", 10.0)


def test_how_a_life_ends() -> None:
    made, (a, b, c, _) = collector("a", "b", "c", "d")
    made.end_life(0, "kill", START + 3)
    a.tell(3.1, "ended", error="", text="")  # the first end stands
    b.tell(4.0, "ended", error="", text="")
    c.tell(5.0, "failed", error="TransportError", text="")
    made.freeze(START + 10)
    ends = [(life.ended, life.ended_s) for life in made.record.lives]
    assert ends == [("kill", 3.0), ("leave", 4.0), ("TransportError", 5.0), ("", None)]


def test_stalled_at_the_end_or_only_for_a_while() -> None:
    made, (a, b) = collector("a", "b")
    for peer in (a, b):
        peer.tell(2.0, "say", key="stalled", text="")
    b.applied(3.0, 1)
    made.freeze(START + 10)
    assert [life.ended for life in made.record.lives] == [STALLED, ""]


def test_the_stall_of_a_kill_is_measured_on_survivors_and_later_rounds() -> None:
    made, (a, b, c) = collector("a", "b", "c")
    for peer in (a, b, c):
        peer.applied(1.0, 1)
    c.applied(1.9, 2)
    made.happened("kill", ["c"], "", START + 2)
    made.end_life(2, "kill", START + 2)
    a.applied(2.1, 2)  # decided before the kill
    b.applied(2.1, 2)
    a.applied(2.5, 3)
    b.applied(2.75, 3)
    made.freeze(START + 10)
    made.finish()
    (kill,) = made.record.happenings
    assert (kill.next_commit_s, kill.all_on_s) == (0.5, 0.75)


def test_no_commit_any_more() -> None:
    made, (a, _) = collector("a", "b")
    a.applied(1.0, 1)
    made.happened("kill", ["b"], "", START + 2)
    made.freeze(START + 10)
    made.finish()
    assert made.record.happenings[0].next_commit_s is None


def test_own_speed_follows_what_is_stated_and_is_measured_where_nothing_is() -> None:
    made, _ = collector("a", pace_s=0.05)
    made.pace(0, 0.1, START + 5)
    made.freeze(START + 10)
    made.finish()
    assert made.record.lives[0].own_samples_per_s == pytest.approx((40 * 5 + 20 * 5) / 10)
    made, (b,) = collector("b", pace_s=0.0)
    b.round(1.0, 1, {"B": 6}, microbatch_s=0.02)
    made.freeze(START + 10)
    made.finish()
    assert made.record.lives[0].own_samples_per_s == pytest.approx(100.0)


def test_rounds_given_up_and_losses() -> None:
    made, (a, b) = collector("a", "b")
    a.tell(3.0, "abandoned", first=4, last=6, rounds=3)
    b.tell(4.0, "loss", round=8, loss=3.0)
    a.tell(4.1, "loss", round=8, loss=3.0)
    made.freeze(START + 10)
    made.finish()
    assert made.record.abandoned == [(3.0, "a", 4, 6)] and made.record.losses == [(4.0, 8, 3.0)]
