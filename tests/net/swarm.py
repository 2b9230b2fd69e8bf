"""Peers on loopback for the tests of ``net``: a run with real certificates, a transport that notes what it is told."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from typing import Any, TypeVar

import grpc
from grpc import aio

from p2ptrain.core.events import Event, LinkUp
from p2ptrain.core.messages import Hello
from p2ptrain.core.types import PeerInfo
from p2ptrain.net import certificates
from p2ptrain.net.certificates import Credentials, Intermediate, Root
from p2ptrain.net.identity import Identity
from p2ptrain.net.settings import NetSettings
from p2ptrain.net.transport import GrpcTransport
from p2ptrain.ports import BulkStream, OnBulk

RUN = "ab" * 32
PATIENCE_S = 20.0

E = TypeVar("E", bound=Event)


class TestRun:
    """One run's root and invite."""

    __test__ = False

    def __init__(self, run: str = RUN, valid_s: float = 3600.0) -> None:
        self.run = run
        self.root = Root.create(run)
        self.invite = Intermediate.create(self.root, valid_s)

    def credentials(self, identity: Identity | None = None) -> Credentials:
        return Credentials.issue(identity or Identity.generate(), self.invite, self.root.certificate)


class Peer:
    """A transport, its events in order, and a way to wait for one."""

    def __init__(
        self,
        run: TestRun,
        *,
        identity: Identity | None = None,
        life: int = 1,
        version: str = "0.1.0",
        on_bulk: OnBulk | None = None,
        settings: NetSettings | None = None,
        listen: str = "127.0.0.1:0",
        claims: dict[str, Any] | None = None,
        **more: Any,
    ) -> None:
        self.identity = identity or Identity.generate()
        self.id = self.identity.peer
        self.run = run
        self.events: list[Event] = []
        self.addresses: tuple[str, ...] = ()
        self._life, self._version, self._claims = life, version, claims or {}
        self._news = asyncio.Event()
        self._on_bulk = on_bulk or echo
        credentials = more.pop("credentials", None) or run.credentials(self.identity)
        self.transport = GrpcTransport(credentials, run.run, version, listen=listen, settings=settings, **more)

    async def start(self) -> Peer:
        self.addresses = await self.transport.start(self.hello, self._on_event, self._on_bulk)
        return self

    def hello(self) -> Hello:
        info = PeerInfo(self.id, self._life, self.addresses, version=self._version)
        fields: dict[str, Any] = {"run": self.run.run, "info": self.identity.sign_info(self.run.run, info)}
        return Hello(**{**fields, "incarnation": 0, "version": self._version, **self._claims})

    def dial(self, other: Peer, *, known: bool = True, timeout_s: float = PATIENCE_S) -> None:
        self.transport.dial(other.id if known else "", other.addresses, timeout_s)

    async def wait(self, kind: type[E], test: Callable[[E], bool] = lambda _: True, after: int = 0) -> E:
        """The first event of this kind (that passes), past or to come; gives up after ``PATIENCE_S``."""

        async def look() -> E:
            while True:
                for event in self.events[after:]:
                    if isinstance(event, kind) and test(event):
                        return event
                self._news.clear()
                await self._news.wait()

        try:
            return await asyncio.wait_for(look(), PATIENCE_S)
        except asyncio.TimeoutError:
            raise AssertionError(f"no {kind.__name__}; there were {self.events}") from None

    def of(self, kind: type[E]) -> list[E]:
        return [event for event in self.events if isinstance(event, kind)]

    def _on_event(self, event: Event) -> None:
        self.events.append(event)
        self._news.set()

    async def stop(self) -> None:
        await self.transport.stop(0.2)


async def echo(stream: BulkStream) -> None:
    """Sends every frame back."""
    while True:
        frame = await stream.receive()
        if frame is None:
            return
        await stream.send(frame)


async def join(one: Peer, other: Peer) -> None:
    """``one`` dials ``other``; both hear of the link."""
    one.dial(other)
    await one.wait(LinkUp, lambda e: e.info.peer == other.id)
    await other.wait(LinkUp, lambda e: e.info.peer == one.id)


def in_loop(test: Callable[..., Any]) -> Callable[..., None]:
    """Runs an async test. (No plugin: one decorator.)"""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        asyncio.run(asyncio.wait_for(test(*args, **kwargs), 60))

    return run


def raw_channel(target: Peer, credentials: Credentials | None, name: str = "", run: TestRun | None = None) -> Any:
    """A plain gRPC channel, as somebody without our code would open it. No credentials: no client certificate."""
    trust = (run or target.run).root.certificate
    if credentials is None:
        tls = grpc.ssl_channel_credentials(certificates.pem(trust))
    else:
        tls = grpc.ssl_channel_credentials(certificates.pem(trust), credentials.key_pem, credentials.chain_pem)
    options = [("grpc.ssl_target_name_override", name or target.id), ("grpc.use_local_subchannel_pool", 1)]
    return aio.secure_channel(f"ipv4:{target.addresses[0]}", tls, options=options)
