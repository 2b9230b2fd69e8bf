"""The relay process of the reduced mode: a relay in front of every host's port, which delays and rates bytes.

Started by ``relays`` as ``python -m p2ptrain.lab.wan.relay_process``; told what to do by JSON lines on stdin; ends when
stdin closes. Who has dialled is found in /proc (the process that holds the connection also holds some host's listening
port), so pairs can be told apart on Linux; elsewhere, and for peers that do not listen, the dialling side is "".

Not emulated: loss of packets (streams have none), queues that overflow, UDP. A cut holds bytes back; nothing is lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import sys
import time
from pathlib import Path
from typing import Any

from p2ptrain.lab.wan import Shape
from p2ptrain.lab.wan.paths import Lateness, Queue

CHUNK = 64 * 1024
HELD_MAX = 256
"""Pieces of at most ``CHUNK`` under way in one direction of one connection; then the sender waits."""

Held = asyncio.Queue[tuple[float, bytes]]
LINE_MAX = 1 << 20
DIAL_S = 10.0


class Relays:
    """``ports``: by host, where it really listens. State per ordered pair of names; "" is a dialler not known."""

    def __init__(self, ports: dict[str, int], seed: int) -> None:
        self.ports = ports
        self.shapes: dict[tuple[str, str], Shape] = {}
        self.queues: dict[tuple[str, str], Queue] = {}
        self.uplinks: dict[str, tuple[Queue, Queue]] = {}
        self.cuts: set[tuple[str, str]] = set()
        self.corrupting: dict[str, float] = {}
        self.nbytes: dict[tuple[str, str], int] = {}
        self.lateness = Lateness()
        self.rng = random.Random(seed)
        self.changed = asyncio.Condition()

    async def listen(self, host: str) -> int:
        """The port of the relay in front of ``host``."""

        async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await self._pass(host, reader, writer)

        server = await asyncio.start_server(accepted, "127.0.0.1", 0, limit=CHUNK)
        return int(server.sockets[0].getsockname()[1])

    async def told(self, order: dict[str, Any]) -> dict[str, Any] | None:
        name = order["do"]
        if name == "measure":
            found = sorted(self.nbytes.items())
            return {"bytes": [[s, t, n] for (s, t), n in found], "late_p99_s": self.lateness.quantile_s(0.99)}
        if name == "shape":
            pair = (order["source"], order["target"])
            shape = self.shapes[pair] = Shape(*order["shape"])
            self.queues.setdefault(pair, Queue()).set(shape.mbps)
        elif name == "uplink":
            up, down = self.uplinks.setdefault(order["name"], (Queue(), Queue()))
            up.set(order["up"])
            down.set(order["down"])
        elif name == "cut":
            (self.cuts.add if order["is_cut"] else self.cuts.discard)((order["source"], order["target"]))
        elif name == "corrupt":
            self.corrupting[order["source"]] = order["chance"]
        async with self.changed:
            self.changed.notify_all()
        return None

    async def _pass(self, target: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, until either side ends it."""
        port = writer.get_extra_info("peername")[1]
        loop = asyncio.get_running_loop()
        source = await loop.run_in_executor(None, who_dialled, port, self.ports)
        await self._until_open(source, target)
        try:
            dial = asyncio.open_connection("127.0.0.1", self.ports[target], limit=CHUNK)
            there = await asyncio.wait_for(dial, DIAL_S)
        except (OSError, asyncio.TimeoutError):
            writer.transport.abort()  # refused, as it would be without us
            return
        tasks: list[asyncio.Task[None]] = []
        for pair, end, other in (((source, target), reader, there[1]), ((target, source), there[0], writer)):
            held: Held = asyncio.Queue(HELD_MAX)
            tasks.append(asyncio.create_task(self._take(pair, end, held)))
            tasks.append(asyncio.create_task(self._give(pair, held, other)))
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        finally:
            for task in tasks:
                task.cancel()
            for each in (writer, there[1]):
                each.transport.abort()
        for error in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(error, Exception) and not isinstance(error, OSError):  # OSError: a side is gone
                raise error

    async def _take(self, pair: tuple[str, str], reader: asyncio.StreamReader, held: Held) -> None:
        """Until the end of file, which is passed on as b"". Raises OSError: the sender is gone."""
        data = b"-"
        while data:
            data = await reader.read(CHUNK)
            self.nbytes[pair] = self.nbytes.get(pair, 0) + len(data)
            await held.put((self._due(*pair, time.monotonic(), len(data)), self._flip(pair[0], data)))

    async def _give(self, pair: tuple[str, str], held: Held, writer: asyncio.StreamWriter) -> None:
        """Each piece when it is due and its way is open. Raises OSError: the receiver is gone."""
        while True:
            due, data = await held.get()
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            if pair in self.cuts:
                await self._until_open(*pair)
            else:
                self.lateness.add(max(0.0, time.monotonic() - due))
            if not data:
                writer.write_eof()
                return
            writer.write(data)
            await writer.drain()

    def _due(self, source: str, target: str, now: float, nbytes: int) -> float:
        at = now
        for queue in (
            self.uplinks[source][0] if source in self.uplinks else None,
            self.queues.get((source, target)),
            self.uplinks[target][1] if target in self.uplinks else None,
        ):
            if queue is not None and queue.s_per_byte:
                at = queue.free_at = max(at, queue.free_at) + nbytes * queue.s_per_byte
        shape = self.shapes.get((source, target), Shape())
        return at + shape.delay_s + shape.jitter_s * self.rng.random()

    def _flip(self, source: str, data: bytes) -> bytes:
        if not data or self.rng.random() >= self.corrupting.get(source, 0.0):
            return data
        changed = bytearray(data)
        changed[self.rng.randrange(len(data))] ^= 1 << self.rng.randrange(8)
        return bytes(changed)

    async def _until_open(self, source: str, target: str) -> None:
        async with self.changed:
            await self.changed.wait_for(lambda: (source, target) not in self.cuts)


def who_dialled(port: int, ports: dict[str, int]) -> str:
    """The host whose process holds the loopback connection from ``port``; "" if it cannot be told."""
    inodes = _inodes()
    wanted = inodes.get((port, False))
    listening = {inodes[p, True]: host for host, p in ports.items() if (p, True) in inodes}
    if wanted is None:
        return ""
    for process in Path("/proc").iterdir():
        if not process.name.isdigit():
            continue
        held = set()
        with contextlib.suppress(OSError):
            for entry in os.scandir(process / "fd"):
                with contextlib.suppress(OSError):
                    held.add(os.readlink(entry.path))
        if f"socket:[{wanted}]" in held:
            owns = [host for inode, host in listening.items() if f"socket:[{inode}]" in held]
            return owns[0] if owns else ""
    return ""


def _inodes() -> dict[tuple[int, bool], str]:
    """By (local port, whether it listens): the socket's inode. gRPC's sockets are IPv6 ones, for IPv4 addresses too."""
    found: dict[tuple[int, bool], str] = {}
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(OSError):
            for line in Path(table).read_text(encoding="ascii").splitlines()[1:]:
                fields = line.split()
                found[int(fields[1].rpartition(":")[2], 16), fields[3] == "0A"] = fields[9]
    return found


async def serve() -> None:
    """The first line of stdin says which hosts there are; the first answer, where their relays listen."""
    loop = asyncio.get_running_loop()
    stdin = asyncio.StreamReader(limit=LINE_MAX)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(stdin), sys.stdin)
    setup = json.loads(await stdin.readline())
    relays = Relays(setup["ports"], setup["seed"])
    _say({"relays": {host: await relays.listen(host) for host in relays.ports}})
    while line := await stdin.readline():
        answer = await relays.told(json.loads(line))
        if answer is not None:
            _say(answer)


def _say(answer: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(serve())
    os._exit(0)  # connections that still stand end with the process
