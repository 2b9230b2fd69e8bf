"""Where the machines inside one node put their effects while an event is handled. Decides nothing."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterable

from p2ptrain.core.events import Effect, Say, Send
from p2ptrain.core.messages import Message
from p2ptrain.core.types import PeerId, Voter


class Desk:
    """``now`` and ``rng`` as passed in; ``effects`` of the event at hand; messages to oneself in ``local``."""

    def __init__(self, me: Voter, rng: random.Random) -> None:
        self.me = me
        self.rng = rng
        self.now = 0.0
        self.effects: list[Effect] = []
        self.local: deque[Message] = deque()

    def emit(self, effect: Effect) -> None:
        self.effects.append(effect)

    def send(self, to: PeerId, message: Message) -> None:
        if to == self.me.peer:
            self.local.append(message)
        else:
            self.effects.append(Send(to, message))

    def broadcast(self, peers: Iterable[PeerId], message: Message) -> None:
        """To each peer once, in order of id, oneself included if named."""
        for peer in sorted(set(peers)):
            self.send(peer, message)

    def say(self, level: str, key: str, text: str, round: int = -1) -> None:
        self.effects.append(Say(level, key, text, round))  # type: ignore[arg-type]

    def take(self) -> list[Effect]:
        effects, self.effects = self.effects, []
        return effects
