"""hivemind's ``DHTNode`` as the helper uses it. Imported by the helper alone: this import pulls hivemind and torch.

Decides how the node is set up (auto-NAT, port mapping and relay off unless asked for; every stored value bounded), and
nothing about peers. The DHT is Kademlia as in hivemind 1.1: values expire, the later expiry wins, subkeys merge.
"""

from __future__ import annotations

import asyncio
import importlib
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgpack
from hivemind.dht.node import DHTNode
from hivemind.dht.routing import DHTID
from hivemind.dht.storage import DictionaryDHTValue
from hivemind.dht.validation import DHTRecord, RecordValidatorBase
from hivemind.p2p import P2P, P2PDaemonError, PeerID
from hivemind.p2p.p2p_daemon_bindings.utils import ControlFailure
from hivemind.utils.multiaddr import Multiaddr

from p2ptrain.errors import P2PTrainError
from p2ptrain.net.dht_contacts import CONNECTED, shorten
from p2ptrain.net.dht_frames import MAX_FRAME_BYTES, Frame
from p2ptrain.net.dht_records import MAX_RECORDS_PER_BUCKET, MAX_SUBKEY_LENGTH
from p2ptrain.wire.limits import MAX_RECORD_BYTES, MAX_RECORD_LIFE_S

ANSWER_TIMEOUT_S = 3.0
EXPIRY_SLACK_S = 0.001
DAEMON_START_TIMEOUT_S = 30.0


Check = Callable[[bytes, str, float], str]
"""(sealed bytes, run, now) -> the peer that signed them. Raises a P2PTrainError or ValueError if nobody did."""


class Node:
    """A running DHT node with its libp2p daemon."""

    def __init__(self, p2p: P2P, dht: DHTNode, addresses: tuple[str, ...]) -> None:
        self._p2p, self._dht, self.addresses = p2p, dht, addresses

    @classmethod
    async def create(cls, request: Frame) -> Node:
        """Start the daemon, then the node. Raises P2PDaemonError with its last line (port in use, bad identity)."""
        P2P._UNIX_SOCKET_PREFIX = f"/unix{request['socket_folder']}/"  # not a folder that every local user can enter
        identity = request.get("identity")
        p2p = await P2P.create(
            host_maddrs=list(request["listen"]),
            announce_maddrs=list(request["announce"]) or None,
            identity_path=identity or None,
            check_if_identity_free=False,
            dht_mode="client" if request["client_mode"] else "server",
            auto_nat=bool(request["auto_nat"]),
            nat_port_map=bool(request["port_map"]),
            use_relay=bool(request["relay"]),
            use_auto_relay=bool(request["relay"]),
            startup_timeout=DAEMON_START_TIMEOUT_S,
        )
        try:
            dht = await DHTNode.create(
                p2p=p2p,
                node_id=DHTID.generate(source=p2p.peer_id.to_bytes()),  # the same again with this identity
                client_mode=bool(request["client_mode"]),
                wait_timeout=ANSWER_TIMEOUT_S,
                record_validator=Guard(tuple(request["keys"]), request["run"], _load(request["checker"])),
                cache_locally=False,
                cache_nearest=0,
                cache_on_store=False,
                cache_refresh_before_expiry=0,
                reuse_get_requests=False,
            )
            addresses = tuple(str(address) for address in await p2p.get_visible_maddrs(latest=True))
        except BaseException:
            await p2p.shutdown()
            raise
        return cls(p2p, dht, addresses)

    @property
    def neighbours(self) -> int:
        """DHT nodes in the routing table."""
        return len(self._dht.protocol.routing_table.uid_to_peer_id)

    def bound_storage(self) -> None:
        """Hold at most ``MAX_RECORDS_PER_BUCKET`` records of each bucket; those that expire first go first."""
        for entry in self._dht.protocol.storage.data.values():
            if isinstance(entry.value, DictionaryDHTValue):
                entry.value.maxsize = MAX_RECORDS_PER_BUCKET

    async def reach(self, address: str) -> str:
        """Connect and ask for the node id. ``CONNECTED``, or why not. Raises ValueError for an unusable address."""
        parsed = Multiaddr(address)
        if "p2p" not in parsed:
            raise ValueError("no /p2p/ part with the peer's identity")
        peer = PeerID.from_base58(parsed["p2p"])
        if peer == self._p2p.peer_id:
            raise ValueError("this is the peer's own address")
        try:
            await self._p2p._client.connect(peer, [parsed.decapsulate(f"/p2p/{parsed['p2p']}")])
        except (ControlFailure, P2PDaemonError, OSError, asyncio.IncompleteReadError) as error:
            return shorten(str(error).removeprefix("Connect failed. msg="))
        known = peer in self._dht.protocol.routing_table.peer_id_to_uid
        if await self._dht.protocol.call_ping(peer) is None:
            return "connected, but it does not answer DHT requests"
        if not known:
            with suppress(asyncio.TimeoutError):  # only makes the routing table fuller
                await asyncio.wait_for(self._dht.find_nearest_nodes([self._dht.node_id]), ANSWER_TIMEOUT_S)
        return CONNECTED

    async def store(self, key: str, subkey: str, value: bytes, expires_at: float) -> bool:
        """True if at least one node holds it, which may be this one alone.

        hivemind reports what the last of the asked nodes said; a False is therefore checked by looking.
        """
        if await self._dht.store(key, value, expires_at, subkey=subkey):
            return True
        return (subkey, value) in await self.get(key)

    async def get(self, key: str) -> list[tuple[str, bytes]]:
        """All (subkey, value) pairs, merged over the nodes that hold the key, within one frame's size."""
        found = await self._dht.get(key, latest=True)
        if found is None or not isinstance(found.value, dict):
            return []
        records: list[tuple[str, bytes]] = []
        room = MAX_FRAME_BYTES - 4096
        for subkey, entry in found.value.items():
            if isinstance(subkey, str) and isinstance(entry.value, bytes):
                room -= len(entry.value) + len(subkey.encode()) + 16
                if room < 0 or len(records) >= MAX_RECORDS_PER_BUCKET:
                    break
                records.append((subkey, entry.value))
        return records

    async def daemon_ended(self) -> int:
        return int(await self._p2p._child.wait())

    async def stop(self, grace_s: float) -> None:
        """Take the node and the daemon down; the daemon is killed if it does not end in time."""
        child = self._p2p._child
        try:
            await asyncio.wait_for(self._p2p.shutdown(), grace_s)
        except asyncio.TimeoutError:
            child.kill()
            await asyncio.wait_for(child.wait(), grace_s)


class Guard(RecordValidatorBase):  # type: ignore[misc]
    """What this node is willing to hold or pass on: this run's keys, small values, sane expiry, signed by their peer.

    Without it, one stored value that is no msgpack makes a whole bucket unreadable in hivemind, and anybody could
    replace another's record. The signed expiry must not be before the one it is stored with.
    """

    def __init__(self, keys: tuple[str, ...], run: str, check: Check | None) -> None:
        self._keys = {DHTID.generate(source=key).to_bytes() for key in keys}
        self._run, self._check = run, check

    @property
    def priority(self) -> int:
        return 0

    def validate(self, record: DHTRecord) -> bool:
        # Not refused for having expired: hivemind would then refuse all that came with it.
        if record.key not in self._keys or len(record.value) > MAX_RECORD_BYTES + 16:
            return False
        if not record.expiration_time <= time.time() + 2 * MAX_RECORD_LIFE_S:
            return False
        subkey, value = _unpack(record.subkey), _unpack(record.value)
        if not isinstance(subkey, str) or len(subkey) > MAX_SUBKEY_LENGTH or not isinstance(value, bytes):
            return False
        if self._check is None:
            return True
        try:
            return self._check(value, self._run, record.expiration_time - EXPIRY_SLACK_S) == subkey
        except (P2PTrainError, ValueError):
            return False


def _unpack(data: bytes) -> Any:
    try:
        return msgpack.unpackb(data, raw=False)
    except (ValueError, msgpack.UnpackException):
        return None


def _load(name: str) -> Check | None:
    """``module:function``, from this project's own code, never from a remote."""
    if not name:
        return None
    module, _, function = name.partition(":")
    loaded: Check = getattr(importlib.import_module(module), function)
    return loaded
