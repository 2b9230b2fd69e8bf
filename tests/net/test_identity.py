"""Keys, ids, signatures and private files."""

from __future__ import annotations

import os
import stat
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from p2ptrain.core.messages import Leave
from p2ptrain.core.types import PeerInfo
from p2ptrain.errors import ConfigError
from p2ptrain.net.identity import KEY_FILE, Identity, peer_id_of, verify_info, verify_leave
from tests.net.swarm import RUN


def test_the_same_folder_gives_the_same_peer(tmp_path: Path) -> None:
    first = Identity.load_or_create(tmp_path / "run")
    again = Identity.load_or_create(tmp_path / "run")
    assert first.peer == again.peer == peer_id_of(first.public_key)
    assert len(first.peer) == 52 and first.peer == first.peer.lower()
    assert Identity.generate().peer != first.peer


def test_the_key_file_is_private(tmp_path: Path) -> None:
    Identity.load_or_create(tmp_path / "run")
    assert stat.S_IMODE((tmp_path / "run").stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "run" / KEY_FILE).stat().st_mode) == 0o600
    assert [path.name for path in (tmp_path / "run").iterdir()] == [KEY_FILE]


def test_an_open_folder_is_closed_and_an_open_key_refused(tmp_path: Path) -> None:
    Identity.load_or_create(tmp_path)
    tmp_path.chmod(0o755)
    Identity.load_or_create(tmp_path)
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o700
    (tmp_path / KEY_FILE).chmod(0o644)
    with pytest.raises(ConfigError, match=r"read by other users.*chmod 600"):
        Identity.load_or_create(tmp_path)


@pytest.mark.parametrize("content", [b"", b"no", b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"])
def test_a_broken_key_file_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / KEY_FILE
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(ConfigError, match=str(path)):
        Identity.load_or_create(tmp_path)


def test_a_folder_that_cannot_be_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="file"):
        Identity.load_or_create(tmp_path / "file" / "run")


def test_many_that_start_at_once_end_with_one_key(tmp_path: Path) -> None:
    peers: list[str] = []
    threads = [threading.Thread(target=lambda: peers.append(Identity.load_or_create(tmp_path).peer)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(peers) == 8 and len(set(peers)) == 1
    assert os.listdir(tmp_path) == [KEY_FILE]


def test_an_info_is_signed_by_its_own_peer_only() -> None:
    mine, other = Identity.generate(), Identity.generate()
    info = mine.sign_info(RUN, PeerInfo(mine.peer, 3, ("192.0.2.7:4100",), uplink_mbps=2.5))
    assert verify_info(RUN, info)
    assert not verify_info("cd" * 32, info), "of another run"
    assert not verify_info(RUN, replace(info, life=4)), "changed"
    assert not verify_info(RUN, replace(info, signature=b""))
    assert not verify_info(RUN, replace(info, public_key=other.public_key)), "another key"
    assert not verify_info(RUN, replace(info, public_key=b"\x30\x00"))
    forged = replace(info, public_key=other.public_key, signature=other.sign(b"x"))
    assert not verify_info(RUN, forged)
    with pytest.raises(ValueError, match="cannot be signed"):
        other.sign_info(RUN, info)


def test_a_goodbye_is_signed_by_its_own_peer_only() -> None:
    mine, other = Identity.generate(), Identity.generate()
    leave = mine.sign_leave(RUN, Leave(mine.peer, 3, "evening"))
    assert verify_leave(RUN, leave)
    assert not verify_leave(RUN, replace(leave, life=4))
    assert not verify_leave(RUN, replace(leave, peer=other.peer))
    with pytest.raises(ValueError, match="cannot be signed"):
        other.sign_leave(RUN, leave)


def test_the_key_is_not_in_the_text_form() -> None:
    identity = Identity.generate()
    assert repr(identity) == f"Identity({identity.peer})"
