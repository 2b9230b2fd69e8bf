"""One peer alone beside the plain PyTorch loop: tokens/s of the same model, batches, threads and AdamW.

The plain loop is what one would write: zero_grad, backward over the round's microbatches, clip_grad_norm_,
torch.optim.AdamW (fused, or foreach with ``--foreach``). The peer is a whole session: core, journal, digests, DHT off.
Both run in fresh processes, alternating; the ratio is of medians over the blocks.

    python bench/overhead.py --json
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

from common import ROOT, Results, arguments, manifest, median, note, scratch_folder


def run_manifest(given: Any) -> Any:
    return manifest(
        model=f'name = "byte_gpt"\noptions = {{ layers = {given.layers}, width = {given.width}, heads = 4 }}',
        batch=f"microbatch = {given.microbatch}\nmicrobatches = {given.microbatches}\n"
        f"sequence_length = {given.sequence}",
    )


def plain(given: Any) -> dict[str, float]:
    """Tokens/s of the plain loop, after its warm-up."""
    import torch

    from p2ptrain.data import corpus_by_name, dataset_by_name
    from p2ptrain.models import model_by_name
    from p2ptrain.models.forward import next_token_loss
    from p2ptrain.runtime.outfit import optimizer_options

    torch.set_num_threads(given.threads)
    run = run_manifest(given)
    layers = model_by_name(run.model.name, context=given.sequence, **dict(run.model.options))
    corpus = corpus_by_name(run.data.name, **dict(run.data.options))
    data = dataset_by_name(
        run.data.name, context=given.sequence, samples=given.microbatch, seed=run.seed, corpus=corpus
    )
    parameters = [p for layer in layers for p in layer.parameters()]
    options = optimizer_options(run)
    optimizer = torch.optim.AdamW(
        parameters,
        lr=options.learning_rate,
        betas=(options.beta1, options.beta2),
        eps=options.epsilon,
        weight_decay=options.weight_decay,
        **({"foreach": True} if given.foreach else {"fused": True}),
    )
    times: list[tuple[float, float]] = []
    for round in range(given.rounds):
        optimizer.zero_grad(set_to_none=False)
        loss_sum = 0.0
        for id in range(round * given.microbatches, (round + 1) * given.microbatches):
            inputs, targets = data.microbatch(id)
            loss = next_token_loss(layers, inputs, targets) / given.microbatches
            loss.backward()
            loss_sum += loss.item()
        torch.nn.utils.clip_grad_norm_(parameters, options.clip_norm)
        optimizer.step()
        times.append((time.monotonic(), time.process_time()))
    return speed(times, run)


def peer(given: Any) -> dict[str, float]:
    """Tokens/s of one peer alone, after its warm-up."""
    from p2ptrain.config import PeerSettings, open_run_folder
    from p2ptrain.core import events as ev
    from p2ptrain.runtime.session import Hooks, Session

    run = run_manifest(given)
    times: list[tuple[float, float]] = []

    def watch(event: ev.Event, effects: list[ev.Effect]) -> None:
        if isinstance(event, ev.Applied):
            times.append((time.monotonic(), time.process_time()))
            if len(times) == given.rounds:
                session.leave("measured")

    with scratch_folder() as folder:
        settings = PeerSettings.from_flags(now_s=time.time(), threads=given.threads, listen="127.0.0.1:0", no_dht=True)
        session = Session.found(run, open_run_folder(Path(folder)), settings, Hooks(after=[watch]))
        session.run()
    return speed(times[: given.rounds], run)


def speed(times: list[tuple[float, float]], run: Any) -> dict[str, float]:
    """Tokens per second, and per second of processor time of the whole process: medians after the first quarter."""
    steady = times[len(times) // 4 :]
    both = list(pairwise(steady))
    walls = median([later[0] - earlier[0] for earlier, later in both]) or float("nan")
    cpus = median([later[1] - earlier[1] for earlier, later in both]) or float("nan")
    return {"tokens_s": run.batch.tokens / walls, "tokens_cpu_s": run.batch.tokens / cpus}


def main() -> None:
    parser = arguments("Tokens/s of one peer alone, beside the plain PyTorch loop.")
    parser.add_argument("--blocks", type=int, default=5, help="how often the two alternate")
    parser.add_argument("--rounds", type=int, default=24)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--microbatch", type=int, default=8)
    parser.add_argument("--microbatches", type=int, default=8)
    parser.add_argument("--sequence", type=int, default=128)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--foreach", action="store_true", help="the plain loop's AdamW by foreach instead of fused")
    parser.add_argument("--one", choices=("plain", "peer"), help="run one side here and print its tokens/s")
    given = parser.parse_args()
    if given.one:
        print(json.dumps({"plain": plain, "peer": peer}[given.one](given)))
        return
    results = Results("overhead", given.json)
    words = [word for word in sys.argv[1:] if word != "--json"]
    measured: dict[str, list[dict[str, float]]] = {"plain": [], "peer": []}
    for block in range(given.blocks):
        for side in ("plain", "peer") if block % 2 == 0 else ("peer", "plain"):
            command = [sys.executable, str(ROOT / "bench" / "overhead.py"), *words, "--one", side]
            done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, timeout=600)
            lines = [line for line in done.stdout.splitlines() if line.startswith('{"tokens_s"')]
            if not lines:
                note(f"{side} failed with {done.returncode}")
                continue
            found = json.loads(lines[-1])
            measured[side].append(found)
            note(f"{side}: {found['tokens_s']:.0f} tokens/s, {found['tokens_cpu_s']:.0f} per processor second")

    def middle(side: str, what: str) -> float | None:
        return median([found[what] for found in measured[side]])

    ours, theirs = middle("peer", "tokens_s"), middle("plain", "tokens_s")
    own_cpu, their_cpu = middle("peer", "tokens_cpu_s"), middle("plain", "tokens_cpu_s")
    ratio = ours / theirs if ours and theirs else None
    results.add(
        f"one peer alone, {given.threads} thread",
        ours,
        "tokens/s",
        f"plain PyTorch loop, {'foreach' if given.foreach else 'fused'} AdamW",
        ratio,
        target="ratio at least 0.95",
        met=None if ratio is None else ratio >= 0.95,
        theirs=theirs,
        blocks=given.blocks,
        model=f"{given.layers} layers of {given.width}",
    )
    results.add(
        f"one peer alone, {given.threads} thread, by processor time",
        own_cpu,
        "tokens/processor s",
        "the same of the plain loop",
        own_cpu / their_cpu if own_cpu and their_cpu else None,
        theirs=their_cpu,
    )
    results.table()


if __name__ == "__main__":
    sys.exit(main())
