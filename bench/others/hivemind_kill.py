"""hivemind.Optimizer with 4 peers when one is killed: time until every survivor's next epoch. One JSON line.

Every peer is a process group of its own (trainer, averager, DHT, daemon) and is killed as one, like a machine that goes
away. The same time at random moments before the kill, nobody killed, says what "no stall" looks like. Survivors'
parameters are hashed after every epoch.
"""

import argparse
import contextlib
import hashlib
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import threading
import time
from itertools import pairwise

WIDTH, DEPTH, BATCH, TARGET = 256, 3, 16, 256


def worker(given):
    import functools

    import hivemind
    import torch
    from hivemind.optim.grad_averager import GradientAverager

    torch.set_num_threads(1)
    directory = hivemind.DHT(initial_peers=json.loads(given.initial), start=True, nat_port_map=False, auto_nat=False)
    torch.manual_seed(1234)
    model = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH) for _ in range(DEPTH)))
    parameters = list(model.parameters())
    averager = {"request_timeout": 2.0, "target_group_size": 4}
    optimizer = hivemind.Optimizer(
        dht=directory,
        run_id="bench",
        batch_size_per_step=BATCH,
        target_batch_size=TARGET,
        params=parameters,
        optimizer=lambda ps: torch.optim.SGD(ps, lr=0.05),
        use_local_updates=False,
        matchmaking_time=3.0,
        averaging_timeout=10.0,
        allreduce_timeout=10.0,
        next_chunk_timeout=2.0,
        load_state_timeout=60.0,
        grad_averager_factory=functools.partial(GradientAverager, **averager),
        averager_opts=averager,
        tracker_opts={
            "min_refresh_period": 0.1,
            "max_refresh_period": 1.0,
            "default_refresh_period": 0.5,
            "metadata_expiration": 10.0,
        },
    )
    generator = torch.Generator().manual_seed(given.index)
    while True:
        values = torch.randn(BATCH, WIDTH, generator=generator)
        before = optimizer.local_epoch
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(values), values).backward()
        optimizer.step()
        if optimizer.local_epoch != before:
            digest = hashlib.sha1(b"".join(p.detach().numpy().tobytes() for p in parameters)).hexdigest()
            line = {"t": time.monotonic(), "epoch": optimizer.local_epoch, "digest": digest}
            print(json.dumps(line), flush=True)
        time.sleep(0.02)


class Worker:
    def __init__(self, index, initial):
        command = [sys.executable, os.path.abspath(__file__), "--index", str(index), "--initial", initial]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True, text=True
        )
        self.epochs = []
        self.partial = 0
        for work in (self.read_out, self.read_errors):
            threading.Thread(target=work, daemon=True).start()

    def read_out(self):
        for line in self.process.stdout:
            if line.startswith("{"):
                self.epochs.append(json.loads(line))

    def read_errors(self):
        for line in self.process.stderr:
            self.partial += "Averaging: received" in line

    def kill(self):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(10)


def next_epoch_s(workers, since):
    """Seconds from ``since`` until the last of ``workers`` reached a further epoch; None if one never did."""
    firsts = [min((e["t"] for e in w.epochs if e["t"] > since), default=None) for w in workers]
    return None if None in firsts else max(firsts) - since


def trial(rng, warm, found):
    import hivemind

    root = hivemind.DHT(start=True, nat_port_map=False, auto_nat=False)
    initial = json.dumps([str(address) for address in root.get_visible_maddrs()])
    workers = [Worker(index, initial) for index in range(4)]
    try:
        until = time.monotonic() + 120
        while time.monotonic() < until and any(len(w.epochs) < warm for w in workers):
            time.sleep(0.1)
        if any(len(w.epochs) < warm for w in workers):
            print("no epochs in time", file=sys.stderr)
            return
        times = [e["t"] for e in workers[0].epochs]
        epoch_s = statistics.median(b - a for a, b in pairwise(times[1:]))
        time.sleep(rng.random() * epoch_s)
        victim = workers.pop(rng.randrange(4))
        victim.kill()
        killed = time.monotonic()
        before = [next_epoch_s(workers, killed - rng.uniform(epoch_s, killed - times[1])) for _ in range(50)]
        until = killed + 60
        while time.monotonic() < until and any(sum(e["t"] > killed for e in w.epochs) < 3 for w in workers):
            time.sleep(0.1)
        found["all"].append(next_epoch_s(workers, killed))
        found["control"].append(statistics.median(s for s in before if s is not None))
        found["epoch"].append(epoch_s)
        for epoch in {e["epoch"] for e in workers[0].epochs}:
            digests = [e["digest"] for w in workers for e in w.epochs if e["epoch"] == epoch]
            if len(digests) == len(workers):
                found["epochs"] += 1
                found["identical"] += len(set(digests)) == 1
        found["partial"] += sum(w.partial for w in workers)
    finally:
        for worker_process in workers:
            worker_process.kill()
        root.shutdown()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--warm", type=int, default=6)
    parser.add_argument("--index", type=int, default=-1)
    parser.add_argument("--initial", default="")
    given = parser.parse_args()
    if given.index >= 0:
        worker(given)
        return
    found = {"all": [], "control": [], "epoch": [], "epochs": 0, "identical": 0, "partial": 0}
    for number in range(given.kills):
        trial(random.Random(given.seed * 1000 + number), given.warm, found)

    def middle(name):
        values = [value for value in found[name] if value is not None]
        return statistics.median(values) if values else None

    print(
        json.dumps(
            {
                "kills": len(found["all"]),
                "all_s": middle("all"),
                "control_s": middle("control"),
                "epoch_s": middle("epoch"),
                "never": found["all"].count(None),
                "epochs": found["epochs"],
                "identical": found["identical"],
                "partial": found["partial"],
            }
        )
    )


if __name__ == "__main__":
    main()
