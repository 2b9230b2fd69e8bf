"""Seconds of hivemind's DecentralizedAverager for one round among 4 peers on loopback, matchmaking not counted.

Each averager has its own DHT process, averager process and p2p daemon, as in a deployment. The group is assembled
first (``require_trigger``), then the all-reduce is released on all peers at once. Inputs are standard normal, so an rms
error near 0.9 means that a round reported as done averaged nothing. One JSON line.
"""

import argparse
import json
import sys
import time


def codec_of(name):
    from hivemind import compression

    return {
        "none": compression.NoCompression,
        "fp16": compression.Float16Compression,
        "uniform8bit": compression.Uniform8BitQuantization,
    }[name]()


def one_round(averagers, timeout_s):
    """(matchmaking seconds, all-reduce seconds), or None if no whole group came together or it failed."""
    began = time.perf_counter()
    controls = [a.step(wait=False, timeout=timeout_s, require_trigger=True) for a in averagers]
    until = time.time() + timeout_s
    while not all(c.stage.name in ("AWAITING_TRIGGER", "RUNNING_ALLREDUCE") for c in controls):
        if time.time() > until or any(c.done() for c in controls):
            for control in controls:
                control.cancel()
            return None
        time.sleep(0.002)
    assembled = time.perf_counter()
    for control in controls:
        control.allow_allreduce()
    try:
        whole = all(control.result(timeout_s) is not None for control in controls)
    except Exception as error:
        print(repr(error), file=sys.stderr)
        return None
    ended = time.perf_counter()
    return (assembled - began, ended - assembled) if whole else None


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--peers", type=int, default=4)
    parser.add_argument("--params", type=int, default=25_000_000)
    parser.add_argument("--tensors", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--codec", default="none")
    parser.add_argument("--matchmaking", type=float, default=3.0)
    parser.add_argument("--timeout", type=float, default=60.0)
    given = parser.parse_args()
    import torch
    from hivemind import DHT, DecentralizedAverager

    torch.set_num_threads(1)
    torch.manual_seed(0)
    each = given.params // given.tensors
    data = [[torch.randn(each) for _ in range(given.tensors)] for _ in range(given.peers)]
    want = [sum(d[i] for d in data) / given.peers for i in range(given.tensors)]
    root = DHT(start=True, nat_port_map=False, auto_nat=False)
    initial = root.get_visible_maddrs()
    directories, averagers = [], []
    for own in data:
        directory = DHT(initial_peers=initial, start=True, nat_port_map=False, auto_nat=False)
        directories.append(directory)
        averagers.append(
            DecentralizedAverager(
                own,
                directory,
                prefix="bench",
                target_group_size=given.peers,
                min_group_size=given.peers,
                min_matchmaking_time=given.matchmaking,
                request_timeout=min(2.0, given.matchmaking * 0.9),
                compression=codec_of(given.codec),
                start=True,
            )
        )
    rounds, error = [], None
    try:
        for round in range(given.rounds + 1):
            done = one_round(averagers, given.timeout)
            if round == 0 and done is not None:
                error = 0.0
                for averager in averagers:
                    with averager.get_tensors() as tensors:
                        pairs = zip(tensors, want, strict=True)
                        error = max(error, *((t - w).square().mean().sqrt().item() for t, w in pairs))
            elif done is not None:
                rounds.append(done)
    finally:
        for each_one in [*averagers, *directories, root]:
            each_one.shutdown()
    print(
        json.dumps(
            {
                "seconds": [seconds for _, seconds in rounds],
                "matchmaking_s": [seconds for seconds, _ in rounds],
                "failed": given.rounds - len(rounds),
                "rms_error": error,
                "really_averaged": error is not None and error < 0.1,
            }
        )
    )


if __name__ == "__main__":
    main()
