"""Gradient sums of bundles: one being made, the sealed ones, and their buffers. Decides when a buffer is used again.

    begin -> add (once per microbatch) -> seal(key) -> get(key) ... -> forget(before_round)

Buffers are exchanged, not copied: in the ordinary modes a sealed bundle *is* the buffer that backward passes summed
into, and the stage goes on with another one. In exact mode each microbatch's gradient is taken alone, turned into
fixed-point integers and added to an int64 buffer, so that the order of microbatches and bundles leaves no trace.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import torch
from torch import Tensor

from p2ptrain.codec.exact import quantise
from p2ptrain.codec.reduce import is_finite
from p2ptrain.train.flat import FlatStage

FREE_BUFFERS = 2
Key = tuple[int, int]
"""(round, index)"""


class Bundles:
    """``begin``, ``add`` and ``seal`` belong to the training thread; ``get`` and ``forget`` to any."""

    def __init__(self, stage: FlatStage, *, exact: bool, microbatches: int) -> None:
        """``microbatches``: of a whole round; in exact mode it bounds what one sum may hold."""
        self._stage = stage
        self._exact = exact
        self._microbatches = microbatches
        self._lock = threading.Lock()
        self._sealed: dict[Key, Tensor] = {}
        self._free: list[Tensor] = []
        self._sum: Tensor | None = None
        self._count = 0

    def __len__(self) -> int:
        return len(self._sealed)

    def begin(self) -> None:
        """Start an empty sum; an unsealed one before it is dropped."""
        self._count = 0
        if self._exact and self._sum is None:
            self._sum = self._take_free()
            if self._sum is None:
                self._sum = torch.empty(self._stage.size, dtype=torch.int64, device=self._stage.device)
        (self._sum if self._sum is not None else self._stage.gradients).zero_()

    def add(self, backward: Callable[[], None], scale: float) -> bool:
        """Run one microbatch's backward pass and add its gradient. False if not finite (only exact mode looks here)."""
        self._count += 1
        if self._sum is None:
            backward()
            return True
        self._stage.gradients.zero_()
        backward()
        return quantise(self._stage.gradients, scale, self._sum, self._microbatches)

    def seal(self, key: Key) -> bool:
        """Keep the sum under ``key``: the mean of float gradients, or exact sums. False (dropped) if not finite."""
        if self._sum is not None:
            sealed, self._sum = self._sum, None
        else:
            sealed = self._stage.gradients
            if not is_finite(sealed):
                return False
            if self._count > 1:
                sealed.div_(self._count)
            free = self._take_free()
            self._stage.use_gradients(self._stage.new_gradients() if free is None else free)
        with self._lock:
            replaced = self._sealed.pop(key, None)
            self._sealed[key] = sealed
            self._recycle(replaced)
        return True

    def get(self, key: Key) -> Tensor:
        """Raises KeyError if that bundle is not held."""
        with self._lock:
            return self._sealed[key]

    def forget(self, before_round: int) -> None:
        """Bundles of rounds below are read by nobody any more; their buffers are used again."""
        with self._lock:
            for key in [key for key in self._sealed if key[0] < before_round]:
                self._recycle(self._sealed.pop(key))

    def _take_free(self) -> Tensor | None:
        with self._lock:
            return self._free.pop() if self._free else None

    def _recycle(self, buffer: Tensor | None) -> None:
        if buffer is not None and len(self._free) < FREE_BUFFERS:
            self._free.append(buffer)
