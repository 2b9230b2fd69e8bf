"""Pulling averaged parts by digest: from whom next, and when to start over.

Decides the order in which peers are asked for one part: those said to hold it first, in random order, then everybody
present. Does not decide which parts are wanted (``rounds``), nor what to do when nobody has one (``catchup``).

    want(part, hints b c) -> FetchPart from c -> failed -> from b -> failed -> from everybody else
                          -> all in vain: ``fruitless`` + 1, pause, again
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable

from p2ptrain.core.desk import Desk
from p2ptrain.core.events import FetchPart, PartFetchFailed
from p2ptrain.core.types import Digest, PartDone, PeerId


class Fetching:
    """Fetches of one round. ``present``: peers held alive, own id included. ``pause_s``: between two turns."""

    def __init__(self, desk: Desk, present: Callable[[], Iterable[PeerId]], pause_s: float) -> None:
        self.desk = desk
        self.present = present
        self.pause_s = pause_s
        self.running: dict[Digest, PeerId] = {}
        self.tried: dict[Digest, list[PeerId]] = {}
        self.again_at: dict[Digest, float] = {}
        self.fruitless = 0  # turns in which everybody was asked for a part in vain

    def want(self, part: PartDone, hints: Iterable[PeerId]) -> None:
        """Ask the next peer for ``part``, unless one is being asked or the pause after a turn still runs."""
        digest = part.digest
        if digest in self.running or self.again_at.get(digest, -math.inf) > self.desk.now:
            return
        self.again_at.pop(digest, None)
        tried = self.tried.setdefault(digest, [])
        me = self.desk.me.peer
        hinted = sorted({peer for peer in hints if peer != me})
        self.desk.rng.shuffle(hinted)
        others = [peer for peer in sorted(self.present()) if peer != me and peer not in hinted]
        for peer in [*hinted, *others]:
            if peer not in tried:
                tried.append(peer)
                self.running[digest] = peer
                self.desk.emit(FetchPart(part, peer))
                return
        tried.clear()
        self.fruitless += 1
        self.again_at[digest] = self.desk.now + self.pause_s

    def arrived(self, digest: Digest) -> None:
        self.running.pop(digest, None)
        self.again_at.pop(digest, None)

    def failed(self, event: PartFetchFailed) -> bool:
        """True if this was the running fetch: ask the next peer."""
        if self.running.get(event.digest) != event.peer:
            return False
        del self.running[event.digest]
        return True

    def asked_for(self, digest: Digest) -> bool:
        """Whether this part was asked for in this round: only then are fetched bytes taken."""
        return digest in self.tried

    def peers(self) -> tuple[PeerId, ...]:
        return tuple(sorted(set(self.running.values())))

    def looked_again(self) -> None:
        """What is still wanted has just been asked for again: a pause that is over now is of a part no more wanted."""
        self.again_at = {digest: at for digest, at in self.again_at.items() if at > self.desk.now}

    def deadline(self) -> float:
        return min(self.again_at.values(), default=math.inf)

    def reset(self, keep: Collection[Digest]) -> None:
        """Another round: what still arrives is not wanted any more, but for the parts in ``keep``."""
        self.running = {digest: peer for digest, peer in self.running.items() if digest in keep}
        self.tried = {digest: peers for digest, peers in self.tried.items() if digest in keep}
        self.again_at = {digest: at for digest, at in self.again_at.items() if digest in keep}
        self.fruitless = 0
