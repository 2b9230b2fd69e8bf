"""A member's side of the running exchange: start and stop it, tell the leader what is held and what is in trouble.

Decides what is told and how often. Does not order exchanges (``leading``), nor move bytes (the hands do).

    Begin -> Exchange -> PartHeld .. PartHeld -> Have (own part; then all)
                      -> PartTroubled -> Trouble, again every ``repeat_s`` until the leader orders anew
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from p2ptrain.core.choosing import ids_counted, ids_ordered
from p2ptrain.core.desk import Desk
from p2ptrain.core.events import Exchange, PartTroubled, StopExchange
from p2ptrain.core.messages import Begin, Have, Trouble
from p2ptrain.core.types import Ballot, Digest, PartDone


class Exchanging:
    """The exchange of the highest attempt of the promised ballot (``begin``), None if there is none.

    ``held``: averaged parts of this round held here. ``patience_s``: silence of a stream after which it is in trouble.
    """

    def __init__(self, desk: Desk, held: Mapping[Digest, PartDone], patience_s: float, repeat_s: float) -> None:
        self.desk = desk
        self.held = held
        self.patience_s = patience_s
        self.repeat_s = repeat_s
        self.begin: Begin | None = None
        self.known: set[Digest] = set()  # digests of this round's exchanges: parts of others are not taken
        self.troubles: dict[int, Trouble] = {}
        self.lost: set[tuple[int, int]] = set()  # ranges whose reducer cannot be reached
        self.repeat_at = math.inf
        self.left_running: Digest = b""

    def start(self, begin: Begin) -> None:
        self.stop()
        if self.left_running:
            self.desk.emit(StopExchange(self.left_running))
            self.left_running = b""
        self.begin = begin
        self.known.add(begin.digest)
        self.desk.emit(Exchange(begin, self.patience_s))
        self.tell_have(whole=True)

    def stop(self) -> None:
        """Its streams end; what is held stays."""
        if self.begin is not None:
            self.desk.emit(StopExchange(self.begin.digest))
        self.begin = None
        self.troubles.clear()
        self.lost.clear()
        self.repeat_at = math.inf

    def passed_by(self, ballot: Ballot) -> None:
        """A higher ballot is promised."""
        if self.begin is not None and self.begin.fence.ballot < ballot:
            self.stop()

    def reset(self) -> None:
        """Another round. The last exchange goes on for slower members until the next one starts."""
        if self.begin is not None:
            self.left_running = self.begin.digest
        self.begin = None
        self.known.clear()
        self.troubles.clear()
        self.lost.clear()
        self.repeat_at = math.inf

    def part_held(self, part: PartDone) -> None:
        """Tell the leader of one's own part at once, of all parts once they are whole."""
        if self.begin is None:
            return
        self.troubles = {
            index: told for index, told in self.troubles.items() if self._range(index) != (part.start, part.stop)
        }
        mine = any(o.reducer == self.desk.me.peer and o.start == part.start for o in self.begin.parts)
        if mine or self.all_held():
            self.tell_have(whole=not mine)

    def troubled(self, event: PartTroubled) -> bool:
        """True if it concerns the current exchange."""
        if self.begin is None or event.begin_digest != self.begin.digest or not 0 <= event.part < len(self.begin.parts):
            return False
        if any((part.start, part.stop) == self._range(event.part) for part in self.held.values()):
            return False
        if event.reducer:
            self.lost.add(self._range(event.part))
        fence = self.begin.fence
        told = Trouble(fence, event.begin_digest, event.part, event.bundles, event.reducer, event.reason)
        self.troubles[event.part] = told
        self.repeat_at = self.desk.now + self.repeat_s
        self.desk.send(fence.ballot.peer, told)
        return True

    def tick(self) -> None:
        """What the leader was told may have been lost with a link."""
        if self.begin is None or self.desk.now < self.repeat_at:
            return
        for told in self.troubles.values():
            self.desk.send(told.fence.ballot.peer, told)
        self.repeat_at = self.desk.now + self.repeat_s if self.troubles else math.inf

    def tell_have(self, whole: bool) -> None:
        """To the leader: the parts of the current exchange held here (all of them, or those one reduced)."""
        if self.begin is None:
            return
        me = self.desk.me.peer
        spans = {(o.start, o.stop): o.fixed for o in self.begin.parts if whole or o.reducer == me}
        parts = []
        for part in self.held.values():
            if (part.start, part.stop) in spans:
                fixed = spans[part.start, part.stop]
                if fixed.digest == part.digest if fixed is not None else self._is_ordered(part):
                    parts.append(part)
        if parts:
            self.desk.send(self.begin.fence.ballot.peer, Have(self.begin.fence, self.begin.digest, tuple(parts)))

    def all_held(self) -> bool:
        """Whether every range of the current exchange is held here."""
        if self.begin is None:
            return False
        spans = {(part.start, part.stop) for part in self.held.values()}
        return all((order.start, order.stop) in spans for order in self.begin.parts)

    def is_coming(self, part: PartDone) -> bool:
        """True while the running exchange will bring exactly this range by itself."""
        span = (part.start, part.stop)
        if self.begin is None or span in self.lost or any((p.start, p.stop) == span for p in self.held.values()):
            return False
        return any((o.start, o.stop) == span and o.fixed is None for o in self.begin.parts)

    def _range(self, index: int) -> tuple[int, int]:
        assert self.begin is not None
        return (self.begin.parts[index].start, self.begin.parts[index].stop)

    def _is_ordered(self, part: PartDone) -> bool:
        """Whether this part is what the current Begin ordered for its range (not left from an earlier attempt)."""
        assert self.begin is not None
        for order in self.begin.parts:
            if (order.start, order.stop) == (part.start, part.stop) and order.fixed is None:
                return ids_ordered(order, self.begin) == ids_counted(part)
        return False
