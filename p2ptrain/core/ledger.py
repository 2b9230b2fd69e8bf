"""Which ids a round is made of, and who computes which of them.

Decides the ids of each round (a pure function of the record before) and, at the acting coordinator, the leases of one
round: dealt in proportion to speed, taken over from the slow and the dead. It does not decide what counts: leases are
hints, only the record counts (C1), so that a wrong or doubled lease costs time and never correctness.

    position:   0  1  2  3  4  5  6  7        a position is the index in ``ids_of_round``: a lease can be given
    a fast:     a  a  a  a  a                 before the record that fixes the ids
    b slow:                    b  b  b
    a idle:                       >a          Grant to a, Revoke to b

Every position is free, leased to one peer, or done by one peer (a peer, or "" if only the bundle is known).
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache
from statistics import median

from p2ptrain.core.messages import Grant, Progress, Revoke
from p2ptrain.core.types import Knobs, PeerId

MIN_GAIN_S = 0.05
"""A lease is not moved for less than this: a revocation that comes too late costs a doubled microbatch."""

LEAST_S = 1e-6
"""No microbatch counts as quicker, whatever a peer reports: shares are in proportion to speed."""

Letters = list[tuple[PeerId, Grant | Revoke]]


def ids_of_round(next_id: int, owed_ids: Sequence[int], microbatches: int) -> tuple[int, ...]:
    """The ids of a round, exactly ``microbatches``: owed ones first, in order, then fresh ones from ``next_id``."""
    return _ids(next_id, tuple(owed_ids[:microbatches]), microbatches)


def positions_of_round(next_id: int, owed_ids: Sequence[int], microbatches: int) -> Mapping[int, int]:
    """Where each id stands in ``ids_of_round``."""
    return _positions(next_id, tuple(owed_ids[:microbatches]), microbatches)


@lru_cache(maxsize=8)
def _ids(next_id: int, owed: tuple[int, ...], microbatches: int) -> tuple[int, ...]:
    return owed + tuple(range(next_id, next_id + microbatches - len(owed)))


@lru_cache(maxsize=8)
def _positions(next_id: int, owed: tuple[int, ...], microbatches: int) -> Mapping[int, int]:
    return {sample: position for position, sample in enumerate(_ids(next_id, owed, microbatches))}


def after_round(
    ids: Sequence[int], spent_ids: Iterable[int], next_id: int, owed_ids: Sequence[int], microbatches: int
) -> tuple[int, tuple[int, ...]]:
    """``(next_id, owed_ids)`` for the round after one made of ``ids``: those not spent are owed, in order."""
    spent = set(spent_ids)
    fresh = microbatches - min(len(owed_ids), microbatches)
    unspent = tuple(id for id in ids if id not in spent)
    return next_id + fresh, unspent + tuple(owed_ids[microbatches:])


class Lease(Enum):
    """State of one position."""

    FREE = "free"
    LEASED = "leased"
    DONE = "done"


@dataclass(slots=True)
class _Account:
    """What the ledger holds of one peer. ``undone`` is in the order in which the peer works."""

    microbatch_s: float  # 0: unknown
    since: float  # when its running microbatch began, as far as known
    undone: list[int] = field(default_factory=list)
    granted_at: float = -math.inf
    unseen: set[int] = field(default_factory=set)  # open positions that its last Progress does not name


class RoundLedger:
    """The acting coordinator's leases of one round. Deterministic; methods return the letters to send.

    ``now`` may be left out where it is optional: the latest time seen is meant. ``serial`` is the number after which
    grants are numbered (a successor goes on above what members have seen).
    """

    def __init__(self, lineage: int, round: int, microbatches: int, knobs: Knobs, serial: int = 0) -> None:
        self.lineage = lineage
        self.round = round
        self.microbatches = microbatches
        self._knobs = knobs
        self._serial = serial
        self._serials: dict[PeerId, int] = {}  # outlive a loss: the peer may be back in the same life
        self._now = 0.0
        self._state = [Lease.FREE] * microbatches
        self._peer: list[PeerId] = [""] * microbatches
        self._accounts: dict[PeerId, _Account] = {}
        self._moved: set[int] = set()  # taken from a slow peer once: not moved again for speed alone
        self._latest: tuple[float, list[PeerId]] | None = None  # see ``_slowest``; None once anything has changed
        self._median_s: float | None = None  # None: to be taken anew
        self._puts = 0
        self._checked_at = -math.inf

    @classmethod
    def rebuild(
        cls,
        lineage: int,
        round: int,
        microbatches: int,
        knobs: Knobs,
        speeds: Mapping[PeerId, float],
        done: Mapping[PeerId, Iterable[int]],
        leased: Mapping[PeerId, Iterable[int]] | None = None,
        now: float = 0.0,
        serial: int = 0,
    ) -> tuple[RoundLedger, Letters]:
        """A successor's ledger from what members report (``Progress.done``, ``.pending``), and its first letters.

        Reports of peers not in ``speeds`` count for done work only. Everything nobody reports is dealt to those who
        would finish it soonest. Where two report one position, the first by id keeps it.
        """
        ledger = cls(lineage, round, microbatches, knobs, serial)
        ledger._now = now
        for peer in sorted(speeds):
            ledger._accounts[peer] = _Account(max(0.0, speeds[peer]), now)
        for peer in sorted(done):
            for position in ledger._known(done[peer]):
                if ledger._state[position] is Lease.FREE:
                    ledger._put(position, Lease.DONE, peer)
        for peer in sorted(leased or {}):
            for position in ledger._known((leased or {})[peer]):
                if ledger._state[position] is Lease.FREE and peer in ledger._accounts:
                    ledger._lease(position, peer)
        return ledger, ledger._deal_free(now)

    # --- events -------------------------------------------------------------------------------------------------------

    def deal(self, speeds: Mapping[PeerId, float], now: float | None = None) -> Letters:
        """The first deal: every free position, contiguous runs by peer id, in proportion to speed.

        ``speeds``: seconds per microbatch, 0 if unknown (all equal; among others that are known, little at first).
        Rounded by largest remainder. A peer that gets nothing is told so by an empty grant.
        """
        now = self._clock(now)
        for peer in sorted(speeds):
            self._account(peer, speeds[peer], now)
        peers = sorted(speeds)
        free = [p for p in range(self.microbatches) if self._state[p] is Lease.FREE]
        shares = self._first_shares(peers, len(free))
        granted: dict[PeerId, list[int]] = {}
        begin = 0
        for peer, share in zip(peers, shares, strict=True):
            granted[peer] = free[begin : begin + share]
            for position in granted[peer]:
                self._lease(position, peer)
            begin += share
        return self._letters(granted, {}, now)

    def joined(self, peer: PeerId, microbatch_s: float = 0.0, now: float | None = None) -> Letters:
        """A newcomer takes free positions, and unstarted ones of others if the round ends sooner by that.

        A peer that is known already gets its open grants again (after a lost link).
        """
        now = self._clock(now)
        if peer in self._accounts:
            return self.regrant(peer, now)
        self._account(peer, microbatch_s, now)
        letters = self._deal_free(now) + self._relieve(peer, now)
        if not any(to == peer for to, _ in letters):
            letters += self._letters({peer: []}, {}, now)
        return letters

    def progressed(self, peer: PeerId, progress: Progress, now: float | None = None) -> Letters:
        """Positions are done; whoever else still has them on lease is told not to start them."""
        now = self._clock(now)
        if peer not in self._accounts or (progress.lineage, progress.round) != (self.lineage, self.round):
            return []
        account = self._accounts[peer]
        if progress.microbatch_s > 0 and math.isfinite(progress.microbatch_s):
            account.microbatch_s = progress.microbatch_s
            self._latest = self._median_s = None
        letters = self._done(peer, progress.done, now)
        pending = self._known(progress.pending)
        for position in pending:  # granted by a coordinator before this one
            if self._state[position] is Lease.FREE:
                self._lease(position, peer)
        account.unseen = set(account.undone) - set(pending)
        return letters

    def filled(
        self, peer: PeerId, positions: Iterable[int], now: float | None = None, refused: Iterable[int] = ()
    ) -> Letters:
        """The peer's bundles cover ``positions``; ``refused`` were not finite with it and go to others.

        Other leases of the peer stay (a grant may have crossed the message): see ``lost`` and ``uncovered``.
        """
        now = self._clock(now)
        if peer not in self._accounts:
            return []
        letters = self._done(peer, positions, now)
        given_up = [p for p in self._known(refused) if self._peer[p] == peer]
        for position in given_up:
            self._free(position)
        others = [other for other in sorted(self._accounts) if other != peer]
        return letters + self._deal_free(now, others or [peer])

    def lost(self, peer: PeerId, safe: Iterable[int] = (), now: float | None = None) -> Letters:
        """The peer is gone: all it had, but for ``safe`` (covered by bundles the leader has), is dealt anew at once."""
        now = self._clock(now)
        if peer not in self._accounts:
            return []
        kept = set(self._known(safe))
        for position in range(self.microbatches):
            if self._peer[position] == peer:
                if position in kept:
                    self._put(position, Lease.DONE, peer)
                else:
                    self._free(position)
        del self._accounts[peer]
        self._latest = self._median_s = None
        return self._deal_free(now)

    def uncovered(self, covered: Iterable[int], exclude: Iterable[PeerId] = (), now: float | None = None) -> Letters:
        """Leases again exactly the positions outside ``covered``: the grants sent name each of them once.

        A position still open with a peer stays with it (its grant is repeated) unless the peer is in ``exclude``; work
        done but not covered (its bundle is left out) goes to those who would finish it soonest. Covered positions that
        somebody still has open are revoked.
        """
        now = self._clock(now)
        safe, barred = set(self._known(covered)), set(exclude)
        kept: dict[PeerId, list[int]] = {}
        needless: dict[PeerId, list[int]] = {}
        for position in range(self.microbatches):
            peer = self._peer[position]
            if position in safe:
                if self._state[position] is Lease.LEASED:
                    needless.setdefault(peer, []).append(position)
                self._put(position, Lease.DONE, peer)
            elif self._state[position] is Lease.LEASED and peer not in barred:
                kept.setdefault(peer, []).append(position)
            elif self._state[position] is not Lease.FREE:
                self._free(position)
        allowed = [peer for peer in sorted(self._accounts) if peer not in barred]
        for position, peer in self._soonest(self._free_positions(), allowed, now):
            self._lease(position, peer)
            kept.setdefault(peer, []).append(position)
        return self._letters(kept, needless, now)

    def rebalance(self, now: float) -> Letters:
        """Idle peers take unstarted positions from whoever would finish last, if that helps by a whole microbatch.

        A position is moved once at most. A grant that its peer seems never to have got is repeated.
        """
        now = self._clock(now)
        letters = self._deal_free(now)
        for peer in sorted(self._accounts):
            account = self._accounts[peer]
            if account.unseen.intersection(account.undone) and now - account.granted_at >= self._knobs.repeat_s:
                letters += self.regrant(peer, now)
        idle = [peer for peer, account in self._accounts.items() if not account.undone]
        for peer in sorted(idle, key=lambda p: (self._speed(p), p)):
            letters += self._relieve(peer, now)
        return letters

    def regrant(self, peer: PeerId, now: float | None = None) -> Letters:
        """The peer's open positions once more (grants add up, so that a repetition changes nothing)."""
        now = self._clock(now)
        return self._letters({peer: list(self._accounts[peer].undone)}, {}, now) if peer in self._accounts else []

    # --- questions ----------------------------------------------------------------------------------------------------

    @property
    def peers(self) -> list[PeerId]:
        return sorted(self._accounts)

    @property
    def all_done(self) -> bool:
        return all(state is Lease.DONE for state in self._state)

    def state_of(self, position: int) -> tuple[Lease, PeerId]:
        return self._state[position], self._peer[position]

    def open_of(self, peer: PeerId) -> tuple[int, ...]:
        """Positions leased to the peer and not done, in the order in which it works."""
        return tuple(self._accounts[peer].undone) if peer in self._accounts else ()

    def done_positions(self) -> tuple[int, ...]:
        return tuple(p for p in range(self.microbatches) if self._state[p] is Lease.DONE)

    def expected_fill_end(self, now: float) -> float:
        """When the last position will be done, by estimate; ``math.inf`` if some position is with nobody."""
        if self._free_positions():
            return math.inf
        return max((self._finish(peer, now) for peer in self._accounts), default=now)

    def describe(self) -> str:
        """One line: who has how much left."""
        left = ", ".join(f"{peer[:8]} {len(self._accounts[peer].undone)}" for peer in self.peers)
        done, free = len(self.done_positions()), len(self._free_positions())
        return f"round {self.round}: {done}/{self.microbatches} done, {free} free; left: {left or 'nobody'}"

    def check(self) -> None:
        """Asserts that every position is accounted for exactly once (a large round's after some changes only)."""
        if self._puts - self._checked_at <= self.microbatches // 256:
            return
        self._checked_at = self._puts
        open_positions = sorted(p for account in self._accounts.values() for p in account.undone)
        assert open_positions == [p for p in range(self.microbatches) if self._state[p] is Lease.LEASED]
        for peer, account in self._accounts.items():
            assert all(self._peer[p] == peer and self._state[p] is Lease.LEASED for p in account.undone), peer
        for position, state in enumerate(self._state):
            assert state is not Lease.FREE or self._peer[position] == "", position
            assert state is not Lease.LEASED or self._peer[position] in self._accounts, position

    def _first_shares(self, peers: list[PeerId], total: int) -> list[int]:
        """In proportion to speed; one that never measured gets little at first, where there are others that did."""
        tried = [peer for peer in peers if not self._is_untried(peer)]
        few = {peer: self._knobs.lease_ahead for peer in peers if tried and peer not in tried}
        while few and sum(few.values()) > total - len(tried):
            few[max(few, key=lambda peer: (few[peer], peer))] -= 1
            few = {peer: share for peer, share in few.items() if share > 0}
        rest = tried or peers
        large = dict(
            zip(
                rest,
                _largest_remainder([1.0 / self._speed(peer) for peer in rest], total - sum(few.values())),
                strict=True,
            )
        )
        return [few.get(peer, large.get(peer, 0)) for peer in peers]

    def _is_untried(self, peer: PeerId) -> bool:
        """Never measured, while others were: it may be much slower than they are."""
        accounts = self._accounts
        return accounts[peer].microbatch_s <= 0 and any(other.microbatch_s > 0 for other in accounts.values())

    def _has_enough(self, peer: PeerId) -> bool:
        return len(self._accounts[peer].undone) >= self._knobs.lease_ahead and self._is_untried(peer)

    # --- helpers ------------------------------------------------------------------------------------------------------

    def _clock(self, now: float | None) -> float:
        self._now = self._now if now is None else max(self._now, now)
        return self._now

    def _account(self, peer: PeerId, microbatch_s: float, now: float) -> None:
        known = self._accounts.setdefault(peer, _Account(0.0, now))
        if microbatch_s > 0 and math.isfinite(microbatch_s):
            known.microbatch_s = microbatch_s
        self._latest = self._median_s = None

    def _speed(self, peer: PeerId) -> float:
        """Seconds per microbatch; of a peer that never measured: the median of those that did, or 1."""
        known = self._accounts[peer].microbatch_s
        if known > 0:
            return max(known, LEAST_S)
        if self._median_s is None:
            measured = [account.microbatch_s for account in self._accounts.values() if account.microbatch_s > 0]
            self._median_s = median(measured) if measured else 1.0
        return self._median_s

    def _finish(self, peer: PeerId, now: float) -> float:
        """When the peer will have done its open positions. One that is late is expected to go on as slowly."""
        account, speed = self._accounts[peer], self._speed(peer)
        left = len(account.undone)
        if not left:
            return now
        elapsed = now - account.since
        if elapsed <= speed:
            return account.since + left * speed
        return now + (elapsed - speed) + (left - 1) * elapsed

    def _known(self, positions: Iterable[int]) -> list[int]:
        return sorted({p for p in positions if 0 <= p < self.microbatches})

    def _free_positions(self) -> list[int]:
        return [p for p in range(self.microbatches) if self._state[p] is Lease.FREE]

    def _put(self, position: int, state: Lease, peer: PeerId) -> None:
        if self._state[position] is Lease.LEASED:
            self._accounts[self._peer[position]].undone.remove(position)
        self._latest = None
        self._puts += 1
        self._state[position], self._peer[position] = state, peer

    def _free(self, position: int) -> None:
        self._put(position, Lease.FREE, "")
        self._moved.discard(position)

    def _lease(self, position: int, peer: PeerId) -> None:
        self._put(position, Lease.LEASED, peer)
        account = self._accounts[peer]
        if not account.undone:
            account.since = self._now
        account.undone.append(position)
        self._latest = None

    def _done(self, peer: PeerId, positions: Iterable[int], now: float) -> Letters:
        revoked: dict[PeerId, list[int]] = {}
        for position in self._known(positions):
            if self._state[position] is Lease.DONE:
                continue
            other = self._peer[position]
            if other not in ("", peer):
                revoked.setdefault(other, []).append(position)
            self._put(position, Lease.DONE, peer)
            self._accounts[peer].since = now
            self._latest = None
        return self._letters({}, revoked, now)

    def _deal_free(self, now: float, allowed: list[PeerId] | None = None) -> Letters:
        peers = sorted(self._accounts) if allowed is None else allowed
        granted: dict[PeerId, list[int]] = {}
        for position, peer in self._soonest(self._free_positions(), peers, now):
            self._lease(position, peer)
            granted.setdefault(peer, []).append(position)
        return self._letters(granted, {}, now)

    def _soonest(self, positions: list[int], peers: list[PeerId], now: float) -> list[tuple[int, PeerId]]:
        """Each position to the peer that would finish it first."""
        if not positions:
            return []
        peers = [peer for peer in peers if not self._has_enough(peer)] or peers
        if not peers:
            return []
        ends = [(max(now, self._finish(peer, now)) + self._speed(peer), peer) for peer in peers]
        heapq.heapify(ends)
        chosen = []
        for position in positions:
            end, peer = ends[0]
            heapq.heapreplace(ends, (end + self._speed(peer), peer))
            chosen.append((position, peer))
        return chosen

    def _relieve(self, helper: PeerId, now: float) -> Letters:
        """Moves unstarted positions to ``helper`` from whoever finishes last, while that ends the round sooner."""
        granted: dict[PeerId, list[int]] = {}
        revoked: dict[PeerId, list[int]] = {}
        end, speed = self._finish(helper, now), self._speed(helper)
        while True:
            slow = self._slowest(helper, now)
            if slow is None:
                break
            position = self._unstarted(slow, now)
            before = self._finish(slow, now)
            if position is None or end + speed > before - max(self._speed(slow), MIN_GAIN_S):
                break
            if self._has_enough(helper):
                break
            self._lease(position, helper)
            self._moved.add(position)
            granted.setdefault(helper, []).append(position)
            revoked.setdefault(slow, []).append(position)
            end += speed
        return self._letters(granted, revoked, now)

    def _slowest(self, helper: PeerId, now: float) -> PeerId | None:
        """Who of the others finishes last. The last two of all are kept while nothing changes: many may ask."""
        if self._latest is None or self._latest[0] != now:
            ends = [(self._finish(peer, now), peer) for peer in self._accounts]
            self._latest = now, [peer for _, peer in heapq.nlargest(2, ends)]
        return next((peer for peer in self._latest[1] if peer != helper), None)

    def _unstarted(self, peer: PeerId, now: float) -> int | None:
        """The peer's last open position that it has surely not begun: one runs, and a report may be under way."""
        account, speed = self._accounts[peer], self._speed(peer)
        begun = 2 if 0.5 * speed < now - account.since < 2.0 * speed else 1
        movable = [p for p in account.undone[begun:] if p not in self._moved]
        return movable[-1] if movable else None

    def _letters(self, granted: Mapping[PeerId, list[int]], revoked: Mapping[PeerId, list[int]], now: float) -> Letters:
        letters: Letters = []
        for peer in sorted(revoked):
            letters.append((peer, Revoke(self.lineage, self.round, tuple(sorted(revoked[peer])))))
        for peer in sorted(granted):
            account = self._accounts[peer]
            account.granted_at = now
            account.unseen.clear()
            serial = self._serials[peer] = self._serials.get(peer, self._serial) + 1
            grant = Grant(self.lineage, self.round, serial, tuple(sorted(granted[peer])))
            letters.append((peer, grant))
        return letters


def _largest_remainder(weights: list[float], total: int) -> list[int]:
    """Whole shares of ``total`` in proportion to ``weights``; ties go to the first."""
    if not weights:
        return []
    whole = sum(weights)
    exact = [total * weight / whole for weight in weights]
    shares = [int(value) for value in exact]
    order = sorted(range(len(weights)), key=lambda i: (shares[i] - exact[i], i))
    for i in order[: total - sum(shares)]:
        shares[i] += 1
    return shares
