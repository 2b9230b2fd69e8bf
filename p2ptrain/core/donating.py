"""A donor's side of a join: pin one committed round, offer it, keep it for the pull's lease (R13).

Decides what is pinned and for how long. Does not read state (``Pin`` does) nor serve bytes (the exchange does).
One snapshot per round serves all who ask; at most ``PINS_MAX`` are kept.
"""

from __future__ import annotations

import math

from p2ptrain.core.desk import Desk
from p2ptrain.core.events import Pin, PinFailed, SnapshotPinned, Unpin
from p2ptrain.core.messages import SnapshotAsk, SnapshotOffer, SnapshotRelease
from p2ptrain.core.rounds import StageRound
from p2ptrain.core.types import Digest, PeerId, SnapshotInfo, Voter

PINS_MAX = 2
ASKS_MAX = 64
FOLLOW_S = 10.0
"""Parts since a snapshot stay for so long after its pull, for the rounds that the puller has to follow."""


class Donating:
    """Pinned snapshots (``pinned``: key -> info, lease end, pullers) and who waits for which round."""

    def __init__(self, stage: StageRound) -> None:
        self.stage = stage
        self.desk: Desk = stage.desk
        self.pinned: dict[Digest, tuple[SnapshotInfo, float, set[PeerId]]] = {}
        self.pinning: int | None = None
        self.waiting: dict[PeerId, tuple[int, float]] = {}  # peer -> (round, until)
        self.followed: list[tuple[int, float]] = []  # (round, until): whoever pulled it follows the records since

    @property
    def oldest_round(self) -> float:
        """Parts from this round on must be kept for those who pull, or have just pulled; inf if nobody does."""
        self.followed = [(round, until) for round, until in self.followed if until > self.desk.now]
        rounds = [info.round for info, _, _ in self.pinned.values()] + [round for round, _ in self.followed]
        return min(rounds, default=math.inf)

    def on_ask(self, sender: Voter, message: SnapshotAsk) -> None:
        tip = self.stage.tip
        if tip is None or message.stage != self.stage.stage.index:
            self._refuse(sender.peer, message.round, "no state here yet")
            return
        round = tip.round if message.round < 0 else message.round
        if len(self.waiting) >= ASKS_MAX:
            self._refuse(sender.peer, message.round, "too many ask for state here")
        elif round < tip.round and not any(info.round == round for info, _, _ in self.pinned.values()):
            self._refuse(sender.peer, message.round, f"round {round} is past, holds round {tip.round}")
        else:
            self.waiting[sender.peer] = (round, self.desk.now + self.stage.run.knobs.pull_lease_s)
            self.look()

    def on_release(self, sender: Voter, message: SnapshotRelease) -> None:
        entry = self.pinned.get(message.key)
        if entry is not None:
            entry[2].discard(sender.peer)
            if not entry[2]:
                self._unpin(message.key)

    def on_pinned(self, event: SnapshotPinned) -> None:
        self.pinning = None
        lease = self.desk.now + self.stage.run.knobs.pull_lease_s
        self.pinned[event.info.key] = (event.info, lease, set())
        self.look()

    def on_pin_failed(self, event: PinFailed) -> None:
        self.pinning = None
        for peer in [p for p, (round, _) in self.waiting.items() if round == event.round]:
            del self.waiting[peer]
            self._refuse(peer, event.round, event.reason)

    def look(self) -> None:
        """After a pin, an ask or an applied round: offer what is pinned, pin what is asked for now."""
        tip = self.stage.tip
        if tip is None:
            return
        for peer, (round, _) in sorted(self.waiting.items()):
            entry = next((e for e in self.pinned.values() if e[0].round == round), None)
            if entry is not None:
                entry[2].add(peer)
                del self.waiting[peer]
                self.desk.send(peer, SnapshotOffer(self.stage.stage.index, round, entry[0]))
            elif round < tip.round and self.pinning != round:
                del self.waiting[peer]
                self._refuse(peer, round, f"round {round} is past, holds round {tip.round}")
            elif round == tip.round and self.pinning is None and not self.stage.applying:
                self._make_room()
                self.pinning = round
                self.desk.emit(Pin(self.stage.stage.index, tip, self.stage.chain))

    def peer_lost(self, peer: PeerId) -> None:
        self.waiting.pop(peer, None)
        for key, (_, _, pullers) in list(self.pinned.items()):
            if peer in pullers:
                pullers.discard(peer)
                if not pullers:
                    self._unpin(key)

    def tick(self) -> None:
        for key, (_, until, _) in list(self.pinned.items()):
            if self.desk.now >= until:
                self._unpin(key)
        for peer, (round, until) in list(self.waiting.items()):
            if self.desk.now >= until:
                del self.waiting[peer]
                self._refuse(peer, round, f"round {round} was not reached in time")

    def extend(self, key: Digest, until: float) -> None:
        """A puller shows life: its lease goes on."""
        if key in self.pinned:
            info, _, pullers = self.pinned[key]
            self.pinned[key] = (info, until, pullers)

    def deadline(self) -> float:
        untils = [until for _, until, _ in self.pinned.values()] + [until for _, until in self.waiting.values()]
        return min(untils, default=math.inf)

    def _refuse(self, peer: PeerId, round: int, reason: str) -> None:
        self.desk.send(peer, SnapshotOffer(self.stage.stage.index, round, None, reason, self.stage.head))

    def _make_room(self) -> None:
        while len(self.pinned) >= PINS_MAX:
            self._unpin(min(self.pinned, key=lambda key: self.pinned[key][1]))

    def _unpin(self, key: Digest) -> None:
        self.followed.append((self.pinned[key][0].round, self.desk.now + FOLLOW_S))
        del self.pinned[key]
        self.desk.emit(Unpin(key))
