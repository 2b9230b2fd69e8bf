"""Seconds of torch.distributed's gloo all-reduce of fp32 values among 4 processes on loopback; one JSON line."""

import argparse
import json
import socket
import time


def rank_main(rank, world, port, size, rounds, times):
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world)
    values = torch.randn(size)
    for round in range(rounds + 2):
        dist.barrier()
        began = time.perf_counter()
        dist.all_reduce(values)
        values.div_(world)
        dist.barrier()
        if rank == 0 and round >= 2:
            times.put(time.perf_counter() - began)
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--peers", type=int, default=4)
    parser.add_argument("--params", type=int, default=25_000_000)
    parser.add_argument("--rounds", type=int, default=7)
    given = parser.parse_args()
    import torch.multiprocessing as mp

    context = mp.get_context("spawn")
    times = context.SimpleQueue()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    mp.spawn(rank_main, args=(given.peers, port, given.params, given.rounds, times), nprocs=given.peers)
    print(json.dumps({"seconds": [times.get() for _ in range(given.rounds)]}))


if __name__ == "__main__":
    main()
