"""What a roster knows of the way to one peer: link, dials, and the suspicion that runs against it.

Decides when a suspicion ends (Lifeguard: independent witnesses shrink it). It does not decide statuses.

    nobody can be asked            suspicion_s
    a helper has not answered yet  suspicion_max_s   (its own link to the peer still stands: busy, or not noticed yet)
    all helpers lost it too        suspicion_s / 2
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

from p2ptrain.core.types import Knobs, PeerId, PeerInfo

SHRINK = 0.5
"""Share of ``suspicion_s`` that is left when every helper confirms."""


@dataclass(slots=True)
class Suspicion:
    """Runs against one silent peer. ``asked``: helpers without an answer yet; ``witnesses``: those that lost it too."""

    since: float
    why: str
    patience_s: float  # without witnesses
    asked: set[PeerId] = field(default_factory=set)
    witnesses: set[PeerId] = field(default_factory=set)
    helpers: int = 0

    def ends(self, knobs: Knobs) -> float:
        """Time at which the peer is held dead, as things stand."""
        if self.asked:
            return self.since + max(knobs.suspicion_max_s, self.patience_s)
        least_s = self.patience_s * SHRINK
        confirmed = min(1.0, math.log(len(self.witnesses) + 1) / math.log(max(self.helpers, 1) + 1))
        return self.since + self.patience_s - (self.patience_s - least_s) * confirmed


class Contact:
    """The way to one peer. Times are absolute, ``math.inf`` means never.

    ``info``: where to dial while the roster has no line of the peer. ``met``: a link stood in this life.
    ``dialling_until``: a dial runs, its answer is overdue at this time. ``heard_at``: when it was heard, by us or by
    another that told us. ``warned``: incarnation in which it was told that others suspect it.
    """

    __slots__ = (
        "_dialling_until", "_redial_at", "_restless", "_suspicion",
        "asked_at", "heard_at", "info", "linked", "met", "peer", "redials", "warned",
    )  # fmt: skip

    def __init__(
        self, linked: bool = False, met: bool = False, heard_at: float = -math.inf, redial_at: float = math.inf
    ) -> None:
        self._restless: dict[PeerId, Contact] | None = None  # of the table it is in
        self.peer: PeerId = ""
        self.info: PeerInfo | None = None
        self.linked = linked
        self.met = met
        self._dialling_until = math.inf
        self._redial_at = redial_at
        self.redials = 0
        self.heard_at = heard_at
        self.asked_at = -math.inf
        self._suspicion: Suspicion | None = None
        self.warned = -1

    @property
    def suspicion(self) -> Suspicion | None:
        return self._suspicion

    @suspicion.setter
    def suspicion(self, suspicion: Suspicion | None) -> None:
        self._suspicion = suspicion
        self._note()

    @property
    def redial_at(self) -> float:
        return self._redial_at

    @redial_at.setter
    def redial_at(self, at: float) -> None:
        self._redial_at = at
        self._note()

    @property
    def dialling_until(self) -> float:
        return self._dialling_until

    @dialling_until.setter
    def dialling_until(self, until: float) -> None:
        self._dialling_until = until
        self._note()

    @property
    def dialling(self) -> bool:
        return self._dialling_until < math.inf

    @property
    def waits(self) -> bool:
        """Something runs or is due at some time."""
        return self._suspicion is not None or self._redial_at < math.inf or self._dialling_until < math.inf

    @property
    def idle(self) -> bool:
        """Nothing runs: the contact can be forgotten."""
        return not self.linked and not self.waits

    def wakes(self, knobs: Knobs) -> float:
        """When this contact next wants to be looked at."""
        ends = self._suspicion.ends(knobs) if self._suspicion else math.inf
        return min(ends, self._redial_at, self._dialling_until)

    def enters(self, peer: PeerId, restless: dict[PeerId, Contact] | None) -> None:
        """It now belongs to a table (or to none), which keeps note of the restless ones."""
        self.peer, self._restless = peer, restless
        self._note()

    def _note(self) -> None:
        if self._restless is None:
            return
        if self.waits:
            self._restless[self.peer] = self
        else:
            self._restless.pop(self.peer, None)


class Contacts:
    """Contacts by peer id. ``restless``: those with something due, so that nobody need look through all the others."""

    def __init__(self) -> None:
        self._table: dict[PeerId, Contact] = {}
        self.restless: dict[PeerId, Contact] = {}

    def __getitem__(self, peer: PeerId) -> Contact:
        return self._table[peer]

    def __iter__(self) -> Iterator[PeerId]:
        return iter(self._table)

    def items(self) -> Iterator[tuple[PeerId, Contact]]:
        return iter(self._table.items())

    def get(self, peer: PeerId) -> Contact | None:
        return self._table.get(peer)

    def put(self, peer: PeerId, contact: Contact) -> Contact:
        """In place of the one before, if there is one."""
        self.pop(peer)
        self._table[peer] = contact
        contact.enters(peer, self.restless)
        return contact

    def ensure(self, peer: PeerId, met: bool = False) -> Contact:
        """The one there is, else a new one."""
        known = self._table.get(peer)
        return known if known is not None else self.put(peer, Contact(met=met))

    def pop(self, peer: PeerId) -> Contact | None:
        contact = self._table.pop(peer, None)
        if contact is not None:
            self.restless.pop(peer, None)
            contact.enters(peer, None)
        return contact

    def suspected(self) -> list[PeerId]:
        """By id."""
        return sorted(peer for peer, contact in self.restless.items() if contact.suspicion is not None)

    def linked(self) -> list[PeerId]:
        """By id."""
        return sorted(peer for peer, contact in self._table.items() if contact.linked)


def shortest_suspicion_s(knobs: Knobs) -> float:
    return knobs.suspicion_s * SHRINK
