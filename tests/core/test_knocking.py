"""The first contacts are dialled again until somebody is known who holds the state."""

from __future__ import annotations

import math
import random

from p2ptrain.core import events as ev
from p2ptrain.core.messages import Hello
from p2ptrain.core.node import Node
from p2ptrain.core.types import Head, PeerInfo, RunSpec, Stage, Voter

RUN = RunSpec("r", (Stage(0, 0, 0, 100),), 4)


def newcomer() -> tuple[Node, list[ev.Effect]]:
    info = PeerInfo("b", 1, ("b:1",))
    node = Node(RUN, info, random.Random(0))
    return node, node.handle(ev.Started(info, ("a:1", "c:1")), 0.0)


def dialled(effects: list[ev.Effect]) -> list[tuple[str, ...]]:
    return [effect.addresses for effect in effects if isinstance(effect, ev.Dial) and not effect.peer]


def until(node: Node, end: float) -> list[ev.Effect]:
    effects: list[ev.Effect] = []
    while node.deadline() <= end:
        effects += node.handle(ev.Ticked(), node.deadline())
    return effects


def test_nobody_answers_all_are_dialled_again() -> None:
    node, effects = newcomer()
    assert dialled(effects) == [("a:1",), ("c:1",)]
    assert dialled(until(node, 30.0)).count(("a:1",)) >= 2


def test_another_newcomer_is_no_reason_to_stop() -> None:
    node, _ = newcomer()
    node.handle(ev.LinkUp(PeerInfo("d", 1, ("d:1",)), 0, True), 0.1)
    assert ("a:1",) in dialled(until(node, 10.0))


def test_a_holder_of_the_state_is() -> None:
    node, _ = newcomer()
    other = PeerInfo("a", 1, ("a:1",), joined_round=0)
    node.handle(ev.LinkUp(other, 0, True), 0.1)
    node.handle(ev.Received(Voter("a", 1), Hello("r", other, 0, Head(0, 8, 1, b"cut"))), 0.1)
    assert node.knocking.at == math.inf
    assert dialled(until(node, 10.0)) == []
