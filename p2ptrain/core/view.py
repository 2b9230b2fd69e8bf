"""What the machines of one node ask of its roster: members by id, who is present, who coordinates, who has state.

Decides nothing of its own; it keeps the answers from being worked out anew at every event, also among many members.

    a joined at 0, b at 3, c not yet  ->  a coordinates; a dies, or answers no probe for a while  ->  b
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from p2ptrain.core.desk import Desk
from p2ptrain.core.lines import Change
from p2ptrain.core.roster import Roster
from p2ptrain.core.seniority import seniority_key
from p2ptrain.core.types import Head, Knobs, Member, PeerId, PeerInfo, Status

SMALL = 64
"""Up to so many members everything is looked through at every change; beyond, at those that matter."""


def hangs_at(member: Member, knobs: Knobs) -> float:
    """From when on a member that answers no probes, while its link stands, is given no work; inf if it answers."""
    return member.since + knobs.silent_leader_s if member.status is Status.BUSY else math.inf


class View:
    """``heads``: who is known to hold state, and how far (shared with ``catchup``)."""

    def __init__(self, roster: Roster, desk: Desk, knobs: Knobs, heads: Mapping[PeerId, Head]) -> None:
        self.roster = roster
        self.desk = desk
        self.knobs = knobs
        self.heads = heads
        self._coordinator: PeerId | None = None
        self._coordinator_version = -1
        self._coordinator_until = -math.inf

    def members(self) -> Mapping[PeerId, Member]:
        """The roster's lines by peer id, one's own included. Alive: it changes with the roster."""
        return self.roster.table

    def present(self) -> list[PeerId]:
        """Peers not held dead nor gone, one's own id included."""
        return self.roster.present_ids

    def has_state(self, info: PeerInfo) -> bool:
        return info.joined_round >= 0 or info.peer in self.heads

    def donors(self) -> list[PeerId]:
        """Peers to pull state from: linked, with state; those that can be dialled if there are any."""
        members = self.members()
        known = sorted(peer for peer in self.heads if peer != self.desk.me.peer and peer in members)
        able = [members[peer] for peer in known if members[peer].present and self.roster.linked(peer)]
        dialled = [member for member in able if member.info.diallable]
        return [member.info.peer for member in (dialled or able)]

    def others_can_lead(self) -> bool:
        """Whether some member can be dialled: one that cannot then leaves the lead to it."""
        return any(m.present and m.info.joined_round >= 0 and m.info.diallable for m in self.members().values())

    @property
    def coordinator(self) -> PeerId | None:
        """The acting coordinator: the longest-standing live member that takes part.

        One that has answered no probe for ``silent_leader_s`` is passed over, and in a small swarm (where a suspicion
        is one's own) one that is suspected; two at once cost time only.
        """
        members = self.members()
        small = len(members) <= SMALL and self._coordinator_version != self.roster.version
        if self._coordinator is None or small or self.desk.now >= self._coordinator_until:
            self._coordinator_version = self.roster.version
            fit = [member for member in members.values() if self._fit(member)]
            chosen = min(fit, key=_order, default=None)
            self._coordinator = chosen.info.peer if chosen is not None else None
            self._coordinator_until = self._next_look(fit) if chosen is not None else -math.inf
        return self._coordinator

    def changed(self, changes: Iterable[Change]) -> None:
        """Statuses changed: does that touch who coordinates?"""
        members = self.members()
        acting = members.get(self._coordinator) if self._coordinator is not None else None
        for change in changes:
            member = members.get(change.peer)
            ahead = member is not None and acting is not None and self._fit(member) and _order(member) < _order(acting)
            if change.peer == self._coordinator or ahead:
                self._coordinator = None

    def _fit(self, member: Member) -> bool:
        silent = member.status is Status.SUSPECT and len(self.members()) <= SMALL
        up = member.present and not silent and self.desk.now < hangs_at(member, self.knobs)
        return up and member.info.joined_round >= 0

    def _next_look(self, fit: list[Member]) -> float:
        return min((hangs_at(member, self.knobs) for member in fit), default=math.inf)


def _order(member: Member) -> tuple[object, ...]:
    return (not member.info.diallable, *seniority_key(member.info))
