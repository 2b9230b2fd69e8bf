"""All standing links of this peer: which stream of a pair survives, and the facts the core hears of them.

Decides: whether a link may stand beside what stands already. At most one link per peer, whoever dialled:

    a Hello of a peer we hold a link to   ask the old link: an answer refuses the newcomer (same process: superseded;
                                          another process with this key: duplicate), silence replaces the old one
    both dial at once                     the stream opened by the smaller id survives; the other ends unheard

It does not decide what is said on a link.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from p2ptrain.core.events import LinkLost, LinkUp, LossCause, Received
from p2ptrain.core.messages import Hello
from p2ptrain.core.types import PeerId, Voter, short
from p2ptrain.net.boundary import Boundary, HelloRefused
from p2ptrain.net.dialing import DialError, reach
from p2ptrain.net.links import Link
from p2ptrain.net.settings import NetSettings
from p2ptrain.ports import OnEvent

logger = logging.getLogger(__name__)


class LinkTable:
    """Lives in the loop. ``on_lost`` and ``asked_bulk`` are set by the transport."""

    def __init__(self, own: PeerId, boundary: Boundary, settings: NetSettings, on_event: OnEvent) -> None:
        self.links: dict[PeerId, Link] = {}
        self.last_good: dict[PeerId, str] = {}  # address of the last link that we dialled
        self.stopping = False
        self._own = own
        self._boundary = boundary
        self._settings = settings
        self._on_event = on_event
        self._dials: dict[PeerId, asyncio.Future[bool]] = {}
        self.on_lost: Callable[[PeerId, str], None] = _nothing
        self.asked_bulk: Callable[[Link, bytes], None] = _nothing

    def begin_dial(self, peer: PeerId) -> asyncio.Future[bool]:
        """From here until the future is done, our Hello is on its way to ``peer``. True: the peer's own link stands.

        Raises HelloRefused (superseded) if a link stands or another dial of ours is on its way.
        """
        if peer in self.links or peer in self._dials:
            raise HelloRefused("superseded", "a link stands already, or is about to")
        future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._dials[peer] = future
        return future

    def end_dial(self, peer: PeerId, future: asyncio.Future[bool]) -> None:
        if self._dials.get(peer) is future:
            del self._dials[peer]
        if not future.done():
            future.set_result(False)

    async def admit(self, hello: Hello, process: bytes) -> None:
        """Wait until an incoming link may stand. Raises HelloRefused. No await may come between this and ``stand``."""
        peer, life = hello.info.peer, hello.info.life
        if peer == self._own:
            raise HelloRefused("duplicate", "this is the key of the peer that was dialled: two live peers with one key")
        while True:
            if self.stopping:
                raise HelloRefused("unreachable", "this peer is leaving")
            standing = self.links.get(peer)
            if standing is not None:
                await self._challenge(standing, life, process)
                continue
            mine = self._dials.get(peer)
            if mine is None or peer < self._own:
                break
            await asyncio.wait([mine], timeout=self._settings.hello_timeout_s)
            if peer not in self.links and self._dials.get(peer) is mine:
                raise HelloRefused("superseded", "two dials crossed and neither ended")
        if len(self.links) >= self._settings.links_max:
            raise HelloRefused("unreachable", f"this peer holds {self._settings.links_max} links already")

    async def _challenge(self, standing: Link, life: int, process: bytes) -> None:
        """Raises HelloRefused if the standing link is kept; otherwise it is gone."""
        peer = standing.peer
        text = f"two live peers with one key: life {standing.life} is connected and answers, yours is {life}"
        if life < standing.life:
            raise HelloRefused("duplicate", text)
        alive = await standing.alive(self._settings.alive_check_s)
        if self.links.get(peer) is not standing:
            return
        if alive and process == standing.process:
            raise HelloRefused("superseded", "a link to this process stands already")
        if alive:
            logger.warning("refused a second live peer with the key of %s (life %d)", short(peer), life)
            raise HelloRefused("duplicate", text)
        standing.cut("reset", f"replaced by a new connection of life {life}")

    def stand(self, link: Link) -> None:
        """Register, start, and tell the core; ends our own dial of this peer, if one is on its way."""
        self.links[link.peer] = link
        link.received, link.ended, link.refused_here = self._received, self._ended, self._refused_here
        link.asked_bulk = self.asked_bulk
        if link.we_dialled:
            self.last_good[link.peer] = link.address
        mine = self._dials.pop(link.peer, None)
        if mine is not None and not mine.done():
            mine.set_result(not link.we_dialled)
        link.start()

    def tell_up(self, link: Link, round_trip_s: float = 0.0) -> None:
        self._on_event(LinkUp(link.hello.info, link.hello.incarnation, link.we_dialled, round_trip_s))

    def remove(self, peer: PeerId) -> Link | None:
        """Forget the link; the caller ends it and no event follows."""
        link = self.links.pop(peer, None)
        if link is not None:
            self.on_lost(peer, "the link was closed here")
        return link

    def _received(self, link: Link, frame: bytes) -> None:
        message = self._boundary.read(frame, link.peer)
        if message is not None and self.links.get(link.peer) is link:
            self._on_event(Received(Voter(link.peer, link.life), message))

    def _ended(self, link: Link, cause: LossCause, detail: str) -> None:
        if self.links.get(link.peer) is not link:
            return
        del self.links[link.peer]
        self.on_lost(link.peer, f"the link to {short(link.peer)} is lost: {detail}")
        logger.info("link to %s lost (%s): %s", short(link.peer), cause, detail)
        self._on_event(LinkLost(link.peer, link.life, cause, detail))

    async def _refused_here(self, link: Link) -> bool:
        """Does the peer's own port say that the process is gone?"""
        addresses = link.hello.info.addresses[:4]
        deadline = time.monotonic() + self._settings.alive_check_s
        results = await asyncio.gather(*(reach(a, deadline) for a in addresses), return_exceptions=True)
        return bool(results) and all(isinstance(r, DialError) and r.failure == "refused" for r in results)


def _nothing(*_: object) -> None:
    """Until the transport sets it."""
