"""The dialling side: from a list of addresses to a link, or to the one failure that says most.

Decides: which address wins and what a failure is called. All addresses at once; the first that shows a live gRPC peer
gets our Hello, the others stay in reserve.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, get_args

import grpc
from cryptography import x509
from grpc import aio

from p2ptrain.core.events import DialFailed, DialFailure
from p2ptrain.core.types import PeerId, short
from p2ptrain.errors import ProtocolError
from p2ptrain.net import certificates, frames
from p2ptrain.net.answering import Revoked
from p2ptrain.net.boundary import Boundary, HelloRefused
from p2ptrain.net.dialing import DialError, Reached, TlsProbe, reach, worst
from p2ptrain.net.links import Link
from p2ptrain.net.pipes import CallPipe, PipeBroken
from p2ptrain.net.settings import LINK_METHOD, NetSettings
from p2ptrain.net.table import LinkTable
from p2ptrain.ports import OnEvent

logger = logging.getLogger(__name__)

_FAILURES: dict[str, DialFailure] = {name: name for name in get_args(DialFailure)}


class _Quiet(Exception):
    """The dial is over and nothing is to be told: a link of this pair stands, or is about to."""


@dataclass(frozen=True)
class Ready:
    """A channel that stands."""

    reached: Reached
    channel: Any


class Caller:
    """Dials. ``connect(peer, target)`` gives a control channel."""

    def __init__(
        self,
        own: PeerId,
        process: bytes,
        boundary: Boundary,
        table: LinkTable,
        settings: NetSettings,
        hello: Callable[[], bytes],
        connect: Callable[[PeerId, str], Any],
        revoked: Revoked,
        root: x509.Certificate | None,
        probe: TlsProbe | None,
        on_event: OnEvent,
    ) -> None:
        self._own = own
        self._process = process
        self._boundary = boundary
        self._table = table
        self._settings = settings
        self._hello = hello
        self._connect = connect
        self._revoked = revoked
        self._invites: dict[PeerId, int] = {}  # proven in the handshake that runs
        self._root = root
        self._probe = probe
        self._on_event = on_event

    def call_metadata(self) -> tuple[list[tuple[str, Any]], Any]:
        """Metadata for a call, and ``prove(call, peer)`` that checks the answer's proof.

        It is False if there is none, as in a refusal: then no frame may be believed. Raises ProtocolError, PipeBroken.
        """
        nonce = secrets.token_bytes(32)
        metadata: list[tuple[str, Any]] = [("p2p-nonce-bin", nonce), ("p2p-process-bin", self._process)]
        if self._probe is None:
            metadata.append(("p2p-peer", self._own))

        async def prove(call: Any, peer: PeerId) -> bool:
            return self._probe is None or await self._prove(call, peer, nonce)

        return metadata, prove

    async def dial(self, peer: PeerId, addresses: Sequence[str], timeout_s: float) -> None:
        """Ends in one LinkUp (from here or from the peer's own dial) or one DialFailed."""
        standing = self._table.links.get(peer)
        if standing is not None:
            self._table.tell_up(standing)
            return
        try:
            await self._race(peer, addresses, time.monotonic() + timeout_s)
        except _Quiet:
            logger.debug("dial of %s: the link stands already", short(peer))
        except DialError as error:
            logger.info("dial of %s failed (%s): %s", short(peer) or "an unknown peer", error.failure, error.detail)
            self._on_event(DialFailed(peer, error.address, error.failure, error.detail))

    async def _race(self, peer: PeerId, addresses: Sequence[str], deadline: float) -> None:
        failures: list[DialError] = []
        greeted: list[Ready] = []
        attempts = [asyncio.ensure_future(self._knock(peer, address, deadline)) for address in dict.fromkeys(addresses)]
        try:
            for done in asyncio.as_completed(attempts):
                try:
                    ready = await done
                    greeted.append(ready)
                    await self._greet(ready, deadline)
                    return
                except DialError as error:
                    failures.append(error)
        finally:
            await _close_unused(attempts, greeted)
        if not failures:
            raise DialError("unreachable", "it has no address to dial")
        chosen = worst(failures, self._table.last_good.get(peer, ""))
        everything = "; ".join(failure.detail for failure in failures)
        raise DialError(chosen.failure, everything, chosen.address)

    async def _knock(self, peer: PeerId, address: str, deadline: float) -> Ready:
        """TCP, who it is, and a channel that is ready: TLS both ways and HTTP/2 settings exchanged."""
        found = await reach(address, deadline, self._probe, who=not peer)
        if not peer and found.peer == self._own:
            raise DialError("duplicate", f"{address} is this peer itself, or another process with its key", address)
        known = Reached(address, found.target, peer or found.peer)
        channel = self._connect(known.peer, known.target)
        try:
            state = channel.get_state(try_to_connect=True)
            while state is not grpc.ChannelConnectivity.READY:
                if state in (grpc.ChannelConnectivity.TRANSIENT_FAILURE, grpc.ChannelConnectivity.SHUTDOWN):
                    raise await self._diagnosed(known, deadline)
                left = deadline - time.monotonic()
                await asyncio.wait_for(channel.wait_for_state_change(state), max(0.001, left))
                state = channel.get_state(try_to_connect=True)
        except asyncio.TimeoutError:
            await channel.close()
            raise DialError("timeout", f"{address} accepts connections but does not answer", address) from None
        except BaseException:
            await asyncio.shield(channel.close())
            raise
        return Ready(known, channel)

    async def _diagnosed(self, reached: Reached, deadline: float) -> DialError:
        """gRPC could not connect where TCP could: find out why."""
        address = reached.address
        if self._probe is None:
            return DialError("unreachable", f"{address} does not speak gRPC without TLS", address)
        try:
            found = await self._probe.ask(reached.target, address, deadline, patient=True)
        except DialError as error:
            return error
        if found != reached.peer:
            return DialError("certificate", f"{address} is now {short(found)}, not {short(reached.peer)}", address)
        return DialError("unreachable", f"{address} ended the connection", address)

    async def _greet(self, ready: Ready, deadline: float) -> None:
        """Hello both ways, then the link stands. Raises DialError, _Quiet."""
        peer, address = ready.reached.peer, ready.reached.address
        call: Any = None
        try:
            future = self._table.begin_dial(peer or address)
        except HelloRefused:
            await ready.channel.close()
            standing = self._table.links.get(peer)
            if standing is not None:
                self._table.tell_up(standing)
            raise _Quiet() from None
        stood = False
        try:
            metadata, prove = self.call_metadata()
            call = ready.channel.stream_stream(LINK_METHOD)(metadata=metadata)
            hello_task = asyncio.ensure_future(self._exchange_hellos(call, prove, ready))
            both: list[asyncio.Future[Any]] = [hello_task, future]
            left_s = max(0.001, deadline - time.monotonic())
            await asyncio.wait(both, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
            if future.done() and peer in self._table.links:
                hello_task.cancel()
                raise _Quiet()
            if not hello_task.done():
                hello_task.cancel()
                raise DialError("timeout", f"{address} accepted the connection but did not say Hello", address)
            link, round_trip_s = hello_task.result()
            if link.peer in self._table.links:
                raise _Quiet()
            self._table.stand(link)
            stood = True
            self._table.tell_up(link, round_trip_s)
        except HelloRefused as refused:
            await self._on_refused(refused, peer, address, future, deadline)
        finally:
            self._table.end_dial(peer or address, future)
            if not stood:
                if call is not None:
                    call.cancel()
                await ready.channel.close()

    async def _exchange_hellos(self, call: Any, prove: Any, ready: Ready) -> tuple[Link, float]:
        reached = ready.reached
        pipe = CallPipe(call)
        began = time.monotonic()
        try:
            await pipe.write(self._hello())
            proven = await prove(call, reached.peer)
            first = await pipe.read()
            if not proven:
                raise HelloRefused("certificate", "it answered without a proof of its key")
            process = bytes((await initial_metadata(call)).get("p2p-process-bin", b""))
        except ProtocolError as error:
            raise HelloRefused("certificate", error.text) from None
        except PipeBroken as broken:
            raise _refusal(broken) from None
        round_trip_s = time.monotonic() - began
        if first is None:
            raise HelloRefused("unreachable", "it ended the stream before its Hello")
        hello = self._boundary.read_hello(first, reached.peer)
        link = Link(
            hello.info.peer,
            hello,
            pipe,
            self._settings,
            process=process,
            target=reached.target,
            address=reached.address,
            channel=ready.channel,
            invite=self._invites.pop(reached.peer, 0),
        )
        return link, round_trip_s

    async def _on_refused(
        self, refused: HelloRefused, peer: PeerId, address: str, future: asyncio.Future[bool], deadline: float
    ) -> None:
        if refused.failure != "superseded":
            failure = _FAILURES.get(refused.failure, "unreachable")
            raise DialError(failure, f"{address}: {refused.detail}", address) from None
        # the peer's own stream wins: its Hello is on its way, or here already
        await asyncio.wait([future], timeout=max(0.001, deadline - time.monotonic()))
        if peer in self._table.links:
            raise _Quiet() from None
        raise DialError("timeout", f"{address}: two dials crossed and neither ended in a link", address) from None

    async def _prove(self, call: Any, peer: PeerId, nonce: bytes) -> bool:
        metadata = await initial_metadata(call)
        signed = frames.proof_bytes(self._boundary.run, nonce, self._own, peer)
        proof = metadata.get("p2p-proof-bin", b"")
        if not proof:
            return False  # the read that follows tells why: a refusal, or a broken stream
        chain = frames.check_proof(proof, signed, peer)
        if len(chain) == 2 and self._root is not None:
            leaf, intermediate = (certificates.load_certificate(der, "the answer's chain") for der in chain)
            fault = certificates.chain_fault((leaf, intermediate), self._root, self._revoked())
            if not fault and certificates.peer_of(leaf) != peer:
                fault = "it is another peer's"
            if fault:
                raise ProtocolError(f"the certificate of {short(peer)}: {fault}")
            self._invites[peer] = intermediate.serial_number
        return True


async def initial_metadata(call: Any) -> dict[str, Any]:
    try:
        return dict(await call.initial_metadata() or ())
    except aio.AioRpcError as error:
        raise PipeBroken(error.details() or "", error.code().name) from None


def _refusal(broken: PipeBroken) -> HelloRefused:
    failure, bar, why = broken.detail.partition("|")
    if broken.code == "FAILED_PRECONDITION" and bar:
        return HelloRefused(failure, why)
    return HelloRefused("unreachable", f"the stream ended before its Hello: {broken.detail}")


async def _close_unused(attempts: Sequence[asyncio.Task[Ready]], greeted: Sequence[Ready]) -> None:
    """End attempts that run still, and close channels that were not greeted (those are in use, or closed already)."""
    for attempt in attempts:
        attempt.cancel()
    for result in await asyncio.gather(*attempts, return_exceptions=True):
        if isinstance(result, Ready) and not any(result is one for one in greeted):
            await result.channel.close()
