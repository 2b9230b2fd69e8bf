"""A peer's journal fed to a fresh ``Node``: does it decide again what it decided then? Needs neither torch nor gRPC.

Decides nothing. A journal that was cut off by kill -9 replays to its last whole line; one that has turned over has lost
its beginning and cannot be replayed.

    python -m p2ptrain.lab.replay RUN_FOLDER/journal.jsonl
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from p2ptrain.core import events as ev
from p2ptrain.core.node import Node
from p2ptrain.core.types import PeerInfo, RunSpec
from p2ptrain.errors import ConfigError, P2PTrainError
from p2ptrain.runtime.recorded import effects_digest, read_value

LINE_MAX = 16 << 20


@dataclass
class Replay:
    """``lives``: process starts in the file. ``differs_at``: FILE:LINE of the first unequal effects, "" if none."""

    path: Path
    lives: int = 0
    events: int = 0
    differs_at: str = ""
    text: str = ""
    node: Node | None = None

    @property
    def equal(self) -> bool:
        return not self.differs_at


def replay(path: Path, *, check: bool = True) -> Replay:
    """Raises ConfigError: the file is no journal, or has lost its beginning. ``check``: invariants after each event."""
    found = Replay(path)
    for where, line in _lines(path):
        if "node" in line:
            found.node, found.lives = _node(where, line["node"]), found.lives + 1
            continue
        if found.node is None:
            hint = "it turned over at its size limit; a shorter run, or the journals of peers that joined later, replay"
            raise ConfigError(f"{where}: its beginning is missing", hint=hint, file=str(path))
        event, now = read_value(line["raw"]), line["now"]
        if not isinstance(event, ev.Event) or not isinstance(now, (int, float)):
            raise ConfigError(f"{where}: no event, or no time", file=str(path))
        found.events += 1
        try:
            effects = found.node.handle(event, now)
            if check:
                found.node.check()
        except Exception as error:  # what broke then breaks again: that is what a replay is for
            return _differs(found, where, f"{type(error).__name__}: {error}")
        if effects_digest(effects) != line["does"]:
            return _differs(found, where, f"then: {line.get('effects')}; now: {[type(e).__name__ for e in effects]}")
    if not found.lives:
        raise ConfigError(f"{path}: the journal is empty", file=str(path))
    return found


def _node(where: str, given: object) -> Node:
    try:
        run, info, seed = (read_value(value) for value in given)  # type: ignore[attr-defined]
        assert isinstance(run, RunSpec) and isinstance(info, PeerInfo) and isinstance(seed, str)
        return Node(run, info, random.Random(seed))
    except ConfigError:
        raise
    except Exception as error:  # fields of other types than a node is made of
        raise ConfigError(f"{where}: no run, peer and seed: {type(error).__name__}: {error}") from error


def _differs(found: Replay, where: str, text: str) -> Replay:
    found.differs_at, found.text = where, text[:2_000]
    return found


def _lines(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Where each line stands (FILE:NUMBER), and what is in it. A line that was cut off may only be a life's last."""
    if not path.exists():
        raise ConfigError(f"{path}: there is no such journal", file=str(path))
    torn = ""
    for file in (path.with_name(path.name + ".1"), path):
        if not file.exists():
            continue
        with file.open(encoding="utf-8", errors="replace") as lines:
            number = 0
            while text := lines.readline(LINE_MAX):
                number += 1
                where = f"{file}:{number}"
                if len(text) == LINE_MAX:
                    raise ConfigError(f"{where}: a line of {LINE_MAX} characters", file=str(file))
                line = _object(text)
                if line is not None and torn and "node" not in line:
                    raise ConfigError(torn, file=str(file))
                if line is None:
                    torn = torn or f"{where}: not JSON"
                    continue
                if not ("node" in line or {"raw", "now", "does"} <= set(line)):
                    raise ConfigError(f"{where}: not a journal's line", file=str(file))
                torn = ""
                yield where, line
    if torn and not _was_cut(path):
        raise ConfigError(torn, file=str(path))


def _object(text: str) -> dict[str, Any] | None:
    try:
        line = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return line if isinstance(line, dict) else {}


def _was_cut(path: Path) -> bool:
    """Whether the last line has no end: its writer was killed."""
    with path.open("rb") as file:
        file.seek(0, 2)
        if file.tell() == 0:
            return False
        file.seek(-1, 2)
        return file.read(1) != b"\n"


def main() -> int:
    """One line for each journal; 0 if all replay with equal effects."""
    code = 0
    for name in sys.argv[1:]:
        try:
            found = replay(Path(name))
        except P2PTrainError as error:
            print(f"{name}: {error}")
            code = error.exit_code
            continue
        verdict = "equal effects" if found.equal else f"{found.differs_at} differs: {found.text}"
        print(f"{name}: {found.events} events in {found.lives} lives: {verdict}")
        code = code if found.equal else 1
    return code


if __name__ == "__main__":
    sys.exit(main())
