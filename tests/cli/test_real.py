"""The real commands in real processes: start, join, status as a guest, invite, and the signals."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from p2ptrain.net.invite import parse_invite
from tests.cli.program import Program, run, wait_for_file

pytestmark = pytest.mark.e2e

QUIET = ("--listen", "127.0.0.1:0", "--no-dht", "--threads", "1")


def test_start_join_status_invite_and_goodbye(manifest: Path, tmp_path: Path) -> None:
    a, b, invite = tmp_path / "a", tmp_path / "b", tmp_path / "invite"
    with Program("start", manifest, *QUIET, "--run-dir", a, "--invite-file", invite) as first:
        text = wait_for_file(invite).strip()
        assert invite.stat().st_mode & 0o777 == 0o600
        with Program("join", f"@{invite}", *QUIET, "--run-dir", b, "--log-json") as second:
            second.wait_line("takes part from round")
            _look_as_guest(text, a)
            _invite_from(b, a)
            again = run("join", text, *QUIET, "--run-dir", b)
            assert again.returncode == 2 and "in use by process" in again.stderr

            first.process.send_signal(signal.SIGTERM)
            assert first.end() == 0, first.err
            assert any("ended: SIGTERM" in line for line in first.err)
            assert text in first.out
            told = second.wait_line("left: SIGTERM")
            second.wait_line('"text": "loss', since=told)  # the other goes on alone
            second.process.send_signal(signal.SIGINT)
            assert second.end() == 0, second.err
    _lines_are_json(second.err)
    _folders_are_complete(a, b)


def _look_as_guest(text: str, a: Path) -> None:
    """A guest sees both, is dealt no work, and is gone again at once."""
    seen = json.loads(run("status", text, "--json").stdout)
    alive = [member for member in seen["members"] if member["status"] == "alive"]
    assert len(alive) == 2
    table = run("status", text)
    assert table.returncode == 0, table.stderr
    assert "run tiny" in table.stdout and alive[0]["peer"][:8] in table.stdout
    local = json.loads(run("status", "--run-dir", a, "--json").stdout)
    assert local["running"] and local["age_s"] < 30
    guests = [m for m in local["members"] if m["peer"] not in {member["peer"] for member in alive}]
    assert all(guest["joined_round"] == -1 and guest["last_counted"] is None for guest in guests)
    assert {guest["status"] for guest in guests} <= {"left", "joining"}


def _invite_from(b: Path, a: Path) -> None:
    fresh = parse_invite(run("invite", "--run-dir", b).stdout)
    own = json.loads((b / "status.json").read_text())
    assert len(fresh.addresses) == 2
    first = next(member for member in own["members"] if member["peer"] == own["peer"])
    assert fresh.addresses[0] == first["addresses"][0]
    assert fresh.run == parse_invite((a / "invite").read_text()).run


def _lines_are_json(lines: list[str]) -> None:
    values = [json.loads(line) for line in lines]
    assert {"runs here", "downloaded", "held in memory", "sent"} <= {
        word for word in ("runs here", "downloaded", "held in memory", "sent")
        if any(word in value["text"] for value in values)
    }  # fmt: skip
    assert all(value["run"] == "tiny" for value in values)


def _folders_are_complete(*folders: Path) -> None:
    for folder in folders:
        names = {path.name for path in folder.iterdir()}
        assert {"manifest.toml", "invite", "keys", "journal.jsonl", "rounds.jsonl", "status.json", "lock"} <= names
        assert "p2ptrain.log" in names
        rounds = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
        assert rounds and all({"round", "loss", "contributions", "digest", "left_out"} <= set(line) for line in rounds)
        assert all(path.stat().st_mode & 0o077 == 0 for path in folder.iterdir())


def test_two_signals_mean_now(invite_text: Callable[..., str], tmp_path: Path) -> None:
    """Both are waiting when the process goes on, so that the second always comes before the first has done its work."""
    text = invite_text(("127.0.0.1:1",))
    with Program("join", text, *QUIET, "--run-dir", tmp_path / "a", "--patience", "100") as peer:
        peer.wait_line("no member reached")
        for number in (signal.SIGSTOP, signal.SIGTERM, signal.SIGINT, signal.SIGCONT):
            os.kill(peer.process.pid, number)
        assert peer.end(20) == 130
        assert any("left at once" in line for line in peer.err)


def test_one_signal_while_nobody_is_found(invite_text: Callable[..., str], tmp_path: Path) -> None:
    text = invite_text(("127.0.0.1:1",))
    with Program("join", text, *QUIET, "--run-dir", tmp_path / "a", "--patience", "100") as peer:
        peer.wait_line("no member reached")
        peer.process.send_signal(signal.SIGTERM)
        assert peer.end(30) == 0
        assert any("left before a member was found" in line for line in peer.err)


def test_a_run_that_needs_more_memory_than_allowed_is_not_joined(manifest: Path, tmp_path: Path) -> None:
    invite = tmp_path / "invite"
    with Program("start", manifest, *QUIET, "--run-dir", tmp_path / "a", "--invite-file", invite) as first:
        wait_for_file(invite)
        refused = run("join", f"@{invite}", *QUIET, "--run-dir", tmp_path / "b", "--memory", "100KB")
        assert refused.returncode == 2, refused.stderr
        assert "--memory allows 100 kB" in refused.stderr
        assert not (tmp_path / "b" / "manifest.toml").exists(), "nothing was agreed to"
        first.process.send_signal(signal.SIGTERM)
        assert first.end() == 0
