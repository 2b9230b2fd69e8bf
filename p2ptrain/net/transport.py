"""``ports.Transport`` over gRPC: links and bulk streams, mutual TLS, one listening port.

Decides nothing of its own: it wires the listening side (``answering``), the dialling side (``calling``), the standing
links (``table``) and the bulk streams (``bulk``) together and gives them one face.

    transport = GrpcTransport(credentials, run, version, listen="0.0.0.0:0")
    addresses = await transport.start(hello, on_event, on_bulk)
    transport.dial("", ("192.0.2.7:4100",), timeout_s=3.0)       # ... LinkUp or DialFailed
    transport.send(peer, Probe(7))                               # ... Received at the other side
    stream = await transport.open_bulk(peer, timeout_s=2.0)

Everything runs in the loop that ``start`` is awaited in. ``insecure=True`` turns TLS off and believes what callers say
of themselves: for benches only.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Sequence
from typing import Any

import grpc
from grpc import aio

from p2ptrain.core.messages import Hello, Message
from p2ptrain.core.types import PeerId, short
from p2ptrain.errors import ProtocolError, TransportError
from p2ptrain.net import addresses as own_addresses
from p2ptrain.net import settings as options
from p2ptrain.net.answering import Answerer, Revoked
from p2ptrain.net.boundary import Boundary
from p2ptrain.net.bulk import BulkHub, GrpcBulkStream
from p2ptrain.net.calling import Caller
from p2ptrain.net.certificates import Credentials, check_own_chain
from p2ptrain.net.dialing import TlsProbe, join_address, split_address
from p2ptrain.net.health import Health
from p2ptrain.net.links import Link
from p2ptrain.net.settings import DIAL_BACK_METHOD, NetSettings
from p2ptrain.net.table import LinkTable
from p2ptrain.ports import OnBulk, OnEvent
from p2ptrain.wire import translate

logger = logging.getLogger(__name__)


class GrpcTransport:
    """See ``ports.Transport``. Raises AdmissionError at construction if the own chain would be refused.

    ``listen``: "host:port", port 0 for any; "" for outbound only. ``announce``: addresses to tell others instead of the
    guessed ones. ``revoked``: serials of ended invites, asked at every handshake.
    """

    def __init__(
        self,
        credentials: Credentials,
        run: str,
        version: str = "",
        *,
        listen: str = "0.0.0.0:0",
        announce: Sequence[str] = (),
        settings: NetSettings | None = None,
        revoked: Revoked = frozenset,
        insecure: bool = False,
    ) -> None:
        if not insecure:
            check_own_chain(credentials, run)
        self._credentials = credentials
        self._settings = settings or NetSettings()
        self._boundary = Boundary(run, version)
        self._listen = listen
        self._announce = tuple(announce)
        self._revoked = revoked
        self._probe = None if insecure else TlsProbe(credentials)
        self._process = secrets.token_bytes(16)
        self._health: Health | None = None
        self._server: Any = None
        self._dials: dict[str, asyncio.Task[None]] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self.port = 0

    @property
    def peer(self) -> PeerId:
        return self._credentials.identity.peer

    async def start(self, hello: Callable[[], Hello], on_event: OnEvent, on_bulk: OnBulk) -> tuple[str, ...]:
        """See ``ports.Transport.start``. ``hello()`` must give a signed info (``Identity.sign_info``)."""
        self._table = LinkTable(self.peer, self._boundary, self._settings, on_event)
        hello_bytes = lambda: translate.to_bytes(hello())  # noqa: E731
        self._caller = Caller(
            self.peer,
            self._process,
            self._boundary,
            self._table,
            self._settings,
            hello_bytes,
            self._control_channel,
            self._revoked,
            None if self._probe is None else self._credentials.root,
            self._probe,
            on_event,
        )
        self._bulk = BulkHub(
            self._settings, self._table.links.get, self._bulk_channel, self._caller.call_metadata, on_bulk
        )
        self._table.on_lost = self._bulk.drop_peer
        self._table.asked_bulk = self._bulk.answer_please
        if not self._listen:
            return ()
        answerer = Answerer(
            self._credentials.identity,
            self._process,
            self._boundary,
            self._table,
            self._bulk,
            self._settings,
            hello_bytes,
            self._revoked,
            self._credentials.chain_der,
            self._probe,
        )
        return await self._serve(answerer)

    async def _serve(self, answerer: Answerer) -> tuple[str, ...]:
        host, port = split_address(self._listen)
        self._health = Health()
        server = aio.server(options=options.server_options(self._settings))
        server.add_generic_rpc_handlers((answerer.handler(), self._health.handler()))
        address = join_address(host, port)
        try:
            if self._probe is None:
                self.port = server.add_insecure_port(address)
            else:
                own = self._credentials
                self.port = server.add_secure_port(
                    address, grpc.ssl_server_credentials([(own.key_pem, own.chain_pem)], own.root_pem, True)
                )
        except RuntimeError as error:
            await server.stop(0)
            raise TransportError(
                f"cannot listen on {address}: the port is in use, or the address is not this machine's",
                hint="choose another with --listen HOST:PORT",
                address=address,
            ) from error
        await server.start()
        self._server = server
        return own_addresses.announced(host, self.port, self._announce)

    def send(self, to: PeerId, message: Message) -> None:
        """Queue on the link to ``to``; without one the message is dropped. Raises ProtocolError if it cannot travel."""
        link = self._table.links.get(to)
        if link is not None:
            link.send(translate.to_bytes(message))

    def dial(self, peer: PeerId, addresses: Sequence[str], timeout_s: float) -> None:
        """See ``ports.Transport.dial``. While a dial of the same peer runs, its result answers this one too."""
        key = peer or "|".join(addresses)
        if key in self._dials:
            return
        task = asyncio.ensure_future(self._caller.dial(peer, addresses, timeout_s))
        self._dials[key] = task
        task.add_done_callback(lambda done: self._dial_done(key, done))

    def hangup(self, peer: PeerId, reason: str) -> None:
        """Say goodbye and end the link (and a running dial). No event follows."""
        dial = self._dials.pop(peer, None)
        if dial is not None:
            dial.cancel()
        link = self._table.remove(peer)
        if link is not None:
            self._close(link, reason)

    def end_revoked(self) -> None:
        """Cut the links of those whose invite has been revoked since; they are refused when they come back."""
        revoked = self._revoked()
        for link in list(self._table.links.values()) if revoked else ():
            if link.invite in revoked:
                logger.warning("cuts the link to %s: its invite was revoked", short(link.peer))
                link.cut("closed", "its invite was revoked")

    async def open_bulk(self, peer: PeerId, timeout_s: float) -> GrpcBulkStream:
        """See ``ports.Transport.open_bulk``."""
        return await self._bulk.open(peer, timeout_s)

    async def ask_dial_back(self, peer: PeerId, address: str, timeout_s: float) -> translate.DialBackAnswer:
        """Ask ``peer``, whom we dialled, whether it can reach us at ``address``. Raises TransportError."""
        link = self._table.links.get(peer)
        if link is None or link.channel is None:
            raise TransportError(f"no link that we dialled to {short(peer)}: it cannot be asked", peer=peer)
        metadata, _ = self._caller.call_metadata()
        call = link.channel.unary_unary(DIAL_BACK_METHOD)
        try:
            question = translate.dial_back_to_bytes(translate.DialBack(address))
            reply = await call(question, timeout=timeout_s, metadata=metadata)
            return translate.dial_back_answer_from_bytes(reply)
        except aio.AioRpcError as error:
            text = f"{short(peer)} gave no answer about {address}: {error.details()}"
            raise TransportError(text, peer=peer) from None
        except ProtocolError as error:
            raise TransportError(f"{short(peer)} gave an unreadable answer about {address}", peer=peer) from error

    async def stop(self, grace_s: float) -> None:
        """Goodbye to everybody, then end within about ``grace_s``. No event follows."""
        self._table.stopping = True
        for task in list(self._dials.values()):
            task.cancel()
        if self._health is not None:
            self._health.stop_serving()
        for peer in list(self._table.links):
            self.hangup(peer, "stopping")
        if self._closing:
            await asyncio.wait(list(self._closing), timeout=grace_s)
        await self._bulk.stop()
        if self._server is not None:
            await self._server.stop(grace_s)

    def describe(self) -> dict[str, object]:
        """For ``status``: links, queued bytes, what was dropped at the boundary."""
        links = {peer: link.queued_bytes for peer, link in self._table.links.items()}
        return {"links": links, "dropped": dict(self._boundary.dropped), "bulk_refused": dict(self._bulk.refused)}

    # --- helpers -----------------------------------------------------------------------------------------------------

    def _close(self, link: Link, reason: str) -> None:
        task = asyncio.ensure_future(link.close(reason))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    def _dial_done(self, key: str, task: asyncio.Task[None]) -> None:
        if self._dials.get(key) is task:
            del self._dials[key]
        if not task.cancelled() and task.exception() is not None:
            logger.error("a dial ended in an unexpected error", exc_info=task.exception())

    def _control_channel(self, peer: PeerId, target: str) -> Any:
        return self._channel(target, options.control_options(self._settings, self._name(peer)))

    def _bulk_channel(self, peer: PeerId, target: str) -> Any:
        return self._channel(target, options.bulk_options(self._settings, self._name(peer)))

    def _name(self, peer: PeerId) -> str:
        return "" if self._probe is None else peer

    def _channel(self, target: str, channel_options: options.Options) -> Any:
        if self._probe is None:
            return aio.insecure_channel(target, options=channel_options)
        own = self._credentials
        credentials = grpc.ssl_channel_credentials(own.root_pem, own.key_pem, own.chain_pem)
        return aio.secure_channel(target, credentials, options=channel_options)
