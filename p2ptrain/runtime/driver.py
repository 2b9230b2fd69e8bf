"""Runs a ``Node`` in the asyncio loop: events in, effects out, one timer. Decides nothing.

Everything here happens in the loop's thread; other threads use ``post_threadsafe``. Effects for the torch side wait in
order until ``attach`` (a joiner talks to the network while torch is still being imported).

    transport, trainer, exchange --post--> Node.handle --effects--> transport / hands / directory / journal
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from p2ptrain.core import events as ev
from p2ptrain.core.messages import Gossip, Hello, Leave, Probe, ProbeAck
from p2ptrain.core.node import Node
from p2ptrain.core.types import PeerInfo, RoundResult
from p2ptrain.errors import P2PTrainError, ProtocolError
from p2ptrain.ports import Directory, Transport

logger = logging.getLogger("p2ptrain")

ANNOUNCE_LIFE_S = 900.0
LAG_PERIOD_S = 0.1
PENDING_MAX = 10_000

Watcher = Callable[[ev.Event, list[ev.Effect]], None]


class Signer(Protocol):
    """The peer's identity, as far as the driver needs it."""

    def sign_info(self, run: str, info: PeerInfo) -> PeerInfo: ...

    def sign_leave(self, run: str, leave: Leave) -> Leave: ...


class EffectHands(Protocol):
    """Whoever carries out what is neither a message nor a link."""

    def do(self, effect: ev.Effect) -> None: ...


class Driver:
    """``ended`` is the ``Halt`` that ended this life, once it has. ``loop_lag_s``: the worst since last asked.

    ``before`` and ``after``: watchers of each event with its effects, called before and after they are carried out.
    """

    def __init__(self, node: Node, transport: Transport, signer: Signer, version: str, info: PeerInfo) -> None:
        self.node = node
        self.transport = transport
        self.signer = signer
        self.version = version
        self.run = node.run.run
        self.info = signer.sign_info(self.run, info)
        self.directory: Directory | None = None
        self.before: list[Watcher] = []
        self.after: list[Watcher] = []
        self.on_result: list[Callable[[RoundResult], None]] = []
        self.on_say: list[Callable[[ev.Say], None]] = []
        self.ended: ev.Halt | None = None
        self.loop_lag_s = 0.0
        self._loop = asyncio.get_running_loop()
        self._over = asyncio.Event()
        self._inbox: deque[ev.Event] = deque()
        self._handling = False
        self._hands: EffectHands | None = None
        self._waiting: deque[ev.Effect] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._announcing: asyncio.Task[None] | None = None
        self._lag: asyncio.Task[None] | None = None

    # --- from outside ----------------------------------------------------------------------------------------------

    def hello(self) -> Hello:
        """What this peer says first on every link."""
        node = self.node
        return Hello(self.run, self.info, node.roster.incarnation, node.stage.head, self.version)

    def start(self, event: ev.Started) -> None:
        self._lag = asyncio.ensure_future(self._measure_lag())
        self.post(event)

    def post(self, event: ev.Event) -> None:
        """One event, from the loop's thread. Handled at once, or after the one being handled."""
        self._inbox.append(event)
        if not self._handling:
            self._drain()

    def post_threadsafe(self, event: ev.Event) -> None:
        """One event, from any thread. Dropped when the loop has ended."""
        try:
            self._loop.call_soon_threadsafe(self.post, event)
        except RuntimeError:
            logger.debug("event %s after the loop's end", type(event).__name__)

    def attach(self, hands: EffectHands) -> None:
        """The torch side stands: carry out what has waited for it."""
        self._hands = hands
        while self._waiting:
            hands.do(self._waiting.popleft())

    async def over(self) -> ev.Halt:
        """Wait until this life has ended (bounded by the run itself)."""
        await self._over.wait()
        assert self.ended is not None
        return self.ended

    def end(self, error: str, text: str) -> None:
        """End this life from outside (a failed trainer, a second Ctrl-C)."""
        if self.ended is None:
            self._halt(ev.Halt(error, text))

    def close(self) -> None:
        for task in (self._announcing, self._lag):
            if task is not None:
                task.cancel()
        if self._timer is not None:
            self._timer.cancel()

    def take_lag_s(self) -> float:
        lag, self.loop_lag_s = self.loop_lag_s, 0.0
        return lag

    # --- events and effects ----------------------------------------------------------------------------------------

    def _drain(self) -> None:
        self._handling = True
        try:
            while self._inbox and self.ended is None:
                event = self._inbox.popleft()
                effects = self.node.handle(event, time.monotonic())
                for watcher in self.before:
                    watcher(event, effects)
                for effect in effects:
                    self._do(effect)
                for watcher in self.after:
                    watcher(event, effects)
        except Exception as error:  # a bug in the core or an adapter: this life ends with its name, never silently
            logger.exception("unexpected error while handling an event")
            self.end("P2PTrainError", f"unexpected {type(error).__name__}: {error}")
        finally:
            self._handling = False
        self._set_timer()

    def _do(self, effect: ev.Effect) -> None:
        if isinstance(effect, ev.Send):
            self._send(effect)
        elif isinstance(effect, ev.Dial):
            self.transport.dial(effect.peer, effect.addresses, effect.timeout_s)
        elif isinstance(effect, ev.Hangup):
            self.transport.hangup(effect.peer, effect.reason)
        elif isinstance(effect, ev.Announce):
            self._announce(effect.info)
        elif isinstance(effect, ev.Report):
            for on_result in self.on_result:
                on_result(effect.result)
        elif isinstance(effect, ev.Say):
            for on_say in self.on_say:
                on_say(effect)
        elif isinstance(effect, ev.RoundsAbandoned):
            logger.warning("RoundsAbandoned: rounds %s, for the history %s", effect.rounds, effect.winner.hex()[:8])
        elif isinstance(effect, ev.Halt):
            self._halt(effect)
        elif self._hands is not None:
            self._hands.do(effect)
        elif len(self._waiting) < PENDING_MAX:
            self._waiting.append(effect)

    def _send(self, effect: ev.Send) -> None:
        message = effect.message
        if isinstance(message, Leave) and not message.signature:
            message = self.signer.sign_leave(self.run, message)
        if isinstance(message, Gossip | Probe | ProbeAck):
            message = self._with_own_line_signed(message)
        try:
            self.transport.send(effect.to, message)
        except ProtocolError as error:
            logger.error("a message of our own cannot travel (a bug): %s", error)

    def _with_own_line_signed(self, message: Gossip | Probe | ProbeAck) -> Gossip | Probe | ProbeAck:
        """The core writes our own roster line; others believe it only with our signature."""
        me = self.info.peer
        if not any(line.info.peer == me and not line.info.signature for line in message.updates):
            return message
        lines = tuple(replace(line, info=self.info) if line.info.peer == me else line for line in message.updates)
        return replace(message, updates=lines)

    def _halt(self, effect: ev.Halt) -> None:
        self.ended = effect
        self._over.set()

    # --- beside ----------------------------------------------------------------------------------------------------

    def _announce(self, info: PeerInfo) -> None:
        self.info = self.signer.sign_info(self.run, replace(info, signature=b"", public_key=b""))
        if self._announcing is None or self._announcing.done():
            self._announcing = asyncio.ensure_future(self._announce_again())

    async def _announce_again(self) -> None:
        """Keep our record in the DHT fresh; nothing waits for it."""
        while self.ended is None:
            if self.directory is not None:
                try:
                    await self.directory.announce(self.info, ANNOUNCE_LIFE_S)
                except P2PTrainError as error:
                    logger.debug("announce failed: %s", error)
            await asyncio.sleep(ANNOUNCE_LIFE_S / 4 if self.directory is not None else 1.0)

    async def _measure_lag(self) -> None:
        while self.ended is None:
            before = time.monotonic()
            await asyncio.sleep(LAG_PERIOD_S)
            self.loop_lag_s = max(self.loop_lag_s, time.monotonic() - before - LAG_PERIOD_S)

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        deadline = self.node.deadline()
        if self.ended is None and deadline != float("inf"):
            delay = max(0.0005, deadline - time.monotonic())
            self._timer = self._loop.call_later(delay, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self.post(ev.Ticked())
