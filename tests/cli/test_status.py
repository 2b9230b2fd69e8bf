"""``status --local``, ``invite``, and what the tables show."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from p2ptrain.cli import folders, looking, table
from p2ptrain.config import RunFolder, open_run_folder
from p2ptrain.net.invite import parse_invite

Run = Callable[..., Any]
ME, OTHER, GONE = "a" * 52, "b" * 52, "c" * 52


def status(**changes: Any) -> dict[str, Any]:
    members = [
        {"peer": ME, "status": "alive", "addresses": ["192.0.2.1:7700", "10.0.0.1:7700"], "span": [0, 0],
         "joined_round": 0, "microbatch_s": 0.5, "counted": 8, "last_counted": 40, "region": "eu"},
        {"peer": OTHER, "status": "alive", "addresses": ["192.0.2.2:7700"], "span": [0, 0], "joined_round": 3,
         "microbatch_s": 0.25, "counted": 0, "last_counted": 20, "region": ""},
        {"peer": GONE, "status": "dead", "addresses": ["192.0.2.3:7700"], "span": [0, 0], "joined_round": 3,
         "microbatch_s": 0.25, "counted": 0, "last_counted": 2, "region": ""},
    ]  # fmt: skip
    seen = {
        "version": "0.1.0", "time": time.time(), "peer": ME, "phase": "current", "round": 40, "loss": 2.5,
        "run": {"name": "tiny", "id": "ab" * 32, "commit": "any", "rounds": 100, "codec": "int8"},
        "held_out": [30, 2.75], "round_s": 0.4, "members": members, "voters": [ME, OTHER], "coordinator": ME,
        "leader": OTHER, "stalled": "", "dht": "DHT off", "dht_addresses": [], "ended": None,
        "waits": [{"what": "the exchange", "on": [OTHER], "for_s": 1.25, "until_s": 3.5, "why": "round 41"}],
        "events": [{"level": "warning", "text": "cccc is dead: silent\x1b[2J", "round": 39}],
    }  # fmt: skip
    return {**seen, **changes}


def shown(seen: dict[str, Any]) -> str:
    console = Console(width=160, record=True, file=io.StringIO())
    console.print(table.render(seen))
    return console.export_text()


@pytest.fixture()
def folder(tmp_path: Path, invite_text: Callable[..., str]) -> RunFolder:
    made = open_run_folder(tmp_path / "peer")
    made.status.write_text(json.dumps(status()))
    made.invite.write_text(invite_text(("192.0.2.9:7700",)))
    return made


class TestTable:
    def test_everything_that_is_promised(self) -> None:
        text = shown(status())
        for wanted in (
            "run tiny", "round 40 of 100", "loss 2.5000", "held out 2.7500 at round 30", "0.40 s a round",
            "2.0/s", "4.0/s", "eu", "all", "here, coordinates, votes", "leads, votes", "dead",
            "the exchange", "1.2 s ago", "3.5 s from now", "round 41", "cccc is dead",
        ):  # fmt: skip
            assert wanted in text, wanted

    def test_a_peer_whose_work_is_not_counted_any_more(self) -> None:
        text = shown(status())
        assert "round 20: no contribution for 20 rounds" in text
        assert "no contribution for 38" not in text, "not said of the dead"

    def test_control_characters_do_not_reach_the_terminal(self) -> None:
        assert "\x1b[2J" not in shown(status())

    def test_a_stall_is_told(self) -> None:
        assert "STALLED: needs 2 of 3" in shown(status(stalled="needs 2 of 3"))

    @pytest.mark.parametrize("broken", [{}, {"members": [None, 3, {}]}, {"waits": "none", "events": [{}]}])
    def test_a_strange_status_of_another_version_is_shown_all_the_same(self, broken: dict[str, Any]) -> None:
        assert "run" in shown(broken)


class TestLocal:
    def test_of_a_run_that_has_ended(self, p2ptrain: Run, folder: RunFolder) -> None:
        folder.status.write_text(json.dumps(status(ended="the run is finished")))
        done = p2ptrain("status", "--local", "--run-dir", folder.path)
        assert done.exit_code == 0, done.stderr
        assert "not running (the run is finished)" in done.stdout

    def test_as_json(self, p2ptrain: Run, folder: RunFolder) -> None:
        with folders.held(folder):
            done = p2ptrain("status", "--run-dir", folder.path, "--json")
        seen = json.loads(done.stdout)
        assert (seen["round"], seen["running"]) == (40, True)

    def test_a_peer_that_hangs(self, p2ptrain: Run, folder: RunFolder) -> None:
        folder.status.write_text(json.dumps(status(time=time.time() - looking.STALE_S - 5)))
        with folders.held(folder):
            done = p2ptrain("status", "--local", "--run-dir", folder.path)
        assert done.exit_code == 5, done.stdout
        assert "written no status" in done.stderr

    @pytest.mark.parametrize("content", [None, "{", "[]"])
    def test_unreadable(self, p2ptrain: Run, folder: RunFolder, content: str | None) -> None:
        folder.status.unlink() if content is None else folder.status.write_text(content)
        done = p2ptrain("status", "--run-dir", folder.path)
        assert done.exit_code == 2
        assert "status.json" in done.stderr

    def test_an_invite_and_a_folder_contradict(self, p2ptrain: Run) -> None:
        assert p2ptrain("status", "p2p1:x", "--local").exit_code == 2


class TestChoice:
    def test_the_one_that_runs_else_the_last(
        self, p2ptrain: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.setenv("P2PTRAIN_HOME", str(tmp_path))
        assert "no run folder" in p2ptrain("status").stderr
        made = [open_run_folder(tmp_path / "runs" / name) for name in ("a", "b")]
        for index, each in enumerate(made):
            each.status.write_text(json.dumps(status(round=index)))
        with folders.held(made[0]):
            assert folders.chosen(None).path == made[0].path
            with folders.held(made[1]):
                done = p2ptrain("status")
        assert done.exit_code == 2
        assert str(made[0].path) in done.stderr and str(made[1].path) in done.stderr


class TestInvite:
    def test_of_a_running_member_names_who_is_alive(self, p2ptrain: Run, folder: RunFolder) -> None:
        with folders.held(folder):
            done = p2ptrain("invite", "--run-dir", folder.path)
        assert done.exit_code == 0, done.stderr
        addresses = parse_invite(done.stdout).addresses
        assert addresses == ("192.0.2.1:7700", "10.0.0.1:7700", "192.0.2.2:7700")
        assert folder.invite.stat().st_mode & 0o777 == 0o600

    def test_of_a_member_that_is_not_running(self, p2ptrain: Run, folder: RunFolder) -> None:
        assert parse_invite(p2ptrain("invite", "--run-dir", folder.path).stdout).addresses == ("192.0.2.9:7700",)

    def test_nobody_can_be_dialled(self, p2ptrain: Run, folder: RunFolder) -> None:
        folder.status.write_text(json.dumps(status(members=[])))
        with folders.held(folder):
            done = p2ptrain("invite", "--run-dir", folder.path)
        assert done.exit_code == 2
        assert "can be dialled" in done.stderr

    def test_no_member(self, p2ptrain: Run, tmp_path: Path) -> None:
        assert p2ptrain("invite", "--run-dir", open_run_folder(tmp_path / "x").path).exit_code == 2
        assert p2ptrain("invite", "--run-dir", tmp_path / "nowhere").exit_code == 2
