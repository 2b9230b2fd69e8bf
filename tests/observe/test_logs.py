"""The form of a line, and that a repeated condition is counted."""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path
from typing import Any

from p2ptrain.observe.logs import Context, JsonLines, Repeats, TextLines, install

CONTEXT = Context(run="tiny", peer="abcdefgh" + "a" * 44, round=7)


def record(text: str, level: int = logging.INFO, *args: object, **extra: Any) -> logging.LogRecord:
    made = logging.LogRecord("p2ptrain", level, __file__, 1, text, args, None)
    made.__dict__.update(extra)
    return made


class Collected(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(TextLines(CONTEXT))
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record).split(" round ", 1)[1].split(" ", 1)[1])


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class TestText:
    def test_one_line_with_time_run_peer_round(self) -> None:
        line = TextLines(CONTEXT).format(record("loss %.2f", logging.INFO, 2.5))
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z tiny peer abcdefgh round 7 loss 2\.50", line)

    def test_the_record_s_own_round_and_level(self) -> None:
        line = TextLines(CONTEXT).format(record("bad", logging.WARNING, round=9))
        assert line.endswith("round 9 WARNING bad")
        assert TextLines(Context()).format(record("x")).endswith("- peer - round - x")

    def test_line_breaks_and_escapes_of_others_stay_one_line(self) -> None:
        line = TextLines(CONTEXT).format(record("a\nb\x1b[2Jc"))
        assert "\n" not in line and "\x1b" not in line

    def test_an_error_is_named_and_its_traceback_kept_for_the_file(self) -> None:
        try:
            raise ValueError("why")
        except ValueError as error:
            failed = record("failed", logging.ERROR, exc_info=(ValueError, error, error.__traceback__))
        assert TextLines(CONTEXT).format(failed).endswith("ERROR failed [ValueError: why]")
        assert "Traceback" in TextLines(CONTEXT, tracebacks=True).format(failed)


def test_json_lines() -> None:
    values = json.loads(JsonLines(CONTEXT).format(record("gone", logging.WARNING, key="peer-lost", round=3)))
    assert re.fullmatch(r"[\dT:.-]+Z", values.pop("time"))
    assert values == {
        "level": "warning", "run": "tiny", "peer": CONTEXT.peer, "round": 3, "key": "peer-lost", "text": "gone",
        "more": 0,
    }  # fmt: skip


class TestRepeats:
    def setup_method(self) -> None:
        self.clock, self.seen = Clock(), Collected()
        self.repeats = Repeats([self.seen], window_s=30.0, clock=self.clock)

    def say(self, text: str, level: int = logging.WARNING, **extra: Any) -> None:
        self.repeats.handle(record(text, level, **extra))

    def test_counted_and_told_with_the_next_one_after_the_window(self) -> None:
        for attempt in range(13):
            self.say(f"no member reached: try {attempt}")
        assert self.seen.lines == ["WARNING no member reached: try 0"]
        self.clock.now = 31.0
        self.say("no member reached: try 13")
        assert self.seen.lines[1:] == ["WARNING no member reached: try 13 (12 more times)"]

    def test_told_by_itself_when_something_else_comes_later(self) -> None:
        self.say("x is slow")
        self.say("x is slow")
        self.clock.now = 31.0
        self.say("round done", logging.INFO)
        assert self.seen.lines == ["WARNING x is slow", "WARNING x is slow (1 more time)", "round done"]

    def test_told_at_the_end(self) -> None:
        self.say("x is slow")
        self.say("x is slow")
        self.repeats.close()
        assert self.seen.lines[-1] == "WARNING x is slow (1 more time)"

    def test_other_conditions_and_plain_lines_are_not_held_back(self) -> None:
        for text in ("link to aaaa2222 lost", "link to bbbb2222 lost"):
            self.say(text, key="link")
        for round in range(3):
            self.say(f"loss {round}.5", logging.INFO)
        assert len(self.seen.lines) == 5

    def test_what_it_remembers_is_bounded(self) -> None:
        names = [chr(ord("a") + i // 26) + chr(ord("a") + i % 26) for i in range(600)]
        for name in names:
            self.say(f"{name} is slow")
        assert len(self.repeats._seen) <= 256
        assert len(self.seen.lines) == 600


def test_install_writes_a_private_file_and_leaves_no_trace(tmp_path: Path) -> None:
    shown: list[str] = []
    undo = install(CONTEXT, tmp_path / "p2ptrain.log", shown.append)
    logging.getLogger("p2ptrain.net").info("hello")
    undo()
    logging.getLogger("p2ptrain.net").warning("too late")
    kept = (tmp_path / "p2ptrain.log").read_text().splitlines()
    assert len(shown) == len(kept) == 1 and shown[0].endswith("hello") and kept == shown
    assert (tmp_path / "p2ptrain.log").stat().st_mode & 0o777 == 0o600
    assert logging.getLogger("p2ptrain").handlers == []


def test_a_closed_terminal_does_not_end_a_peer(tmp_path: Path) -> None:
    def gone(_: str) -> None:
        raise BrokenPipeError

    undo = install(CONTEXT, tmp_path / "log", gone)
    logging.getLogger("p2ptrain").info("hello")
    undo()
    assert (tmp_path / "log").read_text().endswith("hello\n")
