"""Compact forms for messages and bulk frames: ids as runs, exact squared norms as bytes; and how a value is refused.

Ids are mostly consecutive, so a list travels as runs: run i starts ``gaps[i]`` after the end of run i-1 (the first:
after 0) and has ``counts[i]`` numbers. Order and repeats are kept: (5, 6, 7, 2) is gaps (5, -6), counts (3, 1).
"""

from __future__ import annotations

from collections.abc import Sequence

from p2ptrain.wire import limits


class Refused(Exception):
    """A value that must not travel. Never leaves ``wire``: becomes a ``ProtocolError`` with the path to the field."""

    def __init__(self, why: str, value: object = None) -> None:
        super().__init__(why)
        self.why = why
        self.value = value
        self.path: list[str] = []

    def told(self, root: str) -> str:
        where = root + "".join(step if step.startswith("[") else f".{step}" for step in self.path)
        shown = "" if self.value is None else f", got {shortened(self.value)}"
        return f"{where}: {self.why}{shown}"


def shortened(value: object) -> str:
    """A value for an error text: at most 48 characters, printable. Cuts before it renders."""
    if isinstance(value, (str, bytes)):
        value = value[:24]
    elif isinstance(value, (tuple, list)) and not (len(value) < 8 and all(isinstance(v, (int, str)) for v in value)):
        return f"{len(value)} values"
    elif isinstance(value, int) and value.bit_length() > 128:
        return f"a number of {value.bit_length()} bits"
    text = ascii(value)
    return text if len(text) <= 48 else text[:45] + "..."


def runs_of(ids: Sequence[int]) -> tuple[list[int], list[int]]:
    """(gaps, counts) of ``ids``, not empty: (5, 6, 7, 2) gives ([5, -6], [3, 1])."""
    first, total = ids[0], len(ids)
    if ids[-1] - first == total - 1 and ids == tuple(range(first, first + total)):
        return [first], [total]
    gaps, counts, end = [first], [0], first
    for number in ids:
        if number == end:
            counts[-1] += 1
        else:
            gaps.append(number - end)
            counts.append(1)
        end = number + 1
    return gaps, counts


def check_runs(gaps: Sequence[int], counts: Sequence[int], limit: int) -> int:
    """How many numbers the runs stand for. Raises Refused before anything is expanded."""
    if len(gaps) != len(counts):
        raise Refused(f"has {len(gaps)} run starts and {len(counts)} run lengths")
    total, end = sum(counts), 0
    if total > limit:
        raise Refused(f"has {total} ids, the limit is {limit}")
    for gap, count in zip(gaps, counts, strict=True):
        start = end + gap
        end = start + count
        if count < 1 or start < 0 or end - 1 > limits.MAX_WHOLE:
            raise Refused("has an empty run, or one outside the allowed numbers", (start, count))
    return total


def expand_runs(gaps: Sequence[int], counts: Sequence[int]) -> tuple[int, ...]:
    ids: list[int] = []
    end = 0
    for gap, count in zip(gaps, counts, strict=True):
        start = end + gap
        end = start + count
        ids.extend(range(start, end))
    return tuple(ids)


def norm_bytes(value: int) -> bytes:
    return value.to_bytes(max(1, (value.bit_length() + 7) // 8), "big")


def norm_of(data: bytes) -> int:
    """Raises Refused unless ``data`` is what ``norm_bytes`` gives."""
    if not 1 <= len(data) <= limits.MAX_NORM_BYTES or (data[0] == 0 and len(data) > 1):
        raise Refused(f"must be 1 to {limits.MAX_NORM_BYTES} bytes without leading zeros", data)
    return int.from_bytes(data, "big")
