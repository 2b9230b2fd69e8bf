"""What the end-to-end tests share: a small run, a swarm that stays up, and what must hold after every fault."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from p2ptrain.config import Manifest
from p2ptrain.lab import pytest_plugin
from p2ptrain.lab.processes import Fact, Peer, Swarm

WAIT_S = 30.0

RUN: dict[str, Any] = {**pytest_plugin.RUN, "name": "e2e"}


def manifest(**changed: Any) -> Manifest:
    """The small run, with tables merged: ``manifest(commit="majority", sync={"codec": "int8"})``."""
    values = {key: dict(value) if isinstance(value, dict) else value for key, value in RUN.items()}
    for key, value in changed.items():
        values[key] = {**values.get(key, {}), **value} if isinstance(value, dict) else value
    return Manifest.model_validate(values)


@contextmanager
def swarm_of(
    folder: Path, names: str, run: Manifest | None = None, outbound_only: str = "", **options: Any
) -> Iterator[Swarm]:
    """A swarm of one peer per letter, all of them voters when it is handed over."""
    options = {"extra_wait_s": 0.02, **options}
    with Swarm(folder, run or manifest(), **options) as swarm:
        for name in names:
            swarm.start(name, wait=name == names[0], **({"outbound_only": True} if name in outbound_only else {}))
        wait_voters(swarm, len(names))
        yield swarm


def wait_voters(swarm: Swarm, count: int, since: float = 0.0) -> Fact:
    """A round that names ``count`` voters for the next, seen by every living peer after ``since``."""
    fact: Fact = {}
    for peer in swarm.alive:
        fact = peer.wait_for(
            lambda e: e["ev"] == "round" and len(e["voters_next"]) == count and e["t"] > since,
            60.0,
            f"a round with {count} voters",
        )
    return fact


def wait_commits(peers: Sequence[Peer], since: float, rounds: int = 2, timeout_s: float = WAIT_S) -> float:
    """Each peer applies ``rounds`` further rounds after ``since``; seconds to the slowest peer's first."""
    slowest = 0.0
    for peer in peers:
        first = peer.wait_for(lambda e: e["ev"] == "applied" and e["t"] > since, timeout_s, "a commit after the fault")
        slowest = max(slowest, first["t"] - since)
        peer.wait_round(first["round"] + rounds - 1, timeout_s)
    return slowest


def marks(peers: Sequence[Peer]) -> dict[str, int]:
    """How many facts each has told so far."""
    return {peer.name: len(peer.facts) for peer in peers}


def hold_one(swarm: Swarm, peers: Sequence[Peer], phase: str, role: str = "", **more: Any) -> tuple[Peer, Fact]:
    """Hold whoever first reaches ``phase`` in ``role``; the others go on unhindered."""
    since = marks(peers)
    for peer in peers:
        peer.hold(phase, role=role, **more)
    try:
        held, fact = swarm.first_held(peers, WAIT_S, f"as {role or 'any'} in phase {phase}", since)
    except AssertionError:
        for peer in peers:
            peer.go()
        raise
    for peer in peers:
        if peer is not held:
            peer.go()
    return held, fact


def check(swarm: Swarm) -> None:
    """G1 and G2 over everything that was told so far."""
    assert swarm.check_digests() > 0
    swarm.check_progress()


def heal(swarm: Swarm, name: str, count: int, **settings: Any) -> Peer:
    """Bring ``name`` up (again) and wait until there are ``count`` voters, itself among them."""
    swarm.refresh_invite()
    since = time.monotonic()
    peer = swarm.start(name, wait=False, **settings)
    peer.wait_kind("ready", 60.0)
    swarm.alive[0].wait_for(
        lambda e: (
            e["ev"] == "round" and e["t"] > since and peer.peer in e["voters_next"] and len(e["voters_next"]) == count
        ),
        60.0,
        f"{name} among {count} voters",
    )
    return peer


def wait_stalled(peer: Peer, since: float) -> Fact:
    """It says that no commit is possible."""
    return peer.wait_for(
        lambda e: e["ev"] == "say" and e["key"] == "stalled" and e["t"] > since, WAIT_S, "StalledError in its log"
    )
