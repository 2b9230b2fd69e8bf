"""Reads a scenario and refuses what contradicts itself, with key, file and line, before anything is started.

Decides what a scenario may not say. Types and unknown keys are the models' (``scenario``); who is alive when is told by
walking the whole timeline (``spelling``).

    load_scenario("kill.toml")
    ->  kill.toml:31: events.2.peers: kill of b3, which is not alive at 12 s
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations
from pathlib import Path
from typing import Any

from p2ptrain.config import Manifest, parse_memory
from p2ptrain.config_toml import Problem, check, config_error, key_lines, line_for, parse_toml, read_file
from p2ptrain.errors import ConfigError
from p2ptrain.lab.cast import Paths, names_of
from p2ptrain.lab.scenario import DO_FIELDS, Event, Scenario
from p2ptrain.lab.spelling import spell
from p2ptrain.models import model_shape

MAX_BYTES = 1 << 20
Found = Iterator[tuple[str, str]]  # (dotted key, why)


def load_scenario(path: Path | str) -> Scenario:
    """Raises ConfigError (``fields``: key, file, line, problems): unreadable, not TOML, wrong keys, contradictions."""
    return parse_scenario(read_file(Path(path), max_bytes=MAX_BYTES), file=str(path))


def parse_scenario(data: bytes | str, *, file: str = "scenario") -> Scenario:
    """As ``load_scenario``, from the text itself."""
    data = data.encode("utf-8", "surrogatepass") if isinstance(data, str) else data
    values, text = parse_toml(data, file=file, max_bytes=MAX_BYTES)
    scenario = check(Scenario, values, file=file, text=text)
    lines = key_lines(text)
    problems = [*_run(scenario, lines), *(_problem(found, lines) for found in contradictions(scenario))]
    if not problems:
        problems = [_problem(found, lines) for found in spell(scenario).troubles]
    if problems:
        raise config_error(sorted(problems, key=lambda problem: problem.line), file)
    return scenario


def contradictions(scenario: Scenario) -> Found:
    """(key, why) of everything that can be told without walking through time."""
    yield from _names(scenario)
    yield from _groups(scenario)
    yield from _links(scenario)
    yield from _events(scenario)
    yield from _trace(scenario)
    yield from _others(scenario)


# --- helpers ----------------------------------------------------------------------------------------------------------


def _problem(found: tuple[str, str], lines: dict[str, int]) -> Problem:
    return Problem(found[0], line_for(found[0], lines), found[1])


def _run(scenario: Scenario, lines: dict[str, int]) -> Iterator[Problem]:
    """The ``run`` table is a manifest: its own errors, at their own lines; then those of a registered model."""
    try:
        manifest = check(Manifest, scenario.run, file="run")
        try:
            model_shape(manifest.model.name, manifest.model.options)
        except ConfigError as error:
            key = "run.model.name" if error.fields.get("key") == "name" else "run.model.options"
            yield Problem(key, line_for(key, lines), str(error))
    except ConfigError as error:
        found: Any = error.fields["problems"]
        for problem in found:
            key = f"run.{problem.key}" if problem.key else "run"
            yield Problem(key, line_for(key, lines), problem.why)


def _names(scenario: Scenario) -> Found:
    """One name space for regions, routers, groups and peers: an event's ``between`` may name any of them."""
    seen: dict[str, str] = {}
    tables = (("regions", "region"), ("routers", "router"), ("peers", "peer"))
    for table, what in tables:
        for index, item in enumerate(getattr(scenario, table)):
            names = (item.name, *names_of(item)) if table == "peers" else (item.name,)
            for name in dict.fromkeys(names):
                if name in seen:
                    yield f"{table}.{index}.name", f"{what} {name!r}: there is a {seen[name]} of this name already"
            seen.update(dict.fromkeys(names, what))


def _groups(scenario: Scenario) -> Found:
    regions = {region.name for region in scenario.regions}
    routers = {router.name: router for router in scenario.routers}
    for index, router in enumerate(scenario.routers):
        if router.region not in regions:
            yield f"routers.{index}.region", _unknown("region", router.region, regions)
    for index, group in enumerate(scenario.peers):
        key = f"peers.{index}"
        if group.region not in regions:
            yield f"{key}.region", _unknown("region", group.region, regions)
        if group.memory:
            try:
                parse_memory(group.memory)
            except ConfigError as error:
                yield f"{key}.memory", error.text
        if not group.router:
            continue
        if group.router not in routers:
            yield f"{key}.router", _unknown("router", group.router, set(routers))
        elif routers[group.router].region != group.region:
            where = routers[group.router].region
            yield f"{key}.router", f"router {group.router} is in {where}, its peers {group.name} in {group.region}"
    traced = scenario.trace.all_groups if scenario.trace else ()
    first = next((i for i, group in enumerate(scenario.peers) if group.name not in traced), None)
    if first is not None and scenario.trace is None and scenario.peers[first].join_s > 0:
        yield f"peers.{first}.join_s", "the first peer of the file founds the run: it must join at 0 s"


def _links(scenario: Scenario) -> Found:
    regions = {region.name for region in scenario.regions}
    given: set[tuple[str, str]] = set()
    for index, link in enumerate(scenario.links):
        key = f"links.{index}.between"
        for name in link.between:
            if name not in regions:
                yield key, _unknown("region", name, regions)
        if link.between[0] == link.between[1]:
            yield key, f"{link.between[0]} twice: within a region local_delay_ms and local_mbps say"
        pairs = {link.between} if link.one_way else {link.between, link.between[::-1]}
        if pairs & given:
            yield key, f"the link between {link.between[0]} and {link.between[1]} is given twice"
        given |= pairs
    paths = Paths(scenario)
    used = list(dict.fromkeys(group.region for group in scenario.peers if group.region in regions))
    for one, other in permutations(used, 2):
        if not paths.known(one, other) and (one < other or paths.known(other, one)):
            one_way = " in this direction" if paths.known(other, one) else ""
            table = scenario.network.table
            beside = f" ({table} has none either)" if table else ", and no [network] table"
            place = next(i for i, region in enumerate(scenario.regions) if region.name == other)
            yield f"regions.{place}", f"no [[links]] entry from {one} to {other}{one_way}{beside}"


def _events(scenario: Scenario) -> Found:
    traced = set(scenario.trace.all_groups if scenario.trace else ())
    regions = {region.name for region in scenario.regions}
    groups = {group.name for group in scenario.peers}
    peers = groups | {name for group in scenario.peers if group.name not in traced for name in names_of(group)}
    ends = peers | regions | {router.name for router in scenario.routers}
    last = 0.0
    for index, event in enumerate(scenario.events):
        key = f"events.{index}"
        if event.at_s < last:
            yield f"{key}.at_s", f"time goes back ({event.at_s:g} s after {last:g} s): events stand in order of time"
        last = max(last, event.at_s)
        if event.at_s > scenario.seconds:
            yield f"{key}.at_s", f"is after the scenario's end ({event.at_s:g} > {scenario.seconds:g} s)"
        yield from _fields(event, key)
        for name in event.peers:
            if name not in peers:
                yield f"{key}.peers", _unknown("peer", name, peers)
        if event.region and event.region not in regions:
            yield f"{key}.region", _unknown("region", event.region, regions)
        for name in event.between or ():
            if name not in ends:
                yield f"{key}.between", _unknown("peer, router or region", name, ends)
        if event.between is not None and event.between[0] == event.between[1]:
            yield f"{key}.between", f"{event.between[0]} twice"


def _fields(event: Event, key: str) -> Found:
    needs, may = DO_FIELDS[event.do]
    given = {name for name in event.model_fields_set if name not in ("at_s", "do")}
    for name in sorted(given - needs - may):
        yield f"{key}.{name}", f'do = "{event.do}" takes no {name} (it takes {", ".join(sorted(needs | may))})'
    for name in sorted(needs - given):
        yield key, f'do = "{event.do}" needs {name}'
    if "peers" in may and (bool(event.peers) == bool(event.region)):
        yield key, f'do = "{event.do}" needs either peers or region' + (", not both" if event.region else "")
    if event.do == "degrade" and not given & {"delay_ms", "jitter_ms", "loss", "mbps"}:
        yield key, 'do = "degrade" needs at least one of delay_ms, jitter_ms, loss, mbps'
    if event.one_way and event.between is None:
        yield f"{key}.one_way", "needs between"


def _trace(scenario: Scenario) -> Found:
    trace = scenario.trace
    if trace is None:
        return
    if (trace.group is None) == (not trace.groups):
        yield "trace", "needs either group or groups: the [[peers]] entries that its peers are like"
    known = {group.name for group in scenario.peers}
    for name in trace.all_groups:
        if name not in known:
            yield "trace.groups" if trace.groups else "trace.group", _unknown("group of peers", name, known)
    if len(set(trace.groups)) != len(trace.groups):
        yield "trace.groups", "a group is given twice"


def _others(scenario: Scenario) -> Found:
    churn = scenario.churn
    if churn is not None:
        until = scenario.seconds if churn.to_s is None else churn.to_s
        if churn.from_s > until:
            yield "churn.from_s", f"is after its end ({churn.from_s:g} > {until:g} s)"
        if churn.alive_min > churn.alive_max:
            yield "churn.alive_min", f"is above alive_max ({churn.alive_min} > {churn.alive_max})"
    known = {name for group in scenario.peers for name in (group.name, *names_of(group))}
    for name in scenario.expect.stalled or ():
        if name not in known:
            yield "expect.stalled", _unknown("peer", name, known)


def _unknown(what: str, name: str, known: set[str]) -> str:
    told = ", ".join(sorted(known)[:8]) + (", ..." if len(known) > 8 else "")
    return f"unknown {what} {name!r} (there is {told or 'none'})"
