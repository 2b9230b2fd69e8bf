"""Revoked invites: the file that holds them, and what becomes of links that stand."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from p2ptrain.core.events import LinkLost, LinkUp
from p2ptrain.errors import ConfigError
from p2ptrain.net.certificates import Credentials, Intermediate
from p2ptrain.net.identity import Identity
from p2ptrain.net.revoked import FILE, RevokedInvites, parse_serial, read_revoked, revoke, serial_text
from tests.net.swarm import Peer, TestRun, in_loop


def test_what_is_revoked_is_read_back_by_a_peer_that_runs(tmp_path: Path) -> None:
    now = RevokedInvites(tmp_path)
    assert now() == frozenset()
    assert revoke(tmp_path, 0x4F3A) and revoke(tmp_path, 17) and not revoke(tmp_path, 17)
    assert now() == {0x4F3A, 17} == read_revoked(tmp_path)
    assert (tmp_path / FILE).stat().st_mode & 0o077 == 0
    (tmp_path / FILE).unlink()
    assert now() == frozenset()


def test_a_damaged_file_leaves_the_last_set_in_force(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    revoke(tmp_path, 17)
    now = RevokedInvites(tmp_path)
    assert now() == {17}
    (tmp_path / FILE).write_text("11\nnonsense\n")
    assert now() == {17} and now() == {17}
    assert len(caplog.records) == 1 and "line 2" in caplog.text
    with pytest.raises(ConfigError, match="line 2"):
        revoke(tmp_path, 5)
    (tmp_path / FILE).write_bytes(b"1" * (1 << 20) + b"\n1")
    with pytest.raises(ConfigError, match="longer than"):
        read_revoked(tmp_path)


@pytest.mark.parametrize("text", ["", "xyz", "-5", "1" * 41, "ß", "1 2"])
def test_what_is_no_serial_is_refused_by_name(text: str) -> None:
    with pytest.raises(ConfigError, match="serial"):
        parse_serial(text)
    assert parse_serial(f" {serial_text(0xABC).upper()} ") == 0xABC


@in_loop
async def test_a_link_that_stands_is_cut_whoever_dialled() -> None:
    run, revoked = TestRun(), set()
    second = Intermediate.create(run.root, 3600)
    host = await Peer(run, revoked=lambda: revoked).start()
    guests = []
    for dials in (True, False):
        identity = Identity.generate()
        credentials = Credentials.issue(identity, second, run.root.certificate)
        guest = await Peer(run, identity=identity, credentials=credentials).start()
        guest.dial(host) if dials else host.dial(guest)
        await guest.wait(LinkUp)
        await host.wait(LinkUp, lambda up, peer=guest.id: up.info.peer == peer)
        guests.append(guest)
    member = await Peer(run).start()
    member.dial(host)
    await member.wait(LinkUp)
    host.transport.end_revoked()
    assert not host.of(LinkLost), "nothing is revoked yet"
    revoked.add(second.serial)
    host.transport.end_revoked()
    for guest in guests:
        assert "revoked" in (await host.wait(LinkLost, lambda lost, peer=guest.id: lost.peer == peer)).detail
        await guest.wait(LinkLost)
    assert not [lost for lost in host.of(LinkLost) if lost.peer == member.id], "the first invite goes on"
    for peer in (host, member, *guests):
        await peer.stop()


def test_the_file_is_not_read_again_while_it_stays_as_it_is(tmp_path: Path) -> None:
    revoke(tmp_path, 17)
    now = RevokedInvites(tmp_path)
    now()
    stamp = (tmp_path / FILE).stat().st_mtime_ns
    (tmp_path / FILE).write_text("12\n")  # as long as before, and made to look as old
    os.utime(tmp_path / FILE, ns=(stamp, stamp))
    assert now() == {0x11}
