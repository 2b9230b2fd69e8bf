"""Which lines are passed on next: the least told first, among equals those added first."""

from __future__ import annotations

import heapq
import math
import random

from p2ptrain.core.rumours import Rumours
from p2ptrain.core.types import Knobs, Member, PeerInfo, Status

KNOBS = Knobs()
LINES = {f"p{n:02}": Member(PeerInfo(f"p{n:02}", 1, joined_round=0), n % 5 - 1, Status.ALIVE) for n in range(40)}


class Plain:
    """The same, looked through whole for every message."""

    def __init__(self) -> None:
        self.told: dict[str, int] = {}

    def add(self, peer: str) -> None:
        self.told.pop(peer, None)
        self.told[peer] = 0

    def take(self, population: int) -> list[str]:
        limit = KNOBS.gossip_factor * math.ceil(math.log2(population + 2))
        taken = []
        for peer in heapq.nsmallest(KNOBS.gossip_updates, self.told, key=self.told.__getitem__):
            self.told[peer] += 1
            known = peer in LINES and LINES[peer].incarnation >= 0
            if self.told[peer] >= limit or not known:
                del self.told[peer]
            if known:
                taken.append(peer)
        return taken


def test_the_queue_tells_what_a_look_through_all_would_tell() -> None:
    rng, plain, rumours = random.Random(3), Plain(), Rumours(KNOBS)
    for _ in range(3000):
        if rng.random() < 0.2:
            peer = rng.choice([*LINES, "gone"])
            plain.add(peer)
            rumours.add(peer)
        population = rng.choice([2, 30])
        told = [line.info.peer for line in rumours.take(LINES.get, population)]
        assert told == plain.take(population)
        assert len(rumours) == len(plain.told)
