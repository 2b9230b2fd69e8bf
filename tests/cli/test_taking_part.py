"""``start`` and ``join`` where they end early: bad invites, nobody there, ports and folders in use."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from p2ptrain.cli import costs, folders
from p2ptrain.cli.taking_part import _was_member
from p2ptrain.config import Manifest, PeerSettings, load_manifest, open_run_folder, save_manifest
from p2ptrain.core.types import PeerInfo
from p2ptrain.errors import ConfigError
from p2ptrain.net.dht_cache import save_last_peers

Run = Callable[..., Any]
Make = Callable[..., str]
QUIET = ("--no-dht", "--listen", "127.0.0.1:0", "--patience", "0")


@pytest.fixture()
def taken() -> Any:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        yield listening.getsockname()[1]


@pytest.fixture()
def refusing() -> int:
    """A port where nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class TestInvites:
    @pytest.mark.parametrize("text", ["p2p1:AAAA", "hello", "@nowhere", "p2p1:" + "A" * 20_000])
    def test_malformed(self, p2ptrain: Run, text: str) -> None:
        done = p2ptrain("join", text, *QUIET)
        assert done.exit_code == 2, done.stderr
        assert "invite" in done.stderr

    def test_cut_in_the_middle(self, p2ptrain: Run, invite_text: Make) -> None:
        text = invite_text()
        done = p2ptrain("join", text[: len(text) // 2], *QUIET)
        assert done.exit_code == 2
        assert "cut or mistyped?" in done.stderr

    def test_a_name_that_is_a_path(self, p2ptrain: Run, invite_text: Make, tmp_path: Path) -> None:
        done = p2ptrain("join", invite_text(("127.0.0.1:1",), name="../../elsewhere"), *QUIET)
        assert done.exit_code == 2
        assert "no name of a run" in done.stderr

    def test_expired(self, p2ptrain: Run, invite_text: Make, tmp_path: Path) -> None:
        text = invite_text(("127.0.0.1:1",), valid_s=-600.0)
        done = p2ptrain("join", text, *QUIET, "--run-dir", tmp_path / "a")
        assert done.exit_code == 4, done.stderr
        assert "expired" in done.stderr

    def test_without_addresses(self, p2ptrain: Run, invite_text: Make, tmp_path: Path) -> None:
        done = p2ptrain("join", invite_text(), *QUIET, "--run-dir", tmp_path / "a")
        assert done.exit_code == 2, done.stderr
        assert "names no address" in done.stderr

    def test_of_another_run_than_the_folder(
        self, p2ptrain: Run, invite_text: Make, manifest: Path, tmp_path: Path
    ) -> None:
        save_manifest(open_run_folder(tmp_path / "a"), load_manifest(manifest))
        done = p2ptrain("join", invite_text(("127.0.0.1:1",)), *QUIET, "--run-dir", tmp_path / "a")
        assert done.exit_code == 2, done.stderr
        assert "another run" in done.stderr


def test_nobody_reachable_names_each_address(p2ptrain: Run, invite_text: Make, refusing: int, tmp_path: Path) -> None:
    text = invite_text((f"127.0.0.1:{refusing}", "no-such-host.invalid:7700"))
    done = p2ptrain("join", text, *QUIET, "--run-dir", tmp_path / "a")
    assert done.exit_code == 5, done.stderr
    assert f"127.0.0.1:{refusing}: refused" in done.stderr
    assert "no-such-host.invalid:7700: name" in done.stderr
    assert "what to do:" in done.stderr
    assert (tmp_path / "a" / "invite").stat().st_mode & 0o777 == 0o600


def test_port_in_use(p2ptrain: Run, manifest: Path, taken: int, tmp_path: Path) -> None:
    done = p2ptrain("start", manifest, "--no-dht", "--listen", f"127.0.0.1:{taken}", "--run-dir", tmp_path / "a")
    assert done.exit_code == 5, done.stderr
    assert f"127.0.0.1:{taken}" in done.stderr
    assert "--listen" in done.stderr


def test_port_of_metrics_in_use(p2ptrain: Run, manifest: Path, taken: int, tmp_path: Path) -> None:
    done = p2ptrain("start", manifest, *QUIET, "--metrics", f"127.0.0.1:{taken}", "--run-dir", tmp_path / "a")
    assert done.exit_code == 5, done.stderr
    assert "--metrics" in done.stderr


def test_a_folder_in_use(p2ptrain: Run, manifest: Path, tmp_path: Path) -> None:
    with folders.held(open_run_folder(tmp_path / "a")):
        done = p2ptrain("start", manifest, *QUIET, "--run-dir", tmp_path / "a")
    assert done.exit_code == 2, done.stderr
    assert "in use by process" in done.stderr


def test_a_former_member_rejoins_and_does_not_begin_again(
    p2ptrain: Run, manifest: Path, invite_text: Make, refusing: int, tmp_path: Path
) -> None:
    """A second history of one run is what must not come of typing ``start`` twice."""
    folder = open_run_folder(tmp_path / "a")
    run = load_manifest(manifest).with_fingerprint("0" * 64)
    manifest.write_text(run.to_toml())
    save_manifest(folder, run)
    folder.invite.write_text(invite_text((), run=run.run))
    assert not _was_member(folder, run)
    save_last_peers(folder.path, [PeerInfo("a" * 52, 1, (f"127.0.0.1:{refusing}",))])
    assert _was_member(folder, run)
    done = p2ptrain("start", manifest, *QUIET, "--run-dir", folder.path)
    assert done.exit_code == 5, done.stderr
    assert "rejoins" in done.stderr
    assert "new --run-dir" in done.stderr


def test_a_run_whose_state_is_gone_is_not_silently_begun_again(p2ptrain: Run, manifest: Path, tmp_path: Path) -> None:
    """G2: a lone founder that comes back with nothing must say so instead of starting from round 0."""
    folder = open_run_folder(tmp_path / "a")
    run = load_manifest(manifest).with_fingerprint("0" * 64)
    manifest.write_text(run.to_toml())
    save_manifest(folder, run)
    assert folders.rounds_committed(folder) == 0
    folder.rounds.write_text('{"round":6}\n{"round":7}\n{"rou')
    assert folders.rounds_committed(folder) == 7
    done = p2ptrain("start", manifest, *QUIET, "--run-dir", folder.path)
    assert done.exit_code == 7, done.stderr
    assert "committed round 7" in done.stderr and "--run-dir" in done.stderr


class TestCosts:
    def lines(self, manifest: Path, seen: dict[str, Any], **flags: Any) -> str:
        settings = PeerSettings.from_flags(now_s=0.0, **flags)
        return "\n".join(costs.lines(load_manifest(manifest), settings, seen))

    def test_all_that_is_promised_is_told(self, manifest: Path) -> None:
        seen = {"members": [{"peer": "x", "status": "alive"}, {"peer": "y", "status": "dead"}], "round_s": 0.5}
        told = self.lines(manifest, seen, memory="8GiB")
        assert "byte_gpt" in told and "python_stdlib" in told and "no code comes from others" in told
        assert "the state, 344 kB" in told
        assert "--memory allows 8.6 GB" in told
        assert "among 2 peers" in told and "an hour at the present 0.50 s a round" in told

    def test_an_hour_nobody_has_measured_is_not_invented(self, manifest: Path) -> None:
        assert "nobody has measured" in self.lines(manifest, {"members": []})

    def test_code_from_outside_is_named(self, manifest: Path) -> None:
        run = Manifest.from_toml(manifest.read_text().replace('"python_stdlib"', '"some.module:data"'))
        told = "\n".join(costs.lines(run, PeerSettings.from_flags(now_s=0.0), {}))
        assert "code from outside p2ptrain: some.module:data" in told

    def test_more_memory_than_allowed(self, manifest: Path) -> None:
        with pytest.raises(ConfigError, match=r"--memory allows 1\.0 kB"):
            costs.check_memory(load_manifest(manifest), PeerSettings.from_flags(now_s=0.0, memory="1KB"))
        costs.check_memory(load_manifest(manifest), PeerSettings.from_flags(now_s=0.0, memory="1GB"))

    def test_nobody_is_asked_where_there_is_no_terminal(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(costs.sys.stdin, "isatty", lambda: False, raising=False)
        assert costs.agreed(yes=False)

    @pytest.mark.parametrize(("answer", "agreed"), [("y\n", True), ("Yes\n", True), ("\n", False), ("", False)])
    def test_the_answer(self, monkeypatch: pytest.MonkeyPatch, answer: str, agreed: bool) -> None:
        class Terminal:
            def isatty(self) -> bool:
                return True

            def readline(self) -> str:
                return answer

            def write(self, text: str) -> None:
                assert "y/N" in text

            def flush(self) -> None:
                pass

        monkeypatch.setattr(costs.sys, "stdin", Terminal())
        monkeypatch.setattr(costs.sys, "stderr", Terminal())
        assert costs.agreed(yes=False) is agreed
        assert costs.agreed(yes=True)
