"""The answering side: who calls (by certificate), what it may call, and the handlers of our methods.

Decides: the caller's id, and who is turned away at the door. A refusal reaches the caller as a status whose text is
``failure|why``; the reason is logged here as well.

    TLS accepted ─► name == hash of key? ─► invite revoked? ─► Hello in time and signed? ─► table.admit ─► link
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Mapping
from functools import lru_cache
from typing import Any

import grpc
from cryptography import x509

from p2ptrain.core.messages import Hello
from p2ptrain.core.types import PeerId, short
from p2ptrain.errors import ProtocolError
from p2ptrain.net import certificates, frames
from p2ptrain.net.boundary import Boundary, HelloRefused
from p2ptrain.net.bulk import BulkHub
from p2ptrain.net.dialing import DialError, TlsProbe, reach
from p2ptrain.net.identity import Identity
from p2ptrain.net.links import Link
from p2ptrain.net.pipes import ContextPipe, PipeBroken
from p2ptrain.net.settings import SERVICE, NetSettings
from p2ptrain.net.table import LinkTable
from p2ptrain.wire import translate

logger = logging.getLogger(__name__)

DIAL_BACK_TIMEOUT_S = 3.0

Revoked = Callable[[], Collection[int]]


class Answerer:
    """Handlers for one gRPC server. ``probe`` is None without TLS (benches only): then callers are believed."""

    def __init__(
        self,
        identity: Identity,
        process: bytes,
        boundary: Boundary,
        table: LinkTable,
        bulk: BulkHub,
        settings: NetSettings,
        hello: Callable[[], bytes],
        revoked: Revoked,
        chain: tuple[bytes, ...],
        probe: TlsProbe | None,
    ) -> None:
        self._identity = identity
        self._process = process
        self._boundary = boundary
        self._table = table
        self._bulk = bulk
        self._settings = settings
        self._hello = hello
        self._revoked = revoked
        self._chain = chain
        self._probe = probe
        self._strangers = 0
        self._dialling_back: set[PeerId] = set()

    def handler(self) -> Any:
        """To be added to a gRPC server."""
        return grpc.method_handlers_generic_handler(
            SERVICE,
            {
                "Link": grpc.stream_stream_rpc_method_handler(self._on_link),
                "Bulk": grpc.stream_stream_rpc_method_handler(self._on_bulk),
                "Pulse": grpc.stream_stream_rpc_method_handler(self._on_pulse),
                "DialBack": grpc.unary_unary_rpc_method_handler(self._on_dial_back),
            },
        )

    async def _on_link(self, _: Any, context: Any) -> None:
        pipe = ContextPipe(context)
        try:
            link = await self._welcome(pipe, context)
        except HelloRefused as refused:
            if refused.failure != "superseded":
                logger.warning("refused a link from %s: %s", context.peer(), refused.detail)
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, f"{refused.failure}|{refused.detail}")
            return
        except PipeBroken as broken:
            logger.info("a caller at %s went away before its Hello: %s", context.peer(), broken.detail)
            return
        try:
            await asyncio.shield(pipe.ended)
        finally:
            link.connection_ended()

    async def _welcome(self, pipe: ContextPipe, context: Any) -> Link:
        caller = self._caller(context)
        if self._strangers >= self._settings.strangers_max:
            raise HelloRefused("unreachable", "too many callers wait at the door: try again")
        self._strangers += 1
        try:
            metadata = (("p2p-process-bin", self._process), *self._answer_metadata(context, caller, self._chain))
            await context.send_initial_metadata(metadata)
            first = await asyncio.wait_for(pipe.read(), self._settings.hello_timeout_s)
            hello = self._boundary.read_hello(first or b"", caller)
            process = _metadata(context).get("p2p-process-bin", b"")
            await self._table.admit(hello, process)
        except asyncio.TimeoutError:
            raise HelloRefused("timeout", "no Hello came in time") from None
        finally:
            self._strangers -= 1
        return self._stand(hello, pipe, process, self._invite_of(context))

    def _stand(self, hello: Hello, pipe: ContextPipe, process: bytes, invite: int) -> Link:
        link = Link(hello.info.peer, hello, pipe, self._settings, process=process, invite=invite)
        link.send(self._hello())
        self._table.stand(link)
        self._table.tell_up(link)
        return link

    async def _on_bulk(self, _: Any, context: Any) -> None:
        try:
            caller = self._caller(context)
        except HelloRefused as refused:
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, refused.detail)
            return
        if caller not in self._table.links:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "no link stands between us")
            return
        metadata = _metadata(context)
        await context.send_initial_metadata(self._answer_metadata(context, caller, ()))
        pipe = ContextPipe(context)
        await self._bulk.accept(caller, pipe, bytes(metadata.get("p2p-token-bin", b"")))
        if pipe.abort_reason:
            await context.abort(grpc.StatusCode.ABORTED, pipe.abort_reason[:300])

    async def _on_pulse(self, _: Any, context: Any) -> None:
        pipe = ContextPipe(context)
        try:
            while await pipe.read() is not None:
                pass
        except PipeBroken as broken:
            logger.debug("pulse of %s ended: %s", context.peer(), broken.detail)

    async def _on_dial_back(self, request: bytes, context: Any) -> bytes:
        try:
            caller = self._caller(context)
            address = translate.dial_back_from_bytes(request).address
        except (HelloRefused, ProtocolError) as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error)[:300])
            return b""
        if caller not in self._table.links or caller in self._dialling_back:
            why = "no link stands between us, or one dial-back is running"
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, why)
            return b""
        self._dialling_back.add(caller)
        try:
            answer = await self._dial_back(address, caller)
        finally:
            self._dialling_back.discard(caller)
        return translate.dial_back_answer_to_bytes(answer)

    async def _dial_back(self, address: str, caller: PeerId) -> translate.DialBackAnswer:
        try:
            found = await reach(address, time.monotonic() + DIAL_BACK_TIMEOUT_S, self._probe, who=True)
        except DialError as error:
            return translate.DialBackAnswer(error.failure, error.detail)
        if found.peer not in ("", caller):
            return translate.DialBackAnswer("certificate", f"{address} is {short(found.peer)}, another peer")
        return translate.DialBackAnswer()

    def _caller(self, context: Any) -> PeerId:
        """The id that belongs to the caller's key. Without TLS (benches only) whatever it says. Raises HelloRefused."""
        if self._probe is None:
            return str(_metadata(context).get("p2p-peer", ""))
        entries = context.auth_context()
        leaves = entries.get("x509_pem_cert", ())
        if len(leaves) != 1:
            raise HelloRefused("certificate", "it showed no certificate")
        leaf = _parsed(bytes(leaves[0]))
        peer = certificates.peer_of(leaf)
        if not peer or certificates.name_of(leaf) != peer:
            raise HelloRefused("certificate", "its certificate's name is not the hash of its key")
        revoked = self._revoked()
        if revoked:
            others = _chain_of(entries)
            fault = certificates.revocation_fault(leaf, others, revoked)
            if fault:
                raise HelloRefused("certificate", f"{fault} (peer {short(peer)}): ask a member for a new one")
        return peer

    def _invite_of(self, context: Any) -> int:
        entries = context.auth_context() if self._probe is not None else {}
        leaves = entries.get("x509_pem_cert", ())
        return certificates.signer_of(_parsed(bytes(leaves[0])), _chain_of(entries)) if leaves else 0

    def _answer_metadata(self, context: Any, caller: PeerId, chain: tuple[bytes, ...]) -> tuple[tuple[str, bytes], ...]:
        nonce = _metadata(context).get("p2p-nonce-bin", b"")
        if self._probe is None or not isinstance(nonce, bytes) or len(nonce) != 32:
            return ()
        signed = frames.proof_bytes(self._boundary.run, nonce, caller, self._identity.peer)
        return (("p2p-proof-bin", frames.pack_proof(self._identity.sign(signed), self._identity.public_key, chain)),)


def _metadata(context: Any) -> dict[str, Any]:
    return dict(context.invocation_metadata() or ())


def _chain_of(entries: Mapping[str, Any]) -> tuple[x509.Certificate, ...]:
    return _parsed_chain(b"".join(entries.get("x509_pem_cert_chain", ())))


@lru_cache(maxsize=1024)
def _parsed(pem: bytes) -> x509.Certificate:
    return x509.load_pem_x509_certificate(pem)


@lru_cache(maxsize=1024)
def _parsed_chain(pem: bytes) -> tuple[x509.Certificate, ...]:
    return tuple(x509.load_pem_x509_certificates(pem)) if pem else ()
