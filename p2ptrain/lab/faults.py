"""Faults of a machine that one process can have alone: a wall clock that is wrong, a disk that is full.

Decides nothing about when. The clock is shifted inside the process itself; the disk is a limit of the kernel's on the
size of its files, which Python reports as an ``OSError`` (it ignores SIGXFSZ).
"""

from __future__ import annotations

import contextlib
import time
from datetime import timedelta

_real_time = time.time
_off_s = 0.0
_shifted = False


def skew_clock(off_s: float) -> None:
    """This process's wall clock is wrong by ``off_s`` seconds from now on; 0 puts it right. Not the monotonic clock."""
    global _off_s
    _off_s = off_s
    _shift()


def _shift() -> None:
    """Once: ``time.time``, and the one place that compares certificates with the date."""
    global _shifted
    if _shifted:
        return
    _shifted = True
    from p2ptrain.net import certificates

    now = certificates._now
    certificates._now = lambda: now() + timedelta(seconds=_off_s)
    time.time = lambda: _real_time() + _off_s


def limit_files(pid: int, is_full: bool) -> None:
    """Files of this process take no more bytes, or do again. Nothing if it has ended. Linux only."""
    import resource

    with contextlib.suppress(ProcessLookupError):
        _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (0 if is_full else hard, hard))
