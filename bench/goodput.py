"""Goodput under recorded churn: samples counted, by what the alive peers would have made each alone.

The lab half plays the aws-p3 trace with real processes in two regions: its time divided by ``--compress``, its
machines thinned by a hash of their ids, so that with one peer of our own that stays at most ``--alive`` are alive. On
two cores compute does not add up: a peer computes a real small step and then waits until ``--microbatch`` seconds are
over. A peer's own speed is measured alone, with the same wait. A life counts from the start of its process: what it
takes to come up is lost goodput too. The simulator half (``goodput_sim.py``) plays all four traces unthinned.

    python bench/goodput.py --compress 60 --no-simulator
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

from common import ROOT, Results, arguments, note, scratch_folder

TARGET = 0.9
TRACE = "aws-p3-spot-2021"
TRACE_S = 40_920.0
MICROBATCHES_ALONE = 16  # of a round: several are over while one peer is measured alone
REGIONS = {"v": "virginia", "h": "ohio"}

SCENARIO = """
name = "goodput"
seconds = {seconds}
seed = {seed}
[run]
name = "goodput"
commit = "any"
[run.model]
name = "byte_gpt"
options = {{ layers = 2, width = 64, heads = 4 }}
[run.data]
name = "python_stdlib"
options = {{ max_bytes = 300000 }}
[run.batch]
microbatch = 4
microbatches = {microbatches}
sequence_length = 64
[run.sync]
codec = "fp16"
[network]
table = "aws-regions"
"""


def scenario_of(given: Any, seconds: float, *, alone: bool) -> Any:
    from p2ptrain.lab.scenario_checks import parse_scenario

    microbatches = MICROBATCHES_ALONE if alone else given.microbatches
    parts = [SCENARIO.format(seconds=seconds, seed=given.seed, microbatches=microbatches)]
    names = {"stays": "virginia"} | ({} if alone else REGIONS)
    parts += [f'[[regions]]\nname = "{region}"\n' for region in dict.fromkeys(names.values())]
    speed = f"microbatch_s = {given.microbatch}\n"
    parts += [f'[[peers]]\nname = "{name}"\nregion = "{region}"\n{speed}' for name, region in names.items()]
    if not alone:
        groups = ", ".join(f'"{name}"' for name in REGIONS)
        thinned = f"alive_max = {given.alive - 1}\ncompress = {given.compress}\nfrom_s = {given.from_s}\n"
        parts.append(f'[trace]\nname = "{TRACE}"\n{thinned}groups = [{groups}]\n')
    return parse_scenario("".join(parts), file="bench/goodput.py")


def played(scenario: Any, reduced: bool) -> Any:
    from p2ptrain.lab.conductor import conduct
    from p2ptrain.lab.timeline import spell_out

    def tell(progress: Any) -> None:
        if progress.said:
            note(f"{progress.t:.0f} s of {progress.seconds:.0f}: {progress.said}; round {progress.round}")

    with scratch_folder() as folder:
        record = conduct(scenario, spell_out(scenario), folder, reduced=reduced, on_progress=tell)
    for told in record.notes:
        note(told)
    return record


def own_speed(given: Any) -> float:
    """Samples a second of one peer alone, from the median of its microbatches."""
    from p2ptrain.lab.scenario import Scenario

    alone: Scenario = scenario_of(given, given.alone_s, alone=True)
    record = played(alone.model_copy(update={"regions": tuple(_still(r) for r in alone.regions)}), given.reduced)
    (life,) = record.lives
    return float(record.microbatch_samples / life.microbatch_s)


def _still(region: Any) -> Any:
    return region.model_copy(update={"local_delay_ms": 0.0})


def lab_half(results: Results, given: Any) -> None:
    from p2ptrain.lab.compare import round_time_s
    from p2ptrain.lab.expectations import counted_samples, digests

    speed = own_speed(given)
    note(f"one peer alone: {speed:.2f} samples/s, stated {4 / given.microbatch:.2f}")
    seconds = given.seconds or (TRACE_S - given.from_s) / given.compress
    record = played(scenario_of(given, seconds, alone=False), given.reduced)
    alive_s = sum((record.seconds if v.ended_s is None else v.ended_s) - v.began_s for v in record.lives)
    share = counted_samples(record) / (speed * alive_s)
    compared, unequal = digests(record)
    results.add(
        f"lab, {TRACE}",
        share,
        "of the alive peers' own speeds",
        target="at least 0.9",
        met=share >= TARGET and record.valid and not unequal,
        compress=given.compress,
        thinned_to=given.alive,
        thinning=next((told for told in record.notes if "trace" in told), ""),
        seconds=record.seconds,
        lives=len(record.lives),
        kills=sum(len(h.peers) for h in record.happenings if h.do == "kill"),
        mean_alive=alive_s / record.seconds,
        rounds=len(record.rounds),
        round_s=round_time_s(record),
        own_samples_per_s=speed,
        stated_samples_per_s=4 / given.microbatch,
        rounds_compared=compared,
        rounds_unequal=len(unequal),
        mode=record.mode,
        valid=record.valid,
    )


def main() -> None:
    parser = arguments("Goodput under the recorded spot traces.")
    parser.add_argument("--compress", type=float, default=30.0, help="the trace's time is divided by this")
    parser.add_argument("--alive", type=int, default=8, help="at most so many peers at once, one of them stays")
    parser.add_argument("--from-s", dest="from_s", type=float, default=0.0, help="begin there in the trace")
    parser.add_argument("--seconds", type=float, default=0.0, help="stop after so many seconds; 0: the whole trace")
    parser.add_argument("--microbatch", type=float, default=0.15, help="seconds a microbatch takes at least")
    parser.add_argument("--microbatches", type=int, default=96, help="of a round")
    parser.add_argument("--alone-s", dest="alone_s", type=float, default=15.0, help="how long one peer is measured")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--reduced", action="store_true", help="relays on loopback instead of network namespaces")
    parser.add_argument("--no-lab", dest="lab", action="store_false", help="leave out the real processes")
    parser.add_argument("--no-simulator", dest="simulator", action="store_false", help="leave out the four traces")
    given = parser.parse_args()
    results = Results("goodput", given.json)
    if given.lab:
        lab_half(results, given)
    results.table()
    script = Path(ROOT) / "bench" / "goodput_sim.py"
    if given.simulator and script.exists():
        subprocess.run([sys.executable, str(script), *(["--json"] if given.json else [])], check=True)


if __name__ == "__main__":
    sys.exit(main())
