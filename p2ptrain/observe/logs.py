"""One line per event: UTC time, run, peer, round, what and what next; as text or JSON. A repeat is counted, not shown.

Decides the form of a line, and which lines are repeats: warnings, errors and keyed lines that differ from an earlier
one in numbers alone. Does not decide what is worth a line.

    2031-05-01T18:00:00.123Z quickstart peer abcdefgh round 12 loss 2.3456, 16 of 16 microbatches by 4 peers
    2031-05-01T18:00:31.002Z quickstart peer abcdefgh round 40 WARNING no member reached: ... (12 more times)
"""

from __future__ import annotations

import json
import logging
import os
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from logging.handlers import RotatingFileHandler
from pathlib import Path

LOGGER = "p2ptrain"
WINDOW_S = 30.0
CONDITIONS_MAX = 256
FILE_BYTES = 8 << 20

_NUMBER = re.compile(r"(?<![\w.])\d+(\.\d+)?(?![\w])")


@dataclass
class Context:
    """What every line says of its origin; filled in as it becomes known. ``round`` -1: none yet."""

    run: str = "-"
    peer: str = ""
    round: int = -1


class TextLines(logging.Formatter):
    """One line of text. Tracebacks only with ``tracebacks`` (the file has them, the terminal has not)."""

    def __init__(self, context: Context, tracebacks: bool = False) -> None:
        super().__init__()
        self._context = context
        self._tracebacks = tracebacks

    def format(self, record: logging.LogRecord) -> str:
        context = self._context
        parts = [utc(record.created), context.run, f"peer {context.peer[:8] or '-'}"]
        round = round_of(record, context)
        parts.append(f"round {round if round >= 0 else '-'}")
        if record.levelno != logging.INFO:
            parts.append(record.levelname)
        line = " ".join([*parts, one_line(message_of(record))])
        if self._tracebacks and record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


class JsonLines(logging.Formatter):
    """One JSON object a line: time, level, run, peer, round (null: none), key, text, more; error if there is one."""

    def __init__(self, context: Context) -> None:
        super().__init__()
        self._context = context

    def format(self, record: logging.LogRecord) -> str:
        round = round_of(record, self._context)
        values = {
            "time": utc(record.created),
            "level": record.levelname.lower(),
            "run": self._context.run,
            "peer": self._context.peer,
            "round": round if round >= 0 else None,
            "key": getattr(record, "key", ""),
            "text": record.getMessage(),
            "more": getattr(record, "more", 0),
        }
        if record.exc_info:
            values["error"] = self.formatException(record.exc_info)
        return json.dumps(values, ensure_ascii=False)


class Repeats(logging.Handler):
    """Passes records on to ``targets``; a condition that repeats within ``window_s`` is counted instead.

    The count is told by the first line of that condition after the window, or else by a line of its own as soon as any
    line comes after the window, or at ``close``. ``clock``: monotonic seconds.
    """

    def __init__(
        self,
        targets: Sequence[logging.Handler],
        window_s: float = WINDOW_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        self._targets = tuple(targets)
        self._window_s = window_s
        self._clock = clock
        self._seen: dict[tuple[str, ...], _Condition] = {}

    def emit(self, record: logging.LogRecord) -> None:
        now = self._clock()
        condition = condition_of(record)
        self._tell_ended(now, but=condition)
        if condition is None:
            self._pass(record)
            return
        known = self._seen.get(condition)
        if known is not None and now < known.until:
            known.more += 1
            known.last = record
            return
        if known is not None:
            record.more = known.more
        self._seen.pop(condition, None)
        self._seen[condition] = _Condition(now + self._window_s, record)
        if len(self._seen) > CONDITIONS_MAX:
            self._tell(self._seen.pop(next(iter(self._seen))))
        self._pass(record)

    def close(self) -> None:
        """Tell what was counted and not told yet, and close the targets."""
        for known in self._seen.values():
            self._tell(known)
        self._seen.clear()
        for target in self._targets:
            target.close()
        super().close()

    def _tell_ended(self, now: float, but: tuple[str, ...] | None) -> None:
        ended = [key for key, known in self._seen.items() if now >= known.until and key != but]
        for key in ended:
            self._tell(self._seen.pop(key))

    def _tell(self, known: _Condition) -> None:
        if known.more:
            again = logging.makeLogRecord({**known.last.__dict__, "exc_info": None, "more": known.more})
            self._pass(again)

    def _pass(self, record: logging.LogRecord) -> None:
        for target in self._targets:
            if record.levelno >= target.level:
                target.handle(record)


@dataclass
class _Condition:
    until: float
    last: logging.LogRecord
    more: int = 0


def install(
    context: Context, file: Path | None, show: Callable[[str], None] | None, *, as_json: bool = False
) -> Callable[[], None]:
    """Lines of p2ptrain's loggers go to ``show`` and to ``file`` (0600, bounded). Returns what undoes it."""
    targets: list[logging.Handler] = []
    if show is not None:
        shown = _Shown(show)
        shown.setFormatter(JsonLines(context) if as_json else TextLines(context))
        targets.append(shown)
    if file is not None:
        os.close(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600))
        kept = _PrivateFile(file, maxBytes=FILE_BYTES, backupCount=1, encoding="utf-8")
        kept.setFormatter(JsonLines(context) if as_json else TextLines(context, tracebacks=True))
        targets.append(kept)
    handler = Repeats(targets)
    logger = logging.getLogger(LOGGER)
    before = (logger.level, logger.propagate)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    logger.addHandler(handler)

    def undo() -> None:
        logger.removeHandler(handler)
        handler.close()
        logger.setLevel(before[0])
        logger.propagate = before[1]

    return undo


class _Shown(logging.Handler):
    def __init__(self, show: Callable[[str], None]) -> None:
        super().__init__()
        self._show = show

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._show(self.format(record))
        except (OSError, ValueError):  # the terminal is gone: the file has the line
            self.handleError(record)

    def handleError(self, record: logging.LogRecord) -> None:
        """A closed terminal is no reason for a traceback on it."""


class _PrivateFile(RotatingFileHandler):
    """Also the next file, after a rotation, belongs to its owner alone."""

    def _open(self):  # type: ignore[no-untyped-def]
        descriptor = os.open(self.baseFilename, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        return os.fdopen(descriptor, self.mode, encoding=self.encoding)


def condition_of(record: logging.LogRecord) -> tuple[str, ...] | None:
    """What makes two lines the same condition; None for lines that are never repeats (the round's own line)."""
    key = getattr(record, "key", "")
    if not key and record.levelno < logging.WARNING:
        return None
    return (record.name, record.levelname, key, _NUMBER.sub("#", record.getMessage()))


def round_of(record: logging.LogRecord, context: Context) -> int:
    own = getattr(record, "round", -1)
    return own if isinstance(own, int) and own >= 0 else context.round


def message_of(record: logging.LogRecord) -> str:
    more = getattr(record, "more", 0)
    times = "" if not more else f" ({more} more time{'s' if more > 1 else ''})"
    error = record.exc_info[1] if record.exc_info else None
    cause = f" [{type(error).__name__}: {error}]" if error is not None else ""
    return record.getMessage() + cause + times


def one_line(text: str) -> str:
    """Line breaks and other control characters (a remote may have sent them) do not reach the terminal."""
    return "".join(c if c.isprintable() else " " for c in text)


def utc(seconds: float) -> str:
    """ISO time in UTC with milliseconds."""
    moment = datetime.fromtimestamp(seconds, timezone.utc)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{moment.microsecond // 1000:03d}Z"
