"""Finite or not, squared norm, and the digest of a part."""

from __future__ import annotations

import platform
import sys
import threading
import time

import pytest
import torch
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from p2ptrain.codec.buffers import keep_freed_memory
from p2ptrain.codec.digest import PartHasher
from p2ptrain.codec.reduce import is_finite, norm_sq

torch.set_num_threads(1)


@pytest.mark.parametrize("n", [1, 1000, 131_072, 300_001])
def test_norm_is_right_and_the_same_whatever_the_threads(n: int) -> None:
    values = torch.randn(n, generator=torch.Generator().manual_seed(n))
    seen = set()
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        try:
            seen.add(norm_sq(values).hex())
        finally:
            torch.set_num_threads(1)
    assert len(seen) == 1
    assert norm_sq(values) == pytest.approx(sum(v * v for v in values.tolist()), rel=1e-12)


def test_norm_does_not_overflow_float32() -> None:
    assert norm_sq(torch.full((3,), 1e30)) == pytest.approx(3e60, rel=1e-6)
    assert norm_sq(torch.zeros(0)) == 0.0


@given(st.integers(1, 5000), st.data())
def test_one_bad_value_is_found_wherever_it_is(n: int, data: st.DataObject) -> None:
    values = torch.ones(n)
    assert is_finite(values)
    values[data.draw(st.integers(0, n - 1))] = data.draw(st.sampled_from([float("nan"), float("inf"), float("-inf")]))
    assert not is_finite(values)


def test_opposite_infinities_are_found_and_overflowing_sums_are_finite() -> None:
    assert not is_finite(torch.tensor([float("inf"), float("-inf")]))
    assert is_finite(torch.full((100,), 3e38))
    assert is_finite(torch.zeros(0))


@given(st.binary(max_size=200), st.integers(0, 200))
def test_digest_does_not_depend_on_the_cuts(data: bytes, cut: int) -> None:
    whole, pieces = PartHasher("int8", 1, 2, 3), PartHasher("int8", 1, 2, 3)
    whole.update(data)
    pieces.update(memoryview(data)[:cut])
    pieces.update(data[cut:])
    assert whole.digest() == pieces.digest()
    assert len(whole.digest()) == 32


def test_digest_binds_codec_stage_and_range() -> None:
    heads = [("int8", 0, 0, 9), ("fp16", 0, 0, 9), ("int8", 1, 0, 9), ("int8", 0, 1, 9), ("int8", 0, 0, 8)]
    digests = set()
    for head in heads:
        hasher = PartHasher(*head)
        hasher.update(b"same")
        digests.add(hasher.digest())
    assert len(digests) == len(heads)
    assert blake3(b"same").digest() not in digests


def test_memory_is_kept_where_the_c_library_is_glibc() -> None:
    assert keep_freed_memory() == (platform.libc_ver()[0] == "glibc")


def test_large_updates_release_the_gil() -> None:
    """While one thread hashes, this one goes on: it counts, which a held GIL would prevent."""
    data, done, counted = bytes(64 << 20), threading.Event(), 0

    def hash_it() -> None:
        PartHasher("none", 0, 0, 1).update(data)
        done.set()

    interval = sys.getswitchinterval()
    sys.setswitchinterval(10.0)  # no forced hand-over: only a released GIL lets this thread run
    try:
        thread = threading.Thread(target=hash_it)
        thread.start()
        while not done.is_set():
            counted += 1
            time.sleep(0)  # offers the GIL
        thread.join(10)
    finally:
        sys.setswitchinterval(interval)
    assert counted > 100  # two hand-overs at most if the hash held it
