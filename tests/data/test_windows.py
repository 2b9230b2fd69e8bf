from __future__ import annotations

from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from p2ptrain.data import Corpus, dataset_by_name
from p2ptrain.data.shuffle import Permutation
from p2ptrain.data.windows import Windows
from p2ptrain.errors import ConfigError


@given(st.integers(1, 400), st.integers(0, 5), st.integers(0, 3))
def test_a_permutation_is_a_bijection(size: int, seed: int, epoch: int) -> None:
    permutation = Permutation(size, seed, epoch)
    assert sorted(map(permutation, range(size))) == list(range(size))


def test_permutations_differ_by_seed_and_epoch_and_are_pinned() -> None:
    orders = {(s, e): tuple(map(Permutation(50, s, e), range(50))) for s in (0, 1) for e in (0, 1)}
    assert len(set(orders.values())) == 4
    assert orders[0, 0][:6] == (48, 10, 15, 5, 41, 23)
    big = Permutation(10**15, 0, 0)
    assert len({big(position) for position in range(1000)}) == 1000
    for outside in (-1, 50):
        with pytest.raises(IndexError):
            Permutation(50, 0, 0)(outside)


def windows(tokens: int = 1000, context: int = 7, samples: int = 3, seed: int = 0) -> Windows:
    numbered = b"".join(number.to_bytes(2, "little") for number in range(tokens))
    return Windows(Corpus.of(numbered, numbered[:200], 2), context=context, samples=samples, seed=seed)


def test_targets_are_the_next_tokens_in_int64() -> None:
    inputs, targets = windows().microbatch(5)
    assert inputs.shape == targets.shape == (3, 7)
    assert inputs.dtype == targets.dtype == torch.int64
    assert torch.equal(targets, inputs + 1)


def test_a_microbatch_depends_on_corpus_seed_and_id_alone() -> None:
    one, other = windows(), windows()
    later = one.microbatch(40)
    for id in (3, 40, 0):
        other.microbatch(id)
    assert torch.equal(other.microbatch(40)[0], later[0])
    assert not torch.equal(windows(seed=1).microbatch(40)[0], later[0])
    assert not torch.equal(one.microbatch(41)[0], later[0])


def test_an_epoch_takes_every_window_once_and_the_next_cuts_elsewhere() -> None:
    made = windows(tokens=1000, context=7, samples=1)
    epochs = [[int(made.microbatch(e * made.windows + i)[0][0, 0]) for i in range(made.windows)] for e in range(2)]
    for starts in epochs:
        assert max(Counter(starts).values()) == 1
        assert len({start % 7 for start in starts}) == 1
        assert min(starts) < 7 and max(starts) > 1000 - 3 * 7
        assert starts != sorted(starts)
    assert [start // 7 for start in epochs[0]] != [start // 7 for start in epochs[1]]


def test_the_last_window_of_the_largest_shift_lies_inside() -> None:
    made = windows(tokens=50, context=7, samples=1)
    for id in range(40 * made.windows):
        assert made.microbatch(id)[1].max() < 50


def test_held_out_batches_are_fixed_and_spread() -> None:
    batches = windows(samples=2).held_out(3)
    assert len(batches) == 3
    starts = sorted(int(row[0]) for inputs, _ in batches for row in inputs)
    assert len(set(starts)) == 6 and starts[0] == 0 and starts[-1] > 60
    assert all(torch.equal(a[0], b[0]) for a, b in zip(batches, windows(samples=2).held_out(3), strict=True))
    assert len(windows(samples=2).held_out(1000)) == 7


def test_too_short_is_said() -> None:
    with pytest.raises(ConfigError, match="no two windows"):
        windows(tokens=13)
    with pytest.raises(ConfigError, match="a batch needs 30"):
        windows(samples=30).held_out()
    with pytest.raises(ConfigError, match="at least 1"):
        windows(samples=0)


def test_by_name_with_a_pulled_corpus() -> None:
    corpus = Corpus.of(b"abcdefgh" * 50, b"xyz" * 50)
    made = dataset_by_name("python_stdlib", context=8, samples=2, corpus=corpus)
    inputs, targets = made.microbatch(0)
    assert set(inputs.flatten().tolist()) == set(b"abcdefgh")
    assert torch.equal(inputs[:, 1:], targets[:, :-1])
