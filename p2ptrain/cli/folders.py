"""Which run folder is meant, and that only one process uses it.

Decides by: ``--run-dir``; else the one peer that runs on this machine; else the folder used last.

    with held(folder): ...          # ConfigError if another process holds it
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from p2ptrain.config_folder import RunFolder
from p2ptrain.config_peer import read_environment
from p2ptrain.errors import ConfigError

if sys.platform != "win32":
    import fcntl

STATUS_MAX_BYTES = 4 << 20
LAST_LINES_BYTES = 1 << 16


@contextlib.contextmanager
def held(folder: RunFolder) -> Iterator[None]:
    """The lock lasts as long as this process, however it ends. Raises ConfigError naming the one that holds it."""
    descriptor = os.open(folder.lock, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        if not _lock(descriptor):
            holder = os.read(descriptor, 32).decode("ascii", "replace").strip()
            raise ConfigError(
                f"run folder {folder.path} is in use by process {holder or '(unknown)'}",
                hint="give this peer another one with --run-dir, or stop the other process",
                key="--run-dir",
                file=str(folder.path),
            )
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)


def is_held(folder: RunFolder) -> bool:
    """True while a peer runs there."""
    try:
        descriptor = os.open(folder.lock, os.O_RDWR)
    except OSError:
        return False
    try:
        return not _lock(descriptor)
    finally:
        os.close(descriptor)


def chosen(run_dir: Path | None) -> RunFolder:
    """The folder that ``invite`` and ``status --local`` mean. Raises ConfigError: none, or not clear which."""
    if run_dir is not None:
        folder = RunFolder(run_dir.expanduser().absolute())
        if not folder.path.is_dir():
            raise ConfigError(f"{folder.path}: there is no such run folder", key="--run-dir", file=str(folder.path))
        return folder
    runs = read_environment().home / "runs"
    found = [RunFolder(path) for path in sorted(runs.glob("*")) if (path / "keys").is_dir()]
    if not found:
        raise ConfigError(
            f"no run folder below {runs}",
            key="--run-dir",
            hint="name it with --run-dir, as it was given to start or join",
        )
    running = [folder for folder in found if is_held(folder)]
    if len(running) > 1:
        names = ", ".join(str(folder.path) for folder in running)
        raise ConfigError(f"several peers run here: {names}", key="--run-dir", hint="choose one with --run-dir")
    return running[0] if running else max(found, key=_last_used)


def read_status(folder: RunFolder) -> dict[str, Any]:
    """What the peer wrote last. Raises ConfigError: never ran so far, or not readable."""
    try:
        with folder.status.open("rb") as file:
            status = json.loads(file.read(STATUS_MAX_BYTES))
    except FileNotFoundError:
        raise ConfigError(
            f"{folder.status}: no peer has come to life in this folder yet",
            file=str(folder.status),
            hint="wait until it has found a member, or look into p2ptrain.log there",
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{folder.status}: cannot be read: {error}", file=str(folder.status)) from None
    if not isinstance(status, dict):
        raise ConfigError(f"{folder.status}: is no status", file=str(folder.status))
    return status


def _last_used(folder: RunFolder) -> float:
    try:
        return folder.status.stat().st_mtime
    except OSError:
        return 0.0


def _lock(descriptor: int) -> bool:
    if sys.platform == "win32":  # two processes in one folder are then found by their key alone
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def rounds_committed(folder: RunFolder) -> int:
    """The last round that ``rounds.jsonl`` tells of; 0 if there is none or it cannot be read."""
    try:
        with folder.rounds.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - LAST_LINES_BYTES))
            lines = file.read().splitlines()
    except OSError:
        return 0
    for line in reversed(lines):
        try:
            return int(json.loads(line)["round"])
        except (ValueError, KeyError, TypeError):
            continue
    return 0
