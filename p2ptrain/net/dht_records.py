"""Where a peer's record lies in the DHT, and which of the found records are believed.

Decides keys, buckets, size bounds, and what is dropped with which reason. Does not talk to the DHT and knows no
signature scheme: ``unseal`` is handed in.

A DHT key with thousands of subkeys is one big value that every reader would copy whole. So a run's members are spread
over ``buckets`` keys; a reader takes them in random order and stops when it has enough:

    p2ptrain/3f9c0a5b7d21e604/members/0    {peer id: sealed bytes, peer id: sealed bytes, ...}
    p2ptrain/3f9c0a5b7d21e604/members/1    ...
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from p2ptrain.core.types import PeerId, PeerInfo
from p2ptrain.errors import AdmissionError, P2PTrainError, ProtocolError
from p2ptrain.wire.limits import MAX_RECORD_BYTES

BUCKETS = 16
MAX_SUBKEY_LENGTH = 128
MAX_RECORDS_PER_BUCKET = 2048

Seal = Callable[[PeerInfo, float], bytes]
"""(info, expires at, in seconds of ``time.time``) -> sealed bytes of at most ``MAX_RECORD_BYTES``."""

Unseal = Callable[[bytes, float], PeerInfo]
"""(sealed bytes, now) -> what the peer says of itself. Raises a P2PTrainError if malformed, foreign or expired."""


def members_key(run: str, bucket: int) -> str:
    """DHT key of one bucket; ``run`` is the manifest's digest in hex, of which 16 characters go into the key."""
    return f"p2ptrain/{run[:16]}/members/{bucket}"


def bucket_of(peer: PeerId, buckets: int = BUCKETS) -> int:
    """The bucket a peer's record lies in: the same on every platform."""
    return int.from_bytes(hashlib.blake2b(peer.encode(), digest_size=8).digest(), "big") % buckets


@dataclass
class Sifted:
    """Outcome of ``sift``: believed records in the order found, and how many were dropped for which reason."""

    infos: list[PeerInfo] = field(default_factory=list)
    dropped: dict[str, int] = field(default_factory=dict)

    def drop(self, reason: str) -> None:
        self.dropped[reason] = self.dropped.get(reason, 0) + 1


def sift(
    records: object, bucket: int, buckets: int, unseal: Unseal, now: float, take: int, skip: PeerId = ""
) -> Sifted:
    """Verify up to ``take`` records of one bucket. ``records`` is what the helper sent: pairs (subkey, sealed bytes).

    Reasons: ``malformed`` (not a pair of text and bytes), ``oversized``, ``misplaced`` (lies under another peer's name
    or in another peer's bucket), or by what ``unseal`` raised: ``malformed`` (ProtocolError), ``not admitted``
    (AdmissionError: another run's, expired, or not signed by its peer), ``refused`` (any other P2PTrainError).
    Deterministic. ``skip`` is one's own peer id.
    """
    sifted = Sifted()
    if not isinstance(records, Sequence) or isinstance(records, (str, bytes)):
        sifted.drop("malformed")
        return sifted
    for record in records[:MAX_RECORDS_PER_BUCKET]:
        if len(sifted.infos) >= take:
            break
        match record:
            case [str() as subkey, bytes() as sealed]:
                if subkey != skip:
                    _sift_one(sifted, subkey, sealed, bucket, buckets, unseal, now)
            case _:
                sifted.drop("malformed")
    return sifted


def _sift_one(
    sifted: Sifted, subkey: str, sealed: bytes, bucket: int, buckets: int, unseal: Unseal, now: float
) -> None:
    if len(sealed) > MAX_RECORD_BYTES or len(subkey) > MAX_SUBKEY_LENGTH:
        sifted.drop("oversized")
        return
    try:
        info = unseal(sealed, now)
    except P2PTrainError as error:
        sifted.drop(_reason(error))
        return
    if info.peer != subkey or bucket_of(subkey, buckets) != bucket:
        sifted.drop("misplaced")
        return
    sifted.infos.append(info)


def _reason(error: P2PTrainError) -> str:
    if isinstance(error, AdmissionError):
        return "not admitted"
    return "malformed" if isinstance(error, ProtocolError) else "refused"
