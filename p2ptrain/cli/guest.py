"""Looks at a run from outside: links to a member with a key of its own, reads its status, says goodbye.

Decides nothing about the run: a guest announces no address, never says from which round it takes part (so it is dealt
no work and never votes), answers probes so that it is not taken for dead, and ends with a signed goodbye.

    async with visiting(invite, patience_s=10) as ask:
        status = await ask()
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

from p2ptrain import __version__
from p2ptrain.core import events as ev
from p2ptrain.core.messages import Hello, Leave, Probe, ProbeAck
from p2ptrain.core.types import PeerInfo
from p2ptrain.errors import ConfigError, TransferError
from p2ptrain.net.identity import Identity
from p2ptrain.net.invite import Invite
from p2ptrain.net.transport import GrpcTransport
from p2ptrain.ports import BulkStream
from p2ptrain.runtime.entry import DIAL_S, Entry, fetch_status
from p2ptrain.runtime.pulls import Pulls

STOP_GRACE_S = 1.0

Ask = Callable[[], Awaitable[dict[str, Any]]]


@contextlib.asynccontextmanager
async def visiting(invite: Invite, patience_s: float) -> AsyncIterator[Ask]:
    """Yields what asks one of the members met for its status. Its key is forgotten at the end.

    Raises TransportError (nobody reached), AdmissionError (the invite has expired), ConfigError (it names no address);
    the question itself TransferError.
    """
    if not invite.addresses:
        raise ConfigError("the invite names no address of a member", hint="ask for a newer invite", key="invite")
    with tempfile.TemporaryDirectory(prefix="p2ptrain-guest-") as folder:
        identity = Identity.load_or_create(Path(folder) / "keys")
    run = bytes.fromhex(invite.run)
    info = identity.sign_info(invite.run, PeerInfo(identity.peer, int(time.time() * 1000)))
    transport = GrpcTransport(invite.credentials(identity), invite.run, __version__, listen="")
    entry = Entry()

    def on_event(event: ev.Event) -> None:
        if isinstance(event, ev.Received):
            if isinstance(event.message, Probe):
                transport.send(event.sender.peer, ProbeAck(event.message.seq))
        else:
            entry.on_event(event)
            entry.events.clear()

    async def ask() -> dict[str, Any]:
        status = await fetch_status(pulls, list(entry.linked), run)
        if not status:
            raise TransferError("no member tells its status", hint="try again, or use another invite")
        return status

    def dial(addresses: object) -> None:
        for address in invite.addresses:
            transport.dial("", (address,), DIAL_S)

    await transport.start(lambda: Hello(invite.run, info, 0, None, __version__), on_event, _refuse)
    pulls = Pulls(transport, run, None, None, None, None, on_event)  # type: ignore[arg-type]
    try:
        await entry.first_member(dial, invite.addresses, patience_s)
        yield ask
    finally:
        goodbye = identity.sign_leave(invite.run, Leave(info.peer, info.life, "looked at the status"))
        for peer in entry.linked:
            transport.send(peer, goodbye)
        await asyncio.sleep(0)
        await transport.stop(STOP_GRACE_S)


async def _refuse(stream: BulkStream) -> None:
    stream.cancel("a guest holds nothing")
