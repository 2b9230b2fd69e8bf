"""Events, effects and all that is in them as JSON values and back, without loss: what the journal keeps for a replay.

Decides nothing. Only the core's own dataclasses, named tuples and enums travel, by name and with all their fields;
anything else is refused, so reading a foreign journal runs no code. Equal values give equal text.

    read_value(recorded(event)) == event
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
import hashlib
import json
from enum import Enum
from functools import cache
from typing import Any

from p2ptrain.core import events, messages, types
from p2ptrain.errors import ConfigError

DEPTH_MAX = 64
_PLAIN = (int, float, str, bool, type(None))


def recorded(value: object) -> Any:
    """``value`` as JSON. Raises TypeError: something that the core does not use."""
    kind: Any = type(value)
    if kind in _PLAIN:
        return value
    if kind is bytes:
        return {"b": base64.b64encode(value).decode()}  # type: ignore[arg-type]
    if kind is tuple:
        return [recorded(item) for item in value]  # type: ignore[attr-defined]
    fields = _fields(kind)
    if fields is not None:
        return {kind.__name__: [recorded(getattr(value, name)) for name in fields]}
    if isinstance(value, Enum):
        return {kind.__name__: value.value}
    if kind is frozenset:
        return {"s": [recorded(item) for item in sorted(value)]}  # type: ignore[call-overload]
    raise TypeError(f"{kind.__name__} is not part of the core's events")


def read_value(given: Any, depth: int = 0) -> Any:
    """The value again. Raises ConfigError: not what ``recorded`` gives."""
    if isinstance(given, _PLAIN):
        return given
    if depth > DEPTH_MAX:
        raise ConfigError("journal: nested too deeply")
    if isinstance(given, list):
        return tuple(read_value(item, depth + 1) for item in given)
    if not isinstance(given, dict) or len(given) != 1:
        raise ConfigError(f"journal: not a value: {str(given)[:60]}")
    ((name, inner),) = given.items()
    try:
        if name == "b":
            return base64.b64decode(inner, validate=True)
        if name == "s":
            return frozenset(read_value(item, depth + 1) for item in inner)
        kind: Any = _kinds().get(name)
        if kind is None:
            raise ConfigError(f"journal: unknown kind {str(name)[:60]}", hint="another version of p2ptrain wrote it")
        if issubclass(kind, Enum):
            return kind(inner)
        fields = _fields(kind) or ()
        if not isinstance(inner, list) or len(inner) != len(fields):
            raise ConfigError(f"journal: {name} has other fields", hint="another version of p2ptrain wrote it")
        return kind(**{field: read_value(item, depth + 1) for field, item in zip(fields, inner, strict=True)})
    except (TypeError, ValueError, binascii.Error) as error:
        raise ConfigError(f"journal: {str(name)[:60]}: {error}") from error


def effects_digest(effects: list[events.Effect]) -> str:
    """16 hex digits: equal effects in equal order give equal digests."""
    text = json.dumps([recorded(effect) for effect in effects], separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


@cache
def _fields(kind: Any) -> tuple[str, ...] | None:
    if kind is not _kinds().get(kind.__name__):
        return None
    if dataclasses.is_dataclass(kind):
        return tuple(field.name for field in dataclasses.fields(kind) if field.init)
    return getattr(kind, "_fields", None)


@cache
def _kinds() -> dict[str, type]:
    found: dict[str, type] = {}
    for module in (types, messages, events):
        for name, value in vars(module).items():
            if not isinstance(value, type) or value.__module__ != module.__name__:
                continue
            if dataclasses.is_dataclass(value) or hasattr(value, "_fields") or issubclass(value, Enum):
                assert name not in found, f"two kinds of the core are called {name}"
                found[name] = value
    return found
