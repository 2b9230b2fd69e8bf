"""All-reduce of 25 M fp32 parameters among 4 processes on loopback: p2ptrain, hivemind 1.1.12 and gloo, alternating.

Timed on our side: from ``Begin`` at the leader until the last of the four has the round committed (decided), so part
digests, error feedback, the vote and TLS are in it. hivemind's matchmaking is not counted. Every round must be whole:
all four members, all bundles, one attempt. hivemind is checked to have really averaged.

    python bench/allreduce.py --json
"""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

import stub_trainer
from common import Results, arguments, manifest, median, note, run_other, scratch_folder

PEERS = 4
CODECS = ("none", "fp16", "int8")
AGAINST = {"none": "none", "fp16": "fp16", "int8": "uniform8bit"}
HIVEMIND = "hivemind 1.1.12"
TARGETS = {"none": 3.0, "fp16": 3.5, "int8": 3.0}  # times faster than hivemind, with TLS
GLOO_TARGETS = {"none": 3.2, "int8": 2.5}  # at most this many times gloo's fp32 time, without TLS


def ours(codec: str, insecure: bool, rounds: int, warm_up: int, size: int) -> list[float]:
    """Seconds of ``rounds`` whole rounds of one fresh swarm of four processes."""
    from p2ptrain.lab.processes import Swarm

    run = manifest(batch="microbatch = 1\nmicrobatches = 4\nsequence_length = 8", sync=f'codec = "{codec}"')
    setup = partial(stub_trainer.install, insecure=insecure, size=size)
    with scratch_folder() as folder, Swarm(folder, run) as swarm:
        peers = [swarm.start(f"p{i}", setups=(setup,)) for i in range(PEERS)]
        whole = peers[0].wait_for(lambda e: e["ev"] == "began" and e["bundles"] == PEERS, 60, "a round of all four")
        last = whole["round"] + warm_up + rounds
        for peer in peers:
            peer.wait_for(
                lambda e: e["ev"] == "committed" and e["round"] >= last, 30 + 10 * (warm_up + rounds), "the last round"
            )
        swarm.check_digests()
        return times_of(peers, whole["round"] + warm_up, last)


def times_of(peers: list[Any], first: int, last: int) -> list[float]:
    """Begin to everybody's commit, for whole rounds only; others are told."""
    found = []
    for round in range(first, last):
        began = [f for p in peers for f in p.of("began") if f["round"] == round]
        committed = [f for p in peers for f in p.of("committed") if f["round"] == round]
        if len(began) == len(committed) == PEERS and all(f["bundles"] == PEERS for f in began):
            found.append(max(f["t"] for f in committed) - min(f["t"] for f in began))
        else:
            note(f"round {round} was not whole: {[(f['bundles'], f['attempt']) for f in began]}, not counted")
    return found


def main() -> None:
    parser = arguments("All-reduce of 25 M parameters among 4 processes, beside hivemind and gloo.")
    parser.add_argument("--rounds", type=int, default=7, help="measured rounds of every case")
    parser.add_argument("--blocks", type=int, default=2, help="how often the systems alternate")
    parser.add_argument("--warm-up", type=int, default=9, help="rounds of ours before (averages of 8 rounds are kept)")
    parser.add_argument("--params", type=int, default=stub_trainer.SIZE)
    parser.add_argument("--codecs", nargs="+", default=list(CODECS), choices=CODECS)
    parser.add_argument("--only", choices=("tls", "plain"), help="one half of the cases")
    parser.add_argument("--no-others", action="store_true")
    given = parser.parse_args()
    results = Results("allreduce", given.json)
    per_block = -(-given.rounds // given.blocks)
    measured: dict[str, list[float]] = {}
    errors: dict[str, Any] = {}

    def keep(name: str, seconds: list[float]) -> None:
        measured.setdefault(name, []).extend(seconds)
        note(f"{name}: {' '.join(f'{s:.3f}' for s in seconds)}")

    for _ in range(given.blocks):
        if not given.no_others:
            gloo = run_other(
                "hivemind", "gloo_average.py", "--params", given.params, "--rounds", per_block, timeout_s=120
            )
            keep("gloo", gloo["seconds"] if gloo else [])
        for codec in given.codecs:
            for transport in ("plain", "tls"):
                if given.only in (None, transport):
                    insecure = transport == "plain"
                    keep(f"{codec} {transport}", ours(codec, insecure, per_block, given.warm_up, given.params))
            if not given.no_others and given.only != "plain":
                theirs = run_other(
                    "hivemind",
                    "hivemind_average.py",
                    "--codec",
                    AGAINST[codec],
                    "--params",
                    given.params,
                    "--rounds",
                    per_block,
                    timeout_s=240,
                )
                if theirs and not theirs["really_averaged"]:
                    note(f"hivemind {codec} did not average (rms error {theirs['rms_error']}): not counted")
                    theirs = None
                keep(f"hivemind {codec}", theirs["seconds"] if theirs else [])
                errors[codec] = theirs["rms_error"] if theirs else None
    report(results, measured, errors)
    results.table()


def report(results: Results, measured: dict[str, list[float]], errors: dict[str, Any]) -> None:
    gloo = median(measured.get("gloo", []))
    if gloo is not None:
        results.add("gloo fp32", gloo, "s", rounds=len(measured["gloo"]))
    for name, seconds in measured.items():
        codec, _, transport = name.partition(" ")
        if codec in ("gloo", "hivemind"):
            continue
        value = median(seconds)
        spread = {"rounds": len(seconds), "fastest": min(seconds, default=None), "slowest": max(seconds, default=None)}
        if transport == "tls":
            theirs = median(measured.get(f"hivemind {codec}", []))
            ratio = theirs / value if theirs and value else None
            wanted = TARGETS[codec]
            results.add(
                f"{codec}, TLS",
                value,
                "s",
                f"{HIVEMIND} {AGAINST[codec]}",
                ratio,
                target=f"at least {wanted}x faster",
                met=None if ratio is None else ratio >= wanted,
                theirs_s=theirs,
                theirs_rms_error=errors.get(codec),
                **spread,
            )
        else:
            ratio = gloo / value if gloo and value else None
            wanted = GLOO_TARGETS.get(codec)
            target = f"within {wanted}x of gloo's fp32 time" if wanted else ""
            met = None if ratio is None or wanted is None else 1 / ratio <= wanted
            results.add(
                f"{codec}, no TLS", value, "s", "gloo fp32", ratio, target=target, met=met, theirs_s=gloo, **spread
            )


if __name__ == "__main__":
    sys.exit(main())
