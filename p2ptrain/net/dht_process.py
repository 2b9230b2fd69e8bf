"""One life of the DHT helper, seen from its parent: start it, ask it things, notice its end, leave nothing behind.

Decides how the helper is started (subprocess, never forked from us; own process group; one inherited socket; standard
error kept as a short tail) and how a request fails. Does not decide when it is started again: that is ``net.dht``.

    helper = await HelperProcess.spawn(on_event)
    await helper.request("ping", timeout_s=5.0)     # answer, or TransportError with the reason
    reason = await helper.ended                      # "killed by signal 9", "broke the framing: ..."
    await helper.destroy()                           # the whole process group is gone after this
"""

from __future__ import annotations

import asyncio
import itertools
import os
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from p2ptrain.errors import ProtocolError, TransportError
from p2ptrain.net.dht_frames import MAX_FRAME_BYTES, Frame, decode, encode, read_body

HELPER_COMMAND = (sys.executable, "-m", "p2ptrain.net.dht_helper")
TAIL_BYTES = 4096
SOCKET_FOLDER_LIMIT = 70
END_GRACE_S = 4.0
TAIL_GRACE_S = 0.5
STARTABLE = hasattr(os, "fork")  # the helper inherits a socket, and hivemind has no libp2p daemon for Windows


class HelperProcess:
    """Made by ``spawn``. All methods belong to the loop that it was made in."""

    def __init__(self, process: asyncio.subprocess.Process, socket_folder: str) -> None:
        self._process = process
        self.socket_folder = socket_folder
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Frame]] = {}
        self._tail = b""
        self._writer: asyncio.StreamWriter | None = None
        self._tail_task = asyncio.create_task(self._keep_tail())
        self._read_task: asyncio.Task[None] | None = None

    @classmethod
    async def spawn(cls, on_event: Callable[[Frame], None], command: Sequence[str] = HELPER_COMMAND) -> HelperProcess:
        """Start the program, without asking it anything yet. Raises TransportError if it cannot be started."""
        ours, theirs = socket.socketpair()
        folder = _socket_folder()
        try:
            process = await asyncio.create_subprocess_exec(
                *command, "--control-fd", str(theirs.fileno()), "--parent", str(os.getpid()),
                stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
                pass_fds=(theirs.fileno(),), start_new_session=True, env=_environment(),
            )  # fmt: skip
        except OSError as error:
            ours.close()
            shutil.rmtree(folder, ignore_errors=True)
            raise TransportError(f"the DHT helper cannot be started: {error}", command=command[0]) from error
        finally:
            theirs.close()
        helper = cls(process, folder)
        reader, helper._writer = await asyncio.open_connection(sock=ours, limit=MAX_FRAME_BYTES)
        helper._read_task = asyncio.create_task(helper._read(reader, on_event))
        return helper

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def tail(self) -> str:
        """The last line or so that the helper wrote to standard error: at most 300 characters."""
        lines = [line.strip() for line in self._tail.decode(errors="replace").splitlines() if line.strip()]
        return lines[-1][-300:] if lines else ""

    async def request(self, op: str, timeout_s: float, **fields: object) -> Frame:
        """The helper's answer, ``ok`` checked. Raises TransportError: helper ended, time-out, or refused with a reason.

        The helper is told a slightly shorter time-out, so that it is the one to say what was late.
        """
        if self.ended.done() or self._writer is None:
            raise TransportError(f"the DHT helper has ended: {self.ended.result() if self.ended.done() else 'by us'}")
        number = next(self._numbers)
        answer: asyncio.Future[Frame] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        try:
            self._writer.write(encode({"id": number, "op": op, "timeout_s": 0.95 * timeout_s, **fields}))
            frame = await asyncio.wait_for(answer, timeout_s)
        except asyncio.TimeoutError:
            raise TransportError(f"the DHT helper did not answer {op!r} within {timeout_s:g} s") from None
        except OSError as error:
            raise TransportError(f"the DHT helper cannot be reached: {error}") from error
        finally:
            self._waiting.pop(number, None)
        if frame.get("ok") is not True and not frame.get("unavailable"):
            raise TransportError(f"the DHT helper could not {op}: {str(frame.get('error', 'no reason given'))[:300]}")
        return frame

    async def destroy(self) -> None:
        """End the helper and all it started, first by closing its socket, after a grace by SIGKILL. Idempotent."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._process.wait(), END_GRACE_S if not self.ended.done() else 0.2)
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)  # the libp2p daemon is in the helper's own group
        await self._process.wait()
        tasks = [task for task in (self._read_task, self._tail_task) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._end("ended by us")
        shutil.rmtree(self.socket_folder, ignore_errors=True)

    async def _read(self, reader: asyncio.StreamReader, on_event: Callable[[Frame], None]) -> None:
        try:
            while (body := await read_body(reader)) is not None:
                self._take(decode(body), on_event)
        except ProtocolError as error:
            self._end(f"it broke the framing: {error}")
            return
        except OSError:
            pass  # reset because it died with a request unread: its exit code says more
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._process.wait(), END_GRACE_S)
        await asyncio.wait((self._tail_task,), timeout=TAIL_GRACE_S)
        self._end(self._exit_reason())

    def _take(self, frame: Frame, on_event: Callable[[Frame], None]) -> None:
        number = frame.get("id")
        if not isinstance(number, int) or isinstance(number, bool):
            raise ProtocolError("a frame without a number")
        if number == 0:
            on_event(frame)
            return
        answer = self._waiting.get(number)
        if answer is not None and not answer.done():  # else: it was given up in the meantime
            answer.set_result(frame)

    def _exit_reason(self) -> str:
        code = self._process.returncode
        if code is None:
            return "it closed its socket without ending"
        what = f"killed by signal {-code}" if code < 0 else f"exit code {code}"
        return f"{what}: {self.tail}" if self.tail else what

    def _end(self, reason: str) -> None:
        if not self.ended.done():
            self.ended.set_result(reason)
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(TransportError(f"the DHT helper has ended: {self.ended.result()}"))

    async def _keep_tail(self) -> None:
        assert self._process.stderr is not None
        while chunk := await self._process.stderr.read(TAIL_BYTES):
            self._tail = (self._tail + chunk)[-TAIL_BYTES:]


def _socket_folder() -> str:
    """A folder of mode 0700 for the daemon's control sockets, short enough for a socket's path."""
    base = tempfile.gettempdir()
    return tempfile.mkdtemp(prefix="p2ptrain-dht-", dir=base if len(base) < SOCKET_FOLDER_LIMIT else "/tmp")


def _environment() -> dict[str, str]:
    """Ours, with this package importable, one thread for torch (which hivemind imports) and no accelerator in sight."""
    package_root = str(Path(__file__).resolve().parents[2])
    known = os.environ.get("PYTHONPATH")
    return {
        **os.environ,
        "PYTHONPATH": f"{package_root}{os.pathsep}{known}" if known else package_root,
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
    }
