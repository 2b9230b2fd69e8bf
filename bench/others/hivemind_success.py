"""Whole peer-rounds of hivemind's averager with N peers on loopback: ``step`` returned, and the tensors are the mean.

Every peer steps on its own, as in training; fair settings (matchmaking 3 s). One JSON line.
"""

import argparse
import json
import sys
from concurrent.futures import ThreadPoolExecutor


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--peers", type=int, default=4)
    parser.add_argument("--params", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--matchmaking", type=float, default=3.0)
    parser.add_argument("--timeout", type=float, default=20.0)
    given = parser.parse_args()
    import torch
    from hivemind import DHT, DecentralizedAverager

    torch.set_num_threads(1)
    root = DHT(start=True, nat_port_map=False, auto_nat=False)
    initial = root.get_visible_maddrs()
    directories, averagers = [], []
    for _ in range(given.peers):
        directory = DHT(initial_peers=initial, start=True, nat_port_map=False, auto_nat=False)
        directories.append(directory)
        averagers.append(
            DecentralizedAverager(
                [torch.zeros(given.params)],
                directory,
                prefix="bench",
                target_group_size=given.peers,
                min_group_size=2,
                min_matchmaking_time=given.matchmaking,
                request_timeout=2.0,
                start=True,
            )
        )

    def step(averager):
        try:
            return averager.step(timeout=given.timeout, allow_retries=False) is not None
        except Exception as error:
            print(repr(error), file=sys.stderr)
            return False

    whole = 0
    try:
        with ThreadPoolExecutor(given.peers) as pool:
            for round in range(given.rounds):
                torch.manual_seed(round)
                given_values = [torch.randn(given.params) for _ in averagers]
                want = sum(given_values) / given.peers
                for averager, values in zip(averagers, given_values, strict=True):
                    with averager.get_tensors() as tensors:
                        tensors[0][...] = values
                done = list(pool.map(step, averagers))
                for ok, averager in zip(done, averagers, strict=True):
                    with averager.get_tensors() as tensors:
                        whole += ok and bool((tensors[0] - want).abs().max() < 1e-3)
    finally:
        for one in [*averagers, *directories, root]:
            one.shutdown()
    total = given.rounds * given.peers
    print(json.dumps({"whole": whole, "peer_rounds": total, "share": whole / total}))


if __name__ == "__main__":
    main()
