"""The run folder of one peer: which file lies where, and with which permissions.

Private throughout (folders 0700, files 0600), since it holds keys. Knows the names of the files; what stands in them is
decided by those who write them.

    RUN_DIR/
      manifest.toml    the run, as agreed
      invite           the last invite that this peer printed
      keys/            this peer's key and certificates; the starter's root key, which never leaves this folder
      peers.json       the last known peers, to rejoin without the starter
      journal.jsonl    events and effects of the core, bounded
      rounds.jsonl     one line per round
      status.json      what `p2ptrain status --local` shows
      p2ptrain.log     the log
      data/            a corpus pulled from a member
      lock             held while a peer runs here
"""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from p2ptrain.errors import ConfigError


@dataclass(frozen=True)
class RunFolder:
    """Paths only; ``open_run_folder`` makes the folders."""

    path: Path

    @property
    def manifest(self) -> Path:
        return self.path / "manifest.toml"

    @property
    def invite(self) -> Path:
        return self.path / "invite"

    @property
    def keys(self) -> Path:
        return self.path / "keys"

    @property
    def peers(self) -> Path:
        return self.path / "peers.json"

    @property
    def journal(self) -> Path:
        return self.path / "journal.jsonl"

    @property
    def rounds(self) -> Path:
        return self.path / "rounds.jsonl"

    @property
    def status(self) -> Path:
        return self.path / "status.json"

    @property
    def log(self) -> Path:
        return self.path / "p2ptrain.log"

    @property
    def data(self) -> Path:
        return self.path / "data"

    @property
    def lock(self) -> Path:
        return self.path / "lock"


def open_run_folder(path: Path | str) -> RunFolder:
    """Make the folder (0700) with keys/ and data/, or check the one that is there. Raises ConfigError.

    An existing folder that others may enter is closed to them (0700): it holds keys.
    """
    where = Path(path).expanduser().absolute()
    folder = RunFolder(where)
    try:
        for each in (folder.path, folder.keys, folder.data):
            each.mkdir(mode=0o700, parents=True, exist_ok=True)
            if each.stat().st_mode & 0o077:
                each.chmod(0o700)
        with tempfile.TemporaryFile(dir=where):
            pass  # it can be written to
    except OSError as error:
        why = error.strerror or str(error)
        raise ConfigError(
            f"run folder {where}: {why}", key="--run-dir", file=str(where), hint="give another one with --run-dir"
        ) from None
    return folder


def default_run_dir(home: Path, name: str, run: str) -> Path:
    """Where a run of this name and digest lives unless ``--run-dir`` says otherwise."""
    return home / "runs" / f"{name}-{run[:8]}"


def write_private(path: Path, data: bytes) -> None:
    """Replace a file whole or not at all, readable by its owner alone. Raises ConfigError (disk full, no access)."""
    try:
        handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)  # mkstemp makes it 0600
        try:
            with os.fdopen(handle, "wb") as stream:
                stream.write(data)
                stream.flush()
                os.fsync(stream.fileno())
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written: {error.strerror or error}", key="", file=str(path)) from None
