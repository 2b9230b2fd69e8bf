"""The DHT as the runtime sees it: announce oneself, find others, and never wait for it where training waits.

Decides when the helper is started again (0.5, 1, 2 ... 30 s after a death), when one's record is announced again by
itself (after a restart, and when the first neighbour is met), what is believed of what was found (``dht_records``), and
how many calls run at once. Does not decide whom to dial, and never imports hivemind: only ``dht_helper`` does.

    directory = DhtDirectory(run, seal, unseal, DhtSettings(listen="0.0.0.0:4001", folder=run_folder))
    addresses = await directory.start(invite.dht_peers)       # multiaddresses to put into the next invite
    await directory.announce(info, expires_in_s=900.0)        # False: see directory.status().last_announce
    await directory.find(limit=50)                            # () when nothing, or too late; the reason is in status()

Every call has a deadline. A call that is too late, refused or without a helper returns False or (), with its reason in
``status()``; only ``start`` raises. Records vanish by their expiry alone; nobody removes another's.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from p2ptrain.core.types import PeerId, PeerInfo
from p2ptrain.errors import P2PTrainError, ProtocolError, TransportError
from p2ptrain.net.dht_address import multiaddr_of
from p2ptrain.net.dht_contacts import CONNECTED, UNTRIED
from p2ptrain.net.dht_contacts import MAX_ADDRESSES as MAX_INITIAL_PEERS
from p2ptrain.net.dht_frames import Frame
from p2ptrain.net.dht_process import HELPER_COMMAND, STARTABLE, HelperProcess
from p2ptrain.net.dht_records import Seal, Unseal, bucket_of, members_key, sift
from p2ptrain.net.dht_settings import DhtSettings, DhtStatus, Outcome
from p2ptrain.wire.limits import MAX_RECORD_BYTES, MAX_RECORD_LIFE_S

__all__ = ["DhtDirectory", "DhtSettings", "DhtStatus", "Outcome"]

logger = logging.getLogger(__name__)

IDENTITY_FILE = "dht-identity"
BUCKETS_AT_ONCE = 4


@dataclass
class _Search:
    """What one ``find`` has so far."""

    limit: int
    order: list[int]
    found: dict[PeerId, PeerInfo] = field(default_factory=dict)
    reasons: list[str] = field(default_factory=list)

    @property
    def full(self) -> bool:
        return len(self.found) >= self.limit


class DhtDirectory:
    """``ports.Directory`` over the helper. All methods belong to one loop."""

    def __init__(
        self,
        run: str,
        seal: Seal,
        unseal: Unseal,
        settings: DhtSettings | None = None,
        *,
        command: Sequence[str] = HELPER_COMMAND,
        clock: Callable[[], float] = time.time,
        rng: random.Random | None = None,
    ) -> None:
        """``run``: the manifest's digest, hex. ``clock``: wall time. Raises ConfigError for a wrong address option."""
        self._run, self._seal, self._unseal = run, seal, unseal
        self._settings = settings if settings is not None else DhtSettings()
        self._listen = multiaddr_of(self._settings.listen)
        self._announce = tuple(multiaddr_of(text, key="dht_announce") for text in self._settings.announce)
        self._command, self._clock, self._rng = tuple(command), clock, rng or random.Random()
        self._status = DhtStatus()
        self._dropped: dict[str, int] = {}
        self._initial_peers: tuple[str, ...] = ()
        self._helper: HelperProcess | None = None
        self._supervisor: asyncio.Task[None] | None = None
        self._background: set[asyncio.Task[Any]] = set()
        self._stopping = asyncio.Event()
        self._calls = asyncio.Semaphore(self._settings.calls_max)
        self._own: tuple[PeerInfo, float] | None = None  # last announced, with its lifetime

    async def start(self, initial_peers: Sequence[str]) -> tuple[str, ...]:
        """Start the helper; its own multiaddresses. Initial peers are tried in the background, again and again.

        () if there is no DHT on this platform (said once in the log). Raises TransportError if the helper cannot be
        started or cannot listen (port in use); nothing is left running then.
        """
        if self._supervisor is not None:
            raise TransportError("the DHT directory has been started already")
        self._initial_peers = tuple(initial_peers)[:MAX_INITIAL_PEERS]
        self._status = replace(self._status, state="starting")
        first: asyncio.Future[tuple[str, ...]] = asyncio.get_running_loop().create_future()
        self._supervisor = asyncio.create_task(self._supervise(first))
        try:
            return await first
        except BaseException:
            await self.stop()
            raise

    async def announce(self, info: PeerInfo, expires_in_s: float) -> bool:
        """Store one's record for ``expires_in_s`` (at most a day). True if a node, perhaps only one's own, holds it.

        Announce again before a third of that is over, with the same lifetime: an earlier expiry does not replace a
        later one. After a restart of the helper, and on the first neighbour, it is announced again by itself.
        """
        if not 0.0 < expires_in_s <= MAX_RECORD_LIFE_S:
            return self._note_announce(f"a lifetime of {expires_in_s:g} s is not between 0 and {MAX_RECORD_LIFE_S:g} s")
        self._own = (info, expires_in_s)
        return await self._announce_own()

    async def find(self, limit: int) -> tuple[PeerInfo, ...]:
        """Up to ``limit`` other peers' verified records, buckets read in random order; at the deadline what it has."""
        search = _Search(limit, self._rng.sample(range(self._settings.buckets), self._settings.buckets))
        if limit <= 0:
            return ()
        readers = [asyncio.create_task(self._read_buckets(search)) for _ in range(BUCKETS_AT_ONCE)]
        try:
            _, late = await asyncio.wait(readers, timeout=self._settings.call_timeout_s)
        finally:
            for reader in readers:
                reader.cancel()
            results = await asyncio.gather(*readers, return_exceptions=True)
        if late:
            search.reasons.append(f"not all buckets were read within {self._settings.call_timeout_s:g} s")
        for result in results:
            if isinstance(result, Exception):
                raise result
        reason = "; ".join(dict.fromkeys(search.reasons))
        self._status = replace(self._status, last_find=Outcome(not reason, reason, self._clock()))
        return tuple(search.found.values())[:limit]

    async def add_initial_peers(self, addresses: Sequence[str]) -> None:
        """More multiaddresses to keep in touch with, for example those of members met otherwise. Raises nothing."""
        self._initial_peers = tuple(dict.fromkeys([*self._initial_peers, *addresses]))[:MAX_INITIAL_PEERS]
        if self._helper is not None:
            try:
                await self._call("add", initial_peers=self._initial_peers)
            except TransportError as error:
                logger.debug("initial peers not added: %s", error)  # they are handed over at its next start

    async def stop(self) -> None:
        """End the helper; afterwards none of its processes is left. Idempotent."""
        self._stopping.set()
        if self._supervisor is not None:
            await asyncio.gather(self._supervisor, return_exceptions=True)
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        if self._status.state != "unavailable":
            self._status = replace(self._status, state="stopped", neighbours=0)

    def status(self) -> DhtStatus:
        return replace(self._status, dropped=tuple(sorted(self._dropped.items())))

    # --- the helper's lives -------------------------------------------------------------------------------------------

    async def _supervise(self, first: asyncio.Future[tuple[str, ...]]) -> None:
        pause_s = self._settings.restart_min_s
        while not self._stopping.is_set():
            born = time.monotonic()
            try:
                reason = await self._live(first)
            except TransportError as error:
                if not first.done():
                    first.set_exception(error)
                    return
                reason = str(error)
            except Exception as error:  # a bug of ours: said in full, and no reason to be without a DHT from here on
                logger.exception("the DHT client failed")
                if not first.done():
                    first.set_exception(error)
                    return
                reason = f"{type(error).__name__} in the client"
            if self._stopping.is_set() or self._status.state == "unavailable":
                break
            if time.monotonic() - born >= self._settings.steady_after_s:
                pause_s = self._settings.restart_min_s
            deaths = self._status.deaths + 1
            self._status = replace(self._status, state="restarting", deaths=deaths, last_death=reason, neighbours=0)
            logger.warning("DHT helper died (%d so far): %s; again in %g s", deaths, reason, pause_s)
            await self._pause(pause_s)
            pause_s = min(2 * pause_s, self._settings.restart_max_s)
        if not first.done():
            first.set_exception(TransportError("the DHT was stopped while it started"))

    async def _live(self, first: asyncio.Future[tuple[str, ...]]) -> str:
        """One life, from start to end; why it ended."""
        if not STARTABLE:
            self._give_up("there is no helper for this operating system", first)
            return "unavailable"
        helper = await HelperProcess.spawn(self._on_event, self._command)
        try:
            answer = await self._until_stopped(
                helper.request("start", self._settings.start_timeout_s, **self._start_request(helper))
            )
            if answer is None:
                return "stopped"
            if answer.get("unavailable"):
                self._give_up(str(answer.get("error", ""))[:300], first)
                return "unavailable"
            addresses = tuple(str(address) for address in answer.get("addresses", ()))
            self._status = replace(self._status, state="up", addresses=addresses)
            self._helper = helper
            if not first.done():
                first.set_result(addresses)
            self._announce_again()
            return await self._watch(helper)
        finally:
            self._helper = None
            await helper.destroy()

    def _start_request(self, helper: HelperProcess) -> Frame:
        settings = self._settings
        return {
            "listen": (self._listen,),
            "announce": self._announce,
            "initial_peers": self._initial_peers,
            "identity": str(settings.folder / IDENTITY_FILE) if settings.folder else "",
            "socket_folder": helper.socket_folder,
            "keys": tuple(members_key(self._run, bucket) for bucket in range(settings.buckets)),
            "run": self._run,
            "checker": settings.checker,
            "client_mode": settings.client_mode,
            "auto_nat": settings.auto_nat,
            "port_map": settings.port_map,
            "relay": settings.relay,
        }

    async def _watch(self, helper: HelperProcess) -> str:
        misses = 0
        while not self._stopping.is_set() and misses < 2:
            if await self._until_stopped(_first(helper.ended, self._settings.ping_period_s)) is None:
                break
            if helper.ended.done():
                return helper.ended.result()
            try:
                await self._until_stopped(helper.request("ping", self._settings.ping_period_s))
                misses = 0
            except TransportError:
                misses += 1
        return f"it did not answer for {2 * self._settings.ping_period_s:g} s"

    async def _until_stopped(self, work: Coroutine[Any, Any, Any]) -> Any:
        """The result of ``work``, or None when ``stop`` was called first."""
        task, stop = asyncio.ensure_future(work), asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait((task, stop), return_when=asyncio.FIRST_COMPLETED)
            return task.result() if task.done() else None
        finally:
            stop.cancel()
            task.cancel()
            await asyncio.gather(task, stop, return_exceptions=True)

    async def _pause(self, pause_s: float) -> None:
        try:
            await asyncio.wait_for(self._stopping.wait(), pause_s)
        except asyncio.TimeoutError:
            return

    def _give_up(self, why: str, first: asyncio.Future[tuple[str, ...]]) -> None:
        logger.warning("DHT not available on this platform (%s); peers are found by the invite's addresses alone", why)
        self._status = replace(self._status, state="unavailable", last_death=why)
        if not first.done():
            first.set_result(())

    def _on_event(self, frame: Frame) -> None:
        if frame.get("event") == "refused":
            logger.warning("the DHT helper refused a frame: %s", str(frame.get("error"))[:300])
        if frame.get("event") != "state":
            return
        peers, neighbours = frame.get("initial_peers"), frame.get("neighbours")
        if not isinstance(peers, dict) or not isinstance(neighbours, int):
            return
        before, known = self._status.neighbours, dict(self._status.initial_peers)
        told = tuple((str(address), str(text)[:300]) for address, text in list(peers.items())[:MAX_INITIAL_PEERS])
        self._status = replace(self._status, initial_peers=told, neighbours=neighbours)
        quiet = (CONNECTED, UNTRIED)
        for address, text in told:
            if text not in quiet and known.get(address, UNTRIED) in quiet:
                logger.warning("initial DHT peer %s not reached, others are used, it is tried again: %s", address, text)
        if before == 0 and neighbours > 0:
            self._announce_again()

    # --- calls --------------------------------------------------------------------------------------------------------

    def _announce_again(self) -> None:
        if self._own is not None and self._helper is not None and not self._stopping.is_set():
            task = asyncio.create_task(self._announce_own())
            self._background.add(task)
            task.add_done_callback(self._background.discard)

    async def _announce_own(self) -> bool:
        assert self._own is not None
        info, lifetime_s = self._own
        expires_at = self._clock() + lifetime_s
        key = members_key(self._run, bucket_of(info.peer, self._settings.buckets))
        try:
            sealed = self._seal(info, expires_at)
            if len(sealed) > MAX_RECORD_BYTES:
                raise ProtocolError(f"the record has {len(sealed)} bytes; the bound is {MAX_RECORD_BYTES}")
            answer = await self._call("store", key=key, subkey=info.peer, value=sealed, expires_at=float(expires_at))
        except P2PTrainError as error:
            return self._note_announce(str(error))
        stored = answer.get("stored") is True
        return self._note_announce(
            "" if stored else "no node took the record (is a later expiry held already, or is it badly signed?)"
        )

    def _note_announce(self, reason: str) -> bool:
        self._status = replace(self._status, last_announce=Outcome(not reason, reason, self._clock()))
        return not reason

    async def _read_buckets(self, search: _Search) -> None:
        own = self._own[0].peer if self._own is not None else ""
        while search.order and not search.full:
            bucket = search.order.pop()
            try:
                answer = await self._call("get", key=members_key(self._run, bucket))
            except TransportError as error:
                search.reasons.append(str(error))
                continue
            sifted = await asyncio.to_thread(
                sift, answer.get("records"), bucket, self._settings.buckets, self._unseal, self._clock(),
                search.limit, own,
            )  # fmt: skip
            for reason, count in sifted.dropped.items():
                self._dropped[reason] = self._dropped.get(reason, 0) + count
            for info in sifted.infos:
                known = search.found.get(info.peer)
                if known is None or known.life < info.life:
                    search.found[info.peer] = info

    async def _call(self, op: str, **fields: object) -> Frame:
        """One request within the call time-out, waiting for its turn included. Raises TransportError."""
        timeout_s = self._settings.call_timeout_s
        try:
            return await asyncio.wait_for(self._in_turn(op, time.monotonic() + timeout_s, fields), timeout_s)
        except asyncio.TimeoutError:
            raise TransportError(
                f"{op!r} was not done within {timeout_s:g} s, its wait for other calls included"
            ) from None

    async def _in_turn(self, op: str, until: float, fields: dict[str, object]) -> Frame:
        async with self._calls:
            if self._helper is None:
                raise TransportError(f"the DHT is {self._status.state}")
            return await self._helper.request(op, max(until - time.monotonic(), 0.001), **fields)


async def _first(future: asyncio.Future[str], timeout_s: float) -> bool:
    """True when ``future`` is done or the time is over."""
    await asyncio.wait((future,), timeout=timeout_s)
    return True
