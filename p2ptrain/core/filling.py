"""What this peer computes: leases in, bundles out.

Decides which granted positions become which bundle and in what order they are computed. Does not decide who gets
what (``coordinating``), nor what counts (only the record does, C1).

    Grant(round 7, positions 0..5) --record 6 applied--> Compute(ids) --BundleDone--> Filled
"""

from __future__ import annotations

from collections import deque

from p2ptrain.core.desk import Desk
from p2ptrain.core.events import BundleDone, BundleFailed, Compute, MicrobatchDone, Shrink
from p2ptrain.core.messages import Grant, Progress, Revoke
from p2ptrain.core.rounds import StageRound
from p2ptrain.core.types import Bundle, PeerId, Voter

LEADER_SERIAL = 1_000_000  # serials of a leader's own grants start here: above any coordinator's
ROUNDS_AHEAD = 2
SPEED_SMOOTHING = 0.3
PROGRESS_EVERY_S = 0.2


class Filling:
    """A member's leases. ``microbatch_s`` is the smoothed measured time of one microbatch (0 until measured)."""

    def __init__(self, stage: StageRound) -> None:
        self.stage = stage
        self.desk: Desk = stage.desk
        self.grants: dict[int, list[Grant]] = {}
        self.serials: set[tuple[int, PeerId, int]] = set()
        self.queue: deque[tuple[int, tuple[int, ...]]] = deque()  # (bundle index, ids)
        self.running: tuple[int, tuple[int, ...]] | None = None
        self.next_index = 0
        self.done: set[int] = set()
        self.taken: set[int] = set()  # ids in a bundle of this round (queued, running or done)
        self.microbatch_s = 0.0
        self.progress_at = -1e9
        self.coordinator: PeerId | None = None
        self.started_at = 0.0
        self.fill_s = 0.0

    @property
    def expects_more(self) -> bool:
        return self.running is not None or bool(self.queue)

    # --- leases ----------------------------------------------------------------------------------------------------

    def on_grant(self, sender: Voter, message: Grant) -> None:
        stage = self.stage
        if stage.tip is None or message.lineage != stage.tip.lineage:
            return
        key = (message.round, sender.peer, message.serial)
        if key in self.serials or not stage.round <= message.round <= stage.round + ROUNDS_AHEAD:
            return
        self.serials.add(key)
        if message.round == stage.round and not stage.applying:
            self._take(message)
            self._compute_next()
            stage.fill_changed(self.expects_more)
        else:
            self.grants.setdefault(message.round, []).append(message)

    def on_revoke(self, message: Revoke) -> None:
        """Drop what is not started; what is running ends as it is."""
        stage = self.stage
        for grants in [self.grants.get(message.round, [])]:
            for i, grant in enumerate(grants):
                left = tuple(p for p in grant.positions if p not in message.positions)
                grants[i] = Grant(grant.lineage, grant.round, grant.serial, left, grant.done)
        if stage.tip is None or message.round != stage.round or message.lineage != stage.tip.lineage:
            return
        ids = stage.ids()
        drop = {ids[p] for p in message.positions if 0 <= p < len(ids)} - self.done
        self.queue = deque(
            (index, kept) for index, some in self.queue if (kept := tuple(i for i in some if i not in drop))
        )
        if self.running and drop & set(self.running[1]):
            self.desk.emit(Shrink(stage.round, tuple(sorted(drop & set(self.running[1])))))
        self.taken -= drop - set(self.running[1] if self.running else ())

    def new_round(self) -> None:
        """A record was applied: what was granted ahead becomes ids."""
        self.queue.clear()
        self.running = None
        self.next_index = 0
        self.done.clear()
        self.taken.clear()
        self.started_at = self.desk.now
        self.fill_s = 0.0
        round = self.stage.round
        for old in [r for r in self.grants if r < round]:
            del self.grants[old]
        self.serials = {key for key in self.serials if key[0] >= round}
        for grant in self.grants.pop(round, []):
            self._take(grant)
        self._compute_next()
        self.stage.fill_changed(self.expects_more)

    # --- facts -----------------------------------------------------------------------------------------------------

    def on_microbatch(self, event: MicrobatchDone) -> None:
        if event.round != self.stage.round:
            return
        old = self.microbatch_s
        self.microbatch_s = event.seconds if old == 0 else old + SPEED_SMOOTHING * (event.seconds - old)
        self.done.add(event.id)
        self._tell_progress(force=False)

    def on_bundle(self, event: BundleDone | BundleFailed) -> None:
        if self.running is None or event.round != self.stage.round or event.index != self.running[0]:
            return
        dropped = set(self.running[1]) - set(event.ids)
        self.running = None
        self.taken -= dropped
        me = self.desk.me
        self._compute_next()
        refused, reason = (
            (event.ids, event.reason) if isinstance(event, BundleFailed) else (event.refused, "not finite")
        )
        if refused:
            self.desk.say("warning", "refused", f"own gradient of {len(refused)} microbatches refused: {reason}")
            self.stage.refused.extend(refused)
        if isinstance(event, BundleDone) and event.ids:
            self.done.update(event.ids)
            self.stage.bundle_done(Bundle(me.peer, me.life, event.index, event.ids, event.loss_sum), self.expects_more)
        else:
            self.stage.fill_changed(self.expects_more)
        if not self.expects_more:
            self.fill_s = self.desk.now - self.started_at
        self._tell_progress(force=True)

    def again(self) -> None:
        """The state was damaged while this round's work was done: compute it once more."""
        ids = tuple(i for i in self.stage.ids() if i in self.taken)
        self.queue.clear()
        self.done.clear()
        self.stage.bundles.clear()
        if ids:
            self.queue.append((self.next_index, ids))
            self.next_index += 1
        if self.running is not None:
            self.desk.emit(Shrink(self.stage.round, self.running[1]))
            self.running = None
        self._compute_next()
        self.stage.fill_changed(self.expects_more)

    def link_up(self, peer: PeerId) -> None:
        if peer == self.coordinator:
            self._tell_progress(force=True)

    def tell_coordinator(self, coordinator: PeerId | None) -> None:
        """A new acting coordinator rebuilds its ledger from what members report."""
        if coordinator != self.coordinator:
            self.coordinator = coordinator
            self._tell_progress(force=True)

    # --- helpers ---------------------------------------------------------------------------------------------------

    def _take(self, grant: Grant) -> None:
        """What is not taken yet; from the round's leader also what is done: it fits into no set of disjoint bundles."""
        ids = self.stage.ids()
        taken = self.taken - self.done if grant.serial >= LEADER_SERIAL else self.taken
        fresh = tuple(ids[p] for p in grant.positions if 0 <= p < len(ids) and ids[p] not in taken)
        if fresh:
            self.taken.update(fresh)
            self.queue.append((self.next_index, fresh))
            self.next_index += 1

    def _compute_next(self) -> None:
        if self.running is None and self.queue:
            self.running = self.queue.popleft()
            self.desk.emit(Compute(self.stage.stage.index, self.stage.round, *self.running))

    def _tell_progress(self, force: bool) -> None:
        stage = self.stage
        if self.coordinator is None or stage.tip is None:
            return
        if not force and self.desk.now < self.progress_at + PROGRESS_EVERY_S:
            return
        self.progress_at = self.desk.now
        position = stage.positions()
        done = tuple(sorted(position[i] for i in self.done if i in position))
        pending = tuple(sorted(position[i] for i in self.taken - self.done if i in position))
        progress = Progress(stage.tip.lineage, stage.round, done, pending, self.microbatch_s)
        self.desk.send(self.coordinator, progress)
