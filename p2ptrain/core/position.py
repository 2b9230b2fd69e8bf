"""Where one member stands in one stage: the last applied record, and what it has promised and accepted since.

Holds the state of the round protocol's section 2 that votes rest on, and keeps promises of rounds that this life steps
out of and comes back to (a healed state, the loser of two histories): a promise never falls within a round and life
(I5). Decides nothing: the rules are in ``rounds``.

    tip 7 | round 8: promised (1, b), accepted (0, a)  -> retire -> snapshot of 7 -> round 8: promised (1, b), ...
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from p2ptrain.core.desk import Desk
from p2ptrain.core.ledger import ids_of_round, positions_of_round
from p2ptrain.core.quorum import Electorate
from p2ptrain.core.types import (
    NO_BALLOT,
    Ballot,
    BaseDigest,
    Digest,
    Fence,
    Head,
    PartDone,
    Record,
    RunSpec,
    Stage,
    Voter,
    cut_of,
)

VOTES_KEPT = 16


class _Vote(NamedTuple):
    """What this life has promised and accepted in a round that it stepped out of."""

    promised: Ballot
    accepted: tuple[Ballot, Record] | None
    held: tuple[PartDone, ...]


class Position:
    """``tip`` with its ``cut``, ``chain`` and ``base``; None without state. The rest is of the round after it.

    ``promised``, ``accepted``: rules R2 and R6; ``held``: averaged parts of this round by digest; ``proposals``,
    ``closes`` (D and reformers) and ``accepts`` by ballot; ``seen``: the highest ballot met.
    """

    def __init__(self, run: RunSpec, stage: Stage, desk: Desk) -> None:
        self.run = run
        self.stage = stage
        self.desk = desk
        self.tip: Record | None = None
        self.cut: Digest = b""
        self.chain: Digest = b""
        self.base = BaseDigest(b"")
        self.held: dict[Digest, PartDone] = {}
        self._votes: dict[tuple[int, int, Digest], _Vote] = {}
        self._ids: tuple[int, ...] = ()
        self._forget()

    def _forget(self) -> None:
        self.promised: Ballot = NO_BALLOT
        self.seen: Ballot = NO_BALLOT
        self.accepted: tuple[Ballot, Record] | None = None
        self.held.clear()
        self.proposals: dict[Ballot, Record] = {}
        self.closes: dict[Ballot, tuple[frozenset[Voter], tuple[Voter, ...]]] = {}
        self.accepts: dict[tuple[Ballot, Digest], set[Voter]] = {}

    @property
    def round(self) -> int:
        """The round that is being filled or exchanged; 0 while there is no state."""
        return self.tip.round + 1 if self.tip else 0

    @property
    def voters(self) -> tuple[Voter, ...]:
        return self.tip.voters_next if self.tip else ()

    @property
    def head(self) -> Head | None:
        tip = self.tip
        return Head(tip.lineage, tip.samples_total, tip.round, self.cut) if tip else None

    @property
    def finished(self) -> bool:
        """The run's last round is applied here."""
        return bool(self.tip and self.run.rounds and self.tip.round >= self.run.rounds)

    def ids(self) -> tuple[int, ...]:
        """Sample ids of the current round."""
        assert self.tip is not None
        return self._ids

    def positions(self) -> Mapping[int, int]:
        """Where each of ``ids()`` stands in it."""
        assert self.tip is not None
        return positions_of_round(self.tip.next_id, self.tip.owed_ids, self.run.microbatches)

    def fence(self, ballot: Ballot) -> Fence:
        assert self.tip is not None
        return Fence(self.run.run, self.tip.lineage, self.stage.index, self.tip.round + 1, self.cut, ballot)

    def electorate(self, ballot: Ballot) -> Electorate:
        """Voters with D as frozen in the ballot's ``Close``; an unseen Close counts as D = {} (stricter)."""
        dead, reform = self.closes.get(ballot, (frozenset(), ()))
        return Electorate(self.run.policy, self.voters, self.run.replication, dead, reform)

    def first_ballot(self) -> Ballot:
        """R0: the ballot that needs no Close."""
        return Ballot(0, *self.voters[0]) if self.voters else NO_BALLOT

    def stand_at(self, record: Record, chain: Digest, base: BaseDigest) -> None:
        """``record`` is the last applied one from now on.

        A round that this life has voted in before is entered with what it promised and accepted then (R2).
        """
        self._remember()
        self.tip = record
        self.cut = cut_of((record,))
        self.chain = chain
        self.base = base
        self._ids = ids_of_round(record.next_id, record.owed_ids, self.run.microbatches)
        self._forget()
        self.promised = self.seen = self.first_ballot()
        vote = self._votes.get((record.lineage, self.round, self.cut))
        if vote is not None:
            self.promised = self.seen = max(vote.promised, self.promised)
            self.accepted = vote.accepted
            self.held.update((part.digest, part) for part in vote.held)

    def stand_nowhere(self) -> None:
        """There is no state any more."""
        self._remember()
        self.tip = None
        self.cut = self.chain = b""
        self._forget()

    def _remember(self) -> None:
        if self.tip is None or (self.accepted is None and self.promised <= self.first_ballot()):
            return
        names = {part.digest for part in self.accepted[1].parts} if self.accepted else set()
        held = tuple(part for digest, part in self.held.items() if digest in names)
        self._votes[self.tip.lineage, self.round, self.cut] = _Vote(self.promised, self.accepted, held)
        while len(self._votes) > VOTES_KEPT:
            del self._votes[next(iter(self._votes))]
