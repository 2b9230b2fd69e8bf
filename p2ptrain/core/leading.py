"""The leader of one ballot: choose, begin, mend, propose (rules R0, R3, R4, R5).

Decides what is proposed. Does not decide that a ballot begins (``succession``) nor what the record contains in detail
(``compose``). The leader is a member too: its own messages reach it like everybody else's.

    filling -----> exchanging -----> proposed -----> (decided: the member's side sees it)
       ^  all ids covered |  all parts held   |
       +-- exact: lost ids+                   +-- quorum no longer possible: ``spent`` -> next ballot
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from p2ptrain.core import compose
from p2ptrain.core.deadlines import Arrivals
from p2ptrain.core.desk import Desk
from p2ptrain.core.diverging import damaged
from p2ptrain.core.messages import Begin, Close, Filled, Grant, Have, Heal, Message, Propose, Trouble
from p2ptrain.core.quorum import Electorate
from p2ptrain.core.rounds import StageRound
from p2ptrain.core.types import (
    Ballot,
    Bundle,
    Digest,
    LeftOut,
    Member,
    PartDone,
    PartOrder,
    PeerId,
    Record,
    Status,
    Voter,
    short,
)

GAP_SERIAL = 1_000_000  # serials of a leader's own grants start here: above any coordinator's


@dataclass
class Outlook:
    """What a leader knows beyond its ballot: the roster, and what it has seen in earlier rounds.

    ``is_dead``: one's own verdict about a life. ``arrivals``: seconds from full coverage to the last answer waited for.
    ``fills``: seconds from the ballot to full coverage. ``slow``: voters that were not there in time the last time.
    """

    members: Callable[[], Mapping[PeerId, Member]]
    is_dead: Callable[[Voter], bool]
    arrivals: Arrivals
    fills: Arrivals
    slow: set[Voter] = field(default_factory=set)


class Lead:
    """One ballot led by this peer.

    ``spent``: why this ballot can bring nothing more ("" while it can); then
    ``overdue`` names voters that did not answer in time (for D under ``any``).
    """

    def __init__(
        self,
        stage: StageRound,
        ballot: Ballot,
        dead: frozenset[Voter],
        reform: tuple[Voter, ...],
        outlook: Outlook,
        exchanged: bool = False,
    ) -> None:
        self.stage = stage
        self.desk: Desk = stage.desk
        self.ballot = ballot
        self.electorate = Electorate(stage.run.policy, stage.voters, stage.run.replication, dead, reform)
        self.outlook = outlook
        self.members = outlook.members
        self.arrivals = outlook.arrivals
        self.phase: Literal["filling", "exchanging", "proposed"] = "filling"
        self.answers: dict[Voter, Filled] = {}
        self.parts: dict[Digest, PartDone] = {}
        self.holders: dict[Digest, set[PeerId]] = {}
        self.excluded: dict[tuple[PeerId, int, int], str] = {}  # bundles refused or lost, and why
        self.shunned: set[PeerId] = set()  # peers that cannot reduce
        self.overdue: set[Voter] = set()
        self.left_out: dict[PeerId, str] = {}
        self.begin: Begin | None = None
        self.attempt = 0
        self.record: Record | None = None
        self.exchanged = exchanged  # an exchange of this round has begun: lost ids go to the next round (C4)
        self.spent = ""
        self.opened_at = self.said_at = self.desk.now
        self.covered_at: float | None = None
        self.gap_at: float | None = None
        self.gap_serial = GAP_SERIAL
        self.began_at = math.inf
        self.repeat_at = self.desk.now + stage.run.knobs.repeat_s

    # --- events ----------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Announce the ballot. The first ballot of a round needs no ``Close`` (R0)."""
        if self.ballot.number > 0:
            peers = {v.peer for v in self.electorate.standing} | self._alive_peers()
            self.desk.broadcast(peers, self._close())

    def on_filled(self, sender: Voter, message: Filled) -> None:
        if message.fence.ballot != self.ballot or message.life != sender.life:
            return
        self.outlook.slow.discard(sender)
        if self.answers.get(sender) == message and sender != self.desk.me:
            self.stage.say_head(sender.peer)  # it waits for us: we are here
        if self.phase == "proposed":
            return
        self.answers[sender] = message
        for part in message.held:
            self.parts.setdefault(part.digest, part)
            self.holders.setdefault(part.digest, set()).add(sender.peer)
            self.exchanged = True
        if self.phase == "filling":
            self.go_on()

    def on_have(self, sender: Voter, message: Have) -> None:
        if message.fence.ballot != self.ballot or self.begin is None or message.begin_digest != self.begin.digest:
            return
        for part in message.parts:
            self.parts.setdefault(part.digest, part)
            self.holders.setdefault(part.digest, set()).add(sender.peer)
        if self.phase != "proposed":
            self._try_propose()

    def on_trouble(self, sender: Voter, message: Trouble) -> None:
        """A part cannot be done as ordered: without the named bundles, or by another reducer."""
        if self.begin is None or message.begin_digest != self.begin.digest or self.phase == "proposed":
            return
        if message.part >= len(self.begin.parts):
            return
        order = self.begin.parts[message.part]
        if self._done(order) is not None:
            return
        lost = [self.begin.bundles[position] for position in message.bundles if position < len(self.begin.bundles)]
        foreign = {bundle.peer for bundle in self.begin.bundles} - {sender.peer}
        missed = {bundle.peer for bundle in lost} - {sender.peer}
        if len(missed) > 1 and 2 * len(missed) > len(foreign):  # it hears hardly anybody: the fault is on its side
            self.shunned.add(sender.peer)
        else:
            for bundle in lost:
                self._exclude(bundle, message.reason)
        if message.reducer and order.reducer:
            self.shunned.add(order.reducer)
        if (message.reducer or lost) and self.phase == "exchanging":
            self._mend(f"{message.reason} (part {message.part}, told by {short(sender.peer)})")

    def roster_changed(self) -> None:
        """Somebody died, left or came: answers of the dead do not count, and a running exchange is mended."""
        alive = self._alive_peers()
        for holders in self.holders.values():
            holders &= alive
        lost = [v for v in self.electorate.standing if not self._is_alive(v)]
        if lost and not self.electorate.possible(lost):
            self._spend(f"{', '.join(short(v.peer) for v in lost)} lost: no quorum in this ballot")
        elif self.phase == "exchanging" and self.begin is not None:
            gone = [v.peer for v in self.begin.members if not self._is_alive(v)]
            if gone:
                for bundle in self.begin.bundles:
                    if bundle.peer in gone:
                        self._exclude(bundle, "died in the exchange")
                self._mend(f"{', '.join(short(p) for p in gone)} gone in the exchange")
        elif self.phase == "filling":
            self.go_on()
        elif self._bytes_lost():
            self._spend("a proposed part died with its holders")

    def link_up(self, peer: PeerId) -> None:
        """A link stands again: what this ballot last said may have been lost on the old one."""
        if self.ballot.number > 0 and self.phase == "filling":
            self.desk.send(peer, self._close())
        if self.begin is not None and self.phase == "exchanging":
            self.desk.send(peer, self.begin)
        if self.record is not None:
            self.desk.send(peer, Propose(self.stage.fence(self.ballot), self.record))

    def tick(self) -> None:
        now, knobs = self.desk.now, self.stage.run.knobs
        if self.phase == "filling":
            self.go_on()
        self._watch_voters()
        if self.phase == "exchanging" and self.begin is not None and now >= self.began_at + knobs.exchange_max_s:
            self.shunned |= {order.reducer for order in self.begin.parts if self._done(order) is None}
            self._mend(f"not done after {knobs.exchange_max_s:.0f} s")
        if now >= self.repeat_at:
            self.repeat_at = now + knobs.repeat_s * (2 if self.phase == "exchanging" else 1)
            self._repeat()

    def deadline(self) -> float:
        soonest = self.repeat_at
        if self.covered_at is not None and self.phase == "filling":
            soonest = min(soonest, self.covered_at + self._wait_s())
        return soonest

    # --- choosing (R3) ---------------------------------------------------------------------------------------------

    def go_on(self) -> None:
        """With ``Filled`` from a quorum: an accepted record first; only otherwise an exchange."""
        voted = set(self.answers)
        if self.ballot.number > 0 and not self.electorate.is_quorum(voted):
            return
        accepted = [answer.accepted for v, answer in self.answers.items() if answer.accepted and self._votes(v)]
        if accepted:
            self._propose(max(accepted, key=lambda pair: pair[0])[1])
            return
        fixed = self._fixed() if self.holders else []
        if fixed and sum(p.stop - p.start for p, _ in fixed) == self.stage.stage.size:
            self._begin(fixed, ())
            return
        refused = self.refused()
        chosen = compose.choose_bundles(self._bundles())
        covered = compose.covered_ids(chosen)
        missing = [i for i in self.stage.ids() if i not in covered and i not in refused]
        if missing and (self.stage.run.exact or not self.exchanged or not chosen):
            self._mind_gap(missing)
        elif chosen or refused:
            self._covered(fixed, chosen)

    def _covered(self, fixed: list[tuple[PartDone, tuple[PeerId, ...]]], chosen: tuple[Bundle, ...]) -> None:
        """Every id is there: begin once those that ought to answer have, or the wait for them is over."""
        now = self.desk.now
        if self.covered_at is None:
            self.covered_at = now
            if not self.exchanged:
                self.outlook.fills.observe(now - self.opened_at)
        waiting = self.awaited()
        if waiting and now < self.covered_at + self._wait_s() and not self.exchanged:
            return
        for peer in waiting:
            self.left_out.setdefault(peer, "no answer in time for the exchange")
        self.outlook.slow.update(v for v in self.electorate.standing if v.peer in waiting and v not in self.answers)
        if not self._heal_minority():
            self.arrivals.observe(now - self.covered_at)
            self._begin(fixed, chosen)

    def refused(self) -> set[int]:
        """Ids whose gradient is not finite. In exact mode two must say so (where there are two): one may be faulty."""
        said = Counter(i for v, answer in self.answers.items() if self._is_alive(v) for i in set(answer.refused))
        enough = min(2, len(self.answers)) if self.stage.run.exact else 1
        return {sample for sample, times in said.items() if times >= enough}

    def _mind_gap(self, missing: list[int]) -> None:
        """Ids that nobody delivers: the coordinator re-leases; if nobody expects more for a while, the leader does.

        Who expects more is waited for as long as fills take by experience, not for ever: it may hang.
        """
        now, knobs = self.desk.now, self.stage.run.knobs
        patience = max(knobs.silent_leader_s, self.outlook.fills.deadline_s())
        busy = {v for v, answer in self.answers.items() if answer.expects_more and self._is_alive(v)}
        if (busy and now < self.opened_at + patience) or self.gap_at is None:
            self.gap_at = now
            return
        if now < self.gap_at + knobs.repeat_s:
            return
        self.gap_at = now + self._wait_s()
        position = {sample: i for i, sample in enumerate(self.stage.ids())}
        for peer, samples in sorted(self._takers(missing, busy).items()):
            self.gap_serial += 1
            tip = self.stage.tip
            assert tip is not None
            share = tuple(position[i] for i in samples)
            self.desk.send(peer, Grant(tip.lineage, self.stage.round, self.gap_serial, share))

    def _takers(self, missing: list[int], busy: set[Voter]) -> dict[PeerId, list[int]]:
        """Who computes what is missing: not those that hang, could not deliver, or refused the very id, if others can."""
        able = [v for v in sorted(self.answers) if self._is_alive(v)]
        failed = {peer for peer, _, _ in self.excluded}
        good = [v for v in able if v not in busy and v.peer not in failed] or [v for v in able if v not in busy] or able
        shares: dict[PeerId, list[int]] = {}
        for n, sample in enumerate(missing):
            willing = [v for v in good if sample not in self.answers[v].refused] or good
            if willing:
                shares.setdefault(willing[n % len(willing)].peer, []).append(sample)
        return shares

    def awaited(self) -> list[PeerId]:
        """Members that ought to answer before the exchange begins."""
        slow = self.outlook.slow
        awaited = {v.peer for v in self.electorate.standing if v not in self.answers and v not in slow and self._is_alive(v)}
        for peer, member in self.members().items():
            if member.status is Status.ALIVE and 0 <= member.info.joined_round < self.stage.round:
                answer = self.answers.get(member.info.voter)
                if (answer is None and member.info.voter not in slow) or (answer is not None and answer.expects_more):
                    awaited.add(peer)
        return sorted(awaited)

    def _wait_s(self) -> float:
        return min(self.arrivals.deadline_s(), self.stage.run.knobs.silent_leader_s / 2)

    def _heal_minority(self) -> bool:
        """R9: unequal state slices under one chain. True if somebody must pull again before this round goes on."""
        found = damaged(self.answers, self.stage.base.chain, self.desk.me)
        for voter, index, healthy, tie in found:
            how = "as many hold the one as the other: the leader's are taken" if tie else "it pulls them again"
            self.desk.say("warning", "diverged", f"{short(voter.peer)} holds other bits in slice {index}: {how}")
            self.answers.pop(voter, None)
            self.desk.send(voter.peer, Heal(self.stage.fence(self.ballot), (index,), healthy))
        if found:
            self.covered_at = None
        return bool(found)

    # --- exchanging (R4) -------------------------------------------------------------------------------------------

    def _begin(self, fixed: list[tuple[PartDone, tuple[PeerId, ...]]], chosen: tuple[Bundle, ...]) -> None:
        members = tuple(sorted(v for v, answer in self.answers.items() if answer.receives and self._is_alive(v)))
        reducers = self._reducers(members)
        if not members or not reducers:
            return
        tip = self.stage.tip
        assert tip is not None
        self.attempt += 1
        orders = compose.order_parts(self.stage.stage.size, fixed, reducers, len(chosen))
        self.begin = Begin(self.stage.fence(self.ballot), self.attempt, members, chosen, orders, tip.next_scale)
        self.phase = "exchanging"
        self.began_at = self.desk.now
        self.exchanged = True
        self.desk.broadcast([v.peer for v in members], self.begin)
        self._try_propose()

    def _reducers(self, members: tuple[Voter, ...]) -> list[tuple[PeerId, float]]:
        roster = self.members()
        able = [v.peer for v in members if v.peer in roster and roster[v.peer].info.diallable]
        quick = [p for p in able if p not in self.shunned and roster[p].status is not Status.BUSY]
        good = quick or [p for p in able if p not in self.shunned] or able or [v.peer for v in members]
        uplinks = {p: roster[p].info.uplink_mbps if p in roster else 0.0 for p in good}
        known = all(u > 0 for u in uplinks.values())
        return [(p, uplinks[p] if known else 1.0) for p in good]

    def _mend(self, why: str) -> None:
        """A loss inside the exchange: next attempt of the same ballot; what is averaged and held stays."""
        self.desk.say("info", "mended", f"exchange of round {self.stage.round} mended: {why}", self.stage.round)
        self.phase = "filling"
        self.covered_at = None
        self.gap_at = None
        self.go_on()

    def _fixed(self) -> list[tuple[PartDone, tuple[PeerId, ...]]]:
        alive = self._alive_peers()
        held = {d: (self.parts[d], frozenset(peers & alive)) for d, peers in self.holders.items()}
        ids = frozenset(self.stage.ids())
        known = {d: (part, peers) for d, (part, peers) in held.items() if ids.issuperset(part.counted)}
        whole = ids - self.refused() if self.stage.run.exact else None
        return compose.fixed_parts(self.stage.stage.size, known, whole)

    def _bundles(self) -> list[Bundle]:
        return [
            bundle
            for voter, answer in self.answers.items()
            if self._is_alive(voter)
            for bundle in answer.bundles
            if bundle.key not in self.excluded and (bundle.peer, bundle.life) == voter
        ]

    # --- proposing (R5) --------------------------------------------------------------------------------------------

    def _try_propose(self) -> None:
        """Once every part is held by somebody alive."""
        assert self.begin is not None
        parts = [self._done(order) for order in self.begin.parts]
        if all(part is not None for part in parts):
            self._propose(self._compose([part for part in parts if part is not None]))

    def _done(self, order: PartOrder) -> PartDone | None:
        """The averaged part of this range as the current Begin ordered it, if somebody alive holds it."""
        assert self.begin is not None
        ordered = {i for position in order.bundles for i in self.begin.bundles[position].ids}
        for digest in sorted(self.holders):
            part = self.parts[digest]
            if not self.holders[digest] or (part.start, part.stop) != (order.start, order.stop):
                continue
            if order.fixed.digest == digest if order.fixed else set(part.counted) == ordered:
                return part
        return None

    def _compose(self, parts: list[PartDone]) -> Record:
        stage = self.stage
        assert stage.tip is not None
        dead = frozenset(v for v in stage.voters if not self._is_alive(v)) | self.electorate.dead
        proven = compose.proven_voters({v: a for v, a in self.answers.items() if self._is_alive(v)}, stage.base)
        voters = compose.voters_after(stage.run, stage.voters, dead, proven, self.members())
        return compose.compose_record(
            stage.run, stage.tip, stage.cut, stage.chain, stage.ids(), parts, self.refused(), voters, stage.stage.index
        )

    def _propose(self, record: Record) -> None:
        self.record = record
        self.phase = "proposed"
        self.said_at = self.desk.now
        peers = {v.peer for v in self.electorate.standing} | {v.peer for v in self.answers}
        self.desk.broadcast(peers, Propose(self.stage.fence(self.ballot), record))

    # --- waiting ---------------------------------------------------------------------------------------------------

    def _watch_voters(self) -> None:
        """Voters alive by the roster that do not answer: after a while, go on without them."""
        if self.spent or self.phase == "exchanging" or (self.phase == "filling" and self.ballot.number == 0):
            return
        if self.phase == "proposed" and self._bytes_lost():
            self._spend("a proposed part died with its holders")
        elif self.desk.now >= self.said_at + self.stage.run.knobs.silent_leader_s:
            answered = set(self.answers) if self.phase == "filling" else self._accepted()
            silent = self.electorate.missing(answered)
            if silent and not self.electorate.is_quorum(answered):
                self.overdue.update(silent)
                self._spend(f"no answer from {', '.join(short(v.peer) for v in silent)}")

    def _bytes_lost(self) -> bool:
        """A part of the proposal is held by nobody alive, as far as we know."""
        accepted = {voter.peer for voter in self._accepted() if self._is_alive(voter)}
        if self.record is None or accepted:
            return False
        return any(not self.holders.get(part.digest) for part in self.record.parts)

    def _accepted(self) -> set[Voter]:
        return self.stage.accepts.get((self.ballot, self.record.digest), set()) if self.record else set()

    def _spend(self, why: str) -> None:
        if not self.spent:
            self.spent = why

    def _repeat(self) -> None:
        """Say again what has not been answered (messages may be lost with a link)."""
        if self.phase == "filling" and self.ballot.number > 0:
            missing = {v.peer for v in self.electorate.standing if v not in self.answers}
            self.desk.broadcast(missing, self._close())
        elif self.phase == "exchanging" and self.begin is not None:
            message: Message = self.begin
            self.desk.broadcast([v.peer for v in self.begin.members], message)
        elif self.record is not None:
            self.desk.broadcast({v.peer for v in self.electorate.standing}, Propose(self.stage.fence(self.ballot), self.record))

    def _close(self) -> Close:
        return Close(self.stage.fence(self.ballot), tuple(sorted(self.electorate.dead)), self.electorate.reform)

    def _votes(self, voter: Voter) -> bool:
        return voter in self.electorate.standing

    def _alive_peers(self) -> set[PeerId]:
        return set(self.stage.present())

    def _is_alive(self, voter: Voter) -> bool:
        return not self.outlook.is_dead(voter)

    def _exclude(self, bundle: Bundle, why: str) -> None:
        self.excluded[bundle.key] = why
        self.left_out[bundle.peer] = why

    def left_out_list(self) -> tuple[LeftOut, ...]:
        return tuple(LeftOut(peer, reason) for peer, reason in sorted(self.left_out.items()))

    def check(self) -> None:
        """I5: one proposal per ballot (by construction: ``record`` is set once). I6: only standing voters are counted."""
        assert self.attempt >= 0 and not math.isnan(self.opened_at)
        if self.begin is not None:
            seen: set[int] = set()
            for bundle in self.begin.bundles:
                assert seen.isdisjoint(bundle.ids), "I7: bundles of a Begin overlap"
                seen.update(bundle.ids)
