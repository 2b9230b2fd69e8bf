"""Bytes that torch writes into and reads from without a copy.

gRPC wants a ``bytes``. Filling a bytearray and converting it costs a second copy and, worse, fresh pages. CPython
allows one thing more: the content of ``PyBytes_FromStringAndSize(NULL, n)`` may be written until others see the object.
``Blob`` does that, so that header and payload are one allocation and each value is written once, by a torch kernel that
releases the GIL.

    blob = Blob(header, payload_bytes)
    blob.put(0, values, torch.float16)       # converts while it copies
    blob.data                                # bytes: header + payload

Decides nothing about formats. Knows only little-endian hosts (checked at import).
"""

from __future__ import annotations

import ctypes
import sys
from typing import Any

import numpy
import torch

from p2ptrain.errors import ConfigError

if sys.byteorder != "little":
    raise ConfigError("this machine is big-endian, the wire is little-endian", hint="use another machine", key="host")

Payload = bytes | bytearray | memoryview

_new_bytes = ctypes.pythonapi.PyBytes_FromStringAndSize
_new_bytes.restype = ctypes.py_object
_new_bytes.argtypes = [ctypes.c_void_p, ctypes.c_ssize_t]
_bytes_address = ctypes.pythonapi.PyBytes_AsString
_bytes_address.restype = ctypes.c_void_p
_bytes_address.argtypes = [ctypes.py_object]


class Blob:
    """A fresh ``bytes`` of ``header`` and then ``payload_bytes`` bytes to be written exactly once with ``put``."""

    def __init__(self, header: bytes, payload_bytes: int) -> None:
        self._head = len(header)
        self.data: bytes
        if not payload_bytes:
            self.data = bytes(header)
            return
        self.data = _new_bytes(None, self._head + payload_bytes)
        address = _bytes_address(self.data)
        ctypes.memmove(address, header, self._head)
        self._array = _array_at(address, self._head + payload_bytes, self.data)
        self._address = address + self._head

    def put(self, offset: int, values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Write flat ``values``, converted to ``dtype``, at payload byte ``offset``; return what was written.

        The returned tensor may share the blob's memory: read it, do not write it. Values on another device are
        converted there, so that fewer bytes cross.
        """
        if not values.numel():
            return values.to(dtype)
        if values.device.type != "cpu":
            values = values.to(dtype)
        count, itemsize = values.numel(), dtype.itemsize
        if (self._address + offset) % itemsize == 0:
            view = torch.frombuffer(self._array, dtype=dtype, count=count, offset=self._head + offset)
            return view.copy_(values)
        written = values.to("cpu", dtype).contiguous()  # an odd header length: one more copy
        target = torch.frombuffer(self._array, dtype=torch.uint8, count=count * itemsize, offset=self._head + offset)
        target.copy_(written.view(torch.uint8))
        return written


def view_of(payload: Payload, dtype: torch.dtype, offset: int, count: int) -> torch.Tensor:
    """Flat CPU tensor of ``count`` values of ``dtype`` at byte ``offset`` of ``payload``; no copy if aligned.

    It keeps the payload alive. Read only: the memory may be an immutable ``bytes``. The caller has checked the length.
    """
    if not count:
        return torch.empty(0, dtype=dtype)
    flat = numpy.frombuffer(payload, dtype=numpy.uint8)
    address = int(flat.__array_interface__["data"][0]) + offset
    nbytes = count * dtype.itemsize
    if offset + nbytes > flat.size:
        raise ValueError(f"{count} values of {dtype} at {offset} exceed {flat.size} bytes")
    array = _array_at(address, nbytes, flat)
    if address % dtype.itemsize == 0:
        return torch.frombuffer(array, dtype=dtype, count=count)
    return torch.frombuffer(array, dtype=torch.uint8, count=nbytes).clone().view(dtype)


def keep_freed_memory(bytes_kept: int = 1 << 30) -> bool:
    """Tell glibc to keep up to ``bytes_kept`` of freed memory for reuse, process-wide; False where there is no mallopt.

    By default glibc returns every freed buffer of some MiB to the system, and the next one pays for fresh pages.
    Measured with 4 MiB buffers that come and go: 6.9 ms per copy without this, 0.4 ms with it. Call once, at start.
    """
    mmap_threshold, trim_threshold = -3, -1
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):
        return False  # musl, macOS, Windows
    threshold = min(bytes_kept, 1 << 30)
    return bool(mallopt(mmap_threshold, threshold) and mallopt(trim_threshold, threshold))


def _array_at(address: int, size: int, owner: object) -> Any:
    array: Any = (ctypes.c_ubyte * size).from_address(address)
    array.owner = owner  # the memory lives as long as any tensor on it
    return array
