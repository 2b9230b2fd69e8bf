"""One part at its reducer: the order of the sum, what does not belong, and contributions that are refused."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from p2ptrain.codec import codec_by_name
from p2ptrain.codec.feedback import Residuals
from p2ptrain.core.messages import Begin
from p2ptrain.core.types import Ballot, Bundle, Fence, PartOrder, Voter
from p2ptrain.errors import ProtocolError
from p2ptrain.runtime.reduction import NORM_FACTOR, Reduction, Refused, frames_payload
from p2ptrain.wire import bulk

SIZE = 1000


@pytest.fixture(scope="module")
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as pool:
        yield pool


def reduction(pool: ThreadPoolExecutor, weights: tuple[int, ...], codec: str = "none", size: int = SIZE) -> Reduction:
    bundles, first = [], 0
    for index, weight in enumerate(weights):
        bundles.append(Bundle("abcdefgh"[index], 1, 0, tuple(range(first, first + weight))))
        first += weight
    order = PartOrder(0, 0, size, "a", tuple(range(len(weights))))
    members = tuple(Voter(bundle.peer, 1) for bundle in bundles)
    fence = Fence("aa" * 32, 0, 0, 5, b"p", Ballot(0, "a", 1))
    begin = Begin(fence, 1, members, tuple(bundles), (order,))
    made = codec_by_name(codec)
    return Reduction(begin, order, made, Residuals(made, size, enabled=False), pool)


def give(made: Reduction, position: int, values: torch.Tensor) -> None:
    """As it comes over the wire, chunk by chunk."""
    for index, chunk in enumerate(made.chunks):
        piece = values[chunk.start : chunk.stop].float().contiguous()
        frame = made.codec.encode(piece, b"")
        made.add(position, index, memoryview(frame))


def average(made: Reduction) -> torch.Tensor:
    asyncio.run(made.advance())
    assert made.done is not None
    pieces = [
        made.codec.decode(memoryview(frame)[bulk.FRAME_HEADER_BYTES :], chunk.stop - chunk.start)
        for frame, chunk in zip(made.frames, made.chunks, strict=True)
    ]
    return torch.cat(pieces)


def gradient(seed: int, size: int = SIZE) -> torch.Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed))


def refused(made: Reduction) -> Refused:
    with pytest.raises(Refused) as caught:
        asyncio.run(made.advance())
    assert made.done is None and made.frames == []
    return caught.value


def test_the_average_is_weighted_by_count_and_names_what_it_counts(pool: ThreadPoolExecutor) -> None:
    made = reduction(pool, (1, 3))
    made.add_own(0, torch.full((SIZE,), 4.0))
    assert made.missing() == [1] and not made.ready
    give(made, 1, torch.full((SIZE,), 8.0))
    assert made.missing() == [] and made.ready
    assert torch.equal(average(made), torch.full((SIZE,), 7.0))
    assert made.done is not None and made.done.counted == (0, 1, 2, 3)
    assert made.done.norm_sq == 49.0 * SIZE and made.done.nbytes == sum(len(frame) for frame in made.frames)
    assert frames_payload(made.frames) == 4 * SIZE
    assert not made.ready and made.end_frame


@pytest.mark.parametrize("codec", ["none", "fp16", "int8"])
def test_the_same_contributions_give_the_same_bits_in_whatever_order_they_come(
    pool: ThreadPoolExecutor, codec: str
) -> None:
    digests = set()
    for order in ((0, 1, 2), (2, 0, 1)):
        made = reduction(pool, (2, 1, 3), codec)
        for position in order:
            give(made, position, gradient(position))
        average(made)
        assert made.done is not None
        digests.add((made.done.digest, made.done.norm_sq))
    assert len(digests) == 1


def test_chunks_that_do_not_belong_are_refused_by_name(pool: ThreadPoolExecutor) -> None:
    made = reduction(pool, (1, 1))
    give(made, 1, gradient(1))
    for position, index, told in ((1, 0, "twice"), (2, 0, "not part"), (1, 9, "not part"), (1, -1, "not part")):
        with pytest.raises(ProtocolError, match=told):
            made.add(position, index, memoryview(b""))


def test_a_payload_of_the_wrong_size_is_a_broken_rule(pool: ThreadPoolExecutor) -> None:
    made = reduction(pool, (1, 1))
    made.add_own(0, gradient(0))
    made.add(1, 0, memoryview(bytes(7)))
    with pytest.raises(ProtocolError):
        asyncio.run(made.advance())


def test_what_is_stopped_yields_nothing_more_and_says_why(pool: ThreadPoolExecutor) -> None:
    made = reduction(pool, (1, 1))
    changed = made.changed
    made.stop("a later attempt has begun")
    give(made, 0, gradient(0))
    give(made, 1, gradient(1))
    asyncio.run(made.advance())
    assert changed.is_set() and made.ended == "a later attempt has begun" and made.frames == []


def test_what_is_done_is_served_after_a_stop(pool: ThreadPoolExecutor) -> None:
    made = reduction(pool, (1,))
    made.add_own(0, gradient(0))
    average(made)
    made.stop("the exchange is over")
    assert made.done is not None and made.ended == ""


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("position", [0, 1, 2])
def test_a_contribution_that_is_not_finite_is_named(pool: ThreadPoolExecutor, bad: float, position: int) -> None:
    made = reduction(pool, (1, 1, 1))
    for index in range(3):
        values = gradient(index)
        values[17] = bad if index == position else values[17]
        made.add_own(0, values) if index == 0 else give(made, index, values)
    found = refused(made)
    assert found.position == position and found.reason == "gradient not finite"


# --- absurd norms ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", ["none", "bf16", "int8"])
@pytest.mark.parametrize("own", [True, False], ids=["contributes", "only reduces"])
@pytest.mark.parametrize("count", [3, 5])
def test_an_absurd_norm_among_three_or_more_is_refused(
    pool: ThreadPoolExecutor, codec: str, own: bool, count: int
) -> None:
    made = reduction(pool, (1,) * count, codec)
    for index in range(count):
        values = gradient(index) * (1e9 if index == count - 1 else 1.0)
        made.add_own(0, values) if own and index == 0 else give(made, index, values)
    found = refused(made)
    assert found.position == count - 1 and "median" in found.reason


def test_norms_that_are_merely_unlike_are_all_counted(pool: ThreadPoolExecutor) -> None:
    """One a thousand times the others: a spike of a small batch, not absurd. Nor is one that is nearly zero."""
    for scales in ((1.0, 1.0, 1_000.0), (1.0, 1e-9, 1.0), (1e-6, 1e-6, 1e-3), (1.0, 1.0, NORM_FACTOR / 2)):
        made = reduction(pool, (1, 4, 1))
        for index, scale in enumerate(scales):
            values = gradient(index) * scale
            made.add_own(0, values) if index == 0 else give(made, index, values)
        average(made)


def test_two_cannot_judge_each_other(pool: ThreadPoolExecutor) -> None:
    made = reduction(pool, (1, 1))
    made.add_own(0, gradient(0))
    give(made, 1, gradient(1) * 1e9)
    average(made)


def test_where_most_have_no_gradient_nothing_is_compared(pool: ThreadPoolExecutor) -> None:
    """Rows of an embedding that only one of them met."""
    made = reduction(pool, (1, 1, 1))
    made.add_own(0, torch.zeros(SIZE))
    give(made, 1, torch.zeros(SIZE))
    give(made, 2, gradient(2))
    average(made)


def test_the_median_stands_beside_two_absurd_ones_of_five(pool: ThreadPoolExecutor) -> None:
    made = reduction(pool, (1,) * 5)
    for index in range(5):
        give(made, index, gradient(index) * (10.0 ** (6 + index) if index >= 3 else 1.0))
    assert refused(made).position == 4, "the worst first; the other in the next attempt"
