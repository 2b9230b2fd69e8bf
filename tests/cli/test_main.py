"""The command line's face: help, version, and how errors end it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import p2ptrain
from p2ptrain.cli import main as cli
from p2ptrain.errors import EXIT_CODES, StalledError

Run = Callable[..., Any]


def test_help_imports_nothing_heavy() -> None:
    heavy = ("torch", "grpc", "hivemind", "numpy", "pydantic", "cryptography", "prometheus_client")
    code = (
        "import sys; sys.argv = ['p2ptrain', '--help']\n"
        "from p2ptrain.cli.main import main\n"
        "try: main()\n"
        f"finally: print('LOADED', [name for name in {heavy} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "LOADED []" in done.stdout
    assert "start" in done.stdout


def test_help_names_every_exit_code(p2ptrain: Run) -> None:
    told = " ".join(p2ptrain("--help").stdout.split())
    for code, meaning in EXIT_CODES.items():
        assert f"{code}: {meaning.split(':')[0]}" in told


def test_version(p2ptrain: Run) -> None:
    assert p2ptrain("--version").stdout.strip() == f"p2ptrain {p2ptrain_version()}"


def p2ptrain_version() -> str:
    return p2ptrain.__version__


def test_an_unknown_option_and_no_command_end_with_2() -> None:
    for arguments in (["join", "--no-such-option", "x"], ["no-such-command"]):
        done = subprocess.run(
            [sys.executable, "-m", "p2ptrain", *arguments], capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 2, done.stderr
        assert "No such" in done.stderr


def test_a_named_error_is_told_with_its_remedy_and_code(p2ptrain: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    from p2ptrain.cli import inviting

    def stalled(_: Path | None) -> str:
        raise StalledError("waits for\x1b[31m abc", hint="start it")

    monkeypatch.setattr(inviting, "fresh", stalled)
    done = p2ptrain("invite")
    assert done.exit_code == StalledError.exit_code == 7
    assert done.stderr.splitlines() == ["StalledError: waits for [31m abc", "what to do: start it"]


@pytest.mark.parametrize(("raised", "code"), [(RuntimeError("boom"), 1), (KeyboardInterrupt(), 130)])
def test_what_nobody_foresaw(
    raised: BaseException, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(**_: Any) -> None:
        raise raised

    monkeypatch.setattr(cli, "app", broken)
    monkeypatch.setattr(cli.threading, "active_count", lambda: 1)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == code
    told = capsys.readouterr().err
    assert "Traceback" not in told
    assert ("unexpected RuntimeError: boom" in told) == (code == 1)


class TestBadManifest:
    @pytest.mark.parametrize(
        ("change", "named"),
        [
            (('name = "tiny"', 'name = "tiny"\nlearning_rate = 1'), "learning_rate"),
            (("microbatch = 2", 'microbatch = "two"'), "batch.microbatch"),
            (("sequence_length = 32", "sequence_length = 64"), "model.options.context"),
            (('name = "byte_gpt"', 'name = "no_such_model"'), "no_such_model"),
            (("[batch]", "[batch"), "line"),
        ],
    )
    def test_names_the_key_and_ends_with_2(
        self, p2ptrain: Run, manifest: Path, change: tuple[str, str], named: str
    ) -> None:
        manifest.write_text(manifest.read_text().replace(*change))
        done = p2ptrain("start", manifest, "--listen", "127.0.0.1:0", "--no-dht")
        assert done.exit_code == 2, done.stderr
        assert "ConfigError" in done.stderr
        assert named in done.stderr

    def test_there_is_none(self, p2ptrain: Run, tmp_path: Path) -> None:
        done = p2ptrain("start", tmp_path / "nowhere.toml")
        assert done.exit_code == 2
        assert "nowhere.toml" in done.stderr

    @pytest.mark.parametrize(
        ("flags", "named"),
        [
            (["--listen", "7700"], "--listen"),
            (["--until", "yesterday"], "--until"),
            (["--memory", "1KiB"], "--memory"),
            (["--outbound-only", "--listen", "127.0.0.1:0"], "--outbound-only"),
            (["--metrics", "nowhere"], "--metrics"),
        ],
    )
    def test_options(self, p2ptrain: Run, manifest: Path, flags: list[str], named: str) -> None:
        done = p2ptrain("start", manifest, *flags)
        assert done.exit_code == 2, done.stderr
        assert named in done.stderr
