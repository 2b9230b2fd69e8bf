"""The parts of the DHT client that need no process: frames, addresses, records, contacts, the last-peers file."""

from __future__ import annotations

import asyncio
import stat

import msgpack
import pytest

from p2ptrain.core.types import PeerInfo
from p2ptrain.errors import ConfigError, ProtocolError
from p2ptrain.net import dht_cache, dht_contacts
from p2ptrain.net.dht_address import multiaddr_of
from p2ptrain.net.dht_contacts import CONNECTED, Contacts
from p2ptrain.net.dht_frames import MAX_FRAME_BYTES, decode, encode, read_body
from p2ptrain.net.dht_records import MAX_RECORDS_PER_BUCKET, bucket_of, members_key, sift
from tests.net.dht_support import eventually, info_of, seal, unseal

# --- frames -----------------------------------------------------------------------------------------------------------


def read_all(data: bytes) -> list[bytes]:
    async def read() -> list[bytes]:
        reader = asyncio.StreamReader(limit=MAX_FRAME_BYTES)
        reader.feed_data(data)
        reader.feed_eof()
        bodies = []
        while (body := await read_body(reader)) is not None:
            bodies.append(body)
        return bodies

    return asyncio.run(read())


def test_frames_come_back_as_sent():
    messages = [{"id": 1, "op": "store", "value": b"\x00\xff", "list": ("a", 1)}, {"id": 2, "op": "ping"}]
    assert [decode(body) for body in read_all(b"".join(map(encode, messages)))] == messages


@pytest.mark.parametrize(
    "data",
    [b"\x00\x00", b"\x00\x00\x00\x00", b"\xff\xff\xff\xff", encode({"id": 1})[:-1]],
    ids=["cut header", "empty", "oversized", "cut body"],
)
def test_a_broken_stream_is_named(data):
    with pytest.raises(ProtocolError):
        read_all(data)


@pytest.mark.parametrize(
    "body",
    [b"\xc1", b"", msgpack.packb([1]), msgpack.packb({1: 2}), msgpack.packb({"a": 1}) + b"x", b"\x91" * 100_000],
    ids=["never used code", "nothing", "list", "number key", "more behind", "deep"],
)
def test_a_body_that_is_no_message_is_named(body):
    with pytest.raises(ProtocolError):
        decode(body)


def test_an_oversized_message_is_not_sent():
    with pytest.raises(ProtocolError):
        encode({"value": b"x" * MAX_FRAME_BYTES})


# --- addresses --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0.0.0.0:4001", "/ip4/0.0.0.0/tcp/4001"),
        (":0", "/ip4/0.0.0.0/tcp/0"),
        ("localhost:7", "/ip4/127.0.0.1/tcp/7"),
        ("[::1]:7", "/ip6/::1/tcp/7"),
        ("/ip4/1.2.3.4/tcp/5", "/ip4/1.2.3.4/tcp/5"),
    ],
)
def test_listen_addresses(text, expected):
    assert multiaddr_of(text) == expected


def test_a_name_can_be_announced_but_not_listened_on():
    assert multiaddr_of("peer.example.org:4001", key="dht_announce") == "/dns/peer.example.org/tcp/4001"
    with pytest.raises(ConfigError):
        multiaddr_of("peer.example.org:4001")


@pytest.mark.parametrize(
    "text", ["", "4001", "1.2.3.4:", "1.2.3.4:99999", "::1:7", "1.2.3.4:-1", "[::1%lo]:7", "a/b:7"]
)
def test_wrong_addresses_name_the_option(text):
    with pytest.raises(ConfigError) as caught:
        multiaddr_of(text)
    assert caught.value.fields["key"] == "dht_listen"


def test_port_zero_cannot_be_announced():
    with pytest.raises(ConfigError):
        multiaddr_of("1.2.3.4:0", key="dht_announce")


# --- records ----------------------------------------------------------------------------------------------------------


def record(peer: str, expires_at: float = 100.0) -> tuple[str, bytes]:
    return peer, seal(info_of(peer), expires_at)


def sifted(records: object, bucket: int, take: int = 10, skip: str = ""):
    return sift(records, bucket, 16, unseal, 50.0, take, skip)


def test_keys_and_buckets_are_the_same_everywhere():
    assert members_key("0123456789abcdef99", 3) == "p2ptrain/0123456789abcdef/members/3"
    assert (bucket_of("alice"), bucket_of("bob")) == (9, 2)
    assert len({bucket_of(f"peer{i}") for i in range(400)}) == 16


def test_what_is_not_believed_is_counted_by_reason():
    bucket = bucket_of("alice")
    records = (
        record("alice"),
        ("alice", b"not json"),
        ("alice", b"x" * 5000),
        ("a" * 300, b"{}"),
        record("alice", expires_at=49.0),
        ("alice", seal(info_of("alice"), 100.0).replace(b'"run"', b'"other"')),
        ("mallory", seal(info_of("alice"), 100.0)),
        ("alice", "text"),
        7,
    )
    result = sifted(records, bucket)
    assert [info.peer for info in result.infos] == ["alice"]
    assert result.dropped == {"malformed": 3, "oversized": 2, "not admitted": 2, "misplaced": 1}


def test_a_record_in_another_peers_bucket_is_dropped():
    assert sifted((record("alice"),), (bucket_of("alice") + 1) % 16).dropped == {"misplaced": 1}


@pytest.mark.parametrize("records", [None, "text", b"bytes", 5, {"a": 1}])
def test_records_of_another_shape_are_one_drop(records):
    assert sifted(records, 0).dropped == {"malformed": 1}


def test_sifting_stops_at_the_limit_skips_oneself_and_reads_no_more_than_its_bound():
    peers = [name for name in (f"peer{i}" for i in range(400)) if bucket_of(name) == 3]
    result = sifted(tuple(map(record, peers)), 3, take=5, skip=peers[0])
    assert [info.peer for info in result.infos] == peers[1:6]
    flood = sifted(((1, 2),) * (MAX_RECORDS_PER_BUCKET + 100), 3)
    assert flood.dropped == {"malformed": MAX_RECORDS_PER_BUCKET}


# --- contacts ---------------------------------------------------------------------------------------------------------


def test_each_initial_peer_is_tried_by_itself_and_again(monkeypatch):
    monkeypatch.setattr(dht_contacts, "CONNECT_TIMEOUT_S", 0.05)
    monkeypatch.setattr(dht_contacts, "RETRY_MIN_S", 0.01)
    tries: dict[str, int] = {}
    changes: list[int] = []

    async def reach(address: str) -> str:
        tries[address] = tries.get(address, 0) + 1
        if address == "hole":
            await asyncio.Event().wait()
        if address == "wrong":
            raise ValueError("no /p2p/ part")
        if address == "late":
            return CONNECTED if tries[address] == 3 else ["connection refused", "dial backoff"][tries[address] - 1]
        return CONNECTED

    async def scenario() -> None:
        contacts = Contacts(reach, lambda: changes.append(1))
        contacts.add(("hole", "wrong", "late", "good", "good"))
        await eventually(lambda: tries.get("late") == 2, "second try")
        assert contacts.state["late"] == "connection refused"  # "dial backoff" says less
        await eventually(
            lambda: contacts.state["late"] == CONNECTED and "no answer" in contacts.state["hole"], "all told"
        )
        assert contacts.state["good"] == CONNECTED
        assert contacts.state["wrong"] == "not usable: no /p2p/ part"
        await contacts.stop()

    asyncio.run(scenario())
    assert tries["wrong"] == 1 and tries["good"] == 1 and len(changes) >= 5


def test_the_number_of_initial_peers_is_bounded():
    async def reach(address: str) -> str:
        return CONNECTED

    async def scenario() -> int:
        contacts = Contacts(reach, lambda: None)
        contacts.add(tuple(str(i) for i in range(1000)))
        await contacts.stop()
        return len(contacts.state)

    assert asyncio.run(scenario()) == dht_contacts.MAX_ADDRESSES


# --- last peers -------------------------------------------------------------------------------------------------------


def test_last_peers_are_kept_whole_private_and_bounded(tmp_path):
    infos = [PeerInfo(f"peer{i}", 1, (f"192.0.2.1:{i + 1}",), region="eu") for i in range(100)]
    dht_cache.save_last_peers(tmp_path, [PeerInfo("no-address", 1), *infos])
    assert dht_cache.load_last_peers(tmp_path) == tuple(infos[: dht_cache.MAX_PEERS])
    assert stat.S_IMODE((tmp_path / dht_cache.FILE_NAME).stat().st_mode) == 0o600
    dht_cache.save_last_peers(tmp_path, infos[:1])
    assert dht_cache.load_last_peers(tmp_path) == (infos[0],)
    assert [path.name for path in tmp_path.iterdir()] == [dht_cache.FILE_NAME]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b"{}",
        b"[1]",
        b'[{"peer": "a", "life": 1}]',
        b'[{"peer": "a", "life": 1, "addresses": [2]}]',
        b'[{"peer": "", "life": 1, "addresses": []}]',
        b"[" * 100_000,
        b" " * (dht_cache.MAX_BYTES + 1),
    ],
)
def test_a_corrupt_file_is_ignored_and_said(tmp_path, caplog, content):
    (tmp_path / dht_cache.FILE_NAME).write_bytes(content)
    assert dht_cache.load_last_peers(tmp_path) == ()
    assert "ignored" in caplog.text


def test_no_file_is_no_peers_and_no_word(tmp_path, caplog):
    assert dht_cache.load_last_peers(tmp_path) == ()
    assert caplog.text == ""
