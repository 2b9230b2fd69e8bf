"""The report: one valid page, nothing from elsewhere, every number in the JSON beside it, small for an hour's run."""

from __future__ import annotations

import json
import random
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from p2ptrain.lab.compare import compare
from p2ptrain.lab.expectations import judge
from p2ptrain.lab.record import Happening, LinkBytes, PeerLife, Record, RoundFact
from p2ptrain.lab.report import POINTS, nice_ticks, report_data, size, thin, write_report
from p2ptrain.lab.scenario import Expect
from tests.lab.records import record

EXPECT = Expect(digests_equal=True, rounds_at_least=10, goodput_at_least=0.99)
VOID = {"meta", "br", "link", "img", "input", "hr"}
NUMBER = re.compile(r"\d+(?:\.\d+)?")


class Page(HTMLParser):
    """Balanced tags; the text outside of style; every attribute."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.tags: set[str] = set()
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open.pop() == tag, f"</{tag}> closes {self.open[-3:]}"

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] != "style":
            self.text.append(data)


def numbers_of(value: Any) -> set[float]:
    """All numbers in a JSON value, those inside of its texts and keys too."""
    if isinstance(value, dict):
        return set().union(*(numbers_of(key) | numbers_of(item) for key, item in value.items()), set())
    if isinstance(value, list):
        return set().union(*map(numbers_of, value), set())
    if isinstance(value, str):
        return {float(found) for found in NUMBER.findall(value)}
    return {abs(float(value))} if isinstance(value, (int, float)) and not isinstance(value, bool) else set()


def written(folder: Path, found: Record, about: str = "") -> str:
    path = write_report(folder, found, judge(found, EXPECT, times_decide=False), compare(found, record()), about)
    return path.read_text(encoding="utf-8")


def check_numbers(folder: Path, text: str) -> None:
    known: set[float] = set()
    for name in ("record.json", "report.json"):
        known |= numbers_of(json.loads((folder / name).read_text()))
    shown = {float(found) for piece in Page(text).text for found in NUMBER.findall(piece)}
    assert len(shown) > 20
    assert shown <= known, sorted(shown - known)


def test_a_whole_page_and_every_number_in_the_json_beside_it(tmp_path: Path) -> None:
    text = written(tmp_path, record())
    page = Page(text)
    assert page.open == [] and "script" not in page.tags
    check_numbers(tmp_path, text)
    told = " ".join(page.text)
    for word in ("digests_equal", "kill c", "virginia", "Bytes by link", "simulator", "not met (printed only)"):
        assert word in told


def test_every_chart_is_well_formed_and_has_a_title(tmp_path: Path) -> None:
    charts = re.findall(r"<svg.*?</svg>", written(tmp_path, record()), re.DOTALL)
    assert len(charts) == 5
    for text in charts:
        root = ElementTree.fromstring(text)
        title = root[0]
        assert title.tag.endswith("title") and title.text and root.get("aria-labelledby") == title.get("id")


def test_nothing_comes_from_elsewhere(tmp_path: Path) -> None:
    text = written(tmp_path, record())
    for tag, name, value in Page(text).attributes:
        assert name not in ("src", "href", "action") and not name.startswith("on"), (tag, name)
        assert "//" not in value or (tag, name) == ("svg", "xmlns"), (tag, name, value)
    assert "url(" not in text and "@import" not in text


def test_names_are_escaped(tmp_path: Path) -> None:
    found = record(notes=["<script>alert(1)</script>"])
    found.lives[0].name = found.links[0].source = '<img src="x" onerror="y">'
    found.happenings[0].text = "<b>&"
    text = written(tmp_path, found, about="</p><script>")
    assert "<script" not in text and "<img" not in text and "<b>" not in text
    assert Page(text).open == []


def test_light_and_dark(tmp_path: Path) -> None:
    text = written(tmp_path, record())
    assert "prefers-color-scheme:dark" in text and "color-scheme:light dark" in text


def an_hour() -> Record:
    """300 lives, 200 events, a round each quarter of a second, eight peers at a time."""
    rng = random.Random(1)
    lives = [
        PeerLife(f"p{i % 60}", f"{i:040x}", f"r{i % 4}", i * 12.0, i * 12.0 + 1, i * 12.0 + 2,
                 min(3600.0, i * 12.0 + 100), "kill", 20.0, 400)
        for i in range(300)
    ]  # fmt: skip
    rounds = [RoundFact(n, n / 4, 8, 64, 64, 1, 5 - n / 14_400, rng.random(), 0.2) for n in range(1, 14_400)]
    applied = [(n / 4, min(299, n // 48 + i), n, f"{n:064x}") for n in range(1, 14_400) for i in range(8)]
    happenings = [Happening(i * 18.0, "kill", [f"p{i % 60}"], f"kill p{i % 60}", 0.3, 0.4) for i in range(200)]
    links = [LinkBytes(f"p{a}", f"p{b}", rng.randrange(1 << 30)) for a in range(60) for b in range(60) if a != b]
    return record(
        lives=lives, rounds=rounds, applied=applied, happenings=happenings, links=links, seconds=3600.0,
        losses=[(t * 10.0, t * 40, 5.0) for t in range(360)],
    )  # fmt: skip


def test_an_hours_run_stays_small_and_says_what_it_leaves_out(tmp_path: Path) -> None:
    text = written(tmp_path, an_hour())
    assert len(text.encode()) < 2_000_000
    assert "more peers are not drawn" in text and "more in record.json" in text and "(others)" in text
    assert Page(text).open == []
    check_numbers(tmp_path, text)


def test_a_run_in_which_nothing_happened(tmp_path: Path) -> None:
    found = Record("empty", "lab", "loopback", 0, 10.0)
    text = written(tmp_path, found)
    assert Page(text).open == [] and "Not all expectations are met" in text


def test_the_same_record_makes_the_same_data() -> None:
    verdicts = judge(record(), EXPECT, times_decide=False)
    assert report_data(record(), verdicts) == report_data(record(), verdicts)


def test_thinning_keeps_the_peaks_and_the_bound() -> None:
    points = [(float(n), 0.0) for n in range(10_000)]
    points[777] = (777.0, 9.0)
    kept = thin(points)
    assert len(kept) <= POINTS and (777.0, 9.0) in kept and kept == sorted(kept)


@pytest.mark.parametrize(("low", "high"), [(0, 1), (0, 3.7), (0, 86_400), (4.1, 5.6), (0, 0.013), (2, 2)])
def test_ticks_are_round_and_cover_what_is_shown(low: float, high: float) -> None:
    ticks = nice_ticks(low, high)
    assert ticks[0] <= low + 1e-9 and ticks[-1] >= high - 1e-9 and 2 <= len(ticks) <= 8


def test_sizes() -> None:
    assert [size(n) for n in (0, 999, 1500, 2_000_000, 3.25e12)] == ["0 B", "999 B", "1.5 KB", "2 MB", "3250 GB"]
