"""Real helpers with hivemind and libp2p on loopback: finding each other, dying, orphaned. Few: each takes seconds."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from p2ptrain.errors import TransportError
from p2ptrain.net.dht import DhtDirectory, DhtSettings
from p2ptrain.net.dht_records import bucket_of, members_key
from tests.net.dht_support import RUN, eventually, info_of, seal, unseal

ROOT = Path(__file__).resolve().parents[2]
DEAD = "/ip4/127.0.0.1/tcp/1/p2p/QmRvSAxHsYkjmTjhsSiCZ7GmdYEjESTcLiULPXhuFgJmBQ"
WRONG = "/ip4/127.0.0.1/tcp/1"

pytestmark = pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="looks at processes through /proc")


class Pair:
    """Two directories in one loop; bob was started with a dead, a wrong and a live initial peer."""

    def __init__(self, folder: Path) -> None:
        self.loop = asyncio.new_event_loop()
        plain = DhtSettings(listen="127.0.0.1:0", checker="")
        checking = DhtSettings(
            listen="127.0.0.1:0", folder=folder, restart_min_s=0.05, checker="tests.net.dht_support:check"
        )
        self.alice = DhtDirectory(RUN, seal, unseal, plain)
        self.bob = DhtDirectory(RUN, seal, unseal, checking)
        self.addresses, self.bob_addresses = self.run(self._start())

    async def _start(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        alice, bob = await asyncio.gather(self.alice.start(()), self.bob.start((DEAD, WRONG)))
        await self.bob.add_initial_peers(alice)
        return alice, bob

    def run(self, work: Any) -> Any:
        return self.loop.run_until_complete(asyncio.wait_for(work, 90.0))

    def close(self) -> None:
        """Afterwards no helper and no daemon is left."""
        helpers = [directory._helper.pid for directory in (self.alice, self.bob) if directory._helper is not None]
        pids = helpers + [child for pid in helpers for child in children_of(pid)]
        self.run(self.alice.stop())
        self.run(self.bob.stop())
        assert len(pids) == 4 and not any(map(alive, pids))
        self.loop.close()


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    both = Pair(tmp_path_factory.mktemp("bob"))
    yield both
    both.close()


async def found_by(directory: DhtDirectory, wanted: set[str]) -> None:
    for _ in range(100):
        if wanted <= {info.peer for info in await directory.find(50)}:
            return
        await asyncio.sleep(0.1)
    raise AssertionError(f"{wanted} not found: {directory.status().describe()}")


def test_two_find_each_other_and_the_dead_initial_peer_is_named(pair: Pair):
    async def scenario() -> None:
        assert await pair.alice.announce(info_of("alice"), 600.0)
        assert await pair.bob.announce(info_of("bob", life=7), 600.0)
        await found_by(pair.bob, {"alice"})
        await found_by(pair.alice, {"bob"})
        assert (await pair.alice.find(50))[0] == info_of("bob", life=7)
        await eventually(lambda: pair.bob.status().neighbours == 1, "one neighbour")
        told = dict(pair.bob.status().initial_peers)
        assert told[pair.addresses[0]] == "connected"
        assert "connection refused" in told[DEAD]
        assert told[WRONG].startswith("not usable")

    pair.run(scenario())


def test_records_that_nobody_signed_are_refused_by_a_checking_helper_and_dropped_by_readers(pair: Pair):
    async def store(directory: DhtDirectory, subkey: str, value: bytes, key: str = "") -> bool:
        assert directory._helper is not None
        key = key or members_key(RUN, bucket_of(subkey))
        answer = await directory._helper.request(
            "store", 30.0, key=key, subkey=subkey, value=value, expires_at=directory._clock() + 300.0
        )
        return bool(answer["stored"])

    async def scenario() -> None:
        # alice's helper checks only the form; bob's also who signed
        assert await store(pair.alice, "mallory", b"no record at all")
        assert await store(pair.alice, "eve", seal(info_of("alice"), 2e12))
        assert not await store(pair.alice, "big", b"x" * 5000)
        assert not await store(pair.alice, "other key", b"x", key="p2ptrain/other/members/0")
        assert not await store(pair.alice, "bob", b"no record at all")  # an earlier expiry than bob's own
        await found_by(pair.alice, {"bob"})
        dropped = dict(pair.alice.status().dropped)
        assert dropped["malformed"] >= 1 and dropped["misplaced"] >= 1
        assert {info.peer for info in await pair.alice.find(50)} == {"bob"}

    pair.run(scenario())


def test_a_killed_helper_comes_back_with_its_identity_and_announces_again(pair: Pair, caplog):
    async def scenario() -> None:
        helper = pair.bob._helper
        assert helper is not None
        daemons = children_of(helper.pid)
        assert len(daemons) == 1
        before = pair.bob.status().last_announce
        os.kill(helper.pid, signal.SIGKILL)
        await eventually(lambda: pair.bob.status().deaths == 1, "death noticed", 10.0)
        await eventually(lambda: pair.bob.status().state == "up", "restart", 60.0)
        assert not alive(daemons[0]) and not os.path.exists(helper.socket_folder)  # noqa: ASYNC240
        assert "killed by signal 9" in pair.bob.status().last_death
        assert peer_id(pair.bob.status().addresses[0]) == peer_id(pair.bob_addresses[0])
        await eventually(lambda: announced_after(pair.bob, before), "announced again")
        await found_by(pair.bob, {"alice"})

    pair.run(scenario())
    assert len([record for record in caplog.records if "helper died" in record.getMessage()]) == 1


def test_a_parent_killed_leaves_no_process_and_never_imported_hivemind(pair: Pair):
    parent = subprocess.Popen(
        [sys.executable, "-m", "tests.net.dht_parent", pair.addresses[0]],
        cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert parent.stdin is not None and parent.stdout is not None
    too_late = threading.Timer(80.0, parent.kill)
    too_late.start()

    async def read() -> dict[str, Any]:
        await pair.bob.announce(info_of("bob", life=7), 600.0)
        return json.loads(await asyncio.to_thread(parent.stdout.readline))  # type: ignore[union-attr]

    try:
        told = pair.run(read())
        assert told["announced"] is True and told["heavy"] == []
        pids = [told["helper"], *children_of(told["helper"])]
        assert len(pids) == 2 and all(map(alive, pids))
        parent.kill()
        parent.wait(10.0)
        pair.run(eventually(lambda: not any(map(alive, pids)), "helper and daemon gone", 20.0))
        assert not os.path.exists(told["folder"])
    finally:
        too_late.cancel()
        parent.kill()
        parent.stdin.close()  # the parent's forked child ends at this
        parent.stdout.close()
        parent.wait(10.0)


def test_a_port_in_use_is_a_named_error(pair: Pair):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        own = DhtDirectory(RUN, seal, unseal, DhtSettings(listen=f"127.0.0.1:{taken.getsockname()[1]}"))
        with pytest.raises(TransportError, match="address already in use"):
            pair.run(own.start(()))
    assert own._helper is None and own.status().state == "stopped"


def announced_after(directory: DhtDirectory, before: Any) -> bool:
    now = directory.status().last_announce
    return now is not None and now.ok and now.at > before.at


def peer_id(address: str) -> str:
    return address.rsplit("/p2p/", 1)[1]


def children_of(pid: int) -> list[int]:
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        found += [int(child) for child in (task / "children").read_text().split()]
    return found


def alive(pid: int) -> bool:
    """False for a zombie too."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"
