"""Getting in: each address with what happened to it, permanent refusals at once, the manifest from whoever has it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from p2ptrain.core import events as ev
from p2ptrain.core.types import PeerInfo
from p2ptrain.errors import AdmissionError, TransferError, TransportError
from p2ptrain.runtime import entry as entry_module
from p2ptrain.runtime.entry import Entry, fetch_manifest, unreachable
from p2ptrain.wire.translate import DialBackAnswer
from tests.e2e.support import manifest
from tests.runtime.wires import in_loop


def up(peer: str) -> ev.LinkUp:
    return ev.LinkUp(PeerInfo(peer, 1), 0, True)


def answering(entry: Entry, outcomes: dict[str, ev.Event]) -> Any:
    """A dial that ends for each address as told, soon but not at once."""

    def dial(addresses: object) -> None:
        for event in outcomes.values():
            asyncio.get_running_loop().call_soon(entry.on_event, event)

    return dial


def failed(address: str, failure: Any, detail: str = "") -> ev.DialFailed:
    return ev.DialFailed("", address, failure, detail)


@in_loop
async def test_the_first_that_answers_counts_whatever_becomes_of_the_others() -> None:
    entry = Entry()
    outcomes = {"a:1": failed("a:1", "refused"), "b:1": up("b")}
    assert await entry.first_member(answering(entry, outcomes), list(outcomes)) == "b"


@in_loop
async def test_each_address_is_named_with_what_happened(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entry_module, "DIAL_S", -0.9)
    entry = Entry()
    outcomes: dict[str, ev.Event] = {"a:1": failed("a:1", "refused"), "b:1": failed("b:1", "name", "no such host")}
    with pytest.raises(TransportError) as raised:
        await entry.first_member(answering(entry, outcomes), ["a:1", "b:1", "c:1"], patience_s=0.0)
    attempts: Any = raised.value.fields["attempts"]
    assert attempts["a:1"].startswith("refused: nobody listens")
    assert attempts["b:1"] == "name: no such host" and attempts["c:1"] == "no answer"
    assert all(address in raised.value.text for address in ("a:1", "b:1", "c:1")) and raised.value.hint


@pytest.mark.parametrize("failure", ["certificate", "foreign_run", "version"])
@in_loop
async def test_what_waiting_does_not_change_is_said_at_once(failure: str) -> None:
    entry = Entry()
    dials = 0

    def dial(addresses: object) -> None:
        nonlocal dials
        dials += 1
        asyncio.get_running_loop().call_soon(entry.on_event, failed("a:1", failure))

    with pytest.raises(AdmissionError, match=f"a:1: {failure}"):
        await entry.first_member(dial, ["a:1"], patience_s=60.0)
    assert dials == 1


@in_loop
async def test_a_key_in_use_is_refused_by_name() -> None:
    entry = Entry()
    outcomes: dict[str, ev.Event] = {"a:1": failed("a:1", "duplicate", "peer xyz lives at b:1")}
    with pytest.raises(AdmissionError, match="peer xyz lives at b:1"):
        await entry.first_member(answering(entry, outcomes), ["a:1"], patience_s=60.0)


@in_loop
async def test_what_was_heard_before_the_node_stands_reaches_it_in_order() -> None:
    entry = Entry()
    events = [up("a"), failed("b:1", "refused"), up("c"), ev.LinkLost("c", 1, "reset")]
    for event in events:
        entry.on_event(event)
    assert entry.linked == ["a"]
    heard: list[ev.Event] = []
    entry.hand_over(heard.append)
    entry.on_event(up("d"))
    assert heard == [*events, up("d")]


@in_loop
async def test_a_link_hung_up_by_us_leaves_no_trace() -> None:
    entry = Entry()
    for event in (up("a"), up("b")):
        entry.on_event(event)
    entry.forget("a")
    assert entry.linked == ["b"] and entry.events == [up("b")]


class Asked:
    def __init__(self, answers: dict[str, DialBackAnswer | None]) -> None:
        self.answers = answers

    async def ask_dial_back(self, peer: str, address: str, timeout_s: float) -> DialBackAnswer:
        answer = self.answers[address]
        if answer is None:
            raise TransportError("cannot be asked")
        return answer


@in_loop
async def test_dial_back_one_address_that_works_is_enough_and_no_answer_is_no_verdict() -> None:
    no, yes = DialBackAnswer("timeout"), DialBackAnswer()
    assert await unreachable(Asked({"a:1": no, "b:1": yes}), "m", ["a:1", "b:1"]) == ""
    assert await unreachable(Asked({"a:1": no, "b:1": None}), "m", ["a:1", "b:1"]) == ""
    assert await unreachable(Asked({"a:1": no, "b:1": no}), "m", ["a:1", "b:1"]) == "a:1: timeout; b:1: timeout"


class Pulls:
    def __init__(self, found: dict[str, bytes]) -> None:
        self.found = found

    async def pull_bytes(self, peer: str, header: Any, limit: int) -> bytes:
        if peer not in self.found:
            raise TransportError("cut")
        return self.found[peer]


@in_loop
async def test_the_manifest_comes_from_whoever_gives_the_right_one() -> None:
    right, wrong = manifest(), manifest(name="other")
    pulls: Any = Pulls({"b": wrong.to_bytes(), "c": right.to_bytes()})
    assert await fetch_manifest(pulls, ["a", "b", "c"], right.digest) == right
    with pytest.raises(TransferError, match=r"a: cut; b: another manifest"):
        await fetch_manifest(pulls, ["a", "b"], right.digest)
