"""What the DHT holds of a peer: its ``PeerInfo`` as a signed, expiring msgpack record; and what exactly is signed.

    data = seal(info, run, expires_at=now + 300, sign=key.sign)
    info = unseal(data, run, now, verify)

``sign`` and ``verify`` belong to ``net``: this module knows no keys. ``verify`` must also check that the peer's id is
the hash of the public key. Times are seconds since the epoch, for records cross machines; the sender's clock may be
minutes off, so expiries are chosen in tens of minutes. Every signature covers a purpose, so that none can be used for
another.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import msgpack

from p2ptrain.core.messages import Leave
from p2ptrain.core.types import PeerId, PeerInfo
from p2ptrain.errors import AdmissionError, ProtocolError
from p2ptrain.wire import limits
from p2ptrain.wire.runs import Refused
from p2ptrain.wire.values import PEER_INFO

FORMAT = 1

Sign = Callable[[bytes], bytes]
"""The signature of these bytes with the peer's own key."""

Verify = Callable[[PeerId, bytes, bytes, bytes], bool]
"""(peer, public key, signature, signed bytes): true if the key is the peer's and the signature the key's."""

_INFO_FIELDS = [f.name for f in fields(PeerInfo)]
_SAID_FIELDS = [f.name for f in fields(PeerInfo) if f.compare]
_REAL_FIELDS = ("microbatch_s", "uplink_mbps", "downlink_mbps")


def info_signing_bytes(run: str, info: PeerInfo) -> bytes:
    """What ``info.signature`` signs: the run, and the info without signature and key. Travel does not change it."""
    return _packed(["p2ptrain info", FORMAT, run, *(_plain(info, name) for name in _SAID_FIELDS)])


def leave_signing_bytes(run: str, leave: Leave) -> bytes:
    """What ``leave.signature`` signs."""
    return _packed(["p2ptrain leave", FORMAT, run, leave.peer, leave.life, leave.reason])


def seal(info: PeerInfo, run: str, expires_at: float, sign: Sign) -> bytes:
    """The record: at most ``MAX_RECORD_BYTES``. ``info`` is carried as it is, its own signature and key included.

    Raises ProtocolError if a value is above its limit.
    """
    _check_info(info)
    body = _body(info, run, expires_at)
    data = _packed([FORMAT, run, float(expires_at), _wired(info), sign(_packed(body))])
    if len(data) > limits.MAX_RECORD_BYTES:
        raise ProtocolError(f"a DHT record of {len(data)} bytes, the limit is {limits.MAX_RECORD_BYTES}")
    return data


def unseal(data: bytes, run: str, now: float, verify: Verify, *, strict: bool = True) -> PeerInfo:
    """The info in a record, both signatures verified (its own only if it has one).

    Raises ProtocolError if the bytes are no record, AdmissionError if it is of another run, expired, or not signed by
    its peer. ``strict`` as in ``translate``.
    """
    its_run, expires_at, info, signature = _opened(data)
    _check_info(info, strict)
    if its_run != run:
        raise AdmissionError(f"a DHT record of another run, {its_run[:8]!a}", peer=info.peer)
    if not now < expires_at <= now + limits.MAX_RECORD_LIFE_S:
        ahead = "expired" if expires_at <= now else "expires too far ahead"
        raise AdmissionError(
            f"the DHT record of {info.peer} {ahead} ({expires_at - now:+.0f} s)",
            hint="if all records are refused so, check this machine's clock",
            peer=info.peer,
        )
    signed = [(signature, _packed(_body(info, run, expires_at)))]
    if info.signature:
        signed.append((info.signature, info_signing_bytes(run, info)))
    if not all(verify(info.peer, info.public_key, made, over) for made, over in signed):
        raise AdmissionError(f"the DHT record of {info.peer} is not signed by it", peer=info.peer)
    return info


# --- helpers ----------------------------------------------------------------------------------------------------------


def _opened(data: bytes) -> tuple[str, float, PeerInfo, bytes]:
    if len(data) > limits.MAX_RECORD_BYTES:
        raise ProtocolError(f"a DHT record of {len(data)} bytes, the limit is {limits.MAX_RECORD_BYTES}")
    try:
        whole = msgpack.unpackb(data, raw=False, use_list=False, max_map_len=0, max_ext_len=0, max_array_len=64)
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        text = f"a DHT record of {len(data)} bytes that is no plain msgpack ({type(error).__name__})"
        raise ProtocolError(text) from None
    if not isinstance(whole, tuple) or not whole or whole[0] != FORMAT or isinstance(whole[0], bool):
        raise ProtocolError("a DHT record of an unknown format", hint="update p2ptrain on the older side")
    if len(whole) != 5:
        raise ProtocolError(f"a DHT record with {len(whole)} fields instead of 5")
    _, run, expires_at, said, signature = whole
    if not (isinstance(run, str) and isinstance(expires_at, float) and math.isfinite(expires_at)):
        raise ProtocolError("a DHT record without a run or expiry")
    if not isinstance(signature, bytes) or len(signature) > limits.MAX_SIGNATURE_BYTES:
        raise ProtocolError("a DHT record without a signature of allowed length")
    if not isinstance(said, tuple) or len(said) != len(_INFO_FIELDS):
        raise ProtocolError(f"a DHT record whose info has not {len(_INFO_FIELDS)} fields")
    return run, expires_at, PeerInfo(*said), signature


def _check_info(info: PeerInfo, strict: bool = False) -> None:
    try:
        PEER_INFO.check(info, strict)
    except Refused as refused:
        raise ProtocolError(f"DHT record: {refused.told('PeerInfo')}", field="".join(refused.path)) from None


def _body(info: PeerInfo, run: str, expires_at: float) -> list[Any]:
    return ["p2ptrain record", FORMAT, run, float(expires_at), _wired(info)]


def _wired(info: PeerInfo) -> list[Any]:
    return [_plain(info, name) for name in _INFO_FIELDS]


def _plain(info: PeerInfo, name: str) -> Any:
    value = getattr(info, name)
    return float(value) if name in _REAL_FIELDS else value


def _packed(values: list[Any]) -> bytes:
    data: bytes = msgpack.packb(values, use_bin_type=True)
    return data
