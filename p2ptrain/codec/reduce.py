"""Two sums over a flat buffer that the round needs: is it finite, and its squared norm.

Decides the order of summation, so that the thread count changes no bit of ``norm_sq``. The norm is taken once, by the
part's reducer, and travels in the record: it need not come out equal on another device.

    norm_sq(average)  ->  double, summed in rows of 1024, rows in pieces of 128, pieces in order
"""

from __future__ import annotations

import math
import threading

import torch

PIECE_VALUES = 1 << 17
_ROW_VALUES = 1024
_scratch = threading.local()


def is_finite(values: torch.Tensor) -> bool:
    """True if no value is NaN or infinite. One pass: a finite sum proves it; only otherwise each value is looked at."""
    if not values.numel() or math.isfinite(float(values.sum())):
        return True
    return bool(torch.isfinite(values).all())


def norm_sq(values: torch.Tensor) -> float:
    """Squared L2 norm of flat float32 ``values``, squares and sums in double. Same bits whatever the thread count.

    No reduction spans threads: rows are summed along themselves (torch splits work between rows only), and the final
    sum of 128 rows is below torch's threshold for threading.
    """
    total = 0.0
    squares = _scratch_for(min(PIECE_VALUES, values.numel()), values.device)
    for first in range(0, values.numel(), PIECE_VALUES):
        piece = values[first : first + PIECE_VALUES]
        square = squares[: piece.numel()].copy_(piece)
        square.mul_(square)
        whole = piece.numel() // _ROW_VALUES * _ROW_VALUES
        if whole:
            total += float(square[:whole].view(-1, _ROW_VALUES).sum(1).sum())
        if whole < piece.numel():
            total += float(square[whole:].sum())
    return total


def _scratch_for(count: int, device: torch.device) -> torch.Tensor:
    if device.type != "cpu":
        return torch.empty(count, dtype=torch.float64, device=device)
    held: torch.Tensor | None = getattr(_scratch, "values", None)
    if held is None:
        held = torch.empty(PIECE_VALUES, dtype=torch.float64)
        _scratch.values = held
    return held[:count]
