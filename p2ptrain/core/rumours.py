"""What of a roster line travels, which of two lines wins, and what is still to be passed on (SWIM's gossip).

Decides precedence: the later life; within a life LEFT is final, then the higher incarnation, then the worse status.
Busy and link-down are one's own view of a link and travel as alive. It does not decide what a roster does with a line.

    ALIVE 3  <  SUSPECT 3  <  DEAD 3  <  ALIVE 4 (the member refuted)  <  LEFT  <  any line of a later life
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable

from p2ptrain.core.types import Knobs, Member, PeerId, PeerInfo, Status, Voter, digest_of

_RANK = {Status.SUSPECT: 1, Status.DEAD: 2, Status.LEFT: 3}
_SUSPECT, _DEAD, _LEFT, _ALIVE, _JOINING = Status.SUSPECT, Status.DEAD, Status.LEFT, Status.ALIVE, Status.JOINING

PROOFS_KEPT = 20_000
"""Peers whose lives and goodbyes are remembered after their line is forgotten."""


def up_status(info: PeerInfo) -> Status:
    """JOINING until the peer says from which round it takes part."""
    return _ALIVE if info.joined_round >= 0 else _JOINING


def said(member: Member) -> Member:
    """The line as told to others: without our own view of the link and our clock."""
    status = member.status
    if status is not _SUSPECT and status is not _DEAD and status is not _LEFT:
        status = _ALIVE if member.info.joined_round >= 0 else _JOINING
    if status is member.status and member.since == 0.0:
        return member
    return Member(member.info, member.incarnation, status)


def same_said(one: Member, other: Member) -> bool:
    """Whether others are told the same by both lines (which are of one peer)."""
    if one.incarnation != other.incarnation or said_status(one) is not said_status(other):
        return False
    return one.info is other.info or one.info == other.info


def said_status(member: Member) -> Status:
    status = member.status
    return status if status is _SUSPECT or status is _DEAD or status is _LEFT else up_status(member.info)


def tellable(member: Member) -> bool:
    """False for a line that only stands for a name (nobody has described the peer to us yet)."""
    return member.incarnation >= 0


def precedence(member: Member) -> tuple[int, bool, int, int]:
    """Orders two lines of one peer; the greater wins."""
    return (member.info.life, member.status is Status.LEFT, member.incarnation, _RANK.get(member.status, 0))


def merge(one: Member, other: Member) -> Member:
    """The winning line of two about the same peer. Commutative, associative, idempotent."""
    one, other = said(one), said(other)
    first, second = precedence(one), precedence(other)
    if first == second and one != other:
        return max(one, other, key=lambda member: digest_of(member.info))
    return one if first >= second else other


class Rumours:
    """Lines still to be piggybacked, each ``gossip_factor * log2(members)`` times, the least told first."""

    def __init__(self, knobs: Knobs) -> None:
        self._knobs = knobs
        self._told: dict[PeerId, tuple[int, int]] = {}  # how often, and since which addition
        self._queue: list[tuple[int, int, PeerId]] = []  # the same as a heap; what ``_told`` does not confirm is over
        self._serial = 0

    def add(self, peer: PeerId) -> None:
        self._serial += 1
        self._enter(peer, 0, self._serial)

    def take(self, lookup: Callable[[PeerId], Member | None], population: int) -> tuple[Member, ...]:
        """Up to ``gossip_updates`` lines for one message; each counts as told once more."""
        if not self._told:
            return ()
        limit = self._knobs.gossip_factor * math.ceil(math.log2(population + 2))
        chosen: list[tuple[int, int, PeerId]] = []
        while self._queue and len(chosen) < self._knobs.gossip_updates:
            count, serial, peer = heapq.heappop(self._queue)
            if self._told.get(peer) == (count, serial):
                chosen.append((count, serial, peer))
        lines = []
        for count, serial, peer in chosen:
            line = lookup(peer)
            if count + 1 < limit and line is not None and tellable(line):
                self._enter(peer, count + 1, serial)
            else:
                del self._told[peer]
            if line is not None and tellable(line):
                lines.append(said(line))
        return tuple(lines)

    def _enter(self, peer: PeerId, count: int, serial: int) -> None:
        self._told[peer] = (count, serial)
        heapq.heappush(self._queue, (count, serial, peer))

    def __len__(self) -> int:
        return len(self._told)


class Proofs:
    """What is kept for good of each peer: its latest signed life, its last life that said goodbye, forgotten deaths."""

    def __init__(self) -> None:
        self._lives: dict[PeerId, int] = {}
        self._left: dict[PeerId, int] = {}
        self._buried: dict[PeerId, int] = {}

    def saw_life(self, voter: Voter) -> None:
        _raise_to(self._lives, voter)

    def saw_leave(self, voter: Voter) -> None:
        _raise_to(self._left, voter)

    def bury(self, voter: Voter) -> None:
        """A verdict outlives the roster's line of it. No proof."""
        _raise_to(self._buried, voter)

    def unbury(self, voter: Voter) -> None:
        if self._buried.get(voter.peer, -1) <= voter.life:
            self._buried.pop(voter.peer, None)

    def left(self, voter: Voter) -> bool:
        return self._left.get(voter.peer, -1) >= voter.life

    def buried(self, voter: Voter) -> bool:
        return self._buried.get(voter.peer, -1) >= voter.life

    def proven_dead(self, voter: Voter) -> bool:
        """True if a signed goodbye of this life, or a signed info of a later one, has been seen."""
        return self._lives.get(voter.peer, -1) > voter.life or self.left(voter)


def _raise_to(table: dict[PeerId, int], voter: Voter) -> None:
    if table.get(voter.peer, -1) < voter.life:
        table.pop(voter.peer, None)
        table[voter.peer] = voter.life
        if len(table) > PROOFS_KEPT:
            del table[next(iter(table))]
