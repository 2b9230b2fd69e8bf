"""Sees to it that peers end when whoever started them is killed. A peer notices that itself, unless it is stopped.

A tiny process of its own is told every peer's process id. When its pipe closes, for whatever reason, it ends those that
are left, by their ids, and only if the id still belongs to the process that it was told of.
"""

from __future__ import annotations

import contextlib
import os
import signal
from multiprocessing.connection import Connection
from typing import Any

from p2ptrain.lab.owner import Owner


class Guard:
    """Owned by a ``Swarm``. ``context``: where its process is forked from."""

    def __init__(self, context: Any) -> None:
        here, there = context.Pipe()
        self._pipe: Connection = here
        self._process = context.Process(target=watch, args=(there,), daemon=True)
        self._process.start()
        there.close()

    def add(self, pid: int) -> None:
        """This process ends with us at the latest."""
        with contextlib.suppress(OSError):
            self._pipe.send(Owner.of(pid))

    def close(self) -> None:
        """What still runs of those that were added is ended now."""
        self._pipe.close()
        self._process.join(10.0)


def watch(pipe: Connection) -> None:
    """The guard's process."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _asked_to_end)
    known: list[Owner] = []
    with contextlib.suppress(EOFError, OSError):
        while True:
            known.append(pipe.recv())
    for peer in known:
        if peer.lives:
            with contextlib.suppress(ProcessLookupError):
                os.kill(peer.pid, signal.SIGKILL)


def _asked_to_end(*_: object) -> None:
    """As if the pipe had closed."""
    raise EOFError
