"""A node raises at no message of a peer, however odd, in whatever state it is (G5, G7); and its invariants stay."""

from __future__ import annotations

import copy
import dataclasses
import functools
import random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from p2ptrain.core import events as ev
from p2ptrain.core.node import Node
from p2ptrain.core.types import Ballot, Policy, Voter
from tests.sim.storms import swarm
from tests.strategies import messages

INTERNAL = {"bundles", "members", "parts", "record", "part", "begin_digest", "attempt"}


@functools.cache
def states(policy: Policy) -> list[tuple[Node, list[Any]]]:
    """Nodes caught at many moments of a real run, with the messages that were about then."""
    caught: list[tuple[Node, list[Any]]] = []
    recent: list[Any] = []
    world, _ = swarm(policy, 11, until=0.6)
    draw = random.Random(5)

    def watch(_: Any, sim: Any, event: ev.Event, effects: list[ev.Effect]) -> None:
        recent.extend(e.message for e in effects if isinstance(e, ev.Send))
        del recent[:-40]
        if draw.random() < 0.02 and len(caught) < 40:
            caught.append((_copy(sim.node), list(recent)))

    world.watch.append(watch)
    world.run(2.0)
    world.kill("a")
    world.run(4.0)
    return caught


def _copy(node: Node) -> Node:
    """Handlers are bound anew by rebuilding the table: lambdas of the original would lead back to it."""
    twin = Node(node.run, node.me, random.Random(1))
    made = copy.deepcopy({name: value for name, value in vars(node).items() if name not in ("_handlers", "run")}, {
        id(node): twin, id(node.run): node.run,
    })  # fmt: skip
    vars(twin).update(made)
    twin._handlers = type(twin)._table(twin)
    return twin


@pytest.mark.parametrize("policy", list(Policy), ids=lambda policy: policy.value)
@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(data=st.data())
def test_no_message_raises(policy: Policy, data: st.DataObject) -> None:
    node, about = data.draw(st.sampled_from(states(policy)))
    node = _copy(node)
    now = node.desk.now
    for _ in range(data.draw(st.integers(1, 6))):
        sender = data.draw(
            st.sampled_from([Voter("a", 1), Voter("b", 1), Voter("c", 1), Voter("d", 2), Voter("zz", 0)])
        )
        message = data.draw(messages())
        if about and data.draw(st.booleans()):
            message = _bent(data.draw(st.sampled_from(about)), message, node)
        now += data.draw(st.sampled_from([0.0, 0.01, 1.0, 7.0]))
        node.handle(ev.Received(sender, message), now)
        node.handle(ev.Ticked(), now)
        node.check()


def _bent(real: Any, odd: Any, node: Node) -> Any:
    """A real message, or an odd one that wears the fence of the round at hand."""
    if type(real) is type(odd):
        names = [f.name for f in dataclasses.fields(odd) if f.name in INTERNAL]
        return dataclasses.replace(real, **{name: getattr(odd, name) for name in names})
    if hasattr(odd, "fence") and node.stage.tip is not None:
        ballot = max(node.stage.promised, Ballot(0, "a", 1))
        return dataclasses.replace(odd, fence=node.stage.fence(ballot))
    return real
