"""Small named things that members give each other before or beside training: manifest, status, corpus description.

Decides their names (digests) and bounds. They travel on BLOB and CORPUS streams (``pulls``).
"""

from __future__ import annotations

import json
from typing import Any

from p2ptrain.core.types import Digest, hash_bytes
from p2ptrain.data.corpus import CorpusInfo
from p2ptrain.errors import ProtocolError

STATUS = hash_bytes(b"p2ptrain status 1")
STATUS_MAX_BYTES = 1 << 20
MANIFEST_MAX_BYTES = 1 << 20
CORPUS_INFO_INDEX = 0xFFFFFFFF
CORPUS_INFO_MAX_BYTES = 64 << 20


def corpus_name(fingerprint: str) -> Digest:
    """The 32 bytes that name a corpus on the wire."""
    return bytes.fromhex(fingerprint)


def pack_corpus_info(info: CorpusInfo) -> bytes:
    values = {"total": info.total_bytes, "chunk": info.chunk_bytes, "digests": [d.hex() for d in info.chunk_digests]}
    return json.dumps(values).encode()


def unpack_corpus_info(data: bytes, fingerprint: str) -> CorpusInfo:
    """Raises ProtocolError if it is no description, TransferError if it is not of this corpus."""
    try:
        values: dict[str, Any] = json.loads(data)
        digests = tuple(bytes.fromhex(text) for text in values["digests"])
        info = CorpusInfo(int(values["total"]), int(values["chunk"]), digests, fingerprint)
    except (ValueError, KeyError, TypeError) as error:
        raise ProtocolError(f"unreadable description of a corpus: {error}") from None
    info.check(fingerprint)
    return info
