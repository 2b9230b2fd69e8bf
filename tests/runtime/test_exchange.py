"""Exchanges of a few peers in one process: equal averages everywhere, and trouble told instead of guessed (R4)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from p2ptrain.codec import codec_by_name
from p2ptrain.codec.feedback import Residuals
from p2ptrain.core import events as ev
from p2ptrain.core.messages import Begin
from p2ptrain.core.types import Ballot, Bundle, Fence, PartOrder, Voter
from p2ptrain.runtime.exchange import Exchanges
from p2ptrain.runtime.parts import PartStore
from p2ptrain.wire import bulk
from tests.runtime.wires import Events, Wires, in_loop

RUN = b"r" * 32
SIZE = 3000


@pytest.fixture(scope="module")
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as pool:
        yield pool


class Peer:
    """One peer's exchanges, with a gradient of its own."""

    def __init__(self, wires: Wires, name: str, codec_name: str, pool: ThreadPoolExecutor, value: torch.Tensor) -> None:
        codec = codec_by_name(codec_name, max_count=8) if codec_name == "exact" else codec_by_name(codec_name)
        self.name, self.events, self.parts, self.value = name, Events(), PartStore(), value
        self.exchanges = Exchanges(
            wires.of(name),
            name,
            RUN,
            self,
            self.parts,
            codec,  # type: ignore[arg-type]
            Residuals(codec, SIZE, enabled=codec_name == "int8"),
            pool,
            self.events,
        )
        wires.serve[name] = self._serve

    def bundle(self, stage: int, round: int, index: int) -> torch.Tensor:
        return self.value

    async def _serve(self, stream: Any) -> None:
        await self.exchanges.serve(stream, bulk.parse_stream_header(await stream.receive(), RUN))


class Round:
    """Peers a, b, ... of one exchange; ``reducers`` share the values. Each brings one microbatch, in its own bundle."""

    def __init__(self, pool: ThreadPoolExecutor, names: str = "abc", reducers: str = "ab", codec: str = "fp16") -> None:
        self.wires = Wires()
        exact = codec == "exact"
        values = {n: torch.arange(SIZE) % 50 + ord(n) for n in names}
        kind = torch.int64 if exact else torch.float32
        self.peers = {n: Peer(self.wires, n, codec, pool, values[n].to(kind)) for n in names}
        bundles = tuple(Bundle(n, 1, 0, (index,), 1.0) for index, n in enumerate(names))
        everybody = tuple(range(len(names)))
        cuts = [SIZE * i // len(reducers) for i in range(len(reducers) + 1)]
        parts = tuple(PartOrder(i, cuts[i], cuts[i + 1], r, everybody) for i, r in enumerate(reducers))
        fence = Fence("aa" * 32, 0, 0, 5, b"p", Ballot(0, "a", 1))
        self.begin = Begin(fence, 1, tuple(Voter(n, 1) for n in names), bundles, parts, 1.0)

    def start(self, names: str, patience_s: float = 5.0) -> None:
        for name in names:
            self.peers[name].exchanges.start(ev.Exchange(self.begin, patience_s))

    async def held(self, names: str) -> list[dict[int, bytes]]:
        """Digest by part, for each peer."""
        found = []
        for name in names:
            events = await self.peers[name].events.of(ev.PartHeld, len(self.begin.parts))
            found.append({event.part.index: event.part.digest for event in events})
        return found

    async def close(self) -> None:
        for peer in self.peers.values():
            await peer.exchanges.close()


@pytest.mark.parametrize("codec", ["none", "fp16", "bf16", "int8", "exact"])
def test_all_hold_the_same_bytes_of_the_average(pool: ThreadPoolExecutor, codec: str) -> None:
    @in_loop
    async def run() -> None:
        round = Round(pool, codec=codec)
        round.start("abc")
        first, *others = await round.held("abc")
        assert all(other == first for other in others)
        for event in await round.peers["c"].events.of(ev.PartHeld, 2):
            assert event.part.counted == (0, 1, 2)
            decoded = decode(round.peers["c"], event.part, codec)
            values = [peer.value[event.part.start : event.part.stop].double() for peer in round.peers.values()]
            expected = sum(values) if codec == "exact" else sum(values) / 3
            assert torch.allclose(decoded.double(), expected, rtol=0.02)
        await round.close()
        measured = await round.peers["c"].events.of(ev.ExchangeMeasured)
        assert len(measured) == 1 and measured[0].bytes_sent > 0 and measured[0].bytes_received > 0

    run()


def decode(peer: Peer, part: Any, codec_name: str) -> torch.Tensor:
    codec = codec_by_name(codec_name, max_count=8) if codec_name == "exact" else codec_by_name(codec_name)
    pieces, left = [], part.stop - part.start
    for payload in peer.parts.payloads(part.digest):
        count = min(left, codec.chunk_values)
        pieces.append(codec.decode(payload, count))
        left -= count
    return torch.cat(pieces)


def test_a_contribution_that_is_not_finite_is_refused_by_name(pool: ThreadPoolExecutor) -> None:
    @in_loop
    async def run() -> None:
        round = Round(pool, codec="none")
        round.peers["c"].value[7] = float("nan")  # in a's part
        round.start("abc")
        troubled = (await round.peers["a"].events.of(ev.PartTroubled))[0]
        assert (troubled.part, troubled.bundles, troubled.reducer) == (0, (2,), False)
        assert "not finite" in troubled.reason
        assert (await round.peers["c"].events.of(ev.PartHeld))[0].part.index == 1, "the other part is none the worse"
        await round.close()

    run()


def test_a_contributor_that_does_not_come_is_named_after_the_patience(pool: ThreadPoolExecutor) -> None:
    @in_loop
    async def run() -> None:
        round = Round(pool)
        round.start("ab", patience_s=0.1)  # c never starts
        for reducer, part in (("a", 0), ("b", 1)):
            troubled = (await round.peers[reducer].events.of(ev.PartTroubled))[0]
            assert (troubled.part, troubled.bundles, troubled.reducer) == (part, (2,), False)
            assert "silent" in troubled.reason
        await round.close()

    run()


def test_a_reducer_that_cannot_be_reached_or_gives_up_is_named(pool: ThreadPoolExecutor) -> None:
    @in_loop
    async def run() -> None:
        round = Round(pool)
        del round.wires.serve["b"]
        round.start("ac")
        troubled = (await round.peers["c"].events.of(ev.PartTroubled))[0]
        assert (troubled.part, troubled.bundles, troubled.reducer) == (1, (), True)
        await round.close()
        round = Round(pool)
        round.start("ac", patience_s=3.0)
        round.peers["a"].exchanges.stop(round.begin.digest, "it leaves")
        troubled = next(e for e in await round.peers["c"].events.of(ev.PartTroubled) if e.part == 0)
        assert troubled.reducer and ("it leaves" in troubled.reason or "no such exchange" in troubled.reason)
        await round.close()

    run()


def test_an_average_with_other_bytes_than_its_digest_is_not_held(pool: ThreadPoolExecutor) -> None:
    @in_loop
    async def run() -> None:
        round = Round(pool, codec="none")
        round.wires.change = lambda peer, number, frame: (
            frame[:-1] + bytes([frame[-1] ^ 1]) if peer == "a" and number == 0 else frame
        )
        round.start("abc")
        troubled = next(e for e in await round.peers["c"].events.of(ev.PartTroubled) if e.part == 0)
        assert troubled.reducer and "digest" in troubled.reason
        held = await round.peers["c"].events.of(ev.PartHeld)
        assert [event.part.index for event in held] == [1]
        await round.close()

    run()


def test_somebody_elses_bundle_is_refused(pool: ThreadPoolExecutor) -> None:
    @in_loop
    async def run() -> None:
        round = Round(pool, codec="none")
        round.start("ab", patience_s=20.0)
        stream = await round.wires.of("c").open_bulk("a", 1.0)
        header = bulk.StreamHeader(bulk.StreamKind.EXCHANGE, RUN, round.begin.digest, 0, 5, 0)
        await stream.send(bulk.pack_stream_header(header))
        payload = bytes(4 * 1500)
        await stream.send(bulk.pack_frame_header(len(payload), bundle=1, weight=1, values=1500) + payload)
        troubled = (await round.peers["a"].events.of(ev.PartTroubled))[0]
        assert troubled.bundles == (2,) and "not its own" in troubled.reason
        await round.close()

    run()


def test_a_peer_alone_keeps_its_gradient_as_it_is(pool: ThreadPoolExecutor) -> None:
    @in_loop
    async def run() -> None:
        round = Round(pool, names="a", reducers="a", codec="int8")
        round.start("a")
        part = (await round.peers["a"].events.of(ev.PartHeld))[0].part
        assert round.peers["a"].parts.codec_name(part.digest) == "none"
        assert torch.equal(decode(round.peers["a"], part, "none"), round.peers["a"].value)
        await round.close()

    run()


def test_a_stream_that_comes_before_its_begin_waits_for_it(pool: ThreadPoolExecutor) -> None:
    @in_loop
    async def run() -> None:
        round = Round(pool)
        round.start("c")
        await asyncio.sleep(0)
        round.start("ab")
        first, *others = await round.held("abc")
        assert all(other == first for other in others)
        await round.close()

    run()
