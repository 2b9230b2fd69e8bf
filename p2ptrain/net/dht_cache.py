"""The peers last met, in one small file of the run folder: a second way in when the DHT is empty or not there.

Decides the file's form (JSON, mode 0600, at most ``MAX_PEERS`` entries and ``MAX_BYTES`` bytes) and that a file which
cannot be read is ignored, with one log line: it is a convenience, never a reason not to start. Addresses only: whoever
answers there still proves its identity by certificate.

    [{"peer": "abcd...", "life": 3, "addresses": ["192.0.2.7:29400"], "region": "eu", "party": ""}]
"""

from __future__ import annotations

import json
import logging
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path

from p2ptrain.core.types import PeerInfo

FILE_NAME = "last-peers.json"
MAX_PEERS = 64
MAX_ADDRESSES = 8
MAX_BYTES = 256 * 1024
MAX_TEXT = 256

logger = logging.getLogger(__name__)


def load_last_peers(folder: Path) -> tuple[PeerInfo, ...]:
    """What ``save_last_peers`` wrote; () if there is no such file, or (said in the log) if it cannot be used."""
    path = folder / FILE_NAME
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            raise ValueError(f"over {MAX_BYTES} bytes")
        entries = json.loads(data)
        if not isinstance(entries, list):
            raise ValueError("not a list")
        return tuple(_info(entry) for entry in entries[:MAX_PEERS])
    except FileNotFoundError:
        return ()
    except (OSError, ValueError, RecursionError) as error:
        logger.warning("the list of last peers in %s cannot be used and is ignored: %s", path, error)
        return ()


def save_last_peers(folder: Path, infos: Iterable[PeerInfo]) -> None:
    """Write the first ``MAX_PEERS`` peers that can be dialled, in order; whole or not at all. Raises OSError."""
    entries = [
        {
            "peer": info.peer,
            "life": info.life,
            "addresses": list(info.addresses[:MAX_ADDRESSES]),
            "region": info.region,
            "party": info.party,
        }
        for info in infos
        if info.diallable
    ][:MAX_PEERS]
    data = json.dumps(entries, indent=1).encode()
    handle, temporary = tempfile.mkstemp(prefix=FILE_NAME, dir=folder)  # created with mode 0600
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, folder / FILE_NAME)
    except OSError:
        Path(temporary).unlink(missing_ok=True)
        raise


def _info(entry: object) -> PeerInfo:
    if not isinstance(entry, dict):
        raise ValueError("an entry is not an object")
    peer, life = entry.get("peer"), entry.get("life")
    addresses = entry.get("addresses")
    if not _is_text(peer) or not peer or not isinstance(life, int) or isinstance(life, bool):
        raise ValueError("an entry has no peer id or life")
    if not isinstance(addresses, list) or not all(_is_text(address) for address in addresses):
        raise ValueError("an entry's addresses are not a list of texts")
    region, party = entry.get("region", ""), entry.get("party", "")
    if not _is_text(region) or not _is_text(party):
        raise ValueError("an entry's region or party is not a text")
    return PeerInfo(peer=peer, life=life, addresses=tuple(addresses[:MAX_ADDRESSES]), region=region, party=party)


def _is_text(value: object) -> bool:
    return isinstance(value, str) and len(value) <= MAX_TEXT
