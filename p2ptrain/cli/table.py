"""A status as tables: the run, its members, every current wait, the last events. Decides only what it looks like.

All text that came from others is shown without control characters and without markup.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from p2ptrain.core.types import short
from p2ptrain.observe.logs import one_line

QUIET_ROUNDS = 5
GONE = ("dead", "left")
COLOURS = {"alive": "green", "joining": "cyan", "dead": "red", "left": "dim"}
LEVELS = {"warning": "yellow", "error": "red", "debug": "dim"}


def render(status: Mapping[str, Any]) -> RenderableType:
    """A status (``runtime.status.status_of``), local or from another peer. Missing fields show as "-"."""
    return Group(_head(status), _members(status), _waits(status), _events(status))


def _head(status: Mapping[str, Any]) -> RenderableType:
    run = status.get("run") or {}
    of = f" of {run['rounds']}" if run.get("rounds") else ""
    held = status.get("held_out") or (None, None)
    place = f"seen by {short(_text(status.get('peer')))}"
    if "running" in status:
        ended = _text(status.get("ended") or "ended, or killed")
        gone = f": not running ({ended}), written {status['age_s']:.0f} s ago"
        place += " (this machine)" if status["running"] else gone
    parts = [
        f"round {_number(status.get('round'))}{of}",
        f"loss {_number(status.get('loss'), 4)}",
        f"held out {_number(held[1], 4)}" + (f" at round {held[0]}" if held[0] is not None else ""),
        f"{_number(status.get('round_s'), 2)} s a round",
        f"commit = {_text(run.get('commit'))}",
        f"codec {_text(run.get('codec'))}",
        f"phase {_text(status.get('phase'))}",
        _text(status.get("dht")),
    ]
    title = f"run {_text(run.get('name'))} ({short(_text(run.get('id')))}), {place}"
    return Group(Text(title, "bold"), Text("  ".join(parts)))


def _members(status: Mapping[str, Any]) -> RenderableType:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("peer", "region", "status", "span", "speed", "since", "counted", "last", "address", ""):
        table.add_column(name, no_wrap=name in ("peer", "status", "speed", "since"))
    members = _mappings(status.get("members"))
    for member in sorted(members, key=lambda m: (m.get("status") in GONE, _text(m.get("peer")))):
        state = _text(member.get("status"))
        seconds = member.get("microbatch_s")
        speed = f"{1 / seconds:.1f}/s" if isinstance(seconds, float | int) and seconds > 0 else "-"
        joined = member.get("joined_round", -1)
        table.add_row(
            short(_text(member.get("peer"))),
            _text(member.get("region") or "-"),
            Text(state, COLOURS.get(state, "yellow")),
            "all" if member.get("span") == [0, 0] else _text(member.get("span")),
            speed,
            f"round {joined}" if isinstance(joined, int) and joined >= 0 else "-",
            _number(member.get("counted")),
            _last_counted(member, status.get("round")),
            _text(next(iter(member.get("addresses") or ()), "not dialled")),
            _roles(member, status),
        )
    return table


def _last_counted(member: Mapping[str, Any], round: object) -> Text:
    last = member.get("last_counted")
    if not isinstance(last, int):
        return Text("-")
    quiet = round - last if isinstance(round, int) else 0
    if quiet < QUIET_ROUNDS or member.get("status") in GONE:
        return Text(f"round {last}")
    return Text(f"round {last}: no contribution for {quiet} rounds", "yellow")


def _roles(member: Mapping[str, Any], status: Mapping[str, Any]) -> str:
    peer = member.get("peer")
    voters = status.get("voters") or ()
    roles = {
        "here": peer == status.get("peer"),
        "coordinates": peer == status.get("coordinator"),
        "leads": peer == status.get("leader"),
        "votes": peer in voters,
    }
    return ", ".join(role for role, holds in roles.items() if holds)


def _waits(status: Mapping[str, Any]) -> RenderableType:
    waits = _mappings(status.get("waits"))
    if not waits:
        return Text("waits for nothing")
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("waits for", "on", "since", "until", "why"):
        table.add_column(name)
    for wait in waits:
        until = wait.get("until_s")
        table.add_row(
            _text(wait.get("what")),
            ", ".join(short(_text(peer)) for peer in wait.get("on") or ()) or "itself",
            f"{_number(wait.get('for_s'), 1)} s ago",
            "it is done" if until is None else f"{_number(until, 1)} s from now",
            _text(wait.get("why")),
        )
    return table


def _events(status: Mapping[str, Any]) -> RenderableType:
    lines = []
    for event in _mappings(status.get("events")):
        round = event.get("round", -1)
        at = f"round {round}  " if isinstance(round, int) and round >= 0 else ""
        lines.append(Text(f"  {at}{_text(event.get('text'))}", LEVELS.get(_text(event.get("level")), "")))
    if status.get("stalled"):
        lines.append(Text(f"  STALLED: {_text(status['stalled'])}", "bold red"))
    return Group(Text("last events" if lines else "no events yet"), *lines)


def _mappings(value: object) -> Sequence[Mapping[str, Any]]:
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list) else []


def _text(value: object) -> str:
    return "-" if value is None else one_line(str(value))[:400]


def _number(value: object, digits: int = 0) -> str:
    if not isinstance(value, float | int) or isinstance(value, bool):
        return "-"
    return f"{value:.{digits}f}"
