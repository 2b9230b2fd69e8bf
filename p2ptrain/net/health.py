"""The standard gRPC health service (grpc.health.v1.Health), by hand: messages of one field need no generated code.

Check({service})  ->  SERVING | NOT_SERVING, or NOT_FOUND for a service that is not here
Watch({service})  ->  the same, and again at every change
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc

from p2ptrain.net.settings import SERVICE

_SERVING, _NOT_SERVING, _SERVICE_UNKNOWN = b"\x08\x01", b"\x08\x02", b"\x08\x03"


class Health:
    """``serving`` is switched by the transport."""

    def __init__(self) -> None:
        self._serving = True
        self._changed = asyncio.Event()

    def stop_serving(self) -> None:
        self._serving = False
        self._changed.set()

    def handler(self) -> Any:
        """To be added to a gRPC server."""
        return grpc.method_handlers_generic_handler(
            "grpc.health.v1.Health",
            {
                "Check": grpc.unary_unary_rpc_method_handler(self._check),
                "Watch": grpc.unary_stream_rpc_method_handler(self._watch),
            },
        )

    async def _check(self, request: bytes, context: Any) -> bytes:
        if not _known(request):
            await context.abort(grpc.StatusCode.NOT_FOUND, "unknown service")
        return _SERVING if self._serving else _NOT_SERVING

    async def _watch(self, request: bytes, context: Any) -> AsyncIterator[bytes]:
        if not _known(request):
            yield _SERVICE_UNKNOWN
        elif self._serving:
            yield _SERVING
            await self._changed.wait()
            yield _NOT_SERVING
        else:
            yield _NOT_SERVING


def _known(request: bytes) -> bool:
    """HealthCheckRequest{service = 1}: empty, or our service's name."""
    name = SERVICE.encode()
    return request in (b"", b"\x0a\x00", b"\x0a" + bytes([len(name)]) + name)
