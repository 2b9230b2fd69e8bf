"""The acting coordinator's side of leases: deal, take back, deal again.

Decides who computes which positions of a round, through ``ledger.RoundLedger``. Every member runs this machine; it
acts only while this peer is the longest-standing live member. A successor asks nobody: members report to it.

    round 7 begins its exchange -> round 8 is dealt (ahead of need)
    a peer dies or falls silent -> its positions go to who finishes soonest
    a peer does nothing         -> the same, after its own speed's deadline
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from p2ptrain.core.desk import Desk
from p2ptrain.core.ledger import Letters, RoundLedger
from p2ptrain.core.messages import Progress
from p2ptrain.core.rounds import StageRound
from p2ptrain.core.types import Member, PeerId, Status, Voter, short
from p2ptrain.core.view import hangs_at

REBALANCE_EVERY_S = 0.25
REBUILD_WAIT_S = 0.4
STUCK_FACTOR = 5.0


class Coordinating:
    """Ledgers of the current and the next round (``ledgers``: round -> ledger) while ``active``."""

    def __init__(self, stage: StageRound, members: Callable[[], Mapping[PeerId, Member]]) -> None:
        self.stage = stage
        self.desk: Desk = stage.desk
        self.members = members
        self.active = False
        self.ledgers: dict[int, RoundLedger] = {}
        self.reports: dict[PeerId, Progress] = {}
        self.moved_at: dict[PeerId, float] = {}  # when a peer last finished something
        self.stuck: set[PeerId] = set()
        self.rebuild_at: float | None = None
        self.rebalance_at = math.inf
        self.speeds: dict[PeerId, float] = {}

    # --- events ----------------------------------------------------------------------------------------------------

    def look(self, coordinator: PeerId | None) -> None:
        """After every event: start or stop acting, deal what is not dealt."""
        mine = coordinator == self.desk.me.peer and self.stage.tip is not None
        if mine and not self.active:
            self.active = True
            alone = set(self._eligible(self.stage.round)) <= {self.desk.me.peer}
            self.rebuild_at = self.desk.now if alone else self.desk.now + REBUILD_WAIT_S
        elif not mine and self.active:
            self.active = False
            self.ledgers.clear()
        if not self.active or self.stage.applying or self.stage.finished:
            return
        if self.rebuild_at is not None:
            self._rebuild()
        elif self.stage.round not in self.ledgers:
            self._deal(self.stage.round)
        if self.rebuild_at is None and self.stage.begin is not None and self.stage.round + 1 not in self.ledgers:
            self._deal(self.stage.round + 1)

    def new_round(self) -> None:
        round = self.stage.round
        for old in [r for r in self.ledgers if r < round]:
            del self.ledgers[old]
        self.reports = {peer: report for peer, report in self.reports.items() if report.round >= round}
        self.moved_at = {peer: self.desk.now for peer in self.moved_at}
        self.rebalance_at = self.desk.now + REBALANCE_EVERY_S

    def on_progress(self, sender: Voter, message: Progress) -> None:
        self.reports[sender.peer] = message
        if message.microbatch_s > 0:
            self.speeds[sender.peer] = message.microbatch_s
        self.moved_at[sender.peer] = self.desk.now
        self.stuck.discard(sender.peer)
        ledger = self.ledgers.get(message.round)
        if ledger is None:
            return
        self._send(ledger.progressed(sender.peer, message, self.desk.now))

    def roster_changed(self) -> None:
        """The dead lose their leases at once, the silent too; newcomers get some.

        What a silent peer has on lease is computed again while the suspicion runs, not only after the verdict: if it is
        back, two have done the same and one of the two bundles counts (C2).
        """
        if not self.active:
            return
        for round, ledger in sorted(self.ledgers.items()):
            eligible = set(self._eligible(round))
            for peer in ledger.peers:
                member = self.members().get(peer)
                begun = round == self.stage.round and self.stage.begin is not None
                if peer in eligible or (begun and not self.stage.run.exact):
                    continue  # lost in the exchange: owed to the next round (C4)
                if member is None or not member.present or (member.status is Status.SUSPECT and not begun):
                    self._send(ledger.lost(peer, (), self.desk.now))
            for peer in sorted(eligible - set(ledger.peers)):
                if round > self.stage.round or self.stage.begin is None:
                    self._send(ledger.joined(peer, self._speed(peer), self.desk.now))

    def link_up(self, peer: PeerId) -> None:
        """Grants may have been lost with the old link: once more (a repetition changes nothing)."""
        for _, ledger in sorted(self.ledgers.items()):
            self._send(ledger.regrant(peer, self.desk.now))

    def tick(self) -> None:
        if not self.active or self.desk.now < self.rebalance_at:
            return
        self.rebalance_at = self.desk.now + REBALANCE_EVERY_S
        ledger = self.ledgers.get(self.stage.round)
        if ledger is None or self.stage.begin is not None:
            return
        self._send(ledger.rebalance(self.desk.now))
        self._give_up_stuck(ledger)

    def deadline(self) -> float:
        if not self.active:
            return math.inf
        if self.rebuild_at is not None:
            return self.rebuild_at
        return self.rebalance_at if self.stage.begin is None and self.stage.round in self.ledgers else math.inf

    # --- helpers ---------------------------------------------------------------------------------------------------

    def _eligible(self, round: int) -> dict[PeerId, float]:
        """Members that take part in ``round``, with seconds per microbatch (0 unknown)."""
        fit, now, knobs = (Status.ALIVE, Status.LINK_DOWN, Status.BUSY), self.desk.now, self.stage.run.knobs
        return {
            peer: self._speed(peer)
            for peer, member in sorted(self.members().items())
            if member.status in fit
            and 0 <= member.info.joined_round <= round
            and peer not in self.stuck
            and now < hangs_at(member, knobs)
        }

    def _speed(self, peer: PeerId) -> float:
        member = self.members().get(peer)
        return self.speeds.get(peer, member.info.microbatch_s if member else 0.0)

    def _deal(self, round: int) -> None:
        tip = self.stage.tip
        assert tip is not None
        speeds = self._eligible(round) or {self.desk.me.peer: self._speed(self.desk.me.peer)}
        ledger = RoundLedger(tip.lineage, round, self.stage.run.microbatches, self.stage.run.knobs)
        self.ledgers[round] = ledger
        for peer in speeds:
            self.moved_at.setdefault(peer, self.desk.now)
        self._send(ledger.deal(speeds, self.desk.now))

    def _rebuild(self) -> None:
        """A successor's ledger: from what members report, once all have or the wait is over."""
        round = self.stage.round
        speeds = self._eligible(round) or {self.desk.me.peer: 0.0}
        current = {peer: r for peer, r in self.reports.items() if r.round == round and peer in speeds}
        if self.desk.now < (self.rebuild_at or 0.0) and set(speeds) - set(current):
            return
        self.rebuild_at = None
        tip = self.stage.tip
        assert tip is not None
        done = {peer: report.done for peer, report in current.items()}
        pending = {peer: report.pending for peer, report in current.items()}
        ledger, letters = RoundLedger.rebuild(
            tip.lineage,
            round,
            self.stage.run.microbatches,
            self.stage.run.knobs,
            speeds,
            done,
            pending,
            self.desk.now,
            1000,
        )
        self.ledgers = {round: ledger}
        self.rebalance_at = self.desk.now + REBALANCE_EVERY_S
        self._send(letters)

    def _give_up_stuck(self, ledger: RoundLedger) -> None:
        """A peer whose lease does not move for several of its microbatches: others take it; it may come back."""
        knobs = self.stage.run.knobs
        busy = [peer for peer in ledger.peers if ledger.open_of(peer)]
        idle = [peer for peer in ledger.peers if not ledger.open_of(peer)]
        for peer in busy:
            limit = max(knobs.silent_leader_s, STUCK_FACTOR * self._speed(peer))
            since = max(self.moved_at.get(peer, self.desk.now), self.stage.progress_at if not idle else -math.inf)
            self.moved_at.setdefault(peer, self.desk.now)
            if idle and peer != self.desk.me.peer and self.desk.now >= since + limit:
                self.desk.say(
                    "warning", "stuck", f"{short(peer)} finished nothing for {limit:.1f} s: its work goes to others"
                )
                self.stuck.add(peer)
                self._send(ledger.lost(peer, (), self.desk.now))

    def _send(self, letters: Letters) -> None:
        for peer, message in letters:
            self.desk.send(peer, message)
