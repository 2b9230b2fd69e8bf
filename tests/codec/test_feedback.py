"""Residuals: staged with the attempt, committed with the record, and nothing is lost or paid twice."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from p2ptrain.codec import codec_by_name
from p2ptrain.codec.feedback import Counted, Residuals
from p2ptrain.errors import ConfigError, TrainingError

torch.set_num_threads(1)
SIZE = 1500
LOSSY = ("fp16", "bf16", "int8")


def normal(n: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(n, generator=torch.Generator().manual_seed(seed))


def close(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Equal but for one rounding: the left-over may be taken by a fused multiply-add."""
    return torch.allclose(left, right, rtol=0, atol=5e-7)


def residuals(name: str = "int8", chunk_values: int = 512) -> Residuals:
    return Residuals(codec_by_name(name, chunk_values=chunk_values), SIZE)


def send(
    store: Residuals,
    round: int,
    part: tuple[int, int],
    values: torch.Tensor,
    bundle: int = 0,
    weights: tuple[float, float] = (1, 1),
) -> torch.Tensor:
    """Stage the part's chunks in order; what its reducer decodes."""
    decoded = []
    for first in range(*part, store.codec.chunk_values):
        chunk = values[first : min(first + store.codec.chunk_values, part[1])]
        frame = store.stage_sender(round, bundle, part, first, chunk, *weights, header=b"h" * 8)
        decoded.append(store.codec.decode(memoryview(frame)[8:], chunk.numel()))
    return torch.cat(decoded)


def reduce(
    store: Residuals, round: int, part: tuple[int, int], average: torch.Tensor, attempt: int = 0
) -> torch.Tensor:
    """Stage a finished average's chunks and seal it with the digest b"<attempt>"; what everybody decodes."""
    decoded = []
    for first in range(*part, store.codec.chunk_values):
        chunk = average[first : min(first + store.codec.chunk_values, part[1])]
        decoded.append(store.codec.decode(store.stage_reducer(round, attempt, part, first, chunk), chunk.numel()))
    store.seal_reducer(round, attempt, part, b"%d" % attempt)
    return torch.cat(decoded)


def test_the_left_over_is_what_was_meant_minus_what_was_decoded() -> None:
    store, values, part = residuals(), normal(SIZE), (100, 1300)
    decoded = send(store, 0, part, values)
    store.commit(0, [Counted(0, *part, 1)], ())
    assert close(store.owed(*part), values[100:1300] - decoded)
    assert store.owed(0, 100).eq(0).all()
    assert store.owed(1300, SIZE).eq(0).all()


@pytest.mark.parametrize("name", LOSSY)
def test_over_many_rounds_what_was_decoded_adds_up_to_what_was_meant(name: str) -> None:
    store, values = residuals(name), normal(SIZE) * 1e-3
    total = torch.zeros(SIZE, dtype=torch.float64)
    for round in range(60):
        total += send(store, round, (0, SIZE), values).double()
        store.commit(round, [Counted(0, 0, SIZE, 1)], ())
    plain = store.codec.decode(codec_by_name(name).encode(values), SIZE).double()
    error = (total - 60 * values.double()).abs().max()
    assert torch.allclose(total + store.owed(0, SIZE).double(), 60 * values.double(), atol=1e-6)
    assert error < 0.1 * (60 * (plain - values.double())).abs().max()


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 2), st.sampled_from([(0, 1500), (0, 700), (700, 1500), (300, 900)])), max_size=6)
)
def test_an_aborted_attempt_leaves_everything_bit_identical(attempts: list[tuple[int, tuple[int, int]]]) -> None:
    store = residuals()
    send(store, 0, (0, SIZE), normal(SIZE))
    store.commit(0, [Counted(0, 0, SIZE, 1)], ())
    before = store.owed(0, SIZE)
    clean = residuals()
    clean.load_state_dict(store.state_dict())
    for number, (kind, part) in enumerate(attempts):
        if kind == 0:
            reduce(store, 1, part, normal(SIZE, number), attempt=number)
        else:
            send(store, 1, part, normal(SIZE, number), bundle=kind)
    assert torch.equal(store.owed(0, SIZE), before)
    store.drop(1)
    assert torch.equal(store.owed(0, SIZE), before)
    assert torch.equal(send(store, 2, (0, SIZE), normal(SIZE, 9)), send(clean, 2, (0, SIZE), normal(SIZE, 9)))


def test_what_the_record_does_not_count_changes_nothing() -> None:
    store = residuals()
    send(store, 0, (0, SIZE), normal(SIZE))
    store.commit(0, [Counted(0, 0, SIZE, 1)], ())
    before = store.owed(0, SIZE)
    send(store, 1, (0, 700), normal(SIZE, 1))
    reduce(store, 1, (700, SIZE), normal(SIZE, 2), attempt=3)
    store.commit(1, [Counted(1, 0, 700, 1), Counted(0, 0, 600, 1)], [b"other"])
    assert torch.equal(store.owed(0, SIZE), before)


def test_only_the_counted_parts_of_a_bundle_are_kept() -> None:
    store, values = residuals(), normal(SIZE)
    decoded = send(store, 0, (0, 700), values)
    send(store, 0, (700, SIZE), values)
    store.commit(0, [Counted(0, 0, 700, 1)], ())
    assert close(store.owed(0, 700), values[:700] - decoded)
    assert store.owed(700, SIZE).eq(0).all()


def test_a_later_attempt_sends_the_bytes_of_the_first() -> None:
    store = residuals()
    send(store, 0, (0, SIZE), normal(SIZE))
    store.commit(0, [Counted(0, 0, SIZE, 1)], ())
    first = store.stage_sender(1, 0, (0, 512), 0, normal(512), 2, 8)
    assert store.stage_sender(1, 0, (0, 512), 0, normal(512), 2, 5) == first


def test_a_committed_round_is_not_committed_twice() -> None:
    store = residuals()
    send(store, 3, (0, SIZE), normal(SIZE))
    send(store, 2, (0, SIZE), normal(SIZE))
    store.commit(3, [Counted(0, 0, SIZE, 1)], ())
    before = store.owed(0, SIZE)
    store.commit(3, [Counted(0, 0, SIZE, 1)], ())
    store.commit(2, [Counted(0, 0, SIZE, 1)], ())
    assert torch.equal(store.owed(0, SIZE), before)


def test_the_reducers_left_over_is_kept_only_with_its_digest() -> None:
    store, average = residuals(), normal(SIZE)
    reduce(store, 0, (0, 700), normal(SIZE, 7), attempt=1)
    decoded = reduce(store, 0, (0, 700), average, attempt=2)
    store.commit(0, (), [b"2"])
    assert close(store.owed(0, 700), average[:700] - decoded)


def test_a_part_reduced_by_oneself_does_not_count_an_earlier_encoding_of_ones_bundle() -> None:
    store, average = residuals(), normal(SIZE, 1)
    send(store, 0, (0, SIZE), normal(SIZE))  # attempt 1: to a reducer that died
    decoded = reduce(store, 0, (0, SIZE), average, attempt=2)
    store.commit(0, [Counted(0, 0, SIZE, 1)], [b"2"])
    assert close(store.owed(0, SIZE), average - decoded)


def test_what_a_reducer_owes_joins_its_next_contribution_weight_corrected() -> None:
    """One peer of weight 2 among 8 owes the average e: its contribution must change by 4 e, the average then by e."""
    store = residuals("fp16")
    reduce(store, 0, (0, SIZE), normal(SIZE))
    store.commit(0, (), [b"0"])
    owed, values = store.owed(0, SIZE), normal(SIZE, 1)
    decoded = send(store, 1, (0, SIZE), values, weights=(2, 8))
    meant = values + 4 * owed
    assert torch.equal(decoded, meant.half().float())
    store.commit(1, [Counted(0, 0, SIZE, 8)], ())
    assert torch.allclose(store.owed(0, SIZE), (meant - decoded) * 2 / 8, rtol=1e-6)


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_the_sum_of_all_rounds_is_what_was_meant_whatever_happens(data: st.DataObject) -> None:
    """Parts move between sending and reducing, attempts abort, bundles are left out, weights change: nothing is lost.

    One peer with two bundles among others whose contribution is exact: every round the average that everybody decodes
    plus what is still owed equals the mean of what was counted, over all rounds.
    """
    store = residuals()
    meant = torch.zeros(SIZE, dtype=torch.float64)
    delivered = torch.zeros(SIZE, dtype=torch.float64)
    for round in range(data.draw(st.integers(1, 6))):
        bundles = [normal(SIZE, 10 * round + i) for i in range(2)]
        weights = [data.draw(st.integers(1, 4)) for _ in bundles]
        cut = data.draw(st.integers(1, SIZE - 1))
        counted, digests = [], []
        if data.draw(st.booleans()):  # an attempt that comes to nothing, cut differently
            send(store, round, (0, SIZE), bundles[1], bundle=1, weights=(weights[1], 9))
            reduce(store, round, (0, SIZE), bundles[0], attempt=7)
        for number, part in enumerate([(0, cut), (cut, SIZE)]):
            where = slice(*part)
            taken = data.draw(st.sampled_from([(), (0,), (1,), (0, 1)]))
            others = data.draw(st.integers(1, 5))  # weight of the others, whose contribution is zero here
            total = others + sum(weights[i] for i in taken)
            mean = sum((bundles[i] * weights[i] / total for i in taken), torch.zeros(SIZE))
            if data.draw(st.booleans()):
                decoded = reduce(store, round, part, mean, attempt=number)
                digests.append(b"%d" % number)
                delivered[where] += decoded.double()
            else:
                expected = total + data.draw(st.integers(0, 2))  # somebody was lost after the bundles were encoded
                for i in taken:
                    decoded = send(store, round, part, bundles[i], i, (weights[i], expected))
                    delivered[where] += decoded.double() * weights[i] / total
                    counted.append(Counted(i, *part, total))
            meant[where] += mean[where].double()
        store.commit(round, counted, digests)
    assert torch.allclose(delivered + store.owed(0, SIZE).double(), meant, atol=2e-5)


@pytest.mark.parametrize("name", ["none", "exact"])
def test_lossless_codecs_have_no_residuals(name: str) -> None:
    store = Residuals(codec_by_name(name, max_count=4), SIZE)
    values = normal(SIZE) if name == "none" else torch.arange(SIZE)
    assert store.stage_sender(0, 0, (0, SIZE), 0, values, 1, 2, b"head") == store.codec.encode(values, b"head")
    assert store.stage_reducer(0, 0, (0, SIZE), 0, values) == store.codec.encode(values)
    store.commit(0, [Counted(0, 0, SIZE, 2)], ())
    assert store.state_dict() == {}


def test_disabled_feedback_keeps_nothing() -> None:
    store = Residuals(codec_by_name("int8"), SIZE, enabled=False)
    store.stage_sender(0, 0, (0, SIZE), 0, normal(SIZE), 1, 2)
    store.commit(0, [Counted(0, 0, SIZE, 2)], ())
    assert store.state_dict() == {}


def test_a_part_that_was_not_encoded_whole_is_not_kept() -> None:
    store = residuals()
    store.stage_sender(0, 0, (0, SIZE), 0, normal(512), 1, 1)
    bad = normal(512)
    bad[3] = float("nan")
    with pytest.raises(TrainingError):
        store.stage_sender(0, 0, (0, SIZE), 512, bad, 1, 1)
    store.commit(0, [Counted(0, 0, SIZE, 1)], ())
    assert store.state_dict() == {}


def test_state_survives_a_snapshot_and_a_foreign_one_is_refused() -> None:
    store = residuals()
    assert store.state_dict() == {}
    send(store, 0, (0, SIZE), normal(SIZE))
    store.commit(0, [Counted(0, 0, SIZE, 1)], ())
    other = residuals()
    other.load_state_dict(store.state_dict())
    assert torch.equal(other.owed(0, SIZE), store.owed(0, SIZE))
    other.load_state_dict({})
    assert other.state_dict() == {}
    for foreign in ({"owed": torch.zeros(SIZE + 1)}, {"owed": torch.zeros(SIZE).double()}, {"more": torch.zeros(1)}):
        with pytest.raises(ConfigError):
            other.load_state_dict(foreign)


@pytest.mark.parametrize(
    ("part", "first", "weights"),
    [
        ((0, SIZE + 1), 0, (1, 1)),
        ((5, 5), 5, (1, 1)),
        ((0, 600), 500, (1, 1)),
        ((0, 600), 0, (2, 1)),
        ((0, 9), 0, (0, 1)),
    ],
)
def test_senseless_calls_are_refused(part: tuple[int, int], first: int, weights: tuple[float, float]) -> None:
    with pytest.raises(ValueError):
        residuals().stage_sender(0, 0, part, first, normal(512), *weights)
