"""What a person sees in the terminal, while it runs and at the end."""

from __future__ import annotations

import io

from rich.console import Console

from p2ptrain.lab.compare import compare
from p2ptrain.lab.conductor import Progress
from p2ptrain.lab.expectations import judge
from p2ptrain.lab.record import Happening
from p2ptrain.lab.scenario import Expect
from p2ptrain.lab.summary import EVENTS_SHOWN, LiveProgress, line, show
from tests.lab.records import record

HERE = Progress(12.04, 40.0, 4, 31, 182.4, "kill -9 [a1]", "join a1")


def console(*, terminal: bool = False) -> Console:
    return Console(file=io.StringIO(), width=110, force_terminal=terminal, color_system=None)


def text_of(shown: Console) -> str:
    assert isinstance(shown.file, io.StringIO)
    return " ".join(shown.file.getvalue().split())


def test_the_line_while_it_runs() -> None:
    assert line(HERE) == "12.0 s of 40   4 alive   round 31   182 samples/s   next: join a1"


def test_steps_are_lines_where_it_is_no_terminal_and_a_bar_besides_where_it_is() -> None:
    for terminal in (False, True):
        shown = console(terminal=terminal)
        with LiveProgress(shown) as tell:
            tell(HERE)
        assert "12.0 s kill -9 [a1]" in text_of(shown)
        assert ("next: join a1" in text_of(shown)) is terminal


def test_the_summary_has_verdicts_events_notes_and_the_comparison() -> None:
    found = record(notes=["[not] a style"])
    found.happenings += [Happening(6.0 + i / 100, "slow", ["a"], f"slow {i}") for i in range(EVENTS_SHOWN)]
    verdicts = judge(found, Expect(rounds_at_least=11, stall_per_kill_s=0.1), times_decide=False)
    shown = console()
    show(found, verdicts, shown, compare(found, found))
    told = text_of(shown)
    for words in (
        "kill c", "0.50", "and 1 more events", "[not] a style", "rounds_at_least │ 11 │ 10 │ NOT MET",
        "NOT MET (printed only)", "goodput 94%", "the simulator on the same scenario", "round 10 after 10 s",
    ):  # fmt: skip
        assert words in told, words
