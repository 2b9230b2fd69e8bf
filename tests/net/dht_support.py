"""What the DHT tests share: an unsigned stand-in for sealed records, a deadline for waits, and a fake helper."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

from p2ptrain.core.types import PeerInfo
from p2ptrain.errors import AdmissionError, ProtocolError

RUN = "3f9c0a5b7d21e604" * 4


def info_of(peer: str, life: int = 1) -> PeerInfo:
    return PeerInfo(peer=peer, life=life, addresses=("127.0.0.1:29400",))


def seal(info: PeerInfo, expires_at: float) -> bytes:
    return json.dumps(["run", expires_at, info.peer, info.life, list(info.addresses)]).encode()


def unseal(data: bytes, now: float) -> PeerInfo:
    try:
        run, expires_at, peer, life, addresses = json.loads(data)
    except ValueError as error:
        raise ProtocolError("no record") from error
    if run != "run" or expires_at <= now:
        raise AdmissionError("foreign or expired")
    return PeerInfo(peer=peer, life=life, addresses=tuple(addresses))


def check(data: bytes, run: str, now: float) -> str:
    """As the helper's checker: the peer that a record belongs to."""
    return unseal(data, now).peer


async def eventually(condition: Callable[[], object], what: str, timeout_s: float = 30.0) -> None:
    until = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < until, f"not within {timeout_s} s: {what}"
        await asyncio.sleep(0.02)


FAKE = '''
import os, socket, struct, sys, time
import msgpack
fd = int(sys.argv[sys.argv.index("--control-fd") + 1])
sock = socket.socket(fileno=fd)
stream = sock.makefile("rb")

def requests():
    while header := stream.read(4):
        yield msgpack.unpackb(stream.read(struct.unpack(">I", header)[0]), use_list=False)

def say(**message):
    body = msgpack.packb(message)
    sock.sendall(struct.pack(">I", len(body)) + body)

def lives():
    """How many helpers were started before this one, counted in a file beside the script."""
    with open(__file__ + ".lives", "a+") as file:
        file.write("x")
    return os.path.getsize(__file__ + ".lives") - 1
'''


def fake_helper(folder: Path, body: str) -> tuple[str, ...]:
    """Command of a helper without hivemind that runs ``body`` after ``FAKE``."""
    script = folder / "fake_helper.py"
    script.write_text(FAKE + body)
    return (sys.executable, str(script))
