"""The driver: events in order, effects in order, those for the torch side not before it stands."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from p2ptrain.core import events as ev
from p2ptrain.core import messages as msg
from p2ptrain.core.types import Member, PeerInfo, Status
from p2ptrain.runtime.driver import Driver
from tests.runtime.wires import in_loop

ME = PeerInfo("me", 7)


class Node:
    """Gives the effects it is told to, and remembers what it was handed."""

    class run:
        run = "ab" * 32

    def __init__(self) -> None:
        self.seen: list[ev.Event] = []
        self.answers: Callable[[ev.Event], list[ev.Effect]] = lambda event: []

    def handle(self, event: ev.Event, now: float) -> list[ev.Effect]:
        self.seen.append(event)
        return self.answers(event)

    def deadline(self) -> float:
        return float("inf")


class Transport:
    def __init__(self) -> None:
        self.did: list[tuple[Any, ...]] = []

    def send(self, to: str, message: msg.Message) -> None:
        self.did.append(("send", to, message))

    def dial(self, peer: str, addresses: tuple[str, ...], timeout_s: float) -> None:
        self.did.append(("dial", peer, addresses))

    def hangup(self, peer: str, reason: str) -> None:
        self.did.append(("hangup", peer, reason))


class Signer:
    def sign_info(self, run: str, info: PeerInfo) -> PeerInfo:
        return replace(info, signature=b"signed", public_key=b"key")

    def sign_leave(self, run: str, leave: msg.Leave) -> msg.Leave:
        return replace(leave, signature=b"signed")


class Hands:
    def __init__(self) -> None:
        self.did: list[ev.Effect] = []

    def do(self, effect: ev.Effect) -> None:
        self.did.append(effect)


def made() -> tuple[Driver, Node, Transport]:
    node, transport = Node(), Transport()
    return Driver(node, transport, Signer(), "1", ME), node, transport  # type: ignore[arg-type]


@in_loop
async def test_effects_for_the_torch_side_wait_in_order_until_it_stands() -> None:
    driver, node, transport = made()
    orders = [ev.Compute(0, 1, index, (index,)) for index in range(3)]
    node.answers = lambda event: [orders[0], ev.Dial("b", ("b:1",), 1.0), orders[1]]
    driver.post(ev.Ticked())
    assert transport.did == [("dial", "b", ("b:1",))], "what needs no torch does not wait"
    hands = Hands()
    driver.attach(hands)
    node.answers = lambda event: [orders[2]]
    driver.post(ev.Ticked())
    assert hands.did == orders


@in_loop
async def test_a_leave_and_ones_own_roster_line_are_signed_others_lines_are_not_touched() -> None:
    driver, node, transport = made()
    driver.info = Signer().sign_info("", ME)
    own, other = (Member(info, Status.ALIVE, 1) for info in (ME, PeerInfo("other", 1, signature=b"theirs")))
    node.answers = lambda event: [
        ev.Send("b", msg.Leave("me", 7, "done")),
        ev.Send("b", msg.Gossip((own, other))),
    ]
    driver.post(ev.Ticked())
    leave, gossip = (entry[2] for entry in transport.did)
    assert leave.signature == b"signed"
    assert [line.info.signature for line in gossip.updates] == [b"signed", b"theirs"]


@in_loop
async def test_events_posted_while_one_is_handled_come_after_all_of_its_effects() -> None:
    driver, node, transport = made()
    first, second = ev.LeaveAsked("first"), ev.LeaveAsked("second")
    driver.before.append(lambda event, effects: driver.post(second) if event is first else None)
    node.answers = lambda event: [ev.Hangup(event.reason, ""), ev.Hangup(event.reason, "again")]  # type: ignore[attr-defined]
    driver.post(first)
    assert node.seen == [first, second]
    assert [entry[1] for entry in transport.did] == ["first", "first", "second", "second"]


@in_loop
async def test_an_error_in_the_core_ends_this_life_by_name_and_nothing_is_handled_after_it() -> None:
    driver, node, _ = made()

    def fails(event: ev.Event) -> list[ev.Effect]:
        raise KeyError("a bug")

    node.answers = fails
    driver.post(ev.Ticked())
    halt = await asyncio.wait_for(driver.over(), 5.0)
    assert halt.error == "P2PTrainError" and "KeyError" in halt.text
    driver.post(ev.Ticked())
    assert len(node.seen) == 1


@in_loop
async def test_a_halt_ends_the_wait_and_drops_what_comes_later() -> None:
    driver, node, _ = made()
    node.answers = lambda event: [ev.Halt("", "finished")]
    loop = asyncio.get_running_loop()
    loop.run_in_executor(None, driver.post_threadsafe, ev.Ticked())
    assert (await asyncio.wait_for(driver.over(), 5.0)).text == "finished"
    driver.end("TrainingError", "too late")
    assert driver.ended is not None and driver.ended.error == ""
    driver.post_threadsafe(ev.Ticked())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert len(node.seen) == 1
