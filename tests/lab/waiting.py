"""Waiting for what only the machine knows: files, and processes that are not ours to join."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from p2ptrain.lab.owner import Owner

WAIT_S = 60.0


def eventually(holds: Callable[[], bool], what: str, timeout_s: float = WAIT_S) -> None:
    """Raises AssertionError when time is up. Nothing tells us, so it looks again and again."""
    until = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < until, f"waited {timeout_s:.0f} s: {what}"
        time.sleep(0.02)


def gone(pids: Sequence[int]) -> None:
    """All these processes have ended."""
    eventually(lambda: all(Owner.of(pid).began == 0 for pid in pids), f"processes {list(pids)} are gone")
