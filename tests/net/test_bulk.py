"""Bulk streams: whole, in order, bounded, over whichever side can dial, gone with their peer."""

from __future__ import annotations

import asyncio

import pytest

from p2ptrain.core.events import LinkLost
from p2ptrain.errors import ProtocolError, TransportError
from p2ptrain.net.identity import Identity
from p2ptrain.net.settings import BULK_METHOD, NetSettings
from p2ptrain.ports import BulkStream
from tests.net.swarm import PATIENCE_S, Peer, TestRun, echo, in_loop, join, raw_channel

MEBIBYTE = 1 << 20


async def exchange(stream: BulkStream, frames: list[bytes]) -> list[bytes]:
    """Send all and receive until the end, at the same time."""

    async def send() -> None:
        for frame in frames:
            await stream.send(frame)
        await stream.finish()

    async def receive() -> list[bytes]:
        received: list[bytes] = []
        while (frame := await stream.receive()) is not None:
            received.append(frame)
        return received

    return (await asyncio.gather(send(), receive()))[1]


@in_loop
@pytest.mark.parametrize("opener", ["dialler", "answerer", "answerer, the dialler listens to nothing"])
async def test_frames_arrive_whole_and_in_order_whoever_dialled(opener: str) -> None:
    run = TestRun()
    one = await Peer(run, listen="" if "nothing" in opener else "127.0.0.1:0").start()
    other = await Peer(run).start()
    await join(one, other)
    source, target = (one, other) if opener == "dialler" else (other, one)
    frames = [bytes([i]) * size for i, size in enumerate((1, 17, MEBIBYTE, 8 * MEBIBYTE, 3))]
    streams = [await source.transport.open_bulk(target.id, PATIENCE_S) for _ in range(3)]
    assert {stream.peer for stream in streams} == {target.id}
    for received in await asyncio.gather(*(exchange(stream, frames) for stream in streams)):
        assert received == frames
    assert await streams[0].receive() is None, "the end stays the end"
    with pytest.raises(TransportError, match="finished"):
        await streams[0].send(b"late")
    assert source.transport._bulk._streams == {}
    await asyncio.gather(one.stop(), other.stop())


@in_loop
async def test_a_peer_without_a_link_has_no_streams() -> None:
    run = TestRun()
    one = await Peer(run).start()
    with pytest.raises(TransportError, match="no link"):
        await one.transport.open_bulk(Identity.generate().peer, 1.0)
    await one.stop()


@in_loop
@pytest.mark.parametrize("reverse", [False, True])
async def test_a_slow_reader_holds_the_sender_back(reverse: bool) -> None:
    """What is on its way never exceeds the window, and what lies in two processes' buffers."""
    go = asyncio.Event()
    counted: list[int] = []

    async def sleepy(stream: BulkStream) -> None:
        await go.wait()
        while (frame := await stream.receive()) is not None:
            counted.append(len(frame))

    run, settings = TestRun(), NetSettings(bulk_window_bytes=MEBIBYTE)
    target = await Peer(run, on_bulk=sleepy, settings=settings, listen="" if reverse else "127.0.0.1:0").start()
    source = await Peer(run, settings=settings).start()
    await (join(target, source) if reverse else join(source, target))
    stream = await source.transport.open_bulk(target.id, PATIENCE_S)
    sent = 0

    frame = b"x" * (MEBIBYTE // 4)

    async def send() -> None:
        nonlocal sent
        for _ in range(200):
            await stream.send(frame)
            sent += 1
        await stream.finish()

    sending = asyncio.ensure_future(send())
    previous = -1
    while sent != previous or not sent:  # until it makes no progress any more
        previous = sent
        await asyncio.sleep(0.2)
    assert sent < 50, f"{sent / 4} MiB sent while nobody read"
    go.set()
    await sending
    assert await stream.receive() is None
    assert counted == [len(frame)] * 200
    await asyncio.gather(source.stop(), target.stop())


@in_loop
@pytest.mark.parametrize("size", [0, 8 * MEBIBYTE + 1])
async def test_frames_that_may_not_be_are_not_sent(size: int) -> None:
    run = TestRun()
    one, other = await Peer(run).start(), await Peer(run).start()
    await join(one, other)
    stream = await one.transport.open_bulk(other.id, PATIENCE_S)
    with pytest.raises(ProtocolError, match=f"{size} bytes"):
        await stream.send(b"x" * size)
    assert await exchange(stream, [b"still usable"]) == [b"still usable"]
    await asyncio.gather(one.stop(), other.stop())


@in_loop
@pytest.mark.parametrize("size", [4097, 9 * MEBIBYTE])
async def test_an_oversized_frame_is_refused_by_name(size: int) -> None:
    seen: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()

    async def read(stream: BulkStream) -> None:
        try:
            while await stream.receive() is not None:
                pass
        except (ProtocolError, TransportError) as error:
            seen.set_result(error)
            raise

    run = TestRun()
    one = await Peer(run).start()
    other = await Peer(run, on_bulk=read, settings=NetSettings(frame_max_bytes=4096)).start()
    await join(one, other)
    channel = raw_channel(other, run.credentials(one.identity))
    call = channel.stream_stream(BULK_METHOD)()
    await call.write(b"x" * size)
    error = await asyncio.wait_for(seen, PATIENCE_S)
    assert isinstance(error, ProtocolError if size < 100_000 else TransportError), error
    await channel.close()
    assert not one.of(LinkLost) and not other.of(LinkLost), "nothing else is disturbed"
    await asyncio.gather(one.stop(), other.stop())


@in_loop
async def test_a_cut_stream_is_not_taken_for_a_finished_one() -> None:
    seen: asyncio.Future[object] = asyncio.get_running_loop().create_future()

    async def read(stream: BulkStream) -> None:
        try:
            assert await stream.receive() == b"first"
            seen.set_result(await stream.receive())
        except TransportError as error:
            seen.set_result(error)

    run = TestRun()
    one, other = await Peer(run).start(), await Peer(run, on_bulk=read).start()
    await join(one, other)
    channel = raw_channel(other, run.credentials(one.identity))
    call = channel.stream_stream(BULK_METHOD)()
    await call.write(b"first")
    await call.done_writing()  # gRPC's own end of stream, without the mark
    error = await asyncio.wait_for(seen, PATIENCE_S)
    assert isinstance(error, TransportError) and "cut off" in str(error)
    await channel.close()
    await asyncio.gather(one.stop(), other.stop())


@in_loop
@pytest.mark.parametrize("opener", ["dialler", "answerer"])
async def test_a_cancel_reaches_the_other_side_at_once(opener: str) -> None:
    served: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()

    async def read(stream: BulkStream) -> None:
        try:
            await echo(stream)
        except TransportError as error:
            served.set_result(error)
            raise

    run = TestRun()
    one, other = await Peer(run, on_bulk=read, listen="").start(), await Peer(run, on_bulk=read).start()
    await join(one, other)
    source, target = (one, other) if opener == "dialler" else (other, one)
    stream = await source.transport.open_bulk(target.id, PATIENCE_S)
    await stream.send(b"x")
    assert await stream.receive() == b"x"
    waiting = asyncio.ensure_future(stream.receive())
    await asyncio.sleep(0)
    stream.cancel("no use any more")
    stream.cancel("twice")
    with pytest.raises(TransportError, match="no use any more"):
        await waiting
    assert isinstance(await asyncio.wait_for(served, PATIENCE_S), TransportError)
    await asyncio.gather(one.stop(), other.stop())


@in_loop
async def test_a_failure_to_serve_is_told() -> None:
    async def fail(stream: BulkStream) -> None:
        await stream.receive()
        raise TransportError("that part is not held here")

    run = TestRun()
    one, other = await Peer(run).start(), await Peer(run, on_bulk=fail).start()
    await join(one, other)
    stream = await one.transport.open_bulk(other.id, PATIENCE_S)
    await stream.send(b"x")
    with pytest.raises(TransportError, match="that part is not held here"):
        await stream.receive()
    await asyncio.gather(one.stop(), other.stop())


@in_loop
async def test_streams_end_with_their_link() -> None:
    run = TestRun()
    one, other = await Peer(run).start(), await Peer(run).start()
    await join(one, other)
    stream = await one.transport.open_bulk(other.id, PATIENCE_S)
    await stream.send(b"x")
    assert await stream.receive() == b"x"
    waiting = asyncio.ensure_future(stream.receive())
    other.transport.hangup(one.id, "leaving")
    with pytest.raises(TransportError, match=r"link .* is lost|leaving|closed"):
        await waiting
    await asyncio.gather(one.stop(), other.stop())


@in_loop
async def test_the_number_of_streams_is_bounded() -> None:
    run, settings = TestRun(), NetSettings(bulk_streams_max=3)
    one, other = await Peer(run, settings=settings).start(), await Peer(run, settings=settings).start()
    await join(one, other)
    streams = [await one.transport.open_bulk(other.id, PATIENCE_S) for _ in range(3)]
    with pytest.raises(TransportError, match="3 bulk streams"):
        await one.transport.open_bulk(other.id, PATIENCE_S)
    assert await exchange(streams[0], [b"x"]) == [b"x"]
    await one.transport.open_bulk(other.id, PATIENCE_S)
    await asyncio.gather(one.stop(), other.stop())
