"""Real processes: kill -9 shows as reset and then refused, SIGSTOP as silent, a held GIL as nothing at all."""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from p2ptrain.core.events import DialFailed, LinkLost, LinkUp, Received
from p2ptrain.core.messages import Probe
from p2ptrain.errors import TransportError
from p2ptrain.net.invite import Invite, make_invite, parse_invite
from tests.net.swarm import PATIENCE_S, Peer, TestRun, in_loop

HELD_S = 3


@asynccontextmanager
async def child(run: TestRun, dials: Peer | None, listens: bool = True) -> AsyncIterator[subprocess.Popen[bytes]]:
    """Another peer in a process of its own; ``addresses`` and ``peer`` come on its first line of output."""
    invite = Invite(run.run, "test", run.root.certificate, run.invite, dials.addresses if dials else ())
    command = [sys.executable, "-m", "tests.net.test_death", make_invite(invite), "127.0.0.1:0" if listens else ""]
    root = str(Path(__file__).parents[2])
    environment = {**os.environ, "PYTHONPATH": root}
    process = subprocess.Popen(command, cwd=root, env=environment, stdout=subprocess.PIPE)  # noqa: ASYNC220
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


async def first_line(process: subprocess.Popen[bytes]) -> dict[str, object]:
    assert process.stdout is not None
    return json.loads(await asyncio.wait_for(asyncio.to_thread(process.stdout.readline), PATIENCE_S))


@in_loop
@pytest.mark.parametrize("who_dials", ["we", "the other"])
async def test_a_killed_process_is_a_reset_and_then_refused(who_dials: str) -> None:
    run = TestRun()
    host = await Peer(run).start()
    async with child(run, host if who_dials == "the other" else None) as process:
        told = await first_line(process)
        if who_dials == "we":
            host.transport.dial("", told["addresses"], PATIENCE_S)
        up = await host.wait(LinkUp)
        assert up.info.peer == told["peer"] and up.we_dialled is (who_dials == "we")
        stream = await host.transport.open_bulk(up.info.peer, PATIENCE_S)
        await stream.send(b"x")
        assert await stream.receive() == b"x"
        waiting = asyncio.ensure_future(stream.receive())
        process.send_signal(signal.SIGKILL)
        lost = await host.wait(LinkLost)
        assert (lost.peer, lost.cause) == (up.info.peer, "reset")
        with pytest.raises(TransportError):
            await waiting
        host.transport.dial(up.info.peer, up.info.addresses, PATIENCE_S)
        assert (await host.wait(DialFailed)).failure == "refused"
    await host.stop()


@in_loop
@pytest.mark.parametrize("who_dials", ["we", "the other", "the other, listening to nothing"])
async def test_a_stopped_process_is_silent(who_dials: str) -> None:
    run = TestRun()
    host = await Peer(run).start()
    async with child(run, None if who_dials == "we" else host, "nothing" not in who_dials) as process:
        told = await first_line(process)
        if who_dials == "we":
            host.transport.dial("", told["addresses"], PATIENCE_S)
        up = await host.wait(LinkUp)
        process.send_signal(signal.SIGSTOP)
        lost = await host.wait(LinkLost)
        assert (lost.peer, lost.cause) == (up.info.peer, "silent")
        if up.info.addresses:
            host.transport.dial(up.info.peer, up.info.addresses, 1.0)
            assert (await host.wait(DialFailed)).failure == "timeout", "its kernel still takes connections"
        process.send_signal(signal.SIGCONT)
        if up.info.addresses:
            host.transport.dial(up.info.peer, up.info.addresses, PATIENCE_S)
            await host.wait(LinkUp, after=len(host.events))
    await host.stop()


@in_loop
@pytest.mark.parametrize("who_dials", ["we", "the other"])
async def test_a_process_that_holds_its_gil_keeps_its_link(who_dials: str) -> None:
    """Longer than silence takes to be noticed: gRPC's own threads answer the pings."""
    run = TestRun()
    host = await Peer(run).start()
    async with child(run, host if who_dials == "the other" else None) as process:
        told = await first_line(process)
        if who_dials == "we":
            host.transport.dial("", told["addresses"], PATIENCE_S)
        up = await host.wait(LinkUp)
        host.transport.send(up.info.peer, Probe(666))
        host.transport.send(up.info.peer, Probe(7))
        answer = await host.wait(Received, lambda e: e.message == Probe(7))
        assert answer.sender.peer == up.info.peer and not host.of(LinkLost)
    await host.stop()


async def _child(text: str, listen: str) -> None:
    """A peer that answers every probe with itself, and holds the GIL when asked 666."""
    invite = parse_invite(text)
    run = TestRun.__new__(TestRun)
    run.run, run.invite = invite.run, invite.intermediate
    peer = Peer.__new__(Peer)
    from p2ptrain.net.identity import Identity

    identity = Identity.generate()
    Peer.__init__(peer, run, identity=identity, listen=listen, credentials=invite.credentials(identity))
    await peer.start()
    print(json.dumps({"peer": peer.id, "addresses": peer.addresses}), flush=True)
    if invite.addresses:
        peer.transport.dial("", invite.addresses, PATIENCE_S)
    seen = 0
    while True:
        event = await peer.wait(Received, after=seen) if seen < len(peer.events) else None
        if event is None:
            await asyncio.sleep(0.01)
            continue
        seen = peer.events.index(event, seen) + 1
        if event.message == Probe(666):
            ctypes.PyDLL(None).sleep(HELD_S)
        peer.transport.send(event.sender.peer, event.message)


if __name__ == "__main__":
    asyncio.run(_child(*sys.argv[1:]))
