"""Goodput under recorded churn, in the simulator: all four traces unthinned, beside two other ways to train.

    python bench/goodput_sim.py --json [--trace aws-p3-spot-2021] [--compress 10]

Goodput: samples that committed rounds count, over the integral of what the machines alive would compute alone. The
production node runs in virtual time on a network of one zone (1 ms, 2,000 Mbit/s). Each trace's time is divided by
``--compress`` (default: as in ``CASES``; said in every line), which makes churn that many times denser than it was
against joins and rounds that are not compressed. Before the trace's time runs, the machines that it begins with come up
(``warm_up_s``, not counted: a founder trains two rounds alone before others share its work). All four take about
half an hour of one core; ``--trace`` plays one.

The baselines are computed under the very same compressed trace, each with the setting that serves it best, found
afterwards (no real run could know it):

checkpoint-and-restart   all machines train; a kill throws everybody back to the last checkpoint and costs a restart of
                         ``RESTART_S``; checkpoints cost ``CHECKPOINT_S``; newcomers wait for the next restart or
                         checkpoint. Best interval of ``INTERVALS_S``.
wait-for-everybody       a fixed number of machines; a kill of a member stops all until somebody has taken its place
                         and loaded the state (``LOAD_S``); nothing else is lost. Best number.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from dataclasses import dataclass

from common import Results, arguments, note

from p2ptrain.lab.expectations import digests
from p2ptrain.lab.record import Record
from p2ptrain.lab.scenario import Scenario
from p2ptrain.lab.simulated import simulate
from p2ptrain.lab.timeline import Timeline, spell_out
from p2ptrain.lab.traces import Move, load_trace, replay

CASES = {"aws-p3-spot-2021": 20.0, "aws-g4dn-spot-2021": 10.0, "gcp-v100-spot-2021": 80.0, "gcp-a100-spot-2021": 80.0}
MICROBATCH_S = 0.5
MICROBATCHES_EACH = 8
RESTART_S = 20.0
CHECKPOINT_S = 1.0
LOAD_S = 5.0
INTERVALS_S = (5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 640.0)


@dataclass(frozen=True)
class Span:
    """Between two changes: who is alive, and whether somebody was killed at its start."""

    seconds: float
    alive: frozenset[str]
    killed: frozenset[str]


def scenario_of(name: str, compress: float, microbatches: int) -> Scenario:
    """One zone, machines alike, nobody but those of the trace."""
    trace = load_trace(name)
    return Scenario.model_validate(
        {
            "name": name,
            "seconds": trace.seconds / compress,
            "run": {
                "name": name,
                "model": {"name": "byte_gpt", "options": {"layers": 4, "width": 256, "heads": 4, "context": 64}},
                "data": {"name": "python_stdlib", "options": {"max_bytes": 1 << 20}},
                "batch": {"microbatch": 1, "microbatches": microbatches, "sequence_length": 64},
            },
            "regions": [{"name": "zone", "local_delay_ms": 0.5, "local_mbps": 2000.0}],
            "peers": [{"name": "m", "region": "zone", "microbatch_s": MICROBATCH_S}],
            "trace": {"name": name, "compress": compress, "group": "m"},
        }
    )


def after_warm_up(timeline: Timeline, warm_up_s: float) -> Timeline:
    """The same, with ``warm_up_s`` more between the first joins and everything else."""
    steps = tuple(s if s.at_s == 0 else dataclasses.replace(s, at_s=s.at_s + warm_up_s) for s in timeline.steps)
    return dataclasses.replace(timeline, steps=steps, seconds=timeline.seconds + warm_up_s)


def counted_after(record: Record, t: float) -> int:
    """Samples of the rounds committed from ``t`` on, that of the round running then by the share that is after."""
    total, last = 0.0, 0.0
    for fact in record.rounds:
        if fact.t > t:
            total += fact.counted * min(1.0, (fact.t - t) / max(fact.t - last, 1e-9))
        last = fact.t
    return int(total * record.microbatch_samples)


def spans_of(moves: Sequence[Move], seconds: float) -> list[Span]:
    """The trace as stretches without a change."""
    spans: list[Span] = []
    alive: set[str] = set()
    times = sorted({move.t for move in moves if move.t < seconds})
    for t, until in zip(times, [*times[1:], seconds], strict=True):
        here = [move for move in moves if move.t == t]
        killed = frozenset(move.peer for move in here if not move.joins)
        alive = (alive | {move.peer for move in here if move.joins}) - killed
        spans.append(Span(until - t, frozenset(alive), killed))
    return spans


def ideal(spans: Sequence[Span]) -> float:
    """Machine seconds."""
    return sum(span.seconds * len(span.alive) for span in spans)


def checkpoint_and_restart(spans: Sequence[Span], interval_s: float) -> float:
    """Share of the ideal. Work counts once a checkpoint holds it."""
    kept, since, age = 0.0, 0.0, 0.0  # machine seconds checkpointed and not; seconds of work since the last checkpoint
    down = 0.0
    members = spans[0].alive  # they have come up, as ours have
    for span in spans:
        left = span.seconds
        if members & span.killed:
            since, age, down = 0.0, 0.0, RESTART_S
        while left > 1e-9:
            if down > 0.0:
                step = min(left, down)
                down, left = down - step, left - step
                if down <= 0.0:
                    members = span.alive
                continue
            step = min(left, interval_s - age)
            since, age, left = since + step * len(members), age + step, left - step
            if age >= interval_s - 1e-9:
                kept, since, age = kept + since, 0.0, 0.0
                down = RESTART_S if span.alive - members else CHECKPOINT_S
    return (kept + since) / ideal(spans)


def wait_for_everybody(spans: Sequence[Span], size: int) -> float:
    """Share of the ideal, with ``size`` machines always."""
    done, loading = 0.0, 0.0
    members = frozenset(sorted(spans[0].alive)[:size])  # they have come up, as ours have
    for span in spans:
        members -= span.killed
        missing = size - len(members)
        spare = sorted(span.alive - members)
        if missing and len(spare) >= missing:
            members |= frozenset(spare[:missing])
            loading = LOAD_S
        elif missing:
            continue
        waits = min(loading, span.seconds)
        loading -= waits
        done += (span.seconds - waits) * size
    return done / ideal(spans)


def best(found: dict[float, float]) -> tuple[float, float]:
    """(setting, share) of the greatest share."""
    setting = max(found, key=lambda key: found[key])
    return setting, found[setting]


def one_trace(results: Results, name: str, compress: float) -> None:
    """Three lines: ours, and ours against each baseline."""
    trace = load_trace(name)
    part = replay(trace, compress=compress)
    note(part.note)
    seconds = trace.seconds / compress
    spans = spans_of(part.moves, seconds)
    scenario = scenario_of(name, compress, MICROBATCHES_EACH * trace.alive_max)
    warm_up_s = 3.0 * MICROBATCH_S * scenario.run["batch"]["microbatches"]
    began = time.perf_counter()
    record = simulate(scenario, after_warm_up(spell_out(scenario), warm_up_s), checked=False)
    wall_s = time.perf_counter() - began
    samples = counted_after(record, warm_up_s)
    share = samples * MICROBATCH_S / ideal(spans)
    compared, unequal = digests(record)
    kills = sum(1 for move in part.moves if not move.joins)
    case = f"{name}, {trace.alive_max} alive at most, time / {compress:g}"
    results.add(
        case, share, "of the ideal", rounds=len(record.rounds), samples=samples, kills=kills,
        joins=len(record.lives), virtual_s=record.seconds, wall_s=wall_s, digests_compared=compared,
        digests_unequal=len(unequal), given_up=len(record.abandoned), microbatch_s=MICROBATCH_S, warm_up_s=warm_up_s,
    )  # fmt: skip
    interval_s, theirs = best({n: checkpoint_and_restart(spans, n) for n in INTERVALS_S})
    results.add(
        case, share, "of the ideal", "checkpoint and restart", share / theirs if theirs else None, theirs=theirs,
        interval_s=interval_s, restart_s=RESTART_S, checkpoint_s=CHECKPOINT_S,
    )  # fmt: skip
    size, theirs = best({n: wait_for_everybody(spans, n) for n in range(1, trace.alive_max + 1)})
    results.add(
        case, share, "of the ideal", "wait for everybody", share / theirs if theirs else None, theirs=theirs,
        size=size, load_s=LOAD_S,
    )  # fmt: skip


def run(results: Results, names: Sequence[str] = tuple(CASES), compress: float = 0.0) -> None:
    """All of ``names``, each compressed as in ``CASES`` unless ``compress`` says otherwise."""
    for name in names:
        one_trace(results, name, compress or CASES[name])


def main() -> None:
    parser = arguments("goodput under recorded churn, simulated")
    parser.add_argument("--trace", choices=sorted(CASES), default=None, help="one of them only")
    parser.add_argument("--compress", type=float, default=0.0, help="divide the trace's time by this (0: as usual)")
    args = parser.parse_args()
    results = Results("goodput_sim", args.json)
    run(results, (args.trace,) if args.trace else tuple(CASES), args.compress)
    results.table()


if __name__ == "__main__":
    main()
