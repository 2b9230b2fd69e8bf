"""The loop's side of a session: transport, node, driver, DHT, and what is answered to others.

Decides the order in which they come up and go down. All methods but those marked "any thread" belong to the loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from p2ptrain import __version__
from p2ptrain.core import events as ev
from p2ptrain.core.messages import Hello
from p2ptrain.core.types import Head, PeerInfo, RoundResult, short
from p2ptrain.errors import AdmissionError, ConfigError, P2PTrainError, ProtocolError, TransferError
from p2ptrain.net.invite import Invite
from p2ptrain.net.transport import GrpcTransport
from p2ptrain.ports import BulkStream
from p2ptrain.runtime import blobs
from p2ptrain.runtime.beside import Beside
from p2ptrain.runtime.driver import Driver
from p2ptrain.runtime.entry import Entry, fetch_manifest, fetch_status, unreachable
from p2ptrain.runtime.journal import Journal, LineFile, result_line
from p2ptrain.runtime.parts import PartStore
from p2ptrain.runtime.pulls import Nothing, Pulls, frames_of
from p2ptrain.runtime.status import status_of
from p2ptrain.wire import bulk

if TYPE_CHECKING:
    from p2ptrain.runtime.exchange import Exchanges
    from p2ptrain.runtime.outfit import Outfit
    from p2ptrain.runtime.session import Session

logger = logging.getLogger("p2ptrain")
T = TypeVar("T")

STOP_GRACE_S = 1.0


class Network:
    """See the module. ``halt``: how the node's life ended, once it has."""

    def __init__(self, session: Session, revoked: Callable[[], frozenset[int]]) -> None:
        self.session = session
        self.halt: ev.Halt | None = None
        self.driver: Driver | None = None
        self.exchanges: Exchanges | None = None
        self.pulls: Pulls | None = None
        self.outfit: Outfit | None = None
        self.beside = Beside(self)
        self.last_result: RoundResult | None = None
        self.last_event = ""
        self.last_counted: dict[str, int] = {}  # peer -> the last round that counts work of it
        self.last_lag_s = 0.0
        self._pace: deque[tuple[int, float]] = deque(maxlen=20)
        self.transport: GrpcTransport | None = None
        self._revoked = revoked
        self._info = PeerInfo(session.identity.peer, session.life)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._leaving = ""
        self._stop: asyncio.Event | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._said: list[ev.Say] = []
        self._journal = Journal(session.folder.journal)
        self._rounds = LineFile(session.folder.rounds)

    # --- any thread ------------------------------------------------------------------------------------------------

    def post_threadsafe(self, event: ev.Event) -> None:
        """An event of the trainer's."""
        if self.driver is not None:
            self.driver.post_threadsafe(event)

    def leave(self, reason: str) -> None:
        self._leaving = self._leaving or reason
        self._call_soon(self._leave)

    def fail(self, error: str, text: str) -> None:
        self._call_soon(lambda: self.driver.end(error, text) if self.driver else None)

    def ask_stop(self) -> None:
        self._call_soon(lambda: self._stop.set() if self._stop else None)

    def attach(self, outfit: Outfit) -> None:
        """The torch side stands."""
        self._call_soon(lambda: self._attach(outfit))

    def call(self, make: Callable[[Pulls], Awaitable[T]], timeout_s: float) -> T:
        """Run a pull in the loop and wait for it here. Raises TransferError after ``timeout_s``."""
        assert self._loop is not None and self.pulls is not None
        pulls = self.pulls

        async def run() -> T:
            return await make(pulls)

        future = asyncio.run_coroutine_threadsafe(run(), self._loop)
        try:
            return future.result(timeout_s)
        except FutureTimeout:
            future.cancel()
            raise TransferError(f"nothing came within {timeout_s:.0f} s", hint="check the connection") from None

    @property
    def addresses(self) -> tuple[str, ...]:
        """What we announce; none: we cannot be dialled."""
        return self._info.addresses

    @property
    def rounds_done(self) -> int:
        tip = self.driver.node.stage.tip if self.driver else None
        return tip.round if tip else 0

    # --- one life --------------------------------------------------------------------------------------------------

    async def live(self) -> None:
        """From listening to goodbye. Raises the named error of what failed."""
        session = self.session
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        settings = session.settings
        entry = Entry()
        self.transport = transport = GrpcTransport(
            session.invite.credentials(session.identity),
            session.invite.run,
            __version__,
            listen="" if settings.outbound_only else str(settings.listen),
            announce=() if settings.announce is None else (str(settings.announce),),
            revoked=self._revoked,
        )
        try:
            addresses = await transport.start(self._hello, entry.on_event, self._on_bulk)
            self._info = replace(
                self._info,
                addresses=addresses,
                region=settings.region,
                party=settings.party,
                memory_bytes=settings.memory_bytes,
                version=__version__,
                threads=max(1, settings.threads),
            )
            if not settings.no_dht:
                self._spawn(self.beside.run_dht())
            if session.founds or await self._unless_stopped(self._enter(entry)):
                self._begin(entry)
                await self._until_over()
        finally:
            await self._close()

    async def _unless_stopped(self, entering: Coroutine[Any, Any, None]) -> bool:
        """False if this peer was asked to stop meanwhile."""
        assert self._stop is not None
        task, stopped = asyncio.ensure_future(entering), asyncio.ensure_future(self._stop.wait())
        await asyncio.wait({task, stopped}, return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        if task.done():
            task.result()
            return True
        task.cancel()
        await asyncio.wait({task}, timeout=STOP_GRACE_S)
        return False

    async def _enter(self, entry: Entry) -> None:
        """A newcomer finds a member and the manifest, and asks whether to go on."""
        session, transport = self.session, self.transport
        assert transport is not None
        contacts = self.beside.contacts()
        if not contacts and (session.settings.no_dht or not session.invite.dht_peers):
            raise ConfigError(
                "the invite names no address and no peer is known from before", hint="ask for a newer invite"
            )

        def dial(addresses: object) -> None:
            for address in contacts:
                transport.dial("", (address,), 4.0)

        await entry.first_member(dial, contacts, session.hooks.patience_s)
        if self._info.addresses:
            await self._see_whether_reachable(entry, dial, contacts)
        nothing = Nothing()
        run = bytes.fromhex(session.invite.run)
        self.pulls = Pulls(transport, run, PartStore(), nothing, nothing, nothing, entry.on_event)
        manifest = await fetch_manifest(self.pulls, list(entry.linked), run)
        if session.hooks.confirm is not None:
            session.run_status = await fetch_status(self.pulls, list(entry.linked), manifest.digest)
            agreed = await asyncio.get_running_loop().run_in_executor(None, session.hooks.confirm, manifest)
            if not agreed:
                raise AdmissionError("not joined: you did not agree to what the run would do here")
        from p2ptrain.runtime.session import check_trust

        check_trust(manifest, session.settings)
        from p2ptrain.config import save_manifest

        save_manifest(session.folder, manifest)
        session.manifest = manifest

    async def _see_whether_reachable(self, entry: Entry, dial: Callable[[object], None], contacts: list[str]) -> None:
        """If nobody can dial us: announce no address, take part over connections of our own, and say so."""
        assert self.transport is not None
        failure = await unreachable(self.transport, entry.linked[0], self._info.addresses)
        if not failure:
            return
        logger.warning(
            "cannot be dialled from outside (%s): takes part over connections that it opens; it contributes and votes, "
            "but reduces and leads nothing. To change that open the port, or say --announce HOST:PORT",
            failure,
        )
        self._info = replace(self._info, addresses=())
        for peer in list(entry.linked):  # the Hello told our addresses: say it again without
            self.transport.hangup(peer, "comes back without addresses")
            entry.forget(peer)
        await entry.first_member(dial, contacts, self.session.hooks.patience_s)

    def _begin(self, entry: Entry) -> None:
        """The node comes to life with what has been heard so far."""
        from p2ptrain.runtime.session import make_node, node_seed

        session, hooks = self.session, self.session.hooks
        assert session.manifest is not None and self.transport is not None
        node = make_node(session.manifest, self._info, session.knobs)
        self._journal.begin(node.run, self._info, node_seed(self._info))
        self.driver = driver = Driver(node, self.transport, session.identity, __version__, self._info)
        driver.before.extend(hooks.before)
        driver.after.append(lambda event, effects: self._journal.write(event, effects, node.desk.now))
        driver.after.extend(hooks.after)
        driver.on_result.append(self._on_result)
        driver.on_result.extend(hooks.on_result)
        driver.on_say.append(self._on_say)
        driver.on_say.extend(hooks.on_say)
        contacts = () if session.founds else tuple(self.beside.contacts())
        driver.start(ev.Started(self._info, contacts if not entry.linked else (), session.founds))
        entry.hand_over(driver.post)
        self._spawn(self.beside.write_status())
        session.ready()
        if hooks.ready is not None:
            hooks.ready(session)
        if self._leaving:
            self._leave()

    async def _until_over(self) -> None:
        assert self.driver is not None and self._stop is not None
        over = asyncio.ensure_future(self.driver.over())
        stopped = asyncio.ensure_future(self._stop.wait())
        until = self.session.settings.until_s
        try:
            timeout = None if until is None else max(0.0, until - time.time())
            done, _ = await asyncio.wait({over, stopped}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            if not done:
                self.leave("--until is reached")
                await asyncio.wait({over, stopped}, return_when=asyncio.FIRST_COMPLETED)
            self.halt = self.driver.ended
        finally:
            over.cancel()
            stopped.cancel()

    async def _close(self) -> None:
        """Let the goodbyes out, end what runs beside, keep the last known peers."""
        for task in list(self._tasks):
            task.cancel()
        if self.driver is not None:
            self.driver.close()
            self.beside.save_peers()
            self.beside.save_status()
        if self.exchanges is not None:
            await self.exchanges.close()
        if self.pulls is not None:
            await self.pulls.close()
        await self.beside.stop()
        if self.transport is not None:
            await self.transport.stop(STOP_GRACE_S)
        self._journal.close()
        self._rounds.close()

    # --- in the loop -----------------------------------------------------------------------------------------------

    def _attach(self, outfit: Outfit) -> None:
        driver = self.driver
        if driver is None or self.transport is None:
            return
        self.outfit = outfit
        hands, self.exchanges, self.pulls = outfit.connect(
            self.transport,
            self._info.peer,
            driver.post,
            lambda: max(0, driver.node.stage.round - 1),
            self.session.settings.upload_mbps,
        )
        driver.attach(hands)

    def _leave(self) -> None:
        if self.driver is not None:
            self.driver.post(ev.LeaveAsked(self._leaving))
        elif self._stop is not None:
            self._stop.set()
            self.session.fail(AdmissionError("left before a member was found"))

    def _hello(self) -> Hello:
        if self.driver is not None:
            return self.driver.hello()
        info = self.session.identity.sign_info(self.session.invite.run, self._info)
        head: Head | None = None
        return Hello(self.session.invite.run, info, 0, head, __version__)

    async def _on_bulk(self, stream: BulkStream) -> None:
        """Everything that others open towards us."""
        try:
            frame = await asyncio.wait_for(stream.receive(), 10.0)
            if frame is None:
                return
            header = bulk.parse_stream_header(frame, bytes.fromhex(self.session.invite.run))
            if header.kind is bulk.StreamKind.BLOB:
                await self._serve_blob(stream, header)
            elif header.kind is bulk.StreamKind.EXCHANGE and self.exchanges is not None:
                await self.exchanges.serve(stream, header)
            elif header.kind is not bulk.StreamKind.EXCHANGE and self.outfit is not None and self.pulls is not None:
                await self.pulls.serve(stream, header)
            else:
                await stream.send(bulk.pack_error("not ready yet"))
                await stream.finish()
        except ProtocolError as error:
            logger.warning("bulk stream from %s refused: %s", short(stream.peer), error.text)
            stream.cancel(error.text)
        except (P2PTrainError, asyncio.TimeoutError) as error:
            logger.debug("bulk stream from %s ended: %s", short(stream.peer), error)
            stream.cancel("ended")

    async def _serve_blob(self, stream: BulkStream, header: bulk.StreamHeader) -> None:
        manifest = self.session.manifest
        data: bytes | None = None
        if manifest is not None and header.digest == manifest.digest:
            data = manifest.to_bytes()
        elif header.digest == blobs.STATUS and self.driver is not None:
            data = json.dumps(status_of(self)).encode()
        if data is None:
            await stream.send(bulk.pack_error("not held here"))
        else:
            await stream.send(bulk.pack_stream_header(replace(header, index=0)))
            for piece in frames_of(data):
                await stream.send(piece)
            await stream.send(bulk.pack_end())
        await stream.finish()

    def members_to_ask(self) -> list[PeerInfo]:
        """Members with a link, those that take part first."""
        if self.driver is None:
            return []
        roster = self.driver.node.roster
        infos = [m.info for m in roster.present() if m.info.peer != self._info.peer and roster.linked(m.info.peer)]
        return sorted(infos, key=lambda info: (info.joined_round < 0, info.peer))

    def invite_now(self) -> Invite:
        """Our own invite with fresh addresses."""
        infos = [self._info]
        if self.driver is not None:
            infos += [m.info for m in self.driver.node.roster.present() if m.info.peer != self._info.peer]
        addresses = tuple(address for info in infos for address in info.addresses)
        return replace(
            self.session.invite, addresses=addresses[:16], dht_peers=self.beside.dht_addresses[:4], created=time.time()
        )

    def _on_result(self, result: RoundResult) -> None:
        self.last_result = result
        self.last_lag_s = lag = self.driver.take_lag_s() if self.driver else 0.0
        self.last_counted.update((peer, result.round) for peer, count in result.contributions if count)
        self._pace.append((result.round, time.monotonic()))
        self._rounds.write(result_line(result, lag))
        if result.contributions:
            logger.info(
                "loss %.4f, %d of %d microbatches by %d peers, stall %.2f s, next voters %d",
                result.loss,
                result.counted,
                result.expected,
                len(result.contributions),
                result.stall_s,
                len(result.voters_next),
                extra={"round": result.round},
            )
        else:
            logger.info(
                "caught up with what others decided: %d of %d microbatches, next voters %d",
                result.counted,
                result.expected,
                len(result.voters_next),
                extra={"round": result.round},
            )
        every = self.session.manifest.evaluate.every_rounds if self.session.manifest else 0
        if every and result.round % every == 0 and self.outfit is not None and self._evaluates():
            round = result.round
            self.outfit.evaluate(lambda loss: self._on_loss(round, loss))

    @property
    def round_s(self) -> float | None:
        """Seconds a round over the last rounds; None before there are two."""
        if len(self._pace) < 2 or self._pace[-1][0] <= self._pace[0][0]:
            return None
        return (self._pace[-1][1] - self._pace[0][1]) / (self._pace[-1][0] - self._pace[0][0])

    def _evaluates(self) -> bool:
        """One peer does it: the acting coordinator."""
        return self.driver is not None and self.driver.node.coordinator == self._info.peer

    def _on_loss(self, round: int, loss: float) -> None:
        """From the training thread."""
        self.session.losses.append((round, loss))
        logger.info("held-out loss %.4f", loss, extra={"round": round})
        for on_loss in self.session.hooks.on_loss:
            on_loss(round, loss)

    def _on_say(self, say: ev.Say) -> None:
        self._said.append(say)
        del self._said[:-50]
        level = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}[
            say.level
        ]
        logger.log(level, "%s", say.text, extra={"round": say.round, "key": say.key})

    @property
    def said(self) -> list[ev.Say]:
        return self._said

    # --- helpers ----------------------------------------------------------------------------------------------------

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._task_done)

    def _task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            logger.error("something beside training failed", exc_info=task.exception())

    def _call_soon(self, action: Callable[[], object]) -> None:
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended: nothing is left to do
                self._loop.call_soon_threadsafe(action)
