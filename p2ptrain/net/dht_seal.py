"""The signature scheme of DHT records in use: the peer's own key over ``wire.records``. For both ends of the DHT.

Decides nothing of its own: joins ``wire.records`` (what is signed) with ``net.identity`` (by which key).

    seal, unseal = sealing(identity, run)
    directory = DhtDirectory(run, seal, unseal, settings)
    # and in the helper: check(data, run, now) before a node stores or passes on a record
"""

from __future__ import annotations

from p2ptrain.core.types import PeerId, PeerInfo
from p2ptrain.net.dht_records import Seal, Unseal
from p2ptrain.net.identity import Identity, peer_id_of, verify
from p2ptrain.wire import records


def sealing(identity: Identity, run: str) -> tuple[Seal, Unseal]:
    """``seal`` and ``unseal`` for ``DhtDirectory``; what they raise is said in ``wire.records``."""

    def seal(info: PeerInfo, expires_at: float) -> bytes:
        return records.seal(info, run, expires_at, identity.sign)

    def unseal(data: bytes, now: float) -> PeerInfo:
        return records.unseal(data, run, now, _verify)

    return seal, unseal


def check(data: bytes, run: str, now: float) -> PeerId:
    """The peer that signed this record for this run. Raises ProtocolError or AdmissionError."""
    return records.unseal(data, run, now, _verify).peer


def _verify(peer: PeerId, public_key: bytes, signature: bytes, signed: bytes) -> bool:
    return peer_id_of(public_key) == peer and verify(public_key, signature, signed)
