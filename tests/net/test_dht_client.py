"""The client against helpers that misbehave in every way: dead, hung, silent, malformed, absent. No hivemind here."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from p2ptrain.core.types import PeerInfo
from p2ptrain.errors import ConfigError, ProtocolError, TransportError
from p2ptrain.net import dht
from p2ptrain.net.dht import DhtDirectory, DhtSettings
from p2ptrain.net.dht_frames import HEADER_BYTES, MAX_FRAME_BYTES
from p2ptrain.net.dht_process import HelperProcess
from p2ptrain.net.dht_records import bucket_of, members_key
from tests.net.dht_support import RUN, eventually, fake_helper, info_of, seal, unseal

GOOD = """
for request in requests():
    op = request["op"]
    if op == "start":
        say(id=request["id"], ok=True, addresses=["/ip4/127.0.0.1/tcp/1"])
    elif op == "get":
        say(id=request["id"], ok=True, records=[])
    else:
        say(id=request["id"], ok=True, stored=True)
"""


def directory(command: tuple[str, ...], **settings: float) -> DhtDirectory:
    quick = {"restart_min_s": 0.01, "restart_max_s": 0.05, "call_timeout_s": 20.0, "start_timeout_s": 20.0}
    return DhtDirectory(RUN, seal, unseal, DhtSettings(**{**quick, **settings}), command=command, rng=random.Random(1))  # type: ignore[arg-type]


def lives(tmp_path: Path) -> int:
    """How often the fake helper called its ``lives``."""
    counted = tmp_path / "fake_helper.py.lives"
    return counted.stat().st_size if counted.exists() else 0


def run(
    tmp_path: Path,
    body: str,
    scenario: Callable[[DhtDirectory], Awaitable[None]],
    start: bool = True,
    **settings: float,
) -> None:
    async def main() -> None:
        own = directory(fake_helper(tmp_path, body), **settings)
        if start:
            await own.start(())
        try:
            await asyncio.wait_for(scenario(own), 60.0)
        finally:
            await own.stop()

    asyncio.run(main())


def test_a_dead_helper_is_replaced_with_one_line_each_and_announces_again(tmp_path, caplog):
    body = GOOD.replace(
        'say(id=request["id"], ok=True, stored=True)',
        'say(id=request["id"], ok=True, stored=True); life = lives(); life < 3 and sys.exit("bad luck %d" % life)',
    )

    async def scenario(own: DhtDirectory) -> None:
        assert await own.announce(info_of("alice"), 60.0)
        await eventually(lambda: own.status().deaths == 3 and own.status().state == "up", "three restarts")
        await eventually(lambda: lives(tmp_path) == 4, "announced a fourth time")
        assert "bad luck 2" in own.status().last_death

    caplog.set_level(logging.INFO, "p2ptrain")
    run(tmp_path, body, scenario)
    assert [record.getMessage() for record in caplog.records if "helper died" in record.getMessage()] == [
        f"DHT helper died ({n} so far): exit code 1: bad luck {n - 1}; again in {pause} s"
        for n, pause in ((1, "0.01"), (2, "0.02"), (3, "0.04"))
    ]


@pytest.mark.parametrize(
    "junk",
    ["b'\\xff' * 64", "b'\\x00\\x00\\x00\\x00'", "b'\\x00\\x00\\x00\\x02\\x91\\x01'", "b'\\x00\\x00\\x00\\x01\\x80'"],
    ids=["oversized", "empty", "a list", "no number"],
)
def test_malformed_frames_from_the_helper_end_that_helper(tmp_path, junk):
    body = f"""
for request in requests():
    if request["op"] == "start":
        say(id=request["id"], ok=True, addresses=[])
        if lives() == 0:
            sock.sendall({junk})
    else:
        say(id=request["id"], ok=True)
"""

    async def scenario(own: DhtDirectory) -> None:
        await eventually(lambda: own.status().deaths == 1 and own.status().state == "up", "a new helper")
        assert "broke the framing" in own.status().last_death

    run(tmp_path, body, scenario)


def test_a_helper_that_hangs_is_replaced(tmp_path):
    body = """
life = lives()
for request in requests():
    if request["op"] == "start" or life:
        say(id=request["id"], ok=True, addresses=[])
"""

    async def scenario(own: DhtDirectory) -> None:
        await eventually(lambda: own.status().deaths == 1 and own.status().state == "up", "a new helper")
        assert "did not answer" in own.status().last_death

    run(tmp_path, body, scenario, ping_period_s=0.1)


def test_calls_without_an_answer_end_at_their_deadline_with_a_reason(tmp_path):
    body = """
for request in requests():
    if request["op"] == "start":
        say(id=request["id"], ok=True, addresses=[])
"""

    async def scenario(own: DhtDirectory) -> None:
        results = await asyncio.gather(own.announce(info_of("alice"), 60.0), own.find(5), own.find(5))
        assert results == [False, (), ()]
        status = own.status()
        assert status.last_announce is not None and "within" in status.last_announce.reason
        assert status.last_find is not None and "within" in status.last_find.reason
        assert "announce failed" in status.describe() and "find failed" in status.describe()

    run(tmp_path, body, scenario, call_timeout_s=0.2)


def test_no_more_calls_at_once_than_set(tmp_path):
    body = """
import select
waiting, most = [], 0
for request in requests():
    if request["op"] == "start":
        say(id=request["id"], ok=True, addresses=[])
        continue
    waiting.append(request["id"])
    most = max(most, len(waiting))
    time.sleep(0.01)
    if not (stream.peek(1) if select.select([sock], [], [], 0.05)[0] else b""):
        for number in waiting:
            say(id=number, ok=True, records=[[str(most), b""]])
        waiting = []
"""

    async def scenario(own: DhtDirectory) -> None:
        seen = []
        own._unseal = lambda data, now: seen.append(1) or PeerInfo("nobody", 1)  # type: ignore[func-returns-value]
        await asyncio.gather(*(own.find(5) for _ in range(4)))
        assert len(seen) == 4 * 16

    async def count(own: DhtDirectory) -> None:
        running, most = 0, 0
        request = HelperProcess.request

        async def counted(self, op, timeout_s, **fields):  # type: ignore[no-untyped-def]
            nonlocal running, most
            running += 1
            most = max(most, running)
            try:
                return await request(self, op, timeout_s, **fields)
            finally:
                running -= 1

        HelperProcess.request = counted  # type: ignore[method-assign]
        try:
            await scenario(own)
        finally:
            HelperProcess.request = request  # type: ignore[method-assign]
        assert most == 3

    run(tmp_path, body, count, calls_max=3)


def test_what_was_found_before_the_deadline_is_returned(tmp_path):
    good = bucket_of("alice")
    body = f"""
import json
for request in requests():
    if request["op"] == "start":
        say(id=request["id"], ok=True, addresses=[])
    elif request.get("key") == "{members_key(RUN, good)}":
        record = json.dumps(["run", 1e12, "alice", 1, []]).encode()
        say(id=request["id"], ok=True, records=[["alice", record], ["alice", b"junk"]])
    elif request["op"] == "get" and not request["key"].endswith("/0"):
        say(id=request["id"], ok=False, error="no luck")
"""

    async def scenario(own: DhtDirectory) -> None:
        assert [info.peer for info in await own.find(5)] == ["alice"]
        assert own.status().dropped == (("malformed", 1),)
        outcome = own.status().last_find
        assert outcome is not None and "no luck" in outcome.reason and "within" in outcome.reason

    run(tmp_path, body, scenario, call_timeout_s=2.0)


def test_find_stops_reading_buckets_at_the_limit(tmp_path):
    body = """
import json
names = json.loads(os.environ["NAMES"])
for request in requests():
    if request["op"] == "start":
        say(id=request["id"], ok=True, addresses=[])
    else:
        name = names[int(request["key"].rsplit("/", 1)[1])]
        lives()
        say(id=request["id"], ok=True, records=[[name, json.dumps(["run", 1e12, name, 1, []]).encode()]])
"""
    names = {bucket_of(name): name for name in (f"peer{i}" for i in range(400))}

    async def scenario(own: DhtDirectory) -> None:
        assert len(await own.find(2)) == 2
        assert lives(tmp_path) <= 2 + dht.BUCKETS_AT_ONCE
        assert len(await own.find(1000)) == 16
        assert await own.find(0) == ()
        assert await own.announce(info_of(names[3]), 60.0) is False  # not "stored"
        assert len(await own.find(1000)) == 15  # without oneself

    os.environ["NAMES"] = "[" + ",".join(f'"{names[bucket]}"' for bucket in range(16)) + "]"
    try:
        run(tmp_path, body, scenario)
    finally:
        del os.environ["NAMES"]


def test_no_dht_on_this_platform_is_said_once_and_is_no_error(tmp_path, caplog):
    body = """
for request in requests():
    say(id=request["id"], ok=False, unavailable=True, error="ModuleNotFoundError: No module named 'hivemind'")
"""

    async def scenario(own: DhtDirectory) -> None:
        assert await own.start(("/ip4/127.0.0.1/tcp/1",)) == ()
        assert await own.find(5) == () and await own.find(5) == ()
        assert await own.announce(info_of("alice"), 60.0) is False
        assert own.status().state == "unavailable"

    run(tmp_path, body, scenario, start=False)
    assert len([record for record in caplog.records if "not available on this platform" in record.getMessage()]) == 1


def test_without_processes_to_fork_there_is_no_dht(tmp_path, monkeypatch):
    monkeypatch.setattr(dht, "STARTABLE", False)

    async def scenario(own: DhtDirectory) -> None:
        assert await own.start(()) == ()
        assert own.status().state == "unavailable"

    run(tmp_path, "raise SystemExit('must not be started')", scenario, start=False)
    assert not (tmp_path / "fake_helper.py.lives").exists()


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("sys.exit('no such library')", "no such library"),
        (
            "for request in requests(): say(id=request['id'], ok=False, error='port 4001 is in use')",
            "port 4001 is in use",
        ),
        ("for request in requests(): pass", "did not answer"),
    ],
    ids=["dies", "refuses", "silent"],
)
def test_a_first_start_that_fails_is_a_named_error_and_leaves_nothing(tmp_path, body, words):
    async def scenario(own: DhtDirectory) -> None:
        with pytest.raises(TransportError, match=words):
            await own.start(())
        assert own.status().state == "stopped"

    run(tmp_path, body, scenario, start=False, start_timeout_s=1.0)


def test_a_program_that_cannot_be_started_is_a_named_error(tmp_path):
    async def scenario() -> None:
        with pytest.raises(TransportError, match="cannot be started"):
            await directory((str(tmp_path / "missing"),)).start(())

    asyncio.run(scenario())


def test_wrong_options_are_config_errors():
    with pytest.raises(ConfigError):
        DhtDirectory(RUN, seal, unseal, DhtSettings(listen="nonsense"))
    with pytest.raises(ConfigError):
        DhtDirectory(RUN, seal, unseal, DhtSettings(announce=("1.2.3.4:0",)))


@pytest.mark.parametrize("lifetime_s", [0.0, -5.0, 1e9, float("nan")])
def test_an_impossible_lifetime_is_refused_with_a_reason(tmp_path, lifetime_s):
    async def scenario() -> None:
        own = directory((sys.executable,))
        assert await own.announce(info_of("alice"), lifetime_s) is False
        assert "lifetime" in own.status().last_announce.reason  # type: ignore[union-attr]

    asyncio.run(scenario())


def test_a_record_that_cannot_be_sealed_is_a_reason_not_an_error(tmp_path):
    def refuse(info: PeerInfo, expires_at: float) -> bytes:
        raise ProtocolError("party is too long")

    async def scenario(own: DhtDirectory) -> None:
        own._seal = lambda info, expires_at: b"x" * 5000
        assert await own.announce(info_of("alice"), 60.0) is False
        assert "5000 bytes" in own.status().last_announce.reason  # type: ignore[union-attr]
        own._seal = refuse
        assert await own.announce(info_of("alice"), 60.0) is False
        assert "too long" in own.status().last_announce.reason  # type: ignore[union-attr]

    run(tmp_path, GOOD, scenario)


def test_state_events_tell_which_initial_peer_failed_and_how_once(tmp_path, caplog):
    body = """
for request in requests():
    say(id=request["id"], ok=True, addresses=[], stored=True)
    if request["op"] == "start":
        for neighbours, good in ((0, "not tried yet"), (0, "not tried yet"), (1, "connected")):
            peers = {"/dead": "connection refused", "/good": good}
            say(id=0, event="state", initial_peers=peers, neighbours=neighbours)
        say(id=0, event="state", initial_peers=7, neighbours="many")
        say(id=0, event="unknown")
    else:
        lives()
"""

    async def scenario(own: DhtDirectory) -> None:
        await eventually(lambda: own.status().neighbours == 1, "a neighbour")
        assert dict(own.status().initial_peers) == {"/dead": "connection refused", "/good": "connected"}
        assert "/dead: connection refused" in own.status().describe()

    run(tmp_path, body, scenario)
    told = [record.getMessage() for record in caplog.records if "/dead" in record.getMessage()]
    assert len(told) == 1 and "connection refused" in told[0]


# --- the real helper program, before it imports hivemind ------------------------------------------------------------


def test_the_helper_answers_malformed_requests_and_ends_on_broken_framing():
    async def scenario() -> None:
        events: list[dict[str, object]] = []
        helper = await HelperProcess.spawn(events.append)
        try:
            assert helper._writer is not None
            for body in (b"\xc1", b"\x91\x01", b"\x80"):
                helper._writer.write(len(body).to_bytes(HEADER_BYTES, "big") + body)
            await helper.request("ping", 30.0)
            assert [event["event"] for event in events] == ["refused"] * 3
            for op, fields in (("explode", {}), ("get", {"key": "x"}), ("store", {}), ("start", {}), ("add", {})):
                with pytest.raises(TransportError, match=r"unknown request|not started|no text|is not a"):
                    await helper.request(op, 30.0, **fields)
            helper._writer.write((MAX_FRAME_BYTES + 1).to_bytes(HEADER_BYTES, "big"))
            assert "exit code 3: dht helper ends" in await asyncio.wait_for(helper.ended, 30.0)
            with pytest.raises(TransportError, match="has ended"):
                await helper.request("ping", 1.0)
        finally:
            await helper.destroy()
        assert not os.path.exists(helper.socket_folder)  # noqa: ASYNC240

    asyncio.run(scenario())


def test_the_helper_without_hivemind_says_so(tmp_path, monkeypatch):
    (tmp_path / "hivemind.py").write_text("raise ImportError('not for this platform')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    async def scenario() -> None:
        own = DhtDirectory(RUN, seal, unseal)
        assert await own.start(()) == ()
        assert "not for this platform" in own.status().last_death
        await own.stop()

    asyncio.run(scenario())
