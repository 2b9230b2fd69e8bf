"""What links say below the core's messages: goodbye, pulse, "open a bulk stream to me".

A side frame is a protobuf envelope whose only field is number 1000, so that a reader that knows ``Envelope`` alone
skips it; inside is a short msgpack list. Here too: the proof that whoever answers a call owns the key behind its name.

    pack(Bye("closed", "leaving"))  ->  c2 3e <length> 93 a3 "bye" ...
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgpack

from p2ptrain.core.types import PeerId
from p2ptrain.errors import ProtocolError
from p2ptrain.net import identity as keys

_TAG = b"\xc2\x3e"  # field 1000, length-delimited
_SIDE_MAX_BYTES = 2048
_TEXT_MAX_CHARS = 300


@dataclass(frozen=True, slots=True)
class Bye:
    """The sender ends this link on purpose."""

    reason: str


@dataclass(frozen=True, slots=True)
class Pulse:
    """ "I have nothing else to say." With ``asks``, please answer with a pulse of the same ``number``."""

    number: int = 0
    asks: bool = False


@dataclass(frozen=True, slots=True)
class BulkPlease:
    """Please open a bulk stream to me and show this token: I cannot dial you."""

    token: bytes


Side = Bye | Pulse | BulkPlease

_KINDS: dict[str, tuple[type[Any], tuple[type, ...]]] = {
    "bye": (Bye, (str,)),
    "pulse": (Pulse, (int, bool)),
    "bulk": (BulkPlease, (bytes,)),
}


def pack(side: Side) -> bytes:
    """The frame as it travels."""
    if isinstance(side, Bye):
        fields: list[Any] = ["bye", side.reason[:_TEXT_MAX_CHARS]]
    elif isinstance(side, Pulse):
        fields = ["pulse", side.number, side.asks]
    else:
        fields = ["bulk", side.token]
    body: bytes = msgpack.packb(fields)
    return _TAG + _varint(len(body)) + body


def unpack(frame: bytes) -> Side | None:
    """The side frame in these bytes; None if they are an ordinary message. Raises ProtocolError."""
    if not frame.startswith(_TAG):
        return None
    if len(frame) > _SIDE_MAX_BYTES:
        raise ProtocolError(f"a side frame of {len(frame)} bytes")
    body = frame[len(_TAG) :]
    length, start = body[0] if body else 0, 1
    if length & 0x80 and len(body) > 1:
        length, start = (length & 0x7F) | body[1] << 7, 2
    if len(body) - start != length:
        raise ProtocolError("a side frame of another length than it says")
    try:
        fields = msgpack.unpackb(body[start:], raw=False)
    except Exception as error:  # msgpack raises many kinds
        raise ProtocolError("a side frame that does not unpack") from error
    if not isinstance(fields, list) or not fields or not isinstance(fields[0], str):
        raise ProtocolError("a side frame without a kind")
    kind = _KINDS.get(fields[0])
    values = fields[1:]
    if kind is None or [type(value) for value in values] != list(kind[1]):
        raise ProtocolError(f"a side frame of an unknown form: {fields[0][:20]!r}")
    side: Side = kind[0](*values)
    return side


def _varint(value: int) -> bytes:
    return bytes([value]) if value < 0x80 else bytes([value & 0x7F | 0x80, value >> 7])


# --- proof of the answering side ------------------------------------------------------------------------------------
#
# TLS shows the dialler a certificate signed with an invite's key, and any member holds one: it could have signed a leaf
# with another's name. gRPC does not show the dialler the server's key. So the answering side signs the dialler's nonce
# together with both names; the dialler's own name in it keeps a member in the middle from passing on somebody's answer.


def proof_bytes(run: str, nonce: bytes, dialler: PeerId, answerer: PeerId) -> bytes:
    """What the answering side signs."""
    pieces = (b"p2ptrain answer 1", run.encode(), nonce, dialler.encode(), answerer.encode())
    return b"".join(len(piece).to_bytes(2, "big") + piece for piece in pieces)


def pack_proof(signature: bytes, public_key: bytes, chain: tuple[bytes, ...]) -> bytes:
    """``chain``: leaf and intermediate (DER) on a link, empty on a bulk stream."""
    packed: bytes = msgpack.packb([signature, public_key, list(chain)])
    return packed


def check_proof(packed: bytes, signed: bytes, answerer: PeerId) -> tuple[bytes, ...]:
    """The chain in the proof. Raises ProtocolError if it does not prove that ``answerer`` answered."""
    try:
        signature, public_key, chain = msgpack.unpackb(packed)
        parts = tuple(bytes(part) for part in chain)
        if keys.peer_id_of(public_key) == answerer and keys.verify(public_key, signature, signed):
            return parts
    except Exception as error:  # hostile bytes
        raise ProtocolError("an answer without a readable proof of its key") from error
    raise ProtocolError(f"who answered does not own the key of {answerer}")
