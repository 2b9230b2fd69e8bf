"""For a person at a terminal: how far a run is, and what came of it. Decides nothing; numbers are the record's.

12.0 s of 40   4 alive   round 31   182 samples/s   next: kill -9 a1
"""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, TaskID, TextColumn
from rich.progress import Progress as Bars
from rich.table import Table

from p2ptrain.lab.compare import Comparison
from p2ptrain.lab.conductor import Progress
from p2ptrain.lab.expectations import Verdict, goodput, last_round
from p2ptrain.lab.record import Record

EVENTS_SHOWN = 40


class LiveProgress:
    """``with LiveProgress(console) as tell: conduct(..., on_progress=tell)``. Lines where it is no terminal."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._bars = Bars(TextColumn("{task.description}"), BarColumn(24), console=console, transient=True)
        self._task: TaskID | None = None

    def __enter__(self) -> LiveProgress:
        if self.console.is_terminal:
            self._bars.start()
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._bars.stop()

    def __call__(self, progress: Progress) -> None:
        if progress.said:
            self.console.print(f"[dim]{progress.t:7.1f} s[/]  {escape(progress.said)}", soft_wrap=True)
        if not self.console.is_terminal:
            return
        if self._task is None:
            self._task = self._bars.add_task("", total=progress.seconds)
        self._bars.update(self._task, completed=progress.t, description=escape(line(progress)))


def line(progress: Progress) -> str:
    """One line: where it is."""
    return (
        f"{progress.t:.1f} s of {progress.seconds:.0f}   {progress.alive} alive   round {progress.round}   "
        f"{progress.samples_per_s:.0f} samples/s   next: {progress.next_step}"
    )


def show(record: Record, verdicts: Sequence[Verdict], console: Console, comparison: Comparison | None = None) -> None:
    """What the scenario did, what came of it, and the verdicts."""
    _show_events(record, console)
    share = goodput(record)
    told = "unknown" if share is None else f"{share:.0%}"
    console.print(
        f"round {last_round(record)} after {record.seconds:.0f} s ({record.mode}), {len(record.lives)} lives, "
        f"goodput {told} of the own speeds of those alive"
    )
    for note in record.notes:
        console.print(f"note: {note}", style="dim", markup=False)
    if comparison is not None:
        table = Table("", "lab", "simulator", "simulator by lab", title="the simulator on the same scenario")
        for row in comparison.as_json():
            table.add_row(*(escape(str(cell)) for cell in row))
        console.print(table)
    show_verdicts(verdicts, console)


def show_verdicts(verdicts: Sequence[Verdict], console: Console) -> None:
    table = Table("expectation", "asked", "got", "")
    for verdict in verdicts:
        mark = {True: "[green]met[/]", False: "[red]NOT MET[/]", None: "[dim]not known[/]"}[verdict.ok]
        if verdict.ok is not None and not verdict.decides:
            mark += " [dim](printed only)[/]"
        table.add_row(verdict.name, escape(verdict.asked), escape(verdict.got), mark)
    console.print(table)


def _show_events(record: Record, console: Console) -> None:
    if not record.happenings:
        return
    table = Table("at, s", "what the scenario did", "next commit, s", "all went on, s", title=escape(record.name))
    for happening in record.happenings[:EVENTS_SHOWN]:
        soon, late = happening.next_commit_s, happening.all_on_s
        table.add_row(
            f"{happening.t:.1f}",
            escape(happening.text or happening.do),
            "" if soon is None else f"{soon:.2f}",
            "" if late is None else f"{late:.2f}",
        )
    console.print(table)
    more = len(record.happenings) - EVENTS_SHOWN
    if more > 0:
        console.print(f"and {more} more events: see the report", style="dim")
