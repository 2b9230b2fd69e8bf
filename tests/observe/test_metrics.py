from __future__ import annotations

import math
import urllib.request
from dataclasses import replace

from p2ptrain.core.types import Ballot, RoundResult
from p2ptrain.observe.metrics import Metrics

RESULT = RoundResult(
    round=5, stage=0, ballot=Ballot(1, "a", 1), attempts=1, members=("a",), contributions=(("a", 4),), counted=3,
    expected=4, left_out=(), loss=2.5, bytes_sent=100, bytes_received=50, fill_s=0.1, stall_s=0.2, voters_next=("a",),
    digest="00", samples_total=8,
)  # fmt: skip


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(name, {"run": "tiny", "peer": "a", **labels})


def test_a_round_moves_every_number() -> None:
    metrics = Metrics("tiny", "a")
    metrics.round_done(RESULT, {"alive": 3, "dead": 1}, loop_lag_s=0.02)
    metrics.round_done(replace(RESULT, round=6, loss=math.nan), {"alive": 2}, loop_lag_s=0.01)
    metrics.held_out(2.75)
    assert value(metrics, "p2ptrain_round") == 6
    assert value(metrics, "p2ptrain_loss") == 2.5, "not known for a round taken over from others"
    assert value(metrics, "p2ptrain_held_out_loss") == 2.75
    assert value(metrics, "p2ptrain_peers", status="alive") == 2
    assert value(metrics, "p2ptrain_share") == 0.75
    assert value(metrics, "p2ptrain_sent_bytes_total") == 200
    assert value(metrics, "p2ptrain_received_bytes_total") == 100
    assert value(metrics, "p2ptrain_rounds_total") == 2
    assert value(metrics, "p2ptrain_stall_seconds_count") == 2
    assert value(metrics, "p2ptrain_loop_lag_seconds") == 0.01


def test_a_status_that_nobody_has_any_more_goes_to_zero() -> None:
    metrics = Metrics("tiny", "a")
    metrics.round_done(RESULT, {"alive": 3, "suspect": 1}, 0.0)
    metrics.round_done(RESULT, {"alive": 3}, 0.0)
    assert value(metrics, "p2ptrain_peers", status="suspect") == 0


def test_served_over_http() -> None:
    metrics = Metrics("tiny", "a")
    metrics.round_done(RESULT, {"alive": 3}, 0.0)
    stop = metrics.serve("127.0.0.1", 0)
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{metrics.port}/metrics", timeout=10) as answer:
            assert b'p2ptrain_round{peer="a",run="tiny"} 5.0' in answer.read()
    finally:
        stop()
