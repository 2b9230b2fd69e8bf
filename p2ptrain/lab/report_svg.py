"""Charts as SVG text, drawn from the report's plain data: lines over time, and a lane for each peer. No script.

Decides how things look. Colours come from the page's style sheet by class, so that light and dark both work; every
mark has a ``<title>``, which is what a browser shows under the pointer and what a screen reader tells.
"""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import Any

Data = dict[str, Any]

WIDTH = 920
LEFT, RIGHT, TOP, BOTTOM = 64, 16, 14, 34
HEIGHT = 220
LANE = 22
NAME_WIDTH = 110


def chart(data: Data, marks: list[Data]) -> str:
    """One chart: its lines, ticks, and thin upright lines where something happened."""
    plot = _Plot(float(data["seconds"]), data["y_ticks"][0], data["y_ticks"][-1])
    bottom = HEIGHT - BOTTOM
    pieces = [_open(f"chart-{data['key']}", HEIGHT, f"{data['title']}, in {data['unit']}, over the run's seconds")]
    for tick in data["y_ticks"]:
        y = plot.y(tick)
        pieces.append(f'<line class="grid" x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}"/>')
        pieces.append(f'<text class="tick end" x="{LEFT - 8}" y="{y + 4:.1f}">{tick}</text>')
    pieces += _x_axis(data["x_ticks"], plot, bottom)
    pieces += _marks(marks, plot, TOP, bottom)
    for index, series in enumerate(data["series"]):
        pieces += _line(series, plot, f"s{index}", step=data["step"])
    pieces.append("</svg>")
    return "".join(pieces)


def lanes(data: Data, marks: list[Data]) -> str:
    """One lane a peer: grey until it was ready, then coloured; a tick for each round it applied; on top the commits."""
    rows = data["lanes"]
    height = TOP + LANE * (len(rows) + 1) + BOTTOM
    bottom = height - BOTTOM
    plot = _Plot(float(data["seconds"]), 0, 1, left=NAME_WIDTH)
    pieces = [_open("lanes", height, "Timeline: the commits, and each peer's life and rounds")]
    pieces += _x_axis(data["x_ticks"], plot, bottom)
    pieces.append(f'<text class="lane end" x="{NAME_WIDTH - 8}" y="{TOP + 14}">commits</text>')
    for t, round, counted, expected, members in data["commits"]:
        whole = "s0" if counted == expected else "bad"
        what = f"round {round} at {t} s: {counted} of {expected} microbatches, {members} members"
        pieces.append(_tick(plot.x(t), TOP + 2, LANE - 6, whole, what))
    for index, lane in enumerate(rows):
        top = TOP + LANE * (index + 1)
        pieces.append(f'<text class="lane end" x="{NAME_WIDTH - 8}" y="{top + 14}">{escape(lane["name"])}</text>')
        for life in lane["lives"]:
            pieces += _life(lane["name"], life, plot, top)
    pieces += _marks(marks, plot, TOP, bottom)
    pieces.append("</svg>")
    return "".join(pieces)


# --- helpers ----------------------------------------------------------------------------------------------------------


class _Plot:
    """Data to pixels."""

    def __init__(self, seconds: float, low: float, high: float, left: int = LEFT) -> None:
        self.left = left
        self.seconds = max(seconds, 1e-9)
        self.low = low
        self.span = max(high - low, 1e-9)

    def x(self, t: float) -> float:
        share = min(1.0, max(0.0, t / self.seconds))
        return self.left + share * (WIDTH - RIGHT - self.left)

    def y(self, value: float) -> float:
        return HEIGHT - BOTTOM - (value - self.low) / self.span * (HEIGHT - BOTTOM - TOP)


def _open(key: str, height: int, title: str) -> str:
    return (
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-labelledby="{key}-title" '
        f'xmlns="http://www.w3.org/2000/svg"><title id="{key}-title">{escape(title)}</title>'
    )


def _x_axis(ticks: Iterable[float], plot: _Plot, bottom: int) -> list[str]:
    pieces = [f'<line class="axis" x1="{plot.left}" y1="{bottom}" x2="{WIDTH - RIGHT}" y2="{bottom}"/>']
    for tick in ticks:
        x = plot.x(tick)
        pieces.append(f'<line class="axis" x1="{x:.1f}" y1="{bottom}" x2="{x:.1f}" y2="{bottom + 4}"/>')
        pieces.append(f'<text class="tick middle" x="{x:.1f}" y="{bottom + 17}">{tick}</text>')
    pieces.append(f'<text class="tick end" x="{WIDTH - RIGHT}" y="{bottom + 31}">seconds</text>')
    return pieces


def _marks(marks: list[Data], plot: _Plot, top: int, bottom: int) -> list[str]:
    return [
        f'<g class="mark"><title>{escape(mark["text"])}</title>'
        f'<line x1="{(x := plot.x(mark["t"])):.1f}" y1="{top}" x2="{x:.1f}" y2="{bottom}"/>'
        f'<path d="M{x - 4:.1f} {top - 8}h8l-4 7z"/></g>'
        for mark in marks
    ]


def _line(series: Data, plot: _Plot, colour: str, *, step: bool) -> list[str]:
    points = [(plot.x(t), plot.y(value)) for t, value in series["points"]]
    if not points:
        return []
    if step:
        path = f"M{points[0][0]:.1f} {points[0][1]:.1f}" + "".join(f"H{x:.1f}V{y:.1f}" for x, y in points[1:])
    else:
        path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
    pieces = [f'<path class="line {colour}" d="{path}"><title>{escape(series["name"])}</title></path>']
    if series["dots"]:
        for (x, y), (t, value) in zip(points, series["points"], strict=True):
            told = f"{escape(series['name'])}: {value} at {t} s"
            pieces.append(
                f'<circle class="dot {colour}" cx="{x:.1f}" cy="{y:.1f}" r="3"><title>{told}</title></circle>'
            )
    return pieces


def _tick(x: float, top: int, height: int, colour: str, what: str) -> str:
    return f'<path class="round {colour}" d="M{x:.1f} {top}v{height}"><title>{escape(what)}</title></path>'


def _life(name: str, life: Data, plot: _Plot, top: int) -> list[str]:
    begin, end = plot.x(life["from"]), plot.x(life["to"])
    ready = end if life["ready"] is None else min(end, plot.x(life["ready"]))
    how = f", ended by {life['ended']}" if life["ended"] else ""
    told = f"{name} ({life['region']}): {life['from']} s to {life['to']} s, {life['applied']} rounds applied{how}"
    pieces = [f'<g class="life"><title>{escape(told)}</title>']
    pieces.append(
        f'<rect class="coming" x="{begin:.1f}" y="{top + 4}" width="{ready - begin:.1f}" height="{LANE - 8}"/>'
    )
    pieces.append(f'<rect class="alive" x="{ready:.1f}" y="{top + 4}" width="{end - ready:.1f}" height="{LANE - 8}"/>')
    if life["rounds"]:
        path = "".join(f"M{plot.x(t):.1f} {top + 6}v{LANE - 12}" for t, _ in life["rounds"])
        pieces.append(f'<path class="round s0" d="{path}"/>')
    if life["ended"]:
        colour = "bad" if life["ended"] != "leave" else "s1"
        pieces.append(f'<path class="ended {colour}" d="M{end - 4:.1f} {top + 7}l8 8m0 -8l-8 8"/>')
    return [*pieces, "</g>"]
