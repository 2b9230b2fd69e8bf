"""Who has been in the run longest: the acting coordinator is a function of the roster, without an election.

Decides the order only. Two peers whose rosters differ may name two coordinators for a while: that costs time, never
correctness (plans and leases are advisory).

    joined at round 3, joined at round 9, not yet taking part  ->  the first coordinates; it dies -> the second
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from p2ptrain.core.types import Member, PeerId, PeerInfo


def seniority_key(info: PeerInfo) -> tuple[float, int, PeerId]:
    """Smaller is more senior: the round of joining (never joined comes last), then the earlier life, then the id."""
    return (info.joined_round if info.joined_round >= 0 else math.inf, info.life, info.peer)


def by_seniority(members: Iterable[Member]) -> list[Member]:
    """Present members, most senior first."""
    return sorted((member for member in members if member.present), key=lambda member: seniority_key(member.info))


def coordinator_of(members: Iterable[Member]) -> PeerId | None:
    """The longest-standing present member that can be dialled, if there is one, else the longest-standing at all.

    None only if nobody is present.
    """
    present = by_seniority(members)
    diallable = [member for member in present if member.info.diallable]
    return (diallable or present)[0].info.peer if present else None
