"""Each expectation, met and not met; what decides."""

from __future__ import annotations

from typing import Any

import pytest

from p2ptrain.lab.expectations import JUDGES, digests, goodput, is_met, judge
from p2ptrain.lab.record import Happening, Record
from p2ptrain.lab.scenario import Expect
from tests.lab.records import record

OTHER = "f" * 64


def with_applied(*more: tuple[float, int, int, str]) -> Record:
    found = record()
    found.applied.extend(more)
    return found


def split_and_healed() -> Record:
    """b applied rounds 8 to 10 in another history and gave them up for a's."""
    found = record(abandoned=[(10.5, "b", 8, 10)], seconds=12.0)
    found.applied = [(t, i, n, OTHER if i == 1 and n >= 8 else d) for t, i, n, d in found.applied]
    found.applied += [(11.0, 0, 11, "0b"), (11.0, 1, 11, "0b")]
    return found


def all_killed(seconds: float) -> Record:
    return record(happenings=[Happening(9.0, "kill", ["a"])], seconds=seconds)


CASES: list[tuple[str, Any, Record, bool]] = [
    ("digests_equal", True, record(), True),
    ("digests_equal", True, with_applied((11.0, 0, 11, "00"), (11.0, 1, 11, OTHER)), False),
    ("digests_equal", True, record(applied=[(1.0, 0, 1, "00")]), False),
    ("digests_equal", True, split_and_healed(), True),
    ("digests_equal", False, with_applied((11.0, 0, 11, "00"), (11.0, 1, 11, OTHER)), True),
    ("committed_never_drop", True, record(), True),
    ("committed_never_drop", True, split_and_healed(), False),
    ("committed_never_drop", False, split_and_healed(), True),
    ("committed_never_drop", True, with_applied((11.0, 0, 10, "00")), False),
    ("committed_never_drop", True, with_applied((11.0, 0, 3, "00")), False),
    ("rounds_at_least", 10, record(), True),
    ("rounds_at_least", 11, record(), False),
    ("all_alive_train", True, record(), True),
    ("all_alive_train", True, with_applied((11.0, 0, 11, "00")), True),
    ("all_alive_train", True, with_applied((11.0, 0, 11, "00"), (12.0, 0, 12, "00")), False),
    ("all_alive_train", True, record(applied=[]), False),
    ("abandoned_at_most", 0, record(), True),
    ("abandoned_at_most", 3, split_and_healed(), True),
    ("abandoned_at_most", 2, split_and_healed(), False),
    ("stalled", (), record(), True),
    ("stalled", ("c",), record(), False),
    ("loss_at_most", 4.5, record(), True),
    ("loss_at_most", 3.5, record(), False),
    ("loss_at_most", 4.5, record(losses=[]), False),
    ("stall_per_kill_s", 0.5, record(), True),
    ("stall_per_kill_s", 0.4, record(), False),
    ("stall_per_kill_s", 0.5, all_killed(10.0), False),
    ("stall_per_kill_s", 2.0, record(happenings=[]), False),
    ("goodput_at_least", 0.9, record(), True),
    ("goodput_at_least", 0.95, record(), False),
    ("goodput_at_least", 0.1, record(lives=[]), False),
]


@pytest.mark.parametrize(("name", "asked", "found", "met"), CASES)
def test_each_expectation(name: str, asked: Any, found: Record, met: bool) -> None:
    if not met and name == "stall_per_kill_s":
        found.happenings = found.happenings[:1]
    valid, verdict = judge(found, Expect(**{name: asked}), times_decide=True)
    assert (valid.name, valid.ok) == ("valid", True)
    assert (verdict.name, verdict.ok, verdict.decides) == (name, met, True), verdict
    assert is_met([valid, verdict]) is met


def test_every_expectation_has_a_judge_and_both_outcomes_here() -> None:
    assert set(JUDGES) == set(Expect.model_fields)
    assert {(name, met) for name, _, _, met in CASES} == {(name, met) for name in JUDGES for met in (True, False)}


def test_one_who_ends_stalled_is_named() -> None:
    found = record()
    found.lives[2].ended = "StalledError"
    assert judge(found, Expect(stalled=("c",)), times_decide=False)[1].ok
    assert not judge(found, Expect(stalled=()), times_decide=False)[1].ok


def test_times_are_printed_and_decide_only_where_asked() -> None:
    expect = Expect(stall_per_kill_s=0.1, goodput_at_least=0.99, rounds_at_least=1)
    printed = judge(record(), expect, times_decide=False)
    assert [(v.ok, v.decides) for v in printed[1:]] == [(True, True), (False, False), (False, False)]
    assert is_met(printed)
    assert not is_met(judge(record(), expect, times_decide=True))


def test_a_run_that_is_not_valid_has_met_nothing() -> None:
    found = record(valid=False, notes=["late by 9 ms"])
    expect = Expect(digests_equal=True, goodput_at_least=0.1)
    verdicts = judge(found, expect, times_decide=True)
    assert "late by 9 ms" in verdicts[0].got
    assert [verdict.ok for verdict in verdicts] == [False, False, False] and not is_met(verdicts)
    facts = judge(found, expect, times_decide=False)  # where times are only printed, facts stand
    assert [verdict.ok for verdict in facts] == [False, True, False] and is_met(facts)


def test_the_simulator_has_no_loss_to_judge() -> None:
    verdicts = judge(record(kind="sim", losses=[]), Expect(loss_at_most=1.0), times_decide=True)
    assert (verdicts[1].ok, verdicts[1].decides) == (None, False) and is_met(verdicts)


def test_a_kill_near_the_end_is_not_judged() -> None:
    found = record(happenings=[Happening(2.0, "kill", ["c"], "", 0.3), Happening(9.9, "kill", ["a"])])
    assert judge(found, Expect(stall_per_kill_s=0.5), times_decide=True)[1].ok


def test_goodput_counts_a_life_from_its_process_to_its_end() -> None:
    """10 rounds of 6 microbatches of 4 samples; 10 + 10 + 5.5 peer-seconds at 10 samples a second."""
    assert goodput(record()) == pytest.approx(240 / 255)


def test_what_was_given_up_is_compared_with_nobody() -> None:
    assert digests(split_and_healed()) == (6, [])
