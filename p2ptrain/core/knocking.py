"""The first contacts: addresses from the invite or the last known peers, dialled until somebody answers.

Decides when they are dialled again. What follows once a link stands is the roster's.

    no state, nobody known who has it -> all addresses at once -> a pause that grows -> again

Newcomers that have met only each other go on knocking: together they hold nothing.
"""

from __future__ import annotations

import math

from p2ptrain.core.desk import Desk
from p2ptrain.core.events import Dial
from p2ptrain.core.types import Knobs

PAUSE_MAX = 8.0
"""The pause between two turns grows to so many ``redial_s``."""


class Knocking:
    """``addresses``: empty for the founder, and when there is nobody to ask."""

    def __init__(self, desk: Desk, knobs: Knobs) -> None:
        self.desk = desk
        self.knobs = knobs
        self.addresses: tuple[str, ...] = ()
        self.turns = 0
        self.at = math.inf

    def start(self, addresses: tuple[str, ...]) -> None:
        self.addresses = addresses
        self._dial()

    def look(self, lost: bool) -> None:
        """After every event: ``lost`` while there is no state here and nobody is known to hold it."""
        if not lost:
            self.at = math.inf
            self.turns = 0
        elif self.at == math.inf and self.addresses:
            self.at = self.desk.now + self.knobs.redial_s * min(2.0**self.turns, PAUSE_MAX)

    def tick(self) -> None:
        if self.desk.now >= self.at:
            self.at = math.inf
            self._dial()

    def _dial(self) -> None:
        self.turns += 1
        for address in self.addresses:
            self.desk.emit(Dial("", (address,), 3 * self.knobs.dial_timeout_s))
