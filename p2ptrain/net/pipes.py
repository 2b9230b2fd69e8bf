"""One shape for both ends of a gRPC stream of raw frames: the call (we dialled) and the context (we answered).

Decides nothing. ``read`` gives a frame, or None at the end of the stream; a failure is a ``PipeBroken`` with its cause.
"""

from __future__ import annotations

import asyncio
from typing import Any, Protocol

import grpc
from grpc import aio

_EOF: Any = aio.EOF  # type: ignore[attr-defined]  # the stubs do not know it


class PipeBroken(Exception):
    """The stream failed. ``code`` is "" where gRPC does not tell (the answering side)."""

    def __init__(self, detail: str, code: str = "") -> None:
        super().__init__(detail)
        self.detail = detail
        self.code = code


class Pipe(Protocol):
    async def read(self) -> bytes | None: ...
    async def write(self, frame: bytes) -> None: ...
    async def finish(self) -> None:
        """No more frames from here."""

    def end(self, reason: str) -> None:
        """End both ways at once; idempotent."""


class CallPipe:
    """The dialling side."""

    def __init__(self, call: Any) -> None:
        self._call = call

    async def read(self) -> bytes | None:
        try:
            frame = await self._call.read()
        except aio.AioRpcError as error:
            raise _broken(error) from None
        except asyncio.CancelledError:
            raise self._told_or_cancelled() from None
        except asyncio.InvalidStateError as error:
            raise PipeBroken(str(error)) from None
        if frame is _EOF:
            code = await self._call.code()
            if code is not grpc.StatusCode.OK:
                raise PipeBroken(await self._call.details() or "", code.name)
            return None
        return bytes(frame)

    async def write(self, frame: bytes) -> None:
        try:
            await self._call.write(frame)
        except aio.AioRpcError as error:
            raise _broken(error) from None
        except asyncio.CancelledError:
            raise self._told_or_cancelled() from None
        except asyncio.InvalidStateError as error:
            raise PipeBroken(str(error)) from None

    async def finish(self) -> None:
        try:
            await self._call.done_writing()
        except (aio.AioRpcError, asyncio.InvalidStateError) as error:
            raise PipeBroken(str(error)) from None
        except asyncio.CancelledError:
            raise self._told_or_cancelled() from None

    def end(self, reason: str) -> None:
        self._call.cancel()

    def _told_or_cancelled(self) -> BaseException:
        """gRPC cancels the waiting coroutine when the call ends; a cancelled task must stay cancelled."""
        if self._call.done() and not _task_is_cancelling():
            return PipeBroken("the stream was ended here", "CANCELLED")
        return asyncio.CancelledError()


class ContextPipe:
    """The answering side. Its handler waits for ``ended`` and then returns, which ends the stream."""

    def __init__(self, context: Any) -> None:
        self._context = context
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.abort_reason = ""

    async def read(self) -> bytes | None:
        if self.ended.done():
            raise PipeBroken(self.ended.result())
        try:
            frame = await self._context.read()
        except asyncio.CancelledError:
            raise self._told_or_cancelled() from None
        except Exception as error:  # gRPC's server side raises UsageError, InternalError, RuntimeError, ...
            raise PipeBroken(f"{type(error).__name__}: {error}") from None
        return None if frame is _EOF else bytes(frame)

    async def write(self, frame: bytes) -> None:
        if self.ended.done():
            raise PipeBroken(self.ended.result())
        try:
            await self._context.write(frame)
        except asyncio.CancelledError:
            raise self._told_or_cancelled() from None
        except Exception as error:
            raise PipeBroken(f"{type(error).__name__}: {error}") from None

    async def finish(self) -> None:
        """The answering side ends by returning; nothing to send here."""

    def end(self, reason: str) -> None:
        if not self.ended.done():
            self.abort_reason = reason
            self.ended.set_result(reason)

    def _told_or_cancelled(self) -> BaseException:
        if self.ended.done() and not _task_is_cancelling():
            return PipeBroken(self.ended.result())
        return asyncio.CancelledError()


def _task_is_cancelling() -> bool:
    task = asyncio.current_task()
    cancelling = getattr(task, "cancelling", None)  # Python 3.11 and later
    return bool(cancelling()) if cancelling else False


def _broken(error: aio.AioRpcError) -> PipeBroken:
    return PipeBroken(error.details() or "", error.code().name)
