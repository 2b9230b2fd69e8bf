"""A decided record into the stage's state: decode the averaged parts, clip, update. Decides nothing.

    record.parts -> payloads (by digest) -> decode chunk by chunk -> x clip -> AdamW on that range

All bytes are looked up, and the record checked, before the first value changes, so a record that cannot be applied
leaves the state as it was. In exact mode chunks hold integer sums, divided by the count here; otherwise the averages
arrive already divided, each part by its own count.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from p2ptrain.codec import codec_by_name
from p2ptrain.codec.base import Codec
from p2ptrain.codec.exact import dequantise_mean
from p2ptrain.codec.sizes import chunk_count, chunk_ranges
from p2ptrain.core.types import PartDone, Record
from p2ptrain.errors import TrainingError
from p2ptrain.ports import PartSource
from p2ptrain.train.flat import FlatStage
from p2ptrain.train.optimizer import AdamWOptions, AdamWStep, clip_factor
from p2ptrain.train.state import StageState, StateHeader


def apply_record(
    state: StageState,
    record: Record,
    source: PartSource,
    options: AdamWOptions,
    *,
    exact: bool = False,
    microbatches: int = 1,
    chunk_values: int | None = None,
) -> None:
    """Update ``state`` in place. Deterministic: the same bits from the same record on every kind of device.

    Raises TrainingError (state unchanged): not the next round, parts that do not tile the stage or are not held, a norm
    that is not finite. A payload that does not decode raises ProtocolError; the state is then partly updated and must
    be pulled anew (its digest was verified on arrival, so this is a fault of this process).
    """
    if record.round != state.header.round + 1:
        raise TrainingError(f"record of round {record.round} cannot follow round {state.header.round}")
    parts = _tiled(record, state.stage.size)
    held = [_payloads(source, part, exact, microbatches, chunk_values) for part in parts]
    clip = clip_factor(_mean_norm(record, parts, state.header.scale, exact), options.clip_norm)
    step = AdamWStep(options, state.header.powers, record.round - 1, clip, state.stage.device)
    for part, (codec, payloads) in zip(parts, held, strict=True):
        _apply_part(state.stage, part, codec, payloads, step, state.header.scale)
    state.header = StateHeader(record.round, record.next_scale, step.powers)


def _tiled(record: Record, size: int) -> list[PartDone]:
    parts = sorted((part for part in record.parts if part.stop > part.start), key=lambda part: part.start)
    borders = [0, *(part.stop for part in parts)]
    if [part.start for part in parts] != borders[:-1] or borders[-1] != size:
        raise TrainingError(f"the parts of round {record.round} do not cover the stage's {size} values once each")
    return parts


def _payloads(
    source: PartSource, part: PartDone, exact: bool, microbatches: int, chunk_values: int | None
) -> tuple[Codec, Sequence[bytes | memoryview]]:
    try:
        payloads, name = source.payloads(part.digest), source.codec_name(part.digest)
    except KeyError as error:
        raise TrainingError(f"part {part.index} of a decided round is not held here") from error
    codec = codec_by_name(name, chunk_values=chunk_values, max_count=microbatches)
    if len(payloads) != chunk_count(part.stop - part.start, codec.chunk_values) or exact != (name == "exact"):
        raise TrainingError(f"part {part.index}: {len(payloads)} {name} chunks are not what this run's parts look like")
    return codec, payloads


def _mean_norm(record: Record, parts: Sequence[PartDone], scale: float, exact: bool) -> float:
    """L2 norm of the mean gradient, in double."""
    if not exact:
        norm = math.sqrt(record.norm_sq) if record.norm_sq >= 0 else math.nan
    else:
        counts = {len(part.counted) for part in parts}
        if len(counts) != 1 or not isinstance(record.norm_sq, int) or record.norm_sq < 0:
            raise TrainingError(f"round {record.round}: exact parts share one count, and the norm is an integer")
        norm = mean_norm_of_sums(record.norm_sq, scale, counts.pop())
    if not math.isfinite(norm):
        raise TrainingError(f"round {record.round}: the norm of the averaged gradient is not finite")
    return norm


def mean_norm_of_sums(norm_sq: int, scale: float, count: int) -> float:
    """Norm of the mean of ``count`` gradients, from the sum of squares of their summed fixed-point integers."""
    return math.sqrt(norm_sq) * scale / max(1, count)


def _apply_part(
    stage: FlatStage,
    part: PartDone,
    codec: Codec,
    payloads: Sequence[bytes | memoryview],
    step: AdamWStep,
    scale: float,
) -> None:
    longest = min(codec.chunk_values, part.stop - part.start)
    decoded = torch.empty(longest, dtype=codec.dtype, device=stage.device)
    ranges = chunk_ranges(part.start, part.stop, codec.chunk_values)
    for payload, (start, stop) in zip(payloads, ranges, strict=True):
        values = decoded[: stop - start]
        codec.decode_into(payload, values)
        gradient = dequantise_mean(values, scale, max(1, len(part.counted))) if codec.name == "exact" else values
        step.apply(stage.parameters[start:stop], stage.exp_avg[start:stop], stage.exp_avg_sq[start:stop], gradient)
