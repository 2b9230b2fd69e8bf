"""Lines and bars on the terminal: a bar where somebody watches, plain lines otherwise.

Decides only how waiting looks. What is waited for is read from the session, in its own loop.
"""

from __future__ import annotations

import sys
import threading
from typing import NamedTuple

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

LINE_EVERY_PERCENT = 25


class Waiting(NamedTuple):
    """``total`` 0: no end in sight."""

    what: str
    done: int = 0
    total: int = 0


class Screen:
    """stderr, for one peer. Methods may be called from any thread."""

    def __init__(self) -> None:
        self._console = Console(stderr=True, highlight=False, soft_wrap=True)
        self._lock = threading.RLock()
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._last = Waiting("")
        self._paused = False

    def line(self, text: str) -> None:
        with self._lock:
            if self._bar is not None:
                self._console.print(text, markup=False)
            else:
                sys.stderr.write(text + "\n")
                sys.stderr.flush()

    def waiting(self, now: Waiting | None) -> str:
        """Show it (None: nothing is waited for). Returns a line worth logging where there is no terminal, or ""."""
        with self._lock:
            last, self._last = self._last, now or Waiting("")
            if self._paused:
                return ""
            if self._console.is_terminal:
                self._show(now)
                return ""
        if now is None:
            return ""
        percent = 100 * now.done // now.total if now.total else 0
        before = 100 * last.done // last.total if last.total and last.what == now.what else -1
        if now.what != last.what or (percent // LINE_EVERY_PERCENT != before // LINE_EVERY_PERCENT and now.total):
            return f"{now.what}: {percent} %" if now.total else now.what
        return ""

    def pause(self) -> None:
        """No bar: somebody is asked something."""
        with self._lock:
            self._paused = True
            self._show(None)

    def go_on(self) -> None:
        with self._lock:
            self._paused = False

    def _show(self, now: Waiting | None) -> None:
        if now is None:
            if self._bar is not None:
                self._bar.stop()
            self._bar = self._task = None
            return
        total = now.total or None
        if self._bar is None:
            columns = (
                SpinnerColumn(),
                TextColumn("{task.description}", markup=False),
                BarColumn(),
                TimeElapsedColumn(),
            )
            self._bar = Progress(*columns, console=self._console, transient=True)
            self._task = self._bar.add_task(now.what, total=total)
            self._bar.start()
        assert self._task is not None
        self._bar.update(self._task, description=now.what, completed=now.done, total=total)
