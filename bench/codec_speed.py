"""Speed of every codec on one thread, in GB of float32 (int64 for exact) per second.

    python bench/codec_speed.py [--values 1048576] [--repeats 50] [--fresh-pages]

Prints the median of ``--repeats`` runs on one chunk. ``--fresh-pages`` leaves the C library's habit of returning freed
buffers to the system, which is what a program pays that does not call ``keep_freed_memory``.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch

from p2ptrain.codec import CODEC_NAMES, codec_by_name
from p2ptrain.codec.buffers import keep_freed_memory
from p2ptrain.codec.digest import PartHasher
from p2ptrain.codec.exact import dequantise_mean, norm_sq_int, quantise
from p2ptrain.codec.feedback import Counted, Residuals
from p2ptrain.codec.reduce import is_finite, norm_sq


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--values", type=int, default=1 << 20)
    parser.add_argument("--repeats", type=int, default=50)
    parser.add_argument("--fresh-pages", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if not options.fresh_pages:
        keep_freed_memory()
    values, count = torch.randn(options.values, generator=torch.Generator().manual_seed(0)), options.values

    def show(what: str, nbytes: int, call: Callable[[], object]) -> None:
        for _ in range(3):
            call()
        seconds = []
        for _ in range(options.repeats):
            begun = time.perf_counter()
            call()
            seconds.append(time.perf_counter() - begun)
        median = statistics.median(seconds)
        print(f"{what:24s} {nbytes / median / 1e9:7.2f} GB/s  {median * 1e3:7.3f} ms")

    for name in CODEC_NAMES:
        measure_codec(name, values, show)
    sums = torch.zeros(count, dtype=torch.int64)
    show("quantise", 4 * count, lambda: quantise(values, 2.0**-24, sums, 1000))
    show("dequantise_mean", 4 * count, lambda: dequantise_mean(sums, 2.0**-24, 100))
    show("norm_sq_int", 4 * count, lambda: norm_sq_int(sums))
    show("norm_sq", 4 * count, lambda: norm_sq(values))
    show("is_finite", 4 * count, lambda: is_finite(values))


def measure_codec(name: str, values: torch.Tensor, show: Callable[[str, int, Callable[[], object]], None]) -> None:
    """One chunk through every method of codec ``name``."""
    count = values.numel()
    codec = codec_by_name(name, chunk_values=-(-count // 512) * 512, max_count=64)
    source = (values * 2.0**24).to(torch.int64) if name == "exact" else values
    nbytes = source.numel() * source.element_size()
    payload, out = codec.encode(source), torch.zeros_like(source)
    show(f"{name} encode", nbytes, lambda: codec.encode(source, b"h" * 64))
    show(f"{name} decode_into", nbytes, lambda: codec.decode_into(payload, out))
    show(f"{name} accumulate", nbytes, lambda: codec.accumulate(payload, out, 1))
    show(f"{name} accumulate first", nbytes, lambda: codec.accumulate(payload, out, 1, first=True))
    hasher = PartHasher(name, 0, 0, count)
    show(f"{name} digest", nbytes, lambda: hasher.update(payload))
    if not codec.lossless:
        store = Residuals(codec, count)
        store.stage_sender(0, 0, (0, count), 0, values, 1, 2)
        store.commit(0, [Counted(0, 0, count, 2)], ())
        show(f"{name} with feedback", nbytes, lambda: store.stage_sender(1, 0, (0, count), 0, values, 1, 2))


if __name__ == "__main__":
    main()
