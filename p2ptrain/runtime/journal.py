"""What a peer leaves in its run folder: the journal (events with effects), one JSON line per round, the status.

Bounded: the journal keeps two files of at most ``JOURNAL_BYTES`` each; status is replaced whole. Decides nothing. A
failing disk is said once and training goes on.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import math
import os
import time
from pathlib import Path
from typing import IO, Any

from p2ptrain.core import events as ev
from p2ptrain.core.types import PeerInfo, RoundResult, RunSpec
from p2ptrain.runtime.recorded import effects_digest, recorded

logger = logging.getLogger("p2ptrain")

JOURNAL_BYTES = 32 << 20
TEXT_MAX = 2_000


class LineFile:
    """Appends JSON lines; turns over to ``NAME.1`` at ``limit_bytes``; a disk error is said once."""

    def __init__(self, path: Path, limit_bytes: int = JOURNAL_BYTES) -> None:
        self._path = path
        self._limit = limit_bytes
        self._file: IO[str] | None = None
        self._size = 0
        self._failed = False

    def write(self, value: dict[str, Any]) -> None:
        line = json.dumps(value, separators=(",", ":"), default=str) + "\n"
        try:
            if self._file is None:
                self._open()
            assert self._file is not None
            if self._size + len(line) > self._limit:
                self._file.close()
                os.replace(self._path, self._path.with_name(self._path.name + ".1"))
                self._open()
            self._file.write(line)
            self._file.flush()
            self._size += len(line)
            self._failed = False
        except OSError as error:
            if not self._failed:
                logger.error("%s cannot be written (%s): goes on without it", self._path, error.strerror)
            self._failed = True
            failed, self._file = self._file, None
            if failed is not None:
                with contextlib.suppress(OSError):  # it flushes what could not be written: said already
                    failed.close()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _open(self) -> None:
        descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._file = os.fdopen(descriptor, "a", encoding="utf-8")
        self._size = self._path.stat().st_size
        if self._size and not _ends_whole(self._path):
            self._size += self._file.write("\n")  # a life before this one was killed in the middle of a line


def _ends_whole(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"


class Journal:
    """One line per event: for people the event with its effects in short, for a replay the event whole (``recorded``).

    A tick that did nothing is kept for the replay only: time alone may move a node. See ``lab.replay``.
    """

    def __init__(self, path: Path) -> None:
        self._lines = LineFile(path)

    def begin(self, run: RunSpec, info: PeerInfo, seed: str) -> None:
        """What the node is made of."""
        self._lines.write({"t": time.time(), "node": [recorded(run), recorded(info), seed]})

    def write(self, event: ev.Event, effects: list[ev.Effect], now: float) -> None:
        line: dict[str, Any] = {"now": now, "raw": recorded(event), "does": effects_digest(effects)}
        if effects or not isinstance(event, ev.Ticked):
            told = {"t": time.time(), "event": _text(event), "effects": [_text(e) for e in effects]}
            line = {**told, **line}
        self._lines.write(line)

    def close(self) -> None:
        self._lines.close()


def result_line(result: RoundResult, lag_s: float) -> dict[str, Any]:
    """A round's result as one JSON object (times in seconds, sizes in bytes)."""
    values = {f.name: getattr(result, f.name) for f in dataclasses.fields(result)}
    values["ballot"] = list(result.ballot)
    values["contributions"] = dict(result.contributions)
    values["left_out"] = [{"peer": left.peer, "reason": left.reason} for left in result.left_out]
    values["loss"] = None if math.isnan(result.loss) else result.loss
    values["share"] = result.share
    values["loop_lag_s"] = round(lag_s, 4)
    values["time"] = time.time()
    return values


def _text(value: object) -> str:
    """Class name and fields, bytes in short hex, cut to a bounded length."""
    return _short(value)[:TEXT_MAX]


def _short(value: object) -> str:
    if isinstance(value, bytes):
        return value.hex()[:16]
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return "/".join(_short(item) for item in value)
    if isinstance(value, tuple):
        if len(value) > 8 and all(isinstance(item, int) for item in value):
            return f"({len(value)} from {value[0]} to {value[-1]})"
        return "(" + ",".join(_short(item) for item in value) + ")"
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        inner = ",".join(
            f"{f.name}={_short(getattr(value, f.name))}"
            for f in dataclasses.fields(value)
            if f.name not in ("signature", "public_key")
        )
        return f"{type(value).__name__}({inner})"
    return str(value)
