"""Where a corpus comes from on this machine: the standard library's own source text, or a token file that is trusted.

Decides which files count and which of them are held out. Two machines with the same Python release and packaging find
the same bytes; others find other bytes, see it by the fingerprint, and pull the run's corpus from a member.
"""

from __future__ import annotations

import hashlib
import os
import sysconfig
from collections.abc import Collection
from pathlib import Path

from p2ptrain.data.corpus import Corpus
from p2ptrain.errors import ConfigError

_SKIPPED_FOLDERS = frozenset(
    {
        *("site-packages", "dist-packages", "test", "tests", "idlelib", "turtledemo", "lib2to3"),
        *("pydoc_data", "encodings", "lib-dynload", "_bundled", "__pycache__"),
    }
)
_SKIPPED_FILES = ("_sysconfigdata", "sitecustomize", "usercustomize", "__phello__")


def python_stdlib(
    max_bytes: int = 8 << 20, validation_fraction: float = 0.05, seed: int = 0, folder: str | None = None
) -> Corpus:
    """Source text of Python's standard library, whole files, at most ``max_bytes`` together.

    Files are chosen, and held out, by a seeded hash of their relative path (so a bounded corpus is spread over the
    whole library, and a file is in training or in validation, never both) and laid in order of their paths. Line ends
    become "\\n". ``folder`` is for tests. Raises ConfigError if there is no source text here, or a limit is senseless.
    """
    if not isinstance(max_bytes, int) or not 1 << 10 <= max_bytes <= 1 << 30:
        raise ConfigError(f"max_bytes = {max_bytes!r} must be an integer from 1 KiB to 1 GiB", key="max_bytes")
    if not 0.0 < validation_fraction < 1.0:
        raise ConfigError(
            f"validation_fraction = {validation_fraction!r} must lie between 0 and 1", key="validation_fraction"
        )
    root = Path(folder or sysconfig.get_paths()["stdlib"])
    texts: dict[str, bytes] = {}
    total = 0
    for name in sorted(_source_files(root), key=lambda name: (_draw(seed, "choose", name), name)):
        text = (root / name).read_bytes().replace(b"\r\n", b"\n")
        if text and total + len(text) <= max_bytes:
            texts[name] = text
            total += len(text)
    held_out = [name for name in sorted(texts) if _draw(seed, "split", name) < validation_fraction]
    train = [name for name in sorted(texts) if name not in set(held_out)]
    if not train or not held_out:
        raise ConfigError(
            f"{root} holds {len(texts)} source files: too few for training and validation text",
            hint="the corpus will be pulled from a member when you join a run; to start one, install Python's sources",
        )
    return Corpus.of(b"".join(texts[name] for name in train), b"".join(texts[name] for name in held_out))


def token_file(
    path: str, item_bytes: int = 1, validation_fraction: float = 0.05, *, trusted: Collection[str] = ()
) -> Corpus:
    """A local file of uint8 or little-endian uint16 tokens; its last ``validation_fraction`` is held out.

    Raises ConfigError if the path is not trusted, cannot be read, or is too small.
    """
    if path not in trusted:
        raise ConfigError(
            f"the run wants to read the file {path}",
            hint=f"if that is what you want, pass --trust {path}",
            key="path",
            file=path,
        )
    if item_bytes not in (1, 2) or not 0.0 < validation_fraction < 1.0:
        raise ConfigError("token_file takes item_bytes 1 or 2 and a validation_fraction between 0 and 1", file=path)
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(f"token file {path}: {error.strerror}", key="path", file=path) from error
    items = len(content) // item_bytes
    held_out = int(items * validation_fraction)
    if len(content) % item_bytes or not held_out:
        raise ConfigError(f"token file {path} has {len(content)} bytes: no whole, splittable tokens", file=path)
    cut = (items - held_out) * item_bytes
    return Corpus.of(content[:cut], content[cut:], item_bytes)


def _source_files(root: Path) -> list[str]:
    """Relative POSIX paths of the source files under ``root``."""
    found = []
    for folder, folders, files in os.walk(root):
        folders[:] = [name for name in folders if name not in _SKIPPED_FOLDERS and not name.startswith("config-")]
        for name in files:
            if name.endswith(".py") and not name.startswith(_SKIPPED_FILES):
                found.append((Path(folder) / name).relative_to(root).as_posix())
    return found


def _draw(seed: int, purpose: str, name: str) -> float:
    """A number in [0, 1) that depends on these alone."""
    digest = hashlib.blake2b(f"{seed}/{purpose}/{name}".encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "big") >> 11) / 2.0**53
