"""Files that a peer leaves: bounded, and a failing disk is said once while training goes on."""

from __future__ import annotations

import errno
import json
import logging
import os
from pathlib import Path

import pytest

from p2ptrain.core import events as ev
from p2ptrain.runtime.journal import Journal, LineFile


def test_lines_are_appended_and_the_file_turns_over(tmp_path: Path) -> None:
    file = LineFile(tmp_path / "rounds.jsonl", limit_bytes=200)
    for number in range(40):
        file.write({"number": number})
    file.close()
    kept = [
        json.loads(line)["number"]
        for name in ("rounds.jsonl.1", "rounds.jsonl")
        for line in (tmp_path / name).read_text().splitlines()
    ]
    assert kept == list(range(40 - len(kept), 40)) and len(kept) < 40
    assert all((tmp_path / name).stat().st_size <= 200 for name in os.listdir(tmp_path))
    assert (tmp_path / "rounds.jsonl").stat().st_mode & 0o077 == 0


def test_a_full_disk_is_said_once_and_again_only_after_it_went_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    file = LineFile(tmp_path / "journal.jsonl")
    file.write({"good": 1})
    really_open, full = os.open, [True]

    def no_space(path: object, *args: object, **named: object) -> int:
        if full[0] and str(path).endswith("journal.jsonl"):
            raise OSError(errno.ENOSPC, "No space left on device")
        return really_open(path, *args, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "open", no_space)
    assert file._file is not None
    held = file._file
    monkeypatch.setattr(
        held, "write", lambda text: (_ for _ in ()).throw(OSError(errno.ENOSPC, "No space left on device"))
    )
    with caplog.at_level(logging.ERROR):
        for number in range(5):
            file.write({"lost": number})
        assert len(caplog.records) == 1 and "No space left" in caplog.text
        assert held.closed, "a file that failed is closed, not leaked"
        full[0] = False
        file.write({"good": 2})
        full[0] = True
        file.close()
        file.write({"lost": 9})
        assert len(caplog.records) == 2
    monkeypatch.undo()
    assert [json.loads(line)["good"] for line in (tmp_path / "journal.jsonl").read_text().splitlines()] == [1, 2]


def test_the_journal_keeps_what_led_to_what_and_says_nothing_of_idle_ticks(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.jsonl")
    journal.write(ev.Ticked(), [], 1.0)
    journal.write(ev.Ticked(), [ev.Say("info", "key", "text", 3)], 2.0)
    journal.write(ev.PartFetchFailed(b"\xab" * 32, "peer", "why"), [], 3.0)
    journal.close()
    lines = [json.loads(line) for line in (tmp_path / "journal.jsonl").read_text().splitlines()]
    assert [line["now"] for line in lines] == [1.0, 2.0, 3.0]
    assert "event" not in lines[0]  # kept for a replay only
    assert lines[1]["effects"] == ["Say(level=info,key=key,text=text,round=3)"]
    assert lines[2]["event"] == "PartFetchFailed(digest=" + "ab" * 8 + ",peer=peer,reason=why)"


def test_a_line_that_was_cut_off_does_not_spoil_the_next_life(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_text('{"whole":1}\n{"to', encoding="utf-8")
    file = LineFile(path)
    file.write({"next": 2})
    file.close()
    assert path.read_text(encoding="utf-8").splitlines() == ['{"whole":1}', '{"to', '{"next":2}']
