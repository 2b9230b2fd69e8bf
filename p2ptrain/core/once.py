"""Remembers what was last worked out of frozen values, told apart by identity: of one message many ask the same.

Decides nothing. For values that are costly to compare and made once (a ``Begin`` with thousands of bundles).

    sizes = Once(lambda part: len(set(part.counted)));  sizes(part);  sizes(part)      # worked out once
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

Result = TypeVar("Result")


class Once(Generic[Result]):
    """``work`` must be a pure function of immutable values; its result is shared, so it must not be changed."""

    def __init__(self, work: Callable[..., Result], kept: int = 32) -> None:
        self._work = work
        self._kept = kept
        self._known: dict[tuple[int, ...], tuple[tuple[Any, ...], Result]] = {}

    def __call__(self, *values: Any) -> Result:
        key = tuple(map(id, values))
        known = self._known.get(key)
        if known is not None:  # the values are kept with the result, so that an id is not given to another meanwhile
            return known[1]
        result = self._work(*values)
        if len(self._known) >= self._kept:
            del self._known[next(iter(self._known))]
        self._known[key] = (values, result)
        return result
