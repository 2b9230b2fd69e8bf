"""The report of a run: what is shown, as plain data. ``report.json`` is that data, the HTML is drawn from it alone.

    folder/record.json    everything the run left          folder/report.json    what the report shows, rounded
    folder/report.html    one file, own SVG, no script, nothing from elsewhere: opens offline, in light and in dark

Decides what is worth showing and how much of it: series are thinned to ``POINTS`` points, lanes to ``LANES`` peers,
tables to ``ROWS`` rows, so that an hour's run stays small; what was left out is said. Given the same record, the same
bytes.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from p2ptrain.lab.compare import Comparison
from p2ptrain.lab.expectations import Verdict, counted_samples, digests, goodput, is_met, last_round
from p2ptrain.lab.record import Happening, PeerLife, Record

POINTS = 400
LANES = 40
TICKS_A_LANE = 150
ROWS = 120
MATRIX = 16
OTHERS = "(others)"

Data = dict[str, Any]


def write_report(
    folder: Path, record: Record, verdicts: Sequence[Verdict], comparison: Comparison | None = None, about: str = ""
) -> Path:
    """Write the three files; the path of the HTML."""
    from p2ptrain.lab.report_html import page

    folder.mkdir(parents=True, exist_ok=True)
    data = report_data(record, verdicts, comparison, about)
    record.save(folder / "record.json")
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    (folder / "report.json").write_text(text, encoding="utf-8")
    path = folder / "report.html"
    path.write_text(page(data), encoding="utf-8")
    return path


def report_data(
    record: Record, verdicts: Sequence[Verdict], comparison: Comparison | None = None, about: str = ""
) -> Data:
    """Everything the report shows, already rounded and in words."""
    seconds = max(record.seconds, 1e-9)
    marks = [
        {"t": short(h.t), "do": h.do, "text": f"{short(h.t)} s: {h.text or h.do} {'' if h.text else ' '.join(h.peers)}"}
        for h in record.happenings[:ROWS]
    ]
    charts = [
        _alive(record, seconds),
        _samples(record, seconds),
        _losses(record, seconds),
        _stalls_by_round(record, seconds),
    ]
    data: Data = {
        "title": record.name,
        "about": about,
        "met": is_met(list(verdicts)),
        "valid": record.valid,
        "kind": record.kind,
        "facts": [[name, value] for name, value in _facts(record)],
        "notes": list(record.notes),
        "verdicts": [{**asdict(v), "mark": _mark(v)} for v in verdicts],
        "charts": [chart for chart in charts if any(series["points"] for series in chart["series"])],
        "marks": marks,
        "lanes": _lanes(record, seconds),
        "tables": [_happenings(record), _lives(record)],
        "matrix": _matrix(record),
        "comparison": comparison.as_json() if comparison is not None else None,
    }
    return data


# --- numbers ----------------------------------------------------------------------------------------------------------


def short(value: float | None, digits: int = 3) -> float | int:
    """Rounded to so many digits behind the point; an int where nothing is behind it."""
    if value is None or not math.isfinite(value):
        return 0
    rounded = round(float(value), digits)
    return int(rounded) if rounded == int(rounded) else rounded


def size(nbytes: float) -> str:
    for unit in ("B", "KB", "MB", "GB"):
        if nbytes < 1000 or unit == "GB":
            return f"{short(nbytes, 0 if unit == 'B' else 1)} {unit}"
        nbytes /= 1000
    raise AssertionError("unreachable")


def nice_ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Round numbers from at or below ``low`` up to at or above ``high``."""
    span = max(high - low, 1e-9)
    raw = span / count
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= raw * 0.999)
    first = math.floor(low / step + 1e-9)
    last = math.ceil(high / step - 1e-9)
    return [round(index * step, 10) for index in range(first, max(last, first + 1) + 1)]


def thin(points: Sequence[tuple[float, float]], limit: int = POINTS) -> list[tuple[float, float]]:
    """At most ``limit`` points: of each stretch the lowest and the highest, so that no peak is lost."""
    if len(points) <= limit:
        return list(points)
    kept: list[tuple[float, float]] = []
    stretches = limit // 2
    for index in range(stretches):
        part = points[index * len(points) // stretches : (index + 1) * len(points) // stretches]
        low, high = min(part, key=lambda p: p[1]), max(part, key=lambda p: p[1])
        kept += [low] if low == high else sorted((low, high))
    return kept


# --- charts -----------------------------------------------------------------------------------------------------------


def _chart(
    key: str, title: str, unit: str, seconds: float, series: list[Data], *, zero: bool = True, step: bool = False
) -> Data:
    values = [y for line in series for _, y in line["points"]]
    low = 0.0 if zero else min(values, default=0.0)
    y_ticks = nice_ticks(low, max([*values, low + 1e-3]), 4)
    x_ticks = [t for t in nice_ticks(0.0, seconds, 8) if t <= seconds * 1.0001]
    return {
        "key": key,
        "title": title,
        "unit": unit,
        "seconds": short(seconds),
        "x_ticks": [short(t) for t in x_ticks],
        "y_ticks": [short(t) for t in y_ticks],
        "step": step,
        "series": series,
    }


def _line(name: str, points: Sequence[tuple[float, float]], dots: bool = False) -> Data:
    return {"name": name, "points": [[short(x), short(y, 4)] for x, y in thin(points)], "dots": dots}


def _alive(record: Record, seconds: float) -> Data:
    changes: dict[float, int] = defaultdict(int)
    for life in record.lives:
        changes[life.began_s] += 1
        if life.ended_s is not None:
            changes[life.ended_s] -= 1
    points, alive = [], 0
    for t in sorted(changes):
        alive += changes[t]
        points.append((min(t, seconds), float(alive)))
    if points:
        points.append((seconds, points[-1][1]))
    training = [(fact.t, float(fact.members)) for fact in record.rounds]
    lines = [_line("processes", points), _line("members of the round", training)]
    return _chart("alive", "Peers alive", "peers", seconds, lines, step=True)


def _samples(record: Record, seconds: float) -> Data:
    """Counted samples by time, in bins of at least a second and at least two rounds."""
    if not record.rounds:
        return _chart("samples", "Samples counted", "samples/s", seconds, [_line("counted", [])])
    bins = max(1, min(POINTS // 2, int(seconds), len(record.rounds) // 2))
    width = seconds / bins
    found = [0.0] * bins
    for fact in record.rounds:
        found[min(bins - 1, max(0, int(fact.t / width)))] += fact.counted * record.microbatch_samples / width
    counted = [((index + 0.5) * width, value) for index, value in enumerate(found)]
    ideal = []
    for index in range(bins):
        middle = (index + 0.5) * width
        ideal.append((middle, sum(life.own_samples_per_s for life in record.lives if _lives_at(life, middle))))
    lines = [_line("counted", counted), _line("own speeds of those alive", ideal)]
    return _chart("samples", "Samples counted", "samples/s", seconds, lines)


def _losses(record: Record, seconds: float) -> Data:
    training = [(fact.t, fact.loss) for fact in record.rounds if fact.loss is not None]
    held_out = [(t, loss) for t, _, loss in record.losses]
    lines = [_line("training", training), _line("held out", held_out, dots=True)]
    return _chart("loss", "Loss", "nats", seconds, lines, zero=False)


def _stalls_by_round(record: Record, seconds: float) -> Data:
    stalls = [(fact.t, fact.stall_s) for fact in record.rounds]
    return _chart("stall", "From the end of the fill to the commit", "s", seconds, [_line("stall", stalls)])


def _lives_at(life: PeerLife, t: float) -> bool:
    return life.began_s <= t and (life.ended_s is None or life.ended_s > t)


def _lanes(record: Record, seconds: float) -> Data:
    """One lane a peer: its lives, and the rounds it applied."""
    applied: dict[int, list[tuple[float, int]]] = defaultdict(list)
    for t, index, round, _ in record.applied:
        applied[index].append((t, round))
    names = list(dict.fromkeys(life.name for life in record.lives))
    shown = names[:LANES]
    limit = max(10, min(TICKS_A_LANE, 3000 // max(1, len(shown))))
    lanes = []
    for name in shown:
        lives = []
        for index, life in enumerate(record.lives):
            if life.name == name:
                end = seconds if life.ended_s is None else life.ended_s
                lives.append(
                    {
                        "from": short(life.began_s),
                        "ready": short(life.ready_s) if life.ready_s is not None else None,
                        "to": short(end),
                        "ended": life.ended,
                        "region": life.region,
                        "rounds": [[short(t), number] for t, number in _every(applied[index], limit)],
                        "applied": len(applied[index]),
                    }
                )
        lanes.append({"name": name, "lives": lives})
    commits = [[short(f.t), f.round, f.counted, f.expected, f.members] for f in _every(record.rounds, 2 * TICKS_A_LANE)]
    ticks = [short(t) for t in nice_ticks(0.0, seconds, 8) if t <= seconds * 1.0001]
    return {
        "lanes": lanes,
        "commits": commits,
        "rounds": len(record.rounds),
        "more": len(names) - len(shown),
        "seconds": short(seconds),
        "x_ticks": ticks,
    }


def _every(items: Sequence[Any], limit: int) -> list[Any]:
    if len(items) <= limit:
        return list(items)
    return [items[index * (len(items) - 1) // (limit - 1)] for index in range(limit)]


# --- tables -----------------------------------------------------------------------------------------------------------


def _facts(record: Record) -> list[tuple[str, str]]:
    share = goodput(record)
    compared, unequal = digests(record)
    counted = counted_samples(record)
    found = [
        ("run by", {"lab": "real processes", "sim": "the simulator"}[record.kind] + f" ({record.mode})"),
        ("seed", str(record.seed)),
        ("seconds", f"{short(record.seconds, 1)} of {short(record.planned_s, 1)} planned"),
        ("wall time", f"{short(record.wall_s, 1)} s"),
        ("lives", f"{len(record.lives)} of {len({life.name for life in record.lives})} peers"),
        ("last round", str(last_round(record))),
        ("samples counted", f"{counted} ({short(counted / max(record.seconds, 1e-9), 1)} a second)"),
        ("goodput", "not known" if share is None else f"{short(share)} of the own speeds of those alive"),
        ("rounds compared bit for bit", f"{compared}, {len(unequal)} unequal"),
    ]
    if record.lateness_p99_s is not None:
        least = f", smallest delay {short(record.smallest_delay_s * 1000, 2)} ms" if record.smallest_delay_s else ""
        found.append(("emulator's own lateness, p99", f"{short(record.lateness_p99_s * 1000, 2)} ms{least}"))
    return found


def _mark(verdict: Verdict) -> str:
    if verdict.ok is None:
        return "not known"
    word = "met" if verdict.ok else "not met"
    return word if verdict.decides else f"{word} (printed only)"


def _happenings(record: Record) -> Data:
    def row(happening: Happening) -> list[str]:
        soon, late = happening.next_commit_s, happening.all_on_s
        return [
            f"{short(happening.t, 2)}",
            happening.do,
            _names(happening.peers),
            happening.text,
            "" if soon is None else f"{short(soon)}",
            "" if late is None else f"{short(late)}",
        ]

    heads = ["at, s", "what", "peers", "", "to the next commit, s", "until all went on, s"]
    return _table("Stall by event", heads, [row(h) for h in record.happenings], left=(1, 2, 3))


def _lives(record: Record) -> Data:
    def row(life: PeerLife) -> list[str]:
        times = [life.began_s, life.ready_s, life.first_counted_s, life.ended_s]
        return [
            life.name,
            life.peer[:8],
            life.region,
            *("" if t is None else f"{short(t, 2)}" for t in times),
            life.ended or "alive",
            f"{short(life.own_samples_per_s, 1)}",
            str(life.rounds),
        ]

    heads = ["peer", "id", "region", "began, s", "ready, s", "first counted, s", "ended, s", "how"]
    heads += ["own samples/s", "rounds"]
    return _table("Lives", heads, [row(life) for life in record.lives], left=(0, 1, 2, 7))


def _table(title: str, heads: list[str], rows: list[list[str]], left: tuple[int, ...]) -> Data:
    more = max(0, len(rows) - ROWS)
    return {"title": title, "heads": heads, "rows": rows[:ROWS], "more": more, "left": list(left)}


def _matrix(record: Record) -> Data:
    """Bytes from row to column; beyond ``MATRIX`` names the smaller ones are summed."""
    total: dict[str, int] = defaultdict(int)
    for link in record.links:
        total[link.source] += link.nbytes
        total[link.target] += link.nbytes
    largest = set(sorted(total, key=lambda name: (-total[name], name))[:MATRIX])
    order = list(dict.fromkeys([*(life.name for life in record.lives), *sorted(total)]))
    names = [name for name in order if name in largest]
    if len(total) > MATRIX:
        names.append(OTHERS)
    cells: dict[tuple[str, str], int] = defaultdict(int)
    for link in record.links:
        source = link.source if link.source in largest else OTHERS
        target = link.target if link.target in largest else OTHERS
        cells[source, target] += link.nbytes
    most = max(cells.values(), default=0)
    rows = [
        [{"text": size(n) if (n := cells[a, b]) else "", "share": short(n / most, 2) if most else 0} for b in names]
        for a in names
    ]
    return {"names": names, "rows": rows, "total": size(sum(link.nbytes for link in record.links))}


def _names(peers: Sequence[str]) -> str:
    return " ".join(peers[:6]) + (f" and {len(peers) - 6} more" if len(peers) > 6 else "")
