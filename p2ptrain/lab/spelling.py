"""The walk through a scenario's time: from groups, events, trace and random churn to steps; what contradicts is noted.

Decides, by the seed, whom random churn hits: never so that fewer than ``alive_min`` run, nor so that nobody is left who
has been there long enough to hold the state. Each kind of churn draws its own times, so that asking for more kills
moves no join.

    groups  ─┐
    trace   ─┼─ by time ─► walk: who is alive, stopped, cut ─► steps, troubles
    events  ─┤
    churn   ─┘
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from itertools import count
from typing import NamedTuple

from p2ptrain.lab.cast import Cast, Pair, Paths, PeerHost, Step, cast_of
from p2ptrain.lab.scenario import DO_FIELDS, Event, Scenario
from p2ptrain.lab.wan import Shape

SETTLE_S = 5.0
"""Random churn counts on a peer to hold the state this long after its join (or if it founded the run)."""

LIVES = ("join", "leave", "kill", "stop", "continue")


class Trouble(NamedTuple):
    """What contradicts itself: the dotted key in the file, and why."""

    key: str
    why: str


@dataclass
class Spelled:
    cast: Cast
    steps: list[Step] = field(default_factory=list)
    troubles: list[Trouble] = field(default_factory=list)
    founder: str = ""


def spell(scenario: Scenario) -> Spelled:
    """Names must be known and unique (``scenario_checks`` sees to it). Raises ConfigError for a bad trace."""
    walk = _Walk(scenario, cast_of(scenario))
    walk.go()
    return walk.spelled


class _Walk:
    def __init__(self, scenario: Scenario, cast: Cast) -> None:
        self.scenario = scenario
        self.spelled = Spelled(cast)
        self.cast = cast
        self.paths = Paths(scenario)
        self.rng = random.Random(f"{scenario.seed}/whom")
        self.alive: dict[str, float] = {}  # name -> joined at
        self.lived: dict[str, None] = {}
        self.stopped: set[str] = set()
        self.cut: dict[Pair, None] = {}
        self.shaped: dict[Pair, None] = {}
        self.corrupting: dict[str, None] = {}
        self.now = 0.0
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self._loose = scenario.churn is not None  # who is alive is chance: an event may come too late for somebody

    def go(self) -> None:
        self._groups()
        self._trace()
        for index, event in enumerate(self.scenario.events):
            self._at(event.at_s, lambda event=event, index=index: self._event(event, f"events.{index}"))  # type: ignore[misc]
        self._churn()
        while self._heap and self._heap[0][0] <= self.scenario.seconds:
            self.now, _, action = heapq.heappop(self._heap)
            action()
        if not self.spelled.founder:
            self._trouble("peers", f"nobody joins within the scenario's {self.scenario.seconds:g} s")

    def _at(self, t: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._heap, (t, next(self._order), action))

    def _trouble(self, key: str, why: str) -> None:
        self.spelled.troubles.append(Trouble(key, why))

    # --- sources ---------------------------------------------------------------------------------------------------

    def _groups(self) -> None:
        traced = self.scenario.trace.all_groups if self.scenario.trace else ()
        for index, group in enumerate(self.scenario.peers):
            if group.name in traced:
                continue
            at: dict[float, list[str]] = {}
            for place, name in enumerate(self.cast.members[group.name]):
                at.setdefault(group.join_s + place * group.every_s, []).append(name)
            for t, names in at.items():
                if t > self.scenario.seconds:
                    why = f"{names[0]} would join at {t:g} s, after the scenario's end at {self.scenario.seconds:g} s"
                    self._trouble(f"peers.{index}", why)
                self._at(t, lambda names=names, key=f"peers.{index}": self._live("join", names, key))  # type: ignore[misc]

    def _trace(self) -> None:
        if self.cast.replay is None:
            return
        at: dict[tuple[float, bool], list[str]] = {}
        for move in self.cast.replay.moves:
            at.setdefault((move.t, not move.joins), []).append(self.cast.named[move.peer])
        for (t, kills), names in sorted(at.items()):
            do = "kill" if kills else "join"
            self._at(t, lambda do=do, names=names: self._live(do, names, "trace"))  # type: ignore[misc]

    def _churn(self) -> None:
        churn = self.scenario.churn
        if churn is None:
            return
        until = self.scenario.seconds if churn.to_s is None else churn.to_s
        for kind, rate in (
            ("join", churn.joins_per_min), ("kill", churn.kills_per_min),
            ("leave", churn.leaves_per_min), ("stop", churn.stops_per_min),
        ):  # fmt: skip
            rng = random.Random(f"{self.scenario.seed}/{kind}")
            t = churn.from_s
            while rate > 0:
                t += rng.expovariate(rate / 60.0)
                if t > until:
                    break
                self._at(t, lambda kind=kind: self._chance(kind))  # type: ignore[misc]

    def _chance(self, kind: str) -> None:
        churn = self.scenario.churn
        assert churn is not None
        if kind == "join":
            if len(self.alive) < churn.alive_max:
                self._live("join", [self._newcomer(churn.alive_max)], "churn")
            return
        running = [name for name in sorted(self.alive) if name not in self.stopped]
        if len(running) <= churn.alive_min:
            return
        able = [name for name in running if self._settled(other for other in running if other != name)]
        if not able:
            return
        victim = self.rng.choice(able)
        self._live(kind, [victim], "churn")
        if kind == "stop":
            self._at(self.now + churn.stop_s, lambda: self._live("continue", [victim], "churn"))

    def _settled(self, names: Iterable[str]) -> bool:
        founder = self.spelled.founder
        return any(name == founder or self.now - self.alive[name] >= SETTLE_S for name in names)

    def _newcomer(self, alive_max: int) -> str:
        """Somebody who was there before, or a new machine like those of one of the groups."""
        gone = [name for name in self.lived if name not in self.alive]
        if gone and (len(self.cast.hosts) >= alive_max or self.rng.random() < 0.5):
            return self.rng.choice(gone)
        group = self.rng.choice(self.scenario.peers)
        place = count(group.count if group.count > 1 else 1)
        name = next(n for i in place if (n := f"{group.name}{i}") not in self.cast.hosts)
        return self.cast.add(group, name).name

    # --- lives -----------------------------------------------------------------------------------------------------

    def _live(self, do: str, names: Iterable[str], key: str) -> None:
        """One of ``LIVES`` to those of ``names`` for whom it makes sense now."""
        fits: Callable[[str], bool] = {
            "join": lambda n: n not in self.alive,
            "stop": lambda n: n in self.alive and n not in self.stopped,
            "continue": lambda n: n in self.alive and n in self.stopped,
        }.get(do, lambda n: n in self.alive)
        hit = tuple(name for name in names if fits(name))
        if not hit:
            return
        if do == "join":
            if not self.spelled.founder:
                self.spelled.founder = hit[0]
            self.alive.update(dict.fromkeys(hit, self.now))
            self.lived.update(dict.fromkeys(hit))
        elif do in ("kill", "leave"):
            for name in hit:
                del self.alive[name]
                self.stopped.discard(name)
            self._somebody_left(do, hit, key)
        elif do == "stop":
            self.stopped.update(hit)
        else:
            self.stopped.difference_update(hit)
        words = {"kill": "kill -9", "leave": "leave", "join": "join", "stop": "stop", "continue": "go on"}
        founds = " (founds the run)" if do == "join" and hit[0] == self.spelled.founder and self.now == 0.0 else ""
        self._step(do, hit, f"{words[do]} {told(hit)}{founds}")

    def _somebody_left(self, do: str, hit: tuple[str, ...], key: str) -> None:
        if not self.alive:
            why = f"at {self.now:g} s nobody is left: {do} of {told(hit)} takes the last copy of the state"
            self._trouble(key, why)
        elif all(joined >= self.now for joined in self.alive.values()):
            who = told(sorted(self.alive))
            self._trouble(
                key, f"at {self.now:g} s nobody who holds the state is left: {who} joined only at that very moment"
            )

    def _step(self, do: str, peers: tuple[str, ...], text: str, **more: object) -> None:
        self.spelled.steps.append(Step(self.now, do, peers, text, **more))  # type: ignore[arg-type]

    # --- events ----------------------------------------------------------------------------------------------------

    def _event(self, event: Event, key: str) -> None:
        if event.do in ("degrade", "cut", "heal", "partition"):
            getattr(self, f"_{event.do}")(event, key)
            return
        names = self._named(event, key)
        if event.do in LIVES:
            self._live(event.do, names, key)
            return
        if not names:
            return
        given = {name: getattr(event, name) for name in sorted(DO_FIELDS[event.do][0])}
        if event.do == "corrupt":
            for name in names:
                (self.corrupting.__setitem__(name, None) if event.chance else self.corrupting.pop(name, None))
        values = " ".join(f"{name} {value:g}" for name, value in given.items())
        self._step(event.do, tuple(names), f"{event.do} {told(names)} {values}".strip(), **given)

    def _named(self, event: Event, key: str) -> list[str]:
        """Whom it hits: a name that cannot be hit is a trouble, unless chance decides who is alive."""
        if event.region:
            there = [h.name for h in self.cast.hosts.values() if h.region == event.region]
            return [name for name in there if self._can(event.do, name)]
        found: dict[str, None] = {}
        for name in event.peers:
            if name in self.cast.members and name not in self.cast.hosts:
                found.update({n: None for n in self.cast.members[name] if self._can(event.do, n)})
                continue
            if not self._can(event.do, name):
                if not self._loose:
                    state = "is not alive" if name not in self.alive else "is alive already"
                    if event.do in ("stop", "continue") and name in self.alive:
                        state = "is stopped already" if name in self.stopped else "is not stopped"
                    self._trouble(f"{key}.peers", f"{event.do} of {name}, which {state} at {self.now:g} s")
                continue
            found[name] = None
        return list(found)

    def _can(self, do: str, name: str) -> bool:
        if do == "join":
            return name not in self.alive
        if do in ("stop", "continue"):
            return name in self.alive and (name in self.stopped) == (do == "continue")
        return name in self.alive

    # --- paths -----------------------------------------------------------------------------------------------------

    def _degrade(self, event: Event, key: str) -> None:
        given: dict[str, float] = {}
        for field_name, ours, factor in (
            ("delay_ms", "delay_s", 0.001), ("jitter_ms", "jitter_s", 0.001), ("loss", "loss", 1), ("mbps", "mbps", 1)
        ):  # fmt: skip
            value = getattr(event, field_name)
            if value is not None:
                given[ours] = value * factor
        pairs = self._pairs(event)
        shapes = tuple((a, b, replace(self._plain(a, b), **given)) for a, b in pairs)
        self.shaped.update(dict.fromkeys(pairs))
        told_given = ", ".join(f"{name} {value:g}" for name, value in given.items())
        self._step("degrade", (), f"degrade {_ends(event)}: {told_given}", shapes=shapes)

    def _cut(self, event: Event, key: str) -> None:
        pairs = self._pairs(event)
        self.cut.update(dict.fromkeys(pairs))
        self._step("cut", (), f"cut {_ends(event)}", cuts=tuple(pairs))

    def _partition(self, event: Event, key: str) -> None:
        """Those named against all others, whoever of them is alive."""
        if event.region:
            side = {h.name for h in self.cast.hosts.values() if h.region == event.region}
        else:
            side = {n for name in event.peers for n in self._ends_of(name)}
        one = [name for name in self.cast.hosts if name in side]
        rest = [name for name in self.cast.hosts if name not in side]
        if not rest or not one:
            self._trouble(key, "nobody is on the other side of the partition")
            return
        pairs = [pair for a in one for b in rest for pair in ((a, b), (b, a))]
        self.cut.update(dict.fromkeys(pairs))
        who = event.region or told(one)
        self._step("partition", tuple(one), f"partition: {who} against all others", cuts=tuple(pairs))

    def _heal(self, event: Event, key: str) -> None:
        wanted = None if event.between is None else set(self._pairs(event))
        heals = [pair for pair in self.cut if wanted is None or pair in wanted]
        shaped = [pair for pair in self.shaped if wanted is None or pair in wanted]
        for pair in heals:
            del self.cut[pair]
        for pair in shaped:
            del self.shaped[pair]
        shapes = tuple((a, b, self._plain(a, b)) for a, b in shaped)
        text = "heal everything" if event.between is None else f"heal {_ends(event)}"
        self._step("heal", (), text, heals=tuple(heals), shapes=shapes)
        if wanted is None and self.corrupting:
            names = tuple(self.corrupting)
            self.corrupting.clear()
            self._step("corrupt", names, f"corrupt {told(names)} chance 0", chance=0.0)

    def _pairs(self, event: Event) -> list[Pair]:
        assert event.between is not None
        ones, others = (self._ends_of(name) for name in event.between)
        pairs: dict[Pair, None] = {}
        for a in ones:
            for b in others:
                if a != b and not (a in others and b in ones):
                    pairs[a, b] = None
                    if not event.one_way:
                        pairs[b, a] = None
        return list(pairs)

    def _ends_of(self, name: str) -> list[str]:
        """The hosts that a peer's, group's, router's or region's name means, alive or not."""
        if name in self.cast.hosts:
            return [name]
        if name in self.cast.members:
            return list(self.cast.members[name])
        hosts = self.cast.hosts.values()
        return [h.name for h in hosts if h.host.router == name] or [h.name for h in hosts if h.region == name]

    def _plain(self, one: str, other: str) -> Shape:
        hosts: dict[str, PeerHost] = self.cast.hosts
        return self.paths.shape(hosts[one], hosts[other])


def told(names: Iterable[str]) -> str:
    """a0, a1, a2 and 5 more."""
    shown = list(names)
    more = f" and {len(shown) - 4} more" if len(shown) > 5 else ""
    return ", ".join(shown if not more else shown[:4]) + more


def _ends(event: Event) -> str:
    assert event.between is not None
    return f"{event.between[0]} {'->' if event.one_way else '<->'} {event.between[1]}"
