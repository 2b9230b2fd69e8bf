"""Invites of a member: made anew, made with a key of their own, listed and revoked."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from p2ptrain.cli import inviting
from p2ptrain.config_folder import RunFolder, open_run_folder
from p2ptrain.net.certificates import Intermediate, Root
from p2ptrain.net.invite import Invite, parse_invite
from p2ptrain.net.revoked import read_revoked, serial_text

RUN = "ab" * 32


@pytest.fixture()
def starter(tmp_path: Path) -> RunFolder:
    """The run folder of the peer that began the run, which is not running now."""
    folder = open_run_folder(tmp_path / "tiny")
    root = Root.load_or_create(folder.keys, RUN)
    first = Invite(RUN, "tiny", root.certificate, Intermediate.create(root, 3600), ("192.0.2.7:7700",))
    inviting.keep(folder, first)
    return folder


def invite(p2ptrain: Callable[..., Any], folder: RunFolder, *words: str) -> Any:
    return p2ptrain("invite", "--run-dir", folder.path, *words)


def kept(folder: RunFolder) -> Invite:
    return parse_invite(folder.invite.read_text())


def test_a_fresh_invite_carries_the_same_key_and_a_new_one_its_own(
    p2ptrain: Callable[..., Any], starter: RunFolder
) -> None:
    before = kept(starter).intermediate.serial
    fresh = parse_invite(invite(p2ptrain, starter).stdout)
    assert fresh.intermediate.serial == before and fresh.addresses == ("192.0.2.7:7700",)
    new = parse_invite(invite(p2ptrain, starter, "--new").stdout)
    assert new.intermediate.serial != before and new.addresses == fresh.addresses and new.run == RUN
    assert kept(starter).intermediate.serial == before, "the folder keeps the invite by which its peer is in"
    lines = invite(p2ptrain, starter, "--list").stdout.splitlines()
    assert [line.split()[0] for line in lines] == [serial_text(before), serial_text(new.intermediate.serial)]
    assert "joined by it" in lines[0] and "made here" in lines[1]


def test_a_revoked_one_is_listed_and_kept_for_the_running_peer(
    p2ptrain: Callable[..., Any], starter: RunFolder
) -> None:
    new = parse_invite(invite(p2ptrain, starter, "--new").stdout).intermediate.serial
    done = invite(p2ptrain, starter, "--revoke", serial_text(new))
    assert done.exit_code == 0 and "on this member alone" in done.stdout
    assert read_revoked(starter.keys) == {new}
    assert "revoked here before" in invite(p2ptrain, starter, "--revoke", serial_text(new).upper()).stdout
    invite(p2ptrain, starter, "--revoke", "abc123")
    told = dict(line.split("  ", 1) for line in invite(p2ptrain, starter, "--list").stdout.splitlines())
    assert told[serial_text(new)] == "made here; revoked here"
    assert told["abc123"] == "made elsewhere; revoked here"


def test_ones_own_invite_and_no_serial_are_refused(p2ptrain: Callable[..., Any], starter: RunFolder) -> None:
    for text, told in ((serial_text(kept(starter).intermediate.serial), "itself has joined"), ("zz", "no serial")):
        done = invite(p2ptrain, starter, "--revoke", text)
        assert done.exit_code == 2 and told in done.stderr
    assert read_revoked(starter.keys) == frozenset()


def test_only_the_starter_makes_new_ones(p2ptrain: Callable[..., Any], starter: RunFolder) -> None:
    (starter.keys / "root.key").unlink()
    done = invite(p2ptrain, starter, "--new")
    assert done.exit_code == 2 and "only the peer that began the run" in done.stderr


def test_what_excludes_each_other_is_said(p2ptrain: Callable[..., Any], starter: RunFolder) -> None:
    done = invite(p2ptrain, starter, "--new", "--list")
    assert done.exit_code == 2 and "exclude each other" in done.stderr
