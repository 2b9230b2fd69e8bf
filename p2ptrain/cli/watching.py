"""Beside a running session: progress of what it waits for, metrics, and what a person should be told unasked.

Decides three things to say: nobody else was met within the first minute, none can dial us (asked of a member), and work
of this peer was not counted for ``QUIET_ROUNDS`` rounds.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

from p2ptrain.cli.screen import Screen, Waiting
from p2ptrain.config_peer import HostPort
from p2ptrain.core import events as ev
from p2ptrain.core.types import RoundResult, short
from p2ptrain.errors import P2PTrainError
from p2ptrain.observe.logs import Context

if TYPE_CHECKING:
    from p2ptrain.observe.metrics import Metrics
    from p2ptrain.runtime.pulls import Pulls
    from p2ptrain.runtime.session import Session

logger = logging.getLogger("p2ptrain")

LOOK_EVERY_S = 0.5
FIRST_MINUTE_S = 60.0
DIAL_BACK_S = 5.0
QUIET_ROUNDS = 5


class Watching:
    """``on_...`` are called in the session's loop; the looking itself has a thread of its own."""

    def __init__(self, context: Context, screen: Screen, metrics_at: HostPort | None) -> None:
        self._context = context
        self._screen = screen
        self._metrics_at = metrics_at
        self._metrics: Metrics | None = None
        self._session: Session | None = None
        self._stop_metrics: Callable[[], None] = _nothing
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._look, name="p2ptrain-watching", daemon=True)
        self._waiting: Waiting | None = Waiting("looks for a member")
        self._called_in = False
        self._asked_dial_back = False
        self._first_round = -1

    @property
    def was_ready(self) -> bool:
        """The session's node has stood."""
        return self._session is not None and self._session.network.driver is not None

    def start(self, session: Session) -> None:
        """Raises TransportError: the port for metrics is in use."""
        self._session = session
        if session.founds:
            self._waiting = Waiting("builds the model (torch, data)")
        if self._metrics_at is not None:
            from p2ptrain.observe.metrics import Metrics

            self._metrics = Metrics(session.invite.name, session.identity.peer)
            self._stop_metrics = self._metrics.serve(*self._metrics_at)
        self._thread.start()

    def stop(self) -> None:
        """Twice is once."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join(timeout=5.0)
        self._screen.waiting(None)
        self._stop_metrics()
        self._stop_metrics = _nothing

    # --- in the session's loop ---------------------------------------------------------------------------------------

    def on_event(self, event: ev.Event, effects: list[ev.Effect]) -> None:
        if isinstance(event, ev.LinkUp):
            where = "dialled" if event.we_dialled else "was dialled by"
            self._called_in = self._called_in or not event.we_dialled
            logger.info("%s %s", where, short(event.info.peer), extra={"key": "link"})

    def on_result(self, result: RoundResult) -> None:
        session = self._session
        if session is None or session.network.driver is None:
            return
        self._context.round = result.round
        self._tell_if_not_counted(result, session)
        if self._metrics is not None:
            members = session.network.driver.node.roster.members()
            statuses = Counter(member.status.value for member in members)
            self._metrics.round_done(result, statuses, session.network.last_lag_s)

    def on_loss(self, round: int, loss: float) -> None:
        if self._metrics is not None:
            self._metrics.held_out(loss)

    # --- in its own thread -------------------------------------------------------------------------------------------

    def _look(self) -> None:
        begun = time.monotonic()
        told = False
        while not self._stopped.wait(LOOK_EVERY_S):
            session = self._session
            if session is None:
                continue
            session.network._call_soon(self._sample)
            line = self._screen.waiting(self._waiting)
            if line:
                logger.info("%s", line, extra={"key": "waiting"})
            if self.was_ready and not told and time.monotonic() - begun > FIRST_MINUTE_S:
                told = True
                self._tell_if_alone(session)
            if self.was_ready and not self._asked_dial_back:
                self._ask_dial_back(session)

    def _sample(self) -> None:
        """In the loop: what this peer waits for before it takes part."""
        assert self._session is not None
        network = self._session.network
        node = network.driver.node if network.driver is not None else None
        if node is None:
            self._waiting = None if self._session.founds else Waiting("looks for a member")
        elif network.outfit is None:
            self._waiting = Waiting("builds the model (torch, data)")
        elif node.catchup.pull is not None:
            done, total, _ = node.catchup.pull.progress()
            self._waiting = Waiting("pulls the state", done, total)
        elif node.catchup.phase != "current":
            self._waiting = Waiting(f"waits for the state ({node.catchup.phase})")
        else:
            self._waiting = None

    def _tell_if_alone(self, session: Session) -> None:
        if session.network.members_to_ask():
            return
        logger.warning(
            "after a minute no other member has been met: trains alone. Did the others get the invite, and can they "
            "reach the port of --listen?",
            extra={"key": "alone"},
        )

    def _ask_dial_back(self, session: Session) -> None:
        """Once, of the first member that we dialled: can it dial us?"""
        transport, own = session.network.transport, session.network._info.addresses
        members = session.network.members_to_ask()
        if transport is None or session.network.pulls is None or not members or not own:
            return
        self._asked_dial_back = True
        if self._called_in:
            return

        async def ask(_: Pulls) -> str:
            told = []
            for address in own:
                answer = await transport.ask_dial_back(members[0].peer, address, DIAL_BACK_S)
                if not answer.failure:
                    return ""
                told.append(f"{address}: {answer.failure} {answer.detail}".strip())
            return "; ".join(told)

        try:
            failed = session.network.call(ask, timeout_s=DIAL_BACK_S * (len(own) + 1))
        except P2PTrainError as error:
            logger.debug("no dial-back: %s", error)
            return
        if failed:
            logger.warning(
                "%s cannot dial this peer (%s): it takes part over connections that it opens. To be dialled, open the "
                "port of --listen or say with --announce where it can be reached",
                short(members[0].peer),
                failed,
                extra={"key": "undialled"},
            )

    def _tell_if_not_counted(self, result: RoundResult, session: Session) -> None:
        if not result.contributions:
            return  # this peer fetched the record only: it does not know
        if self._first_round < 0:
            self._first_round = result.round
        last = session.network.last_counted.get(session.identity.peer)
        quiet = result.round - (self._first_round if last is None else last)
        if quiet and quiet % QUIET_ROUNDS == 0:
            since = "never so far" if last is None else f"the last was round {last}"
            logger.warning(
                "no work of this peer was counted for %d rounds (%s)", quiet, since, extra={"key": "not-counted"}
            )


def _nothing() -> None:
    """No metrics are served."""
