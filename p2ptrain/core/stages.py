"""How a model is cut into stages. In the whole-span step: one stage that holds everything.

Decides the cut only, not who serves it (``plan``). The types carry several stages everywhere, so that cutting further
changes nothing but this.

    single_stage(size=1000, layers=6)  ->  (Stage(index=0, first=0, last=5, size=1000),)
"""

from __future__ import annotations

from p2ptrain.core.types import Span, Stage


def single_stage(size: int, layers: int) -> tuple[Stage, ...]:
    """One stage of all ``layers`` layers with ``size`` trainable values. Raises ValueError if either is below 1."""
    if size < 1 or layers < 1:
        raise ValueError(f"a stage needs layers and trainable values, not {layers} and {size}")
    return (Stage(0, 0, layers - 1, size),)


def whole_span(stages: tuple[Stage, ...]) -> Span:
    """The span of all stages: a whole-model replica."""
    return Span(stages[0].index, stages[-1].index)
