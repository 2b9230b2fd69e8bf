"""What ``p2ptrain status`` is told: plain values that JSON can hold, at every stage of a life."""

from __future__ import annotations

import json
import math
import time
from collections import deque
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from p2ptrain.core.events import Say
from p2ptrain.core.node import Node
from p2ptrain.core.types import Policy, RoundResult
from p2ptrain.runtime.status import span_of, status_of
from p2ptrain.sim.world import World
from tests.sim.storms import swarm


@pytest.fixture(scope="module")
def world() -> World:
    return swarm(Policy.MAJORITY, 1)[0]


def network(node: Node, result: RoundResult | None = None, manifest: Any = None, **changed: Any) -> Any:
    """As ``runtime.network.Network`` stands around a node."""
    beside = SimpleNamespace(dht_status=lambda: {"up": False}, dht_addresses=("/ip4/127.0.0.1",))
    session = SimpleNamespace(
        manifest=manifest, invite=SimpleNamespace(name="run", run="aa" * 32), losses=[(3, 2.5), (6, 2.25)]
    )
    fields = {
        "driver": SimpleNamespace(node=node),
        "session": session,
        "last_result": result,
        "last_counted": {"a": 5},
        "said": [Say("info", "k", f"line {n}", n) for n in range(20)],
        "beside": beside,
        "round_s": 0.4,
        "last_lag_s": 0.00123456,
        "halt": None,
    }
    return SimpleNamespace(**{**fields, **changed})


def told(*args: Any, **named: Any) -> dict[str, Any]:
    """As it is read at the other end; NaN and infinity are no JSON."""
    read = json.loads(json.dumps(status_of(network(*args, **named)), allow_nan=False))
    assert isinstance(read, dict)
    return read


def test_a_member_at_work(world: World) -> None:
    node = world.peers["b"].node
    result = next(result for _, peer, result in reversed(world.reports) if peer == "b")
    status = told(node, result, SimpleNamespace(sync=SimpleNamespace(codec="int8")))
    assert (status["peer"], status["life"], status["phase"]) == ("b", 1, "current")
    assert status["round"] == node.stage.tip.round and status["samples_total"] == node.stage.tip.samples_total  # type: ignore[union-attr]
    assert status["run"] == {
        "name": "run",
        "id": "aa" * 32,
        "commit": "majority",
        "rounds": node.run.rounds,
        "microbatches": node.run.microbatches,
        "codec": "int8",
    }
    assert sorted(status["voters"]) == list("abcd") and status["coordinator"] == node.coordinator
    assert status["leads"] == (node.succession.lead is not None)
    assert status["held_out"] == [6, 2.25] and status["loop_lag_s"] == 0.0012
    assert [event["round"] for event in status["events"]] == list(range(8, 20))
    assert status["dht_addresses"] == ["/ip4/127.0.0.1"] and status["ended"] is None
    members = {member["peer"]: member for member in status["members"]}
    assert set(members) == set("abcd")
    assert members["a"]["status"] == "alive" and members["a"]["linked"] and members["a"]["last_counted"] == 5
    assert not members["b"]["linked"] and members["c"]["last_counted"] is None
    assert {peer: line["counted"] for peer, line in members.items()} == {
        peer: dict(result.contributions).get(peer, 0) for peer in "abcd"
    }


def test_a_round_without_a_loss_has_none(world: World) -> None:
    node = world.peers["b"].node
    result = replace(next(result for _, _, result in world.reports), loss=math.nan)
    assert told(node, result)["loss"] is None
    assert told(node, replace(result, loss=1.5))["loss"] == 1.5


def test_a_joiner_without_state_says_what_it_waits_for(monkeypatch: pytest.MonkeyPatch) -> None:
    world, _ = swarm(Policy.ANY, 2)
    sim = world.start("z")
    assert world.run(world.now + 3.0, lambda w: sim.node.catchup.phase == "pulling")
    monkeypatch.setattr(time, "monotonic", lambda: world.now + 0.5)
    status = told(sim.node)
    assert (status["round"], status["leader"], status["loss"]) == (None, None, None)
    assert status["phase"] == "pulling" and status["run"]["codec"] == ""
    wait = status["waits"][0]
    assert wait["what"] == "state (pulling)" and wait["on"] and wait["why"] == "joins"
    assert wait["for_s"] >= 0.5 and wait["until_s"] is not None


def test_a_stall_names_whom_it_waits_for_and_has_no_end() -> None:
    world, _ = swarm(Policy.MAJORITY, 3)
    world.kill("b")
    world.kill("c")
    world.run(world.now + 15.0)
    node = world.peers["a"].node
    status = told(node, halt=SimpleNamespace(text="", error="StalledError"))
    wait = next(wait for wait in status["waits"] if wait["what"] == "a quorum")
    assert sorted(wait["on"]) == ["b", "c"] and wait["until_s"] is None
    assert status["stalled"] == wait["why"] and "missing" in status["stalled"]
    assert status["ended"] == "StalledError"
    assert {m["peer"]: m["status"] for m in status["members"]} == {"a": "alive", "b": "dead", "c": "dead", "d": "alive"}


def test_events_may_be_kept_in_any_sequence(world: World) -> None:
    said = [Say("warning", "k", "only", 3)]
    assert told(world.peers["b"].node, said=said)["events"] == [{"level": "warning", "text": "only", "round": 3}]
    assert told(world.peers["b"].node, said=list(deque()))["events"] == []


def test_the_span_is_the_plans(world: World) -> None:
    node = world.peers["b"].node
    assert node.planning.plan is not None and span_of(node, "a") == [0, 0]
    assert span_of(node, "nobody") is None
