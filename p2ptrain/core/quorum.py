"""Who must answer before a ballot may go on: the two commit policies (round protocol, section 5), as functions.

The same test serves ``Filled`` (may I propose?) and ``Accept`` (is it decided?). Safety rests on this module and on
three rules elsewhere: promises never fall (R2), the highest accepted record is proposed again (R3), and nobody accepts
what he does not hold whole (R6).

    majority, n = 4, k = 2:  w = 3, so any three answers decide, and no verdict about the fourth is needed
    any, D = {c}:            all of V - {c} must answer
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from p2ptrain.core.types import Policy, Voter


@dataclass(frozen=True, slots=True)
class Electorate:
    """The voters of one ballot, with ``dead`` (D) and ``reform`` frozen by its ``Close``.

    ``reform`` counts only under ``Policy.ANY`` when every voter is in D: those who take the voters' place.
    """

    policy: Policy
    voters: tuple[Voter, ...]
    replication: int
    dead: frozenset[Voter] = frozenset()
    reform: tuple[Voter, ...] = ()

    @property
    def standing(self) -> tuple[Voter, ...]:
        """Those whose answers count: V, or the reformers when all of V is dead under ``any``."""
        if self.policy is Policy.ANY and self.reform and all(voter in self.dead for voter in self.voters):
            return self.reform
        return self.voters

    @property
    def write_size(self) -> int:
        """w = max(floor(n/2) + 1, min(k, n))."""
        return write_size(len(self.voters), self.replication)

    def is_quorum(self, answered: Collection[Voter]) -> bool:
        """True if ``answered`` suffices. Answers of others than the standing voters count for nothing (I6)."""
        standing = self.standing
        alive = [voter for voter in standing if voter not in self.dead]
        counted = sum(1 for voter in standing if voter in answered)
        if self.policy is Policy.MAJORITY:
            if counted >= self.write_size:
                return True
            return bool(alive) and len(self.dead & set(standing)) < self.write_size and _all_in(alive, answered)
        return bool(alive) and _all_in(alive, answered)

    def possible(self, lost: Collection[Voter]) -> bool:
        """True if a quorum can still be had when ``lost`` answer nothing any more."""
        return self.is_quorum([voter for voter in self.standing if voter not in lost])

    def missing(self, answered: Collection[Voter]) -> tuple[Voter, ...]:
        """Standing voters, not held dead, that have not answered."""
        return tuple(voter for voter in self.standing if voter not in answered and voter not in self.dead)


def write_size(voters: int, replication: int) -> int:
    """The number of answers that always suffices under ``majority``."""
    return max(voters // 2 + 1, min(replication, voters))


def drops_half(voters: Collection[Voter], dead: Collection[Voter]) -> bool:
    """Whether D holds several voters and half or more of V: ``any`` then waits one more probing period."""
    gone = sum(1 for voter in voters if voter in dead)
    return gone > 1 and 2 * gone >= len(voters)


def _all_in(needed: Collection[Voter], answered: Collection[Voter]) -> bool:
    return all(voter in answered for voter in needed)
