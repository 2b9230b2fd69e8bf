"""Measured networks shipped with the project, and how shipped files are read. Decides nothing about a scenario.

    between("aws-regions")[("oregon", "virginia")]  ->  Measured(delay_s=0.0335, mbps=790.0)

Names are lower case; each pair is there in both orders. One way is half of the round trip that was measured.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator
from functools import cache
from importlib import resources
from typing import NamedTuple

from p2ptrain.errors import ConfigError

MAX_BYTES = 4 << 20


class Measured(NamedTuple):
    """One direction of one pair: seconds one way, Mbit/s of a single connection."""

    delay_s: float
    mbps: float


@cache
def between(table: str) -> dict[tuple[str, str], Measured]:
    """(region, region) -> measured, both orders, of the shipped ``table``. Raises ConfigError."""
    return parse_network(shipped_text(f"{table}.csv"), file=f"{table}.csv")


def shipped_text(name: str) -> str:
    """A file of ``lab/data``. Raises ConfigError if it is not there."""
    path = resources.files("p2ptrain.lab") / "data" / name
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"{name}: not among the files that p2ptrain ships: {error}",
            hint="install p2ptrain again",
            key="",
            file=name,
        ) from None


def parse_network(text: str, *, file: str) -> dict[tuple[str, str], Measured]:
    """``region_a,region_b,rtt_ms,bandwidth_mbps``. Raises ConfigError with file and line."""
    found: dict[tuple[str, str], Measured] = {}
    for line, (one, other, rtt, mbps) in rows(text, ("region_a", "region_b", "rtt_ms", "bandwidth_mbps"), file):
        a, b = one.lower(), other.lower()
        if not a or not b or a == b:
            raise bad_row(file, line, f"a pair of two regions is needed, not {one!r} and {other!r}")
        if (a, b) in found:
            raise bad_row(file, line, f"{one} and {other} are given twice")
        measured = Measured(number(rtt, file, line) / 2000.0, number(mbps, file, line))
        if measured.mbps <= 0:
            raise bad_row(file, line, "bandwidth_mbps must be above 0")
        found[a, b] = found[b, a] = measured
    return found


def rows(text: str, columns: tuple[str, ...], file: str) -> Iterator[tuple[int, list[str]]]:
    """(line, fields) of a CSV text with exactly these columns in its first line. Raises ConfigError with the line."""
    if len(text) > MAX_BYTES:
        raise ConfigError(f"{file}: more than the {MAX_BYTES} bytes allowed", key="", file=file)
    reader = csv.reader(text.splitlines(), strict=True)
    try:
        head = next(reader, [])
        if tuple(head) != columns:
            raise bad_row(file, 1, f"the first line should be {','.join(columns)}, not {','.join(head)[:80]!r}")
        for row in reader:
            if len(row) != len(columns):
                raise bad_row(file, reader.line_num, f"{len(row)} fields instead of {len(columns)}")
            yield reader.line_num, row
    except csv.Error as error:
        raise bad_row(file, reader.line_num, f"not CSV: {error}") from None


def number(text: str, file: str, line: int) -> float:
    """A finite number, not below 0. Raises ConfigError with the line."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or value < 0:
        raise bad_row(file, line, f"should be a number, not {text[:40]!r}")
    return value


def bad_row(file: str, line: int, why: str) -> ConfigError:
    return ConfigError(f"{file}:{line}: {why}", key="", file=file, line=line)
