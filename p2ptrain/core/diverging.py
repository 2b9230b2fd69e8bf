"""Unequal bits under one history (R9): whose state slices are damaged, by what the members' ``Filled`` show.

Decides who pulls which slice again, and from whom. The majority of the proofs of one slice is right; in a tie (two
peers) the side with the leader is taken for right: all end with the same bits, but nobody can tell whose were damaged,
and the tie is told to people. A replay from an agreed snapshot, which could tell, needs snapshots on disk.

    a: slice 3 = 71..   b: slice 3 = 71..   c: slice 3 = 0f..      ->  c pulls slice 3 from a, b
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from p2ptrain.core.messages import Filled
from p2ptrain.core.types import Digest, PeerId, Voter


class Damage(NamedTuple):
    """``voter`` must pull ``slice`` again from ``healthy``; ``tie``: as many hold the other bits."""

    voter: Voter
    slice: int
    healthy: tuple[PeerId, ...]
    tie: bool


def damaged(answers: Mapping[Voter, Filled], chain: Digest, leader: Voter) -> list[Damage]:
    """Who holds other bits than most, among those with this very chain. Sorted; same inputs, same verdict."""
    proofs: dict[int, dict[Digest, list[Voter]]] = {}
    for voter, answer in sorted(answers.items()):
        if answer.base.chain == chain and answer.base.slice_digest and answer.receives:
            proofs.setdefault(answer.base.slice_index, {}).setdefault(answer.base.slice_digest, []).append(voter)
    found: list[Damage] = []
    for index, sides in sorted(proofs.items()):
        ranked = sorted(sides.items(), key=lambda side: (-len(side[1]), leader not in side[1], side[0]))
        healthy = ranked[0][1]
        for _, voters in ranked[1:]:
            tie = len(voters) == len(healthy)
            found += [Damage(voter, index, tuple(v.peer for v in healthy), tie) for voter in voters]
    return sorted(found)
