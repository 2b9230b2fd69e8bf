"""Journals of real peers replay into a fresh node with equal effects; a changed one says where it differs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given

from p2ptrain.core import events as ev
from p2ptrain.core.types import Voter
from p2ptrain.errors import ConfigError
from p2ptrain.lab.pytest_plugin import ChurnSwarm
from p2ptrain.lab.replay import main, replay
from p2ptrain.runtime.recorded import effects_digest, read_value, recorded
from tests.strategies import exact, messages


@given(messages())
def test_everything_that_peers_say_is_kept_without_loss(message) -> None:  # type: ignore[no-untyped-def]
    event = ev.Received(Voter("a", 1), message)
    text = json.dumps(recorded(event))
    again = read_value(json.loads(text))
    assert exact(again) == exact(event) and type(again) is ev.Received
    assert json.dumps(recorded(again)) == text


@pytest.mark.parametrize(
    "given_value, why",
    [
        ({"Popen": ["ls"]}, "unknown kind"),
        ({"Received": [1]}, "other fields"),
        ({"Status": "mad"}, "Status"),
        ({"b": "%%%"}, "b:"),
        ({"a": 1, "b": 2}, "not a value"),
        ({}, "not a value"),
    ],
)
def test_a_foreign_value_is_refused(given_value: object, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        read_value(given_value)


def test_nesting_is_bounded() -> None:
    deep: object = 1
    for _ in range(100):
        deep = [deep]
    with pytest.raises(ConfigError, match="deeply"):
        read_value(deep)


def test_what_is_not_of_the_core_is_not_written() -> None:
    with pytest.raises(TypeError, match="Path"):
        recorded(Path("x"))


def test_real_journals_replay_and_a_changed_one_says_where(
    swarm: ChurnSwarm, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "abc":
        swarm.start(name)
    swarm.wait_members(3)
    swarm["b"].kill()
    swarm.wait_noticed("b")
    swarm.wait_rounds(2)
    swarm.start("b")
    swarm.wait_members(3)
    for peer in swarm.alive:
        peer.terminate()
    for peer in swarm.processes.peers.values():
        peer.wait_end()
    journals = {name: swarm.folder / name / "journal.jsonl" for name in "abc"}
    lives = {}
    for name, path in journals.items():
        found = replay(path)
        assert found.equal, f"{path}:{found.differs_at}: {found.text}"
        assert found.node is not None and found.events > 50
        lives[name] = found.lives
    assert lives == {"a": 1, "b": 2, "c": 1}

    lines = journals["a"].read_text(encoding="utf-8").splitlines(keepends=True)
    cut = tmp_path / "cut.jsonl"
    cut.write_text("".join(lines[:30]) + lines[30][: len(lines[30]) // 2], encoding="utf-8")
    assert replay(cut).equal and replay(cut).events == 29

    at = next(i for i, line in enumerate(lines) if '{"Applied":' in line and i > 20)
    changed = tmp_path / "changed.jsonl"
    changed.write_text("".join(lines[:at] + lines[at + 1 :]), encoding="utf-8")
    found = replay(changed)
    assert not found.equal and int(found.differs_at.rpartition(":")[2]) > at

    twice = tmp_path / "twice.jsonl"  # killed in the middle of a line, then another life
    twice.write_text("".join(lines[:30]) + lines[30][:20] + "\n" + "".join(lines[:30]), encoding="utf-8")
    assert replay(twice).equal and replay(twice).lives == 2
    torn = tmp_path / "torn.jsonl"
    torn.write_text("".join(lines[:30]) + lines[30][:20] + "\n" + lines[31], encoding="utf-8")
    with pytest.raises(ConfigError, match=r"torn\.jsonl:31: not JSON"):
        replay(torn)

    headless = tmp_path / "headless.jsonl"
    headless.write_text("".join(lines[1:]), encoding="utf-8")
    with pytest.raises(ConfigError, match="beginning is missing"):
        replay(headless)

    monkeypatch.setattr("sys.argv", ["replay", str(journals["a"]), str(changed)])
    assert main() == 1
    out = capsys.readouterr().out
    assert "equal effects" in out and "differs" in out


def test_no_journal(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such journal"):
        replay(tmp_path / "none.jsonl")
    (tmp_path / "text.jsonl").write_text("hello\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="not JSON"):
        replay(tmp_path / "text.jsonl")
    (tmp_path / "other.jsonl").write_text("{}\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="not a journal"):
        replay(tmp_path / "other.jsonl")


@pytest.mark.parametrize(
    "text, why",
    [
        (b"", "empty"),
        (b'{"node":[1,2]}\n', "no run, peer and seed"),
        (b'{"node":{"Popen":[]}}\n', "no run, peer and seed"),
        (b"\xff\xfe\n", "not JSON"),
        (b"[" * 200_000 + b"\n", "not JSON"),
        (b'{"raw":1,"now":1,"does":""}\n', "beginning is missing"),
        (b"x" * 300 + b"\n", "300 characters"),
    ],
    ids=["empty", "short", "foreign", "bytes", "deep", "headless", "long"],
)
def test_a_bad_journal_is_refused_by_name(
    text: bytes, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if text.startswith(b"x"):
        monkeypatch.setattr("p2ptrain.lab.replay.LINE_MAX", 300)
    (tmp_path / "bad.jsonl").write_bytes(text)
    with pytest.raises(ConfigError, match=why):
        replay(tmp_path / "bad.jsonl")


def test_effects_in_another_order_are_other_effects() -> None:
    one, two = ev.Hangup("a", "x"), ev.Hangup("b", "x")
    assert effects_digest([one, two]) != effects_digest([two, one])
