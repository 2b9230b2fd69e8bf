"""The roster's table: one line per member, the changes not yet taken, the dead not yet forgotten.

Decides nothing about anybody: it writes what ``roster`` decides, counts, remembers, and says what others should know.

    put(line)  ->  Change(before, after), and a rumour if others should know
    entomb     ->  a grave, forgotten after forget_dead_s; the verdict itself stays in ``proofs``
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from p2ptrain.core.rumours import Proofs, Rumours, said, same_said, tellable, up_status
from p2ptrain.core.types import Knobs, Member, PeerId, PeerInfo, Status, Voter

WHOLE_LINES = 128
"""Lines per message of a roster told whole: with every field at its limit (16 long addresses) 6.5 KB a line."""


class Change(NamedTuple):
    """A status changed. ``before`` is None for a member never seen in this life."""

    peer: PeerId
    life: int
    before: Status | None
    after: Status
    cause: str


class Grave(NamedTuple):
    at: float
    own: bool  # our own verdict, not hearsay and not proven


class Lines:
    """Lines by peer, one's own included."""

    def __init__(self, me: PeerInfo, knobs: Knobs) -> None:
        self._me = me.peer
        self._knobs = knobs
        self._table: dict[PeerId, Member] = {me.peer: Member(me, 0, up_status(me))}
        self._changes: list[Change] = []
        self._rumours = Rumours(knobs)
        self.graves: dict[PeerId, Grave] = {}  # oldest first
        self.proofs = Proofs()
        self.present: list[PeerId] = [me.peer]  # by id; not to be changed by others
        self.version = 0

    def __getitem__(self, peer: PeerId) -> Member:
        return self._table[peer]

    def __contains__(self, peer: PeerId) -> bool:
        return peer in self._table

    def __len__(self) -> int:
        return len(self._table)

    @property
    def table(self) -> Mapping[PeerId, Member]:
        return self._table

    def get(self, peer: PeerId) -> Member | None:
        return self._table.get(peer)

    @property
    def present_count(self) -> int:
        return len(self.present)

    def all(self) -> list[Member]:
        """By peer id."""
        return [self._table[peer] for peer in sorted(self._table)]

    def put(self, line: Member, now: float, cause: str, spread: bool = True) -> None:
        """Writes a line, notes the change, and lets others know if it changes what we say."""
        peer = line.info.peer
        before = self._table.get(peer)
        same = before is not None and before.status is line.status
        if same and before == line:
            return
        self.version += 1
        since = before.since if before is not None and same else now
        self._table[peer] = line if line.since == since else Member(line.info, line.incarnation, line.status, since)
        if not same:
            self._changes.append(Change(peer, line.info.life, before.status if before else None, line.status, cause))
        if line.present:
            if before is None or not before.present:
                insort(self.present, peer)
            self.graves.pop(peer, None)
            self.proofs.unbury(line.info.voter)
        elif before is not None and before.present:
            self._absent(peer)
        if spread and (before is None or not same_said(before, line)):
            self._rumours.add(peer)

    def set_status(self, peer: PeerId, status: Status, now: float, cause: str) -> None:
        known = self._table[peer]
        self.put(Member(known.info, known.incarnation, status), now, cause)

    def entomb(self, peer: PeerId, status: Status, now: float, cause: str, own: bool) -> None:
        """The line's life is over, by verdict or goodbye."""
        self.set_status(peer, status, now, cause)
        self.graves.pop(peer, None)
        self.graves[peer] = Grave(now, own)

    def retire(self, peer: PeerId) -> None:
        """The line's life is over because a later one is known; the line goes."""
        known = self._table.pop(peer)
        if known.present:
            self._changes.append(Change(peer, known.info.life, known.status, Status.DEAD, "restarted"))
            self._absent(peer)
        self.graves.pop(peer, None)
        self.version += 1

    def _absent(self, peer: PeerId) -> None:
        del self.present[bisect_left(self.present, peer)]

    def forget_old(self, now: float) -> list[PeerId]:
        """Lines of the long dead go; returns whose."""
        gone = []
        for peer, grave in list(self.graves.items()):
            if now - grave.at < self._knobs.forget_dead_s:
                break
            del self.graves[peer]
            self.proofs.bury(self._table.pop(peer).info.voter)
            self.version += 1
            gone.append(peer)
        return gone

    def take_changes(self) -> list[Change]:
        changes, self._changes = self._changes, []
        return changes

    def is_dead(self, voter: Voter) -> bool:
        """Our verdict on this life: dead or left, or a later life is known."""
        known = self._table.get(voter.peer)
        if known and known.info.life == voter.life:
            return not known.present
        later = known is not None and known.info.life > voter.life
        return later or self.proofs.buried(voter) or self.proofs.proven_dead(voter)

    def whole(self) -> list[tuple[Member, ...]]:
        """All lines as told to a newcomer, in pieces that fit a message each; at least one piece."""
        lines = tuple(said(member) for member in self.all() if tellable(member))
        return [lines[start : start + WHOLE_LINES] for start in range(0, len(lines), WHOLE_LINES)] or [()]

    def piggyback(self) -> tuple[Member, ...]:
        """What goes along with a probe or its answer."""
        return self._rumours.take(self._table.get, self.present_count)

    def counts(self) -> dict[Status, int]:
        found = dict.fromkeys(Status, 0)
        for member in self._table.values():
            found[member.status] += 1
        return {status: count for status, count in found.items() if count}

    def check(self, suspected: Iterable[PeerId]) -> None:
        """Asserts that counts, graves and running suspicions agree with the lines."""
        assert self._table[self._me].present
        assert self.present == sorted(peer for peer, member in self._table.items() if member.present)
        for peer, member in self._table.items():
            assert (peer in self.graves) == (not member.present), peer
        assert set(suspected) == {p for p, member in self._table.items() if member.status is Status.SUSPECT}
