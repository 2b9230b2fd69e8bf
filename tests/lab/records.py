"""Records for tests: a small run of three peers, changed as a test needs it."""

from __future__ import annotations

from typing import Any

from p2ptrain.lab.record import Happening, LinkBytes, PeerLife, Record, RoundFact


def record(**changes: Any) -> Record:
    """Three peers, ten rounds, one a second; c is killed at 5.5 s. Everything as it should be."""
    lives = [
        PeerLife("a", "aa" * 20, "oregon", 0.0, 0.5, 1.0, own_samples_per_s=10.0, rounds=10),
        PeerLife("b", "bb" * 20, "oregon", 0.0, 0.6, 1.0, own_samples_per_s=10.0, rounds=10),
        PeerLife("c", "cc" * 20, "virginia", 0.0, 0.7, 1.0, 5.5, "kill", own_samples_per_s=10.0, rounds=5),
    ]
    rounds = [RoundFact(n, float(n), 3 if n < 6 else 2, 6, 6, 1, 5.5 - n / 10, 0.1, 0.8) for n in range(1, 11)]
    applied = [(n + life / 100, life, n, f"{n:064x}") for n in range(1, 11) for life in range(3) if life < 2 or n < 6]
    values: dict[str, Any] = {
        "name": "test",
        "kind": "lab",
        "mode": "relays",
        "seed": 1,
        "planned_s": 10.0,
        "seconds": 10.0,
        "wall_s": 12.0,
        "lives": lives,
        "rounds": rounds,
        "happenings": [Happening(5.5, "kill", ["c"], "kill c", 0.5, 0.51)],
        "applied": applied,
        "losses": [(5.0, 5, 5.0), (10.0, 10, 4.0)],
        "links": [LinkBytes("a", "b", 1000), LinkBytes("b", "a", 2000)],
        "microbatch_samples": 4,
        **changes,
    }
    return Record(**values)
