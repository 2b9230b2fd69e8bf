"""The single fields of a message: each checks a value of the core, writes what protobuf takes, and reads it back.

A field refuses what it must not carry by raising ``Refused``, in both directions. Fields made of fields: ``shapes``.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import Any

from p2ptrain.wire import limits
from p2ptrain.wire.runs import Refused, check_runs, expand_runs, norm_bytes, norm_of, runs_of
from p2ptrain.wire.v1 import values_pb2 as pb

_STRICT_PEER = re.compile(r"[a-z2-7]{51}[aq]")  # 32 bytes in base32: the last character holds one bit
_STRICT_RUN = re.compile(r"[0-9a-f]{64}")
_ADDRESS = re.compile(r"(?:\[[0-9a-fA-F:.%\w]+\]|[^\s:\[\]]+):([1-9][0-9]{0,4})")


@dataclass(slots=True)
class Reading:
    """What holds for one message while it is read. ``strict``: peer ids, runs and addresses in their true form."""

    strict: bool = False
    ids_left: int = limits.MAX_IDS_PER_MESSAGE
    seen: dict[tuple[tuple[int, ...], tuple[int, ...]], tuple[int, ...]] = field(default_factory=dict)


class Field:
    """``check`` refuses a value of the core; ``write`` gives what protobuf takes (None: leave it out)."""

    presence = False  # True: travels as a protobuf message that can be absent

    def check(self, value: Any, strict: bool = False) -> None:
        raise NotImplementedError

    def write(self, value: Any) -> Any:
        self.check(value)
        return value

    def read(self, wired: Any, reading: Reading) -> Any:
        self.check(wired, reading.strict)
        return wired

    def absent(self) -> Any:
        raise Refused("is missing")


class Whole(Field):
    """A whole number from ``low`` to ``high``."""

    def __init__(self, low: int = 0, high: int = limits.MAX_WHOLE) -> None:
        self.low, self.high = low, high

    def check(self, value: Any, strict: bool = False) -> None:
        if type(value) is not int:
            raise Refused("must be a whole number", value)
        if not self.low <= value <= self.high:
            raise Refused(f"must be {self.low} to {self.high}", value)


class Real(Field):
    """A finite double, at least ``low``. Bits are kept."""

    def __init__(self, low: float = 0.0) -> None:
        self.low = low

    def check(self, value: Any, strict: bool = False) -> None:
        if not isinstance(value, (int, float)) or isinstance(value, bool):
            raise Refused("must be a number", value)
        if not (math.isfinite(value) and value >= self.low):
            raise Refused("must be finite" + ("" if self.low == -math.inf else f" and at least {self.low:g}"), value)

    def write(self, value: Any) -> float:
        self.check(value)
        return float(value)


class Flag(Field):
    def check(self, value: Any, strict: bool = False) -> None:
        if not isinstance(value, bool):
            raise Refused("must be true or false", value)


class Text(Field):
    """Printable text. ``clip``: made for people, so cut and cleaned when it is sent rather than refused."""

    def __init__(self, limit: int, clip: bool = False) -> None:
        self.limit, self.clip = limit, clip

    def check(self, value: Any, strict: bool = False) -> None:
        if not isinstance(value, str):
            raise Refused("must be text", value)
        if len(value) > self.limit:
            raise Refused(f"has {len(value)} characters, the limit is {self.limit}", value)
        if not value.isprintable():
            raise Refused("holds characters that cannot be printed", value)

    def write(self, value: Any) -> Any:
        if self.clip and isinstance(value, str):
            value = "".join(c if c.isprintable() else " " for c in value[: self.limit])
        self.check(value)
        return value


class PeerName(Field):
    """A peer id: in strict form 52 characters of lower-case base32, else any short printable ASCII name."""

    def __init__(self, may_be_empty: bool = False) -> None:
        self.may_be_empty = may_be_empty

    def check(self, value: Any, strict: bool = False) -> None:
        if self.may_be_empty and value == "":
            return
        check_peer(value, strict)


def check_peer(value: Any, strict: bool) -> None:
    """Raises Refused unless ``value`` is a peer id (``strict``: of the form that real keys give)."""
    if strict:
        if not isinstance(value, str) or not _STRICT_PEER.fullmatch(value):
            raise Refused("must be a peer id, 52 characters of lower-case base32", value)
    elif not (isinstance(value, str) and 0 < len(value) <= limits.MAX_PEER_CHARS and _is_plain(value)):
        raise Refused(f"must be a peer id, at most {limits.MAX_PEER_CHARS} printable ASCII characters", value)


class RunName(Field):
    """A run: in strict form 64 hex digits."""

    def check(self, value: Any, strict: bool = False) -> None:
        if strict:
            if not isinstance(value, str) or not _STRICT_RUN.fullmatch(value):
                raise Refused("must be a run's digest, 64 lower-case hex digits", value)
        elif not (isinstance(value, str) and 0 < len(value) <= limits.MAX_RUN_CHARS and _is_plain(value)):
            raise Refused(f"must name a run, at most {limits.MAX_RUN_CHARS} printable ASCII characters", value)


class Address(Field):
    """In strict form ``host:port`` or ``[ipv6]:port``."""

    def check(self, value: Any, strict: bool = False) -> None:
        if not (isinstance(value, str) and 0 < len(value) <= limits.MAX_ADDRESS_CHARS and _is_plain(value)):
            raise Refused(f"must be an address, at most {limits.MAX_ADDRESS_CHARS} printable ASCII characters", value)
        if strict:
            match = _ADDRESS.fullmatch(value)
            if match is None or int(match.group(1)) > 65_535:
                raise Refused("must be host:port", value)


def _is_plain(value: str) -> bool:
    return value.isascii() and value.isprintable() and " " not in value


class Raw(Field):
    """Bytes, at most ``limit``."""

    def __init__(self, limit: int) -> None:
        self.limit = limit

    def check(self, value: Any, strict: bool = False) -> None:
        if not isinstance(value, bytes):
            raise Refused("must be bytes", value)
        if len(value) > self.limit:
            raise Refused(f"has {len(value)} bytes, the limit is {self.limit}")


class DigestBytes(Field):
    """32 bytes, or none if ``may_be_empty``."""

    def __init__(self, may_be_empty: bool = True) -> None:
        self.may_be_empty = may_be_empty

    def check(self, value: Any, strict: bool = False) -> None:
        if not isinstance(value, bytes) or not (len(value) == 32 or (self.may_be_empty and not value)):
            raise Refused("must be a digest of 32 bytes" + (" or none" if self.may_be_empty else ""), value)


class Choice(Field):
    """One of an Enum's values, as ``PREFIX_NAME`` of a protobuf enum."""

    def __init__(self, enum: type[Any], wired: Any, prefix: str) -> None:
        self._out = {choice: wired.Value(f"{prefix}_{choice.name}") for choice in enum}
        self._in = {number: choice for choice, number in self._out.items()}

    def check(self, value: Any, strict: bool = False) -> None:
        if value not in self._out:
            raise Refused("is unknown", value)

    def write(self, value: Any) -> Any:
        self.check(value)
        return self._out[value]

    def read(self, wired: Any, reading: Reading) -> Any:
        if wired not in self._in:
            raise Refused("is unknown", wired)
        return self._in[wired]


class Ids(Field):
    """A tuple of whole numbers, as runs of consecutive ones; order and repeats are kept."""

    presence = True

    def __init__(self, limit: int = limits.MAX_IDS) -> None:
        self.limit = limit

    def check(self, value: Any, strict: bool = False) -> None:
        if not isinstance(value, tuple):
            raise Refused("must be a tuple", value)
        if len(value) > self.limit:
            raise Refused(f"has {len(value)} ids, the limit is {self.limit}")
        if value and (set(map(type, value)) != {int} or min(value) < 0 or max(value) > limits.MAX_WHOLE):
            raise Refused(f"holds something other than numbers from 0 to {limits.MAX_WHOLE}")

    def write(self, value: Any) -> Any:
        if value == ():
            return None
        self.check(value)
        gaps, counts = runs_of(value)
        return pb.Ids(gaps=gaps, counts=counts)

    def read(self, wired: Any, reading: Reading) -> tuple[int, ...]:
        gaps, counts = tuple(wired.gaps), tuple(wired.counts)
        if (known := reading.seen.get((gaps, counts))) is not None and len(known) <= self.limit:
            return known
        total = check_runs(gaps, counts, self.limit)
        if total > reading.ids_left:
            raise Refused(f"takes the message above {limits.MAX_IDS_PER_MESSAGE} ids")
        reading.ids_left -= total
        ids = reading.seen[(gaps, counts)] = expand_runs(gaps, counts)
        return ids

    def absent(self) -> tuple[int, ...]:
        return ()


class SquaredNorm(Field):
    """A float (bits kept) or, in exact mode, a whole number of at most ``MAX_NORM_BYTES``; never one for the other."""

    presence = True

    def check(self, value: Any, strict: bool = False) -> None:
        if isinstance(value, float):
            if not (math.isfinite(value) and value >= 0):
                raise Refused("must be finite and at least 0", value)
        elif not isinstance(value, int) or isinstance(value, bool):
            raise Refused("must be a number", value)
        elif value < 0 or value.bit_length() > 8 * limits.MAX_NORM_BYTES:
            raise Refused(f"must be at least 0 and fit {limits.MAX_NORM_BYTES} bytes", value)

    def write(self, value: Any) -> Any:
        self.check(value)
        return pb.Norm(real=value) if isinstance(value, float) else pb.Norm(whole=norm_bytes(value))

    def read(self, wired: Any, reading: Reading) -> Any:
        which = wired.WhichOneof("value")
        if which is None:
            raise Refused("is empty")
        value = wired.real if which == "real" else norm_of(wired.whole)
        self.check(value)
        return value
