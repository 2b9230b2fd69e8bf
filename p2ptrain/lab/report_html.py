"""The report's page: one HTML file from the report's plain data, and nothing from elsewhere.

Decides the order (verdicts first) and the style. Every text that came from a scenario or a peer is escaped.
"""

from __future__ import annotations

from html import escape
from typing import Any

from p2ptrain.lab.report_svg import chart, lanes

Data = dict[str, Any]

STYLE = """
:root{color-scheme:light dark;--ink:#1b1f24;--soft:#59636e;--paper:#fff;--card:#f6f8fa;--line:#d5dbe1;
--s0:#1f6feb;--s1:#b35900;--good:#1a7f37;--bad:#c2283a;--coming:#c4ccd4;--alive:#cfe3ff}
@media(prefers-color-scheme:dark){:root{--ink:#e6edf3;--soft:#9aa5b1;--paper:#0f1419;--card:#171d24;--line:#313a44;
--s0:#6cb0ff;--s1:#f0a45c;--good:#57c872;--bad:#ff7b86;--coming:#47515c;--alive:#1f3a5f}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:62rem;padding:1.5rem 1rem 4rem;background:var(--paper);color:var(--ink);
font:15px/1.5 system-ui,sans-serif}
h1{font-size:1.6rem;margin:0 0 .2rem}h2{font-size:1.1rem;margin:2rem 0 .5rem}p{margin:.3rem 0}
.soft{color:var(--soft)}.good{color:var(--good)}.bad{color:var(--bad)}
.verdict{font-weight:600}
svg{display:block;width:100%;height:auto;background:var(--card);border:1px solid var(--line);border-radius:6px}
.wide{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-size:.87rem}
th,td{padding:.25rem .6rem;text-align:right;border-bottom:1px solid var(--line);vertical-align:top}
th{color:var(--soft);font-weight:600}.left{text-align:left}
dl{display:grid;grid-template-columns:max-content 1fr;gap:.15rem 1.2rem;margin:.6rem 0}
dt{color:var(--soft)}dd{margin:0}
.legend{display:flex;flex-wrap:wrap;gap:.2rem 1.2rem;margin:.2rem 0 .4rem;font-size:.87rem;color:var(--soft)}
.key{display:inline-block;width:1.1rem;height:.2rem;margin-right:.4rem;vertical-align:middle}
.key.s0{background:var(--s0)}.key.s1{background:var(--s1)}
svg text{font:11px system-ui,sans-serif;fill:var(--soft)}svg .end{text-anchor:end}svg .middle{text-anchor:middle}
.grid{stroke:var(--line);stroke-width:1}.axis{stroke:var(--soft);stroke-width:1}
.line{fill:none;stroke-width:1.7;stroke-linejoin:round}.line.s0,.round.s0{stroke:var(--s0)}
.line.s1,.ended.s1{stroke:var(--s1)}.dot.s0{fill:var(--s0)}.dot.s1{fill:var(--s1)}
.round{fill:none;stroke-width:1}.round.bad,.ended.bad{stroke:var(--bad)}.ended{fill:none;stroke-width:2}
.coming{fill:var(--coming)}.alive{fill:var(--alive)}
.mark line{stroke:var(--bad);stroke-width:1;stroke-dasharray:3 3;opacity:.7}.mark path{fill:var(--bad)}
.cell{background:color-mix(in srgb,var(--s0) var(--share),transparent)}
"""


def page(data: Data) -> str:
    """The whole file."""
    verdict = "met" if data["met"] else "not met"
    parts = [
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{escape(data['title'])}: {verdict}</title><style>{STYLE}</style></head><body>",
        f"<h1>{escape(data['title'])}</h1>",
        f'<p class="soft">{escape(data["about"])}</p>' if data["about"] else "",
        _verdicts(data),
        _facts(data),
        _comparison(data["comparison"]),
        f"<h2>Timeline</h2>{_lanes(data)}",
        *(_chart(each, data["marks"]) for each in data["charts"]),
        _matrix(data["matrix"]),
        *(_table(table) for table in data["tables"]),
        '<p class="soft">Every number here stands in report.json or record.json beside this file.</p>',
        "</body></html>\n",
    ]
    return "\n".join(part for part in parts if part)


# --- helpers ----------------------------------------------------------------------------------------------------------


def _verdicts(data: Data) -> str:
    good = "good" if data["met"] else "bad"
    head = "All expectations that decide are met." if data["met"] else "Not all expectations are met."
    if not data["valid"]:
        head = "This run is not valid: its times are the emulator's, not the network's."
    rows = "".join(
        f'<tr><td class="left verdict {_colour(v)}">{escape(v["mark"])}</td><td class="left">{escape(v["name"])}</td>'
        f'<td class="left">{escape(v["asked"])}</td><td class="left">{escape(v["got"])}</td></tr>'
        for v in data["verdicts"]
    )
    heads = "".join(f'<th class="left" scope="col">{h}</th>' for h in ("", "expectation", "asked", "got"))
    return (
        f'<p class="verdict {good}">{head}</p><div class="wide"><table><thead><tr>{heads}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div>"
    )


def _colour(verdict: Data) -> str:
    return {True: "good", False: "bad", None: "soft"}[verdict["ok"]]


def _facts(data: Data) -> str:
    pairs = "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in data["facts"])
    notes = "".join(f'<p class="soft">{escape(note)}</p>' for note in data["notes"])
    return f"<dl>{pairs}</dl>{notes}"


def _comparison(lines: list[list[Any]] | None) -> str:
    if not lines:
        return ""
    table = {
        "title": "The simulator on the same scenario",
        "heads": ["", "lab", "simulator", "simulator by lab"],
        "rows": [[str(cell) for cell in line] for line in lines],
        "more": 0,
        "left": [0],
    }
    return _table(table)


def _lanes(data: Data) -> str:
    more = data["lanes"]["more"]
    said = f'<p class="soft">{more} more peers are not drawn; the table of lives goes on.</p>' if more else ""
    told = (
        '<p class="legend">Grey: its process comes up. Coloured: it is there. Ticks: rounds applied (thinned in a long '
        "run). Triangles: what the scenario did; point at them. A cross: its end.</p>"
    )
    return f"{told}{lanes(data['lanes'], data['marks'])}{said}"


def _chart(data: Data, marks: list[Data]) -> str:
    legend = ""
    shown = [(f"s{index}", series["name"]) for index, series in enumerate(data["series"]) if series["points"]]
    if len(shown) > 1:
        keys = "".join(f'<span><span class="key {key}"></span>{escape(name)}</span>' for key, name in shown)
        legend = f'<div class="legend">{keys}</div>'
    unit = f'<span class="soft">({escape(data["unit"])})</span>'
    return f"<h2>{escape(data['title'])} {unit}</h2>{legend}{chart(data, marks)}"


def _matrix(data: Data) -> str:
    if not data["names"]:
        return ""
    heads = "".join(f'<th scope="col">{escape(name)}</th>' for name in data["names"])
    rows = []
    for name, cells in zip(data["names"], data["rows"], strict=True):
        tds = "".join(
            f'<td class="cell" style="--share:{cell["share"] * 60:.0f}%">{escape(cell["text"])}</td>' for cell in cells
        )
        rows.append(f'<tr><th class="left" scope="row">{escape(name)}</th>{tds}</tr>')
    return (
        f'<h2>Bytes by link <span class="soft">(from row to column; {escape(data["total"])} in all)</span></h2>'
        f'<div class="wide"><table><thead><tr><th class="left" scope="col">from</th>{heads}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def _table(data: Data) -> str:
    if not data["rows"]:
        return ""
    side = {index: ' class="left"' for index in data["left"]}
    heads = "".join(f'<th scope="col"{side.get(i, "")}>{escape(h)}</th>' for i, h in enumerate(data["heads"]))
    rows = "".join(
        "<tr>" + "".join(f"<td{side.get(i, '')}>{escape(cell)}</td>" for i, cell in enumerate(row)) + "</tr>"
        for row in data["rows"]
    )
    more = f'<p class="soft">{data["more"]} more in record.json.</p>' if data["more"] else ""
    return (
        f'<h2>{escape(data["title"])}</h2><div class="wide"><table><thead><tr>{heads}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div>{more}"
    )
