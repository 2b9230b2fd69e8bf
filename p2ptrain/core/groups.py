"""Who averages a stage, and who reduces which part of it.

Decides ranges of a stage's flat buffer: contiguous, in proportion to bandwidth, cut at block boundaries of the codec.
It does not decide who takes part in a round (its leader does, by ``Begin``).

    split_parts(1000, [("a", 3.0), ("b", 1.0)], align=100)  ->  [(0, 800, "a"), (800, 1000, "b")]
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import median

from p2ptrain.core.types import PeerId, Span

PartRange = tuple[int, int, PeerId]


def group_of(stage: int, spans: Iterable[tuple[PeerId, Span]]) -> tuple[PeerId, ...]:
    """All whose span holds ``stage``, sorted by id."""
    return tuple(sorted(peer for peer, span in spans if stage in span.stages()))


def split_parts(size: int, reducers: Sequence[tuple[PeerId, float]], align: int = 1) -> list[PartRange]:
    """``(start, stop, reducer)`` ranges that cover ``[0, size)`` in order, in the order of ``reducers``.

    Weights are relative (bandwidth); 0 or less means unknown and counts as the median of the known. Every cut but the
    last is a multiple of ``align``. Each reducer gets a part if there are blocks enough; else the heaviest do (ties to
    the first). Deterministic. Raises ValueError without reducers, or for a size or alignment below 1.
    """
    if not reducers or size < 1 or align < 1:
        raise ValueError(f"cannot split {size} values by {align} among {len(reducers)} reducers")
    blocks = math.ceil(size / align)
    weights = _filled_in([weight for _, weight in reducers])
    chosen = sorted(range(len(reducers)), key=lambda i: (-weights[i], i))[:blocks]
    chosen.sort()
    shares = _shares([weights[i] for i in chosen], blocks)
    parts: list[PartRange] = []
    begin = 0
    for i, share in zip(chosen, shares, strict=True):
        stop = min(size, (begin + share) * align)
        parts.append((begin * align, stop, reducers[i][0]))
        begin += share
    return parts


def _filled_in(weights: list[float]) -> list[float]:
    known = [weight for weight in weights if weight > 0 and math.isfinite(weight)]
    unknown = median(known) if known else 1.0
    return [weight if weight > 0 and math.isfinite(weight) else unknown for weight in weights]


def _shares(weights: list[float], blocks: int) -> list[int]:
    """Whole shares of at least 1 each, in proportion by largest remainder. ``blocks`` >= number of weights."""
    spare = blocks - len(weights)
    whole = sum(weights)
    ideal = [max(0.0, blocks * weight / whole - 1.0) for weight in weights]
    scale = spare / sum(ideal) if sum(ideal) > 0 else 0.0
    exact = [share * scale for share in ideal]
    shares = [min(int(share), spare) for share in exact]
    order = sorted(range(len(weights)), key=lambda i: (shares[i] - exact[i], i))
    left = spare - sum(shares)
    for turn in range(left):
        shares[order[turn % len(order)]] += 1
    return [share + 1 for share in shares]
