"""Messages of the core to bytes and back; generated protobuf stops here.

    data = to_bytes(Probe(7))        # an Envelope, at most MAX_MESSAGE_BYTES
    from_bytes(data, strict=True)    # -> Probe(7)

Any input bytes give a message or ``ProtocolError``, which names message, field and value. What a message means, and
whether it is fresh, is the core's to decide. ``strict`` asks for the true form of peer ids (base32 of a 32-byte hash),
runs (64 hex digits) and addresses (host:port): a transport turns it on, tests of the core use short names.
Unknown protobuf fields are ignored, so that a field can be added within one ``FORMAT``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, get_args

from google.protobuf.message import DecodeError

from p2ptrain.core.events import DialFailure
from p2ptrain.core.messages import Message
from p2ptrain.errors import ProtocolError
from p2ptrain.wire import limits
from p2ptrain.wire.fields import Address, Reading, Text
from p2ptrain.wire.messages import TRANSLATIONS
from p2ptrain.wire.runs import Refused
from p2ptrain.wire.v1.peer_pb2 import DialBackReply, DialBackRequest, Envelope

FORMAT = 1
"""Version of everything in ``wire.v1``; other numbers are refused."""

_UPDATE_HINT = "update p2ptrain on the older side"
_NAMES = {shape.made: name for name, shape in TRANSLATIONS.items()}


def to_bytes(message: Message) -> bytes:
    """The message as it travels. Deterministic. Raises ProtocolError if a value is above a limit or cannot travel.

    Sent to many in a row, one message is translated once.
    """
    global _latest
    known, data = _latest
    if known is message:
        return data
    data = to_envelope(message).SerializeToString(deterministic=True)
    if len(data) > limits.MAX_MESSAGE_BYTES:
        raise _oversized(type(message).__name__, len(data))
    _latest = (message, data)
    return data


_latest: tuple[Message | None, bytes] = (None, b"")  # read and replaced whole: safe from any thread


def from_bytes(data: bytes, *, strict: bool = False) -> Message:
    """The message in ``data``. Raises ProtocolError, and nothing else, whatever the bytes."""
    if len(data) > limits.MAX_MESSAGE_BYTES:
        raise _oversized("a message", len(data))
    return from_envelope(_parsed(Envelope, data, "message"), strict=strict)


def to_envelope(message: Message) -> Envelope:
    """Raises ProtocolError as ``to_bytes``, but for the size of the whole."""
    name = _NAMES.get(type(message))
    if name is None:
        raise ProtocolError(f"{type(message).__name__} has no translation")
    try:
        inner: dict[str, Any] = {name: TRANSLATIONS[name].write(message)}
    except Refused as refused:
        raise _refused("cannot send ", type(message).__name__, refused) from None
    return Envelope(format=FORMAT, **inner)


def from_envelope(envelope: Envelope, *, strict: bool = False) -> Message:
    """Raises ProtocolError, and nothing else."""
    _check_format(envelope.format)
    name = envelope.WhichOneof("message")
    if name is None:
        raise ProtocolError("an envelope without a message this version knows", hint=_UPDATE_HINT)
    shape = TRANSLATIONS[name]
    try:
        message: Message = shape.read(getattr(envelope, name), Reading(strict))
    except Refused as refused:
        raise _refused("", shape.made.__name__, refused) from None
    return message


# --- dial-back: a question of the transport, not of the core ----------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DialBack:
    """The question: can you open a connection to me at this address?"""

    address: str


@dataclass(frozen=True, slots=True)
class DialBackAnswer:
    """``failure`` is None if reached, else how it failed; ``detail`` for people."""

    failure: DialFailure | None = None
    detail: str = ""

    @property
    def reached(self) -> bool:
        return self.failure is None


_ADDRESS = Address()
_DETAIL = Text(limits.MAX_REASON_CHARS, clip=True)
_FAILURES: dict[str, DialFailure] = {name: name for name in get_args(DialFailure)}


def dial_back_to_bytes(request: DialBack) -> bytes:
    """Raises ProtocolError if the address cannot travel."""
    _checked("DialBack", "address", _ADDRESS.check, request.address)
    return DialBackRequest(format=FORMAT, address=request.address).SerializeToString()


def dial_back_from_bytes(data: bytes) -> DialBack:
    """Raises ProtocolError; the address has the form host:port."""
    wired = _parsed(DialBackRequest, data, "DialBack")
    _check_format(wired.format)
    _checked("DialBack", "address", lambda value: _ADDRESS.check(value, strict=True), wired.address)
    return DialBack(wired.address)


def dial_back_answer_to_bytes(answer: DialBackAnswer) -> bytes:
    reply = DialBackReply(
        format=FORMAT, reached=answer.reached, failure=answer.failure or "", detail=_DETAIL.write(answer.detail)
    )
    return reply.SerializeToString()


def dial_back_answer_from_bytes(data: bytes) -> DialBackAnswer:
    """Raises ProtocolError."""
    wired = _parsed(DialBackReply, data, "DialBackAnswer")
    _check_format(wired.format)
    _checked("DialBackAnswer", "detail", _DETAIL.check, wired.detail)
    failure = _FAILURES.get(wired.failure)
    if (failure is None and wired.failure) or wired.reached != (failure is None):
        raise ProtocolError(f"DialBackAnswer.failure: reached={wired.reached}, failure={wired.failure[:24]!a}")
    return DialBackAnswer(failure, wired.detail)


# --- helpers ----------------------------------------------------------------------------------------------------------


def _parsed(kind: Any, data: bytes, what: str) -> Any:
    try:
        return kind.FromString(data)
    except (DecodeError, ValueError):  # the runtime without C code lets UnicodeDecodeError through
        text = f"{what}: {len(data)} bytes that are no {kind.DESCRIPTOR.name}"
        raise ProtocolError(text, size_bytes=len(data)) from None


def _check_format(found: int) -> None:
    if found != FORMAT:
        raise ProtocolError(f"the other side speaks wire format {found}, we {FORMAT}", hint=_UPDATE_HINT, format=found)


def _checked(message: str, field: str, check: Any, value: object) -> None:
    try:
        check(value)
    except Refused as refused:
        refused.path.insert(0, field)
        raise _refused("", message, refused) from None


def _refused(start: str, message: str, refused: Refused) -> ProtocolError:
    field = "".join(refused.path)
    return ProtocolError(start + refused.told(message), message=message, field=field)


def _oversized(what: str, size: int) -> ProtocolError:
    text = f"{what} of {size} bytes, the limit is {limits.MAX_MESSAGE_BYTES}"
    return ProtocolError(text, message=what, size_bytes=size)
