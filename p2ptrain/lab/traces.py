"""Recorded churn: who joined and who was killed when, from the files shipped with the project or one's own.

Two forms are read. ``time_s,event,peer`` names each machine. ``time_s,peers`` only counts them: who dies is picked by
the seed. Decides how a trace is cut, thinned and compressed; not what its peers are like (``timeline``).

    trace = load_trace("aws-p3-spot-2021", seed=0)
    part = replay(trace, from_s=3600, compress=60, alive_max=8)     # moves, and both factors in ``part.note``
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

from p2ptrain.errors import ConfigError
from p2ptrain.lab.networks import bad_row, number, rows, shipped_text


class Move(NamedTuple):
    """One machine comes or is killed, at ``t`` seconds. A kill gives no notice."""

    t: float
    joins: bool
    peer: str


@dataclass(frozen=True)
class Recorded:
    """A whole trace, sorted by time; ``picked``: who died was not recorded but picked by seed."""

    name: str
    moves: tuple[Move, ...]
    picked: bool

    @property
    def peers(self) -> int:
        return len({move.peer for move in self.moves})

    @property
    def alive_max(self) -> int:
        return most_alive(self.moves)

    @property
    def seconds(self) -> float:
        return self.moves[-1].t if self.moves else 0.0


@dataclass(frozen=True)
class Replay:
    """What is played of a trace. ``share``: kept machine-seconds over all of them; ``compress``: as asked."""

    moves: tuple[Move, ...]
    compress: float
    peers: int
    peers_recorded: int
    share: float
    note: str


def load_trace(name: str, *, seed: int = 0) -> Recorded:
    """A shipped trace. Raises ConfigError: not there, or damaged (with the line)."""
    return parse_trace(shipped_text(f"{name}.csv"), name=name, file=f"{name}.csv", seed=seed)


def parse_trace(text: str, *, name: str, file: str, seed: int = 0) -> Recorded:
    """Either form. Raises ConfigError with file and line: bad rows, times that go back, a kill of nobody."""
    if text.partition("\n")[0].strip() == "time_s,peers":
        return Recorded(name, tuple(_picked(text, name, file, seed)), True)
    return Recorded(name, tuple(_named(text, file)), False)


def replay(trace: Recorded, *, from_s: float = 0.0, compress: float = 1.0, alive_max: int | None = None) -> Replay:
    """From ``from_s`` of the trace on (its first join, if later): who is alive then joins at 0; times / ``compress``.

    Peers are thinned by the hash of their ids: the longest run of them, in the order of the hash, of which never more
    than ``alive_max`` are alive at once. Raises ConfigError if nothing is left.
    """
    moves = list(_window(trace.moves, from_s))
    if not moves:
        raise ConfigError(
            f"trace {trace.name} ends at {trace.seconds:.0f} s: nothing is left from {from_s:.0f} s on",
            key="trace.from_s",
        )
    kept = _thinned(trace.name, moves, alive_max)
    start, end = moves[0].t, moves[-1].t
    played = tuple(Move((move.t - start) / compress, move.joins, move.peer) for move in moves if move.peer in kept)
    everyone = {move.peer for move in moves}
    share = _machine_seconds(m for m in moves if m.peer in kept) / max(_machine_seconds(moves), 1e-9)
    note = (
        f"trace {trace.name} from {start:.0f} s of {trace.seconds:.0f} s: {end - start:.0f} s compressed {compress:g} "
        f"times to {(end - start) / compress:.1f} s; "
        f"{len(kept)} of {len(everyone)} machines by the hash of their ids, at most {most_alive(played)} "
        f"of {most_alive(moves)} alive at once, {share:.0%} of the machine time"
        + ("; who dies is picked by seed (the trace only counts)" if trace.picked else "")
    )
    return Replay(played, compress, len(kept), len(everyone), share, note)


def most_alive(moves: Iterable[Move]) -> int:
    """The most machines alive at once, all moves of one time taken together."""
    changes: dict[float, int] = {}
    for move in moves:
        changes[move.t] = changes.get(move.t, 0) + (1 if move.joins else -1)
    return max(accumulate(changes[t] for t in sorted(changes)), default=0)


# --- reading ----------------------------------------------------------------------------------------------------------


def _named(text: str, file: str) -> Iterator[Move]:
    alive: set[str] = set()
    last = 0.0
    for line, (time, event, peer) in rows(text, ("time_s", "event", "peer"), file):
        last = _later(number(time, file, line), last, file, line)
        if event not in ("join", "kill"):
            raise bad_row(file, line, f'event should be "join" or "kill", not {event[:40]!r}')
        if not peer:
            raise bad_row(file, line, "the peer's name is missing")
        if (event == "join") == (peer in alive):
            raise bad_row(file, line, f"{event} of {peer}, which is {'' if peer in alive else 'not '}alive")
        (alive.add if event == "join" else alive.discard)(peer)
        yield Move(last, event == "join", peer)


def _picked(text: str, name: str, file: str, seed: int) -> Iterator[Move]:
    rng = random.Random(f"{name}/{seed}")
    alive: list[str] = []
    made, last = 0, 0.0
    for line, (time, count) in rows(text, ("time_s", "peers"), file):
        last = _later(number(time, file, line), last, file, line)
        if not count.isdigit() or int(count) > 100_000:
            raise bad_row(file, line, f"peers should be a count of at most 100000, not {count[:40]!r}")
        while len(alive) > int(count):
            yield Move(last, False, alive.pop(rng.randrange(len(alive))))
        while len(alive) < int(count):
            made += 1
            alive.append(f"node{made}")
            yield Move(last, True, alive[-1])


def _later(t: float, last: float, file: str, line: int) -> float:
    if t < last:
        raise bad_row(file, line, f"time goes back ({t:g} s after {last:g} s)")
    return t


# --- cutting ----------------------------------------------------------------------------------------------------------


def _window(moves: tuple[Move, ...], from_s: float) -> Iterator[Move]:
    before: dict[str, None] = {}  # in order of joining
    for move in moves:
        if move.t >= from_s:
            break
        if move.joins:
            before[move.peer] = None
        else:
            before.pop(move.peer, None)
    yield from (Move(from_s, True, peer) for peer in before)
    yield from (move for move in moves if move.t >= from_s)


def _thinned(name: str, moves: list[Move], alive_max: int | None) -> set[str]:
    ranked = sorted({move.peer for move in moves}, key=lambda peer: hashlib.sha256(f"{name}/{peer}".encode()).digest())
    if alive_max is None:
        return set(ranked)
    low, high = 0, len(ranked)
    while low < high:  # the more are kept, the more are alive
        middle = (low + high + 1) // 2
        kept = set(ranked[:middle])
        if most_alive(move for move in moves if move.peer in kept) <= alive_max:
            low = middle
        else:
            high = middle - 1
    return set(ranked[:low])


def _machine_seconds(moves: Iterable[Move]) -> float:
    total, alive, last = 0.0, 0, 0.0
    for move in moves:
        total += alive * (move.t - last)
        alive, last = alive + (1 if move.joins else -1), move.t
    return total
