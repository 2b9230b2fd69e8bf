"""``python -m p2ptrain.net.dht_helper``: the one program that imports hivemind; started by ``net.dht``.

Runs hivemind's ``DHTNode`` over libp2p's daemon in its own loop and answers framed requests on an inherited socket
(``dht_frames``). Decides nothing about peers or records; its limits only protect it. It ends, and its daemon with it,
when the other end of the socket is closed, when its parent is not the one it began with, or when the daemon dies.

    -> {"id": 1, "op": "start", "listen": [multiaddress], "initial_peers": [multiaddress], ...}
    <- {"id": 1, "ok": true, "addresses": [multiaddress]}      or ok false with "unavailable": true without hivemind
    -> {"id": 2, "op": "store", "key", "subkey", "value", "expires_at", "timeout_s"}    <- ok, "stored": bool
    -> {"id": 3, "op": "get", "key", "timeout_s"}               <- ok, "records": [[subkey, value], ...]
    -> {"id": 4, "op": "ping"}, {"id": 5, "op": "add", "initial_peers": [...]}
    <- {"id": 0, "event": "state", "initial_peers": {address: text}, "neighbours": 3}

Exit codes: 0 asked to end, 3 the client broke the framing, 4 the libp2p daemon died.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import signal
import socket
import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from p2ptrain.errors import ProtocolError
from p2ptrain.net.dht_contacts import Contacts, shorten
from p2ptrain.net.dht_frames import MAX_FRAME_BYTES, Frame, decode, encode, read_body

if TYPE_CHECKING:
    from p2ptrain.net.dht_node import Node

MAX_REQUESTS = 32
PARENT_POLL_S = 1.0
STATE_PERIOD_S = 2.0
STOP_GRACE_S = 3.0
EXIT_FRAMING, EXIT_DAEMON = 3, 4


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="DHT helper of p2ptrain; started by it with an inherited socket.")
    parser.add_argument("--control-fd", type=int, required=True)
    parser.add_argument("--parent", type=int, required=True)
    options = parser.parse_args(arguments)
    os.umask(0o077)
    os.set_inheritable(options.control_fd, False)
    return asyncio.run(_serve(options.control_fd, options.parent))


async def _serve(control_fd: int, parent: int) -> int:
    reader, writer = await asyncio.open_connection(sock=socket.socket(fileno=control_fd), limit=MAX_FRAME_BYTES)
    helper = Helper(reader, writer, parent)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, helper.end, 0)
    try:
        return await helper.run()
    finally:
        writer.close()


class Helper:
    """One life of the helper: reads requests until something ends it, then takes the daemon down."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, parent: int) -> None:
        self._reader, self._writer, self._parent = reader, writer, parent
        self._exit: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._tasks: set[asyncio.Task[None]] = set()  # one per request under way
        self._background: list[asyncio.Task[None]] = []
        self._node: Node | None = None
        self._contacts: Contacts | None = None
        self._socket_folder = ""
        self._said: Frame = {}
        self._ops: dict[str, Callable[[Frame], Awaitable[Frame]]] = {
            "start": self._start, "ping": self._ping, "store": self._store, "get": self._get, "add": self._add,
        }  # fmt: skip

    async def run(self) -> int:
        self._background += [asyncio.create_task(self._read()), asyncio.create_task(self._watch_parent())]
        try:
            return await self._exit
        finally:
            for task in [*self._background, *self._tasks]:
                task.cancel()
            await self._take_down()

    def end(self, code: int, why: str = "") -> None:
        if why:
            print(f"dht helper ends: {why}", file=sys.stderr, flush=True)
        if not self._exit.done():
            self._exit.set_result(code)

    async def _read(self) -> None:
        try:
            while (body := await read_body(self._reader)) is not None:
                self._dispatch(body)
            self.end(0)
        except ProtocolError as error:
            self.end(EXIT_FRAMING, str(error))
        except ConnectionError:
            self.end(0)

    def _dispatch(self, body: bytes) -> None:
        try:
            request = decode(body)
        except ProtocolError as error:
            self._say({"id": 0, "event": "refused", "error": str(error)})
            return
        number = request.get("id")
        if not isinstance(number, int):
            self._say({"id": 0, "event": "refused", "error": "a request without a number"})
        elif len(self._tasks) >= MAX_REQUESTS:
            self._say({"id": number, "ok": False, "error": f"{MAX_REQUESTS} requests are under way already"})
        else:
            task = asyncio.create_task(self._answer(number, request))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _answer(self, number: int, request: Frame) -> None:
        op = request.get("op")
        handler = self._ops.get(op) if isinstance(op, str) else None
        try:
            if handler is None:
                raise ProtocolError(f"unknown request {shorten(repr(op), 60)}")
            answer = await handler(request)
        except asyncio.TimeoutError:
            answer = {"ok": False, "error": "the DHT did not finish in time"}
        except Exception as error:  # hivemind raises anything: every failure is the caller's answer
            answer = {"ok": False, "error": shorten(f"{type(error).__name__}: {error}")}
        self._say({"id": number, "ok": True, **answer})

    def _say(self, message: Frame) -> None:
        if self._writer.transport.get_write_buffer_size() > 4 * MAX_FRAME_BYTES:
            self.end(EXIT_FRAMING, "the client does not read")
            return
        self._writer.write(encode(message))

    async def _watch_parent(self) -> None:
        """A forked child of the parent may keep the socket open after the parent's death; this notices even so."""
        while os.getppid() == self._parent:  # noqa: ASYNC110  nothing tells a process that its parent has died
            await asyncio.sleep(PARENT_POLL_S)
        self.end(0)

    async def _start(self, request: Frame) -> Frame:
        if self._node is not None:
            raise ProtocolError("started already")
        self._socket_folder, initial_peers = _text(request, "socket_folder"), _texts(request, "initial_peers")
        try:
            from p2ptrain.net.dht_node import Node
        except ImportError as error:
            return {"ok": False, "unavailable": True, "error": shorten(f"{type(error).__name__}: {error}")}
        self._node = await Node.create(request)
        self._contacts = Contacts(self._node.reach, self._tell_state)
        self._contacts.add(initial_peers)
        self._background += [asyncio.create_task(self._watch_daemon()), asyncio.create_task(self._keep_state())]
        return {"addresses": self._node.addresses}

    async def _watch_daemon(self) -> None:
        assert self._node is not None
        code = await self._node.daemon_ended()
        self.end(EXIT_DAEMON, f"the libp2p daemon ended with {code}")

    async def _keep_state(self) -> None:
        assert self._node is not None
        while True:
            self._node.bound_storage()
            self._tell_state()
            await asyncio.sleep(STATE_PERIOD_S)

    def _tell_state(self) -> None:
        assert self._node is not None and self._contacts is not None
        state: Frame = {
            "id": 0,
            "event": "state",
            "initial_peers": dict(self._contacts.state),
            "neighbours": self._node.neighbours,
        }
        if state != self._said:
            self._said = state
            self._say(state)

    async def _ping(self, request: Frame) -> Frame:
        return {}

    async def _store(self, request: Frame) -> Frame:
        node, timeout_s = self._running(request)
        value, expires_at = request.get("value"), request.get("expires_at")
        if not isinstance(value, bytes) or not isinstance(expires_at, float):
            raise ProtocolError("a store request needs bytes and an expiry time")
        stored = node.store(_text(request, "key"), _text(request, "subkey"), value, expires_at)
        return {"stored": await asyncio.wait_for(stored, timeout_s)}

    async def _get(self, request: Frame) -> Frame:
        node, timeout_s = self._running(request)
        return {"records": await asyncio.wait_for(node.get(_text(request, "key")), timeout_s)}

    async def _add(self, request: Frame) -> Frame:
        self._running(request)
        assert self._contacts is not None
        self._contacts.add(_texts(request, "initial_peers"))
        return {}

    def _running(self, request: Frame) -> tuple[Node, float]:
        timeout_s = request.get("timeout_s")
        if self._node is None:
            raise ProtocolError("not started yet")
        if not isinstance(timeout_s, (int, float)) or not 0 < timeout_s <= 600:
            raise ProtocolError("a request needs a time-out of at most 600 s")
        return self._node, float(timeout_s)

    async def _take_down(self) -> None:
        if self._contacts is not None:
            await self._contacts.stop()
        if self._node is not None:
            await self._node.stop(STOP_GRACE_S)
        if self._socket_folder:
            shutil.rmtree(self._socket_folder, ignore_errors=True)


def _text(request: Frame, name: str) -> str:
    value = request.get(name)
    if not isinstance(value, str):
        raise ProtocolError(f"a request's {name} is not a text")
    return value


def _texts(request: Frame, name: str) -> tuple[str, ...]:
    value: Any = request.get(name)
    if not isinstance(value, tuple) or not all(isinstance(item, str) for item in value):
        raise ProtocolError(f"a request's {name} is not a list of texts")
    return value


if __name__ == "__main__":
    sys.exit(main())
