"""Carries out a timeline with real processes on an emulated WAN, and collects what they tell into a ``Record``.

Decides nothing of what happens when: that is the timeline's. Decides the order in which a run begins and ends, and sees
to it that nothing is left behind, whatever happens:

    refuse what cannot fit ── open the WAN ── first peer founds the run: the clock starts ── step by step, facts
    absorbed in between ── time is over: facts frozen, links read ── everybody leaves ── processes ended, WAN closed

    record = conduct(scenario, spell_out(scenario), folder)
"""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from p2ptrain.core.types import Knobs
from p2ptrain.errors import LabError
from p2ptrain.lab.collecting import Collector
from p2ptrain.lab.loopback import NoWan, is_plain
from p2ptrain.lab.planned import check_fits
from p2ptrain.lab.processes import Peer, Swarm
from p2ptrain.lab.record import LinkBytes, Record
from p2ptrain.lab.scenario import Scenario
from p2ptrain.lab.timeline import Step, Timeline
from p2ptrain.lab.wan import Host, Wan

LEAVE_S = 10.0
LOOK_S = 0.2
PROGRESS_S = 0.5
INVITE_S = 3.0
RATE_WINDOW_S = 5.0
LATENESS_SHARE = 0.1
LATE_STEP_S = 1.0
WIDE_S = 0.002
"""Delays below this are those of a local network: where there are longer ones, lateness is held against those."""


@dataclass(frozen=True)
class Progress:
    """How far a run is. Seconds since its start."""

    t: float
    seconds: float
    alive: int
    round: int
    samples_per_s: float
    said: str  # what was done just now, or ""
    next_step: str


OnProgress = Callable[[Progress], None]
OpenWan = Callable[[Sequence[Host], bool], Wan]


def conduct(
    scenario: Scenario,
    timeline: Timeline,
    folder: Path,
    *,
    reduced: bool = False,
    on_progress: OnProgress | None = None,
    open_wan: OpenWan | None = None,
    capacity_mbps: float | None = None,
    knobs: Knobs | None = None,
) -> Record:
    """Run it; blocks for the timeline's seconds and a little. ``folder``: run folders and logs of the peers.

    Call it in the main thread: SIGTERM then ends it as Ctrl-C does, everything gone. Raises ConfigError (does not fit
    on this machine), LabError (no WAN here, or the first peer does not come up).
    """
    plain = open_wan is None and is_plain(timeline)
    if capacity_mbps is None:
        capacity_mbps = 0.0 if plain or open_wan is not None else _capacity_mbps(reduced)
    check_fits(timeline, capacity_mbps)
    began = time.monotonic()
    with contextlib.ExitStack() as stack:
        stack.enter_context(_ending_signals())
        _warm_up()
        wan = NoWan() if plain else (open_wan or _opener(timeline.seed))([h.host for h in timeline.hosts], reduced)
        stack.callback(wan.close)
        swarm = stack.enter_context(Swarm(folder, timeline.manifest, knobs=knobs))
        run = _Run(scenario, timeline, wan, swarm, on_progress)
        run.shape_all()
        run.play()
        run.leave()
        record = run.collector.record
        stack.callback(lambda: setattr(record, "wall_s", time.monotonic() - began))
    return record


class _Run:
    """One run of a timeline; lives in one thread."""

    def __init__(
        self, scenario: Scenario, timeline: Timeline, wan: Wan, swarm: Swarm, on_progress: OnProgress | None
    ) -> None:
        self.timeline = timeline
        self.wan = wan
        self.swarm = swarm
        self.on_progress = on_progress
        self.stopped: set[str] = set()
        self.lives: dict[str, int] = {}  # name -> index of its last life
        self.latest_step_s = 0.0
        self.delays = [s for s in (timeline.shape(a, b).delay_s for a, b in self._pairs()) if s > 0]
        self.delays = [s for s in self.delays if s >= WIDE_S] or self.delays
        record = Record(
            name=timeline.name,
            kind="lab",
            mode=wan.kind,
            seed=timeline.seed,
            planned_s=timeline.seconds,
            microbatch_samples=timeline.manifest.batch.microbatch,
            notes=list(timeline.notes),
        )
        self.collector = Collector(record, time.monotonic())
        self._last_progress = 0.0

    def _pairs(self) -> Iterator[tuple[str, str]]:
        names = [host.name for host in self.timeline.hosts]
        return ((a, b) for a in names for b in names if a != b)

    def shape_all(self) -> None:
        for source, target in self._pairs():
            self.wan.shape(source, target, self.timeline.shape(source, target))
        for name, (up_mbps, down_mbps) in self.timeline.routers.items():
            self.wan.shape_uplink(name, up_mbps, down_mbps)

    def play(self) -> None:
        """All steps at their times, then wait for the end."""
        self._found()
        steps = self.timeline.steps
        for index, step in enumerate(steps):
            self._wait_until(step.at_s, step.text or step.do)
            self.latest_step_s = max(self.latest_step_s, self._now_s() - step.at_s)
            self._carry_out(step)
            following = steps[index + 1] if index + 1 < len(steps) else None
            self._tell(step.text, following.text if following is not None else "the end", force=True)
        self._wait_until(self.timeline.seconds, "the end")

    def leave(self) -> None:
        """Freeze what counts, then let everybody go gracefully, for ``LEAVE_S`` at most."""
        collector = self.collector
        self._notice_ends()
        collector.freeze(time.monotonic())
        self._read_wan()
        for peer in self.swarm.alive:
            peer.cont()
            peer.terminate()
        until = time.monotonic() + LEAVE_S
        while self.swarm.alive and time.monotonic() < until:
            time.sleep(LOOK_S / 2)
        collector.absorb()
        collector.finish()
        if self.latest_step_s > LATE_STEP_S:
            collector.record.notes.append(f"a step was carried out {self.latest_step_s:.1f} s late")

    # --- steps

    def _found(self) -> None:
        """The first peer's process stands before the clock starts: everybody else needs its invite."""
        name = self.timeline.founder
        started = time.monotonic()
        try:
            peer = self._start_process(name, wait=True)
        except AssertionError as error:
            raise LabError(f"the first peer did not come up: {error}", hint="its log says more") from None
        self.collector.start = time.monotonic()
        self._note_life(name, peer, started)

    def _carry_out(self, step: Step) -> None:
        now = time.monotonic()
        if step.do == "join":
            self._join([name for name in step.peers if step.at_s > 0 or name != self.timeline.founder])
        else:
            for name in step.peers:
                self._hit(name, step, now)
        for source, target in step.cuts:
            self.wan.cut(source, target)
        for source, target in step.heals:
            self.wan.cut(source, target, False)
        for source, target, shape in step.shapes:
            self.wan.shape(source, target, shape)
        self.collector.happened(step.do, list(step.peers), step.text, now)

    def _hit(self, name: str, step: Step, now: float) -> None:
        if step.do == "corrupt":
            self.wan.corrupt(name, step.chance or 0.0)
            return
        peer = self.swarm.peers.get(name)
        if peer is None or not peer.alive:
            return
        if step.do == "kill":
            killed = peer.kill()
            self.collector.end_life(self.lives[name], "kill", killed)
            self.stopped.discard(name)
        elif step.do == "leave":
            peer.terminate()
        elif step.do == "stop":
            peer.stop()
            self.stopped.add(name)
        elif step.do == "continue":
            peer.cont()
            self.stopped.discard(name)
        elif step.do == "slow":
            pace_s = step.microbatch_s or 0.0
            peer.pace(pace_s)
            self.collector.pace(self.lives[name], pace_s, now)
        elif step.do == "skew":
            peer.skew(step.seconds or 0.0)
        elif step.do in ("fill_disk", "free_disk"):
            peer.fill_disk(step.do == "fill_disk")

    def _join(self, names: Sequence[str]) -> None:
        if names:
            self._fresh_invite()
        for name in names:
            started = time.monotonic()
            self._note_life(name, self._start_process(name, wait=False), started)

    def _note_life(self, name: str, peer: Peer, started: float) -> None:
        host = self.timeline.by_name[name]
        if name in self.lives:  # its earlier process was leaving at most
            self.collector.absorb()
            self.collector.end_life(self.lives[name], "leave", started)
        self.lives[name] = self.collector.add_life(name, host.region, peer, host.microbatch_s, started)
        self.stopped.discard(name)

    def _start_process(self, name: str, *, wait: bool) -> Peer:
        host, place = self.timeline.by_name[name], self.wan.place(name)
        settings: dict[str, Any] = {"region": host.region}
        if host.outbound_only:
            settings["outbound_only"] = True
        else:
            settings |= {"listen": place.listen, "announce": place.announce or None}
        if host.memory:
            settings["memory"] = host.memory
        return self.swarm.start(
            name, wait=wait, microbatch_least_s=host.microbatch_s, namespace=place.namespace, **settings
        )

    def _fresh_invite(self) -> None:
        """With addresses of members alive now, by the first of those who take part that answers; else the last one."""
        able = [p for p in self.swarm.alive if p.name not in self.stopped and p.round]
        asked = [(peer, len(peer.facts)) for peer in able[:4]]
        for peer, _ in asked:
            peer.do("invite")
        until = time.monotonic() + INVITE_S
        while asked and time.monotonic() < until:
            for peer, since in asked:
                told = [fact for fact in peer.facts[since:] if fact["ev"] == "invite"]
                if told:
                    self.swarm.invite = str(told[0]["text"])
                    return
            time.sleep(0.02)

    # --- time

    def _now_s(self) -> float:
        return self.collector.now_s(time.monotonic())

    def _wait_until(self, at_s: float, next_step: str) -> None:
        while (left := at_s - self._now_s()) > 0:
            self._tell("", next_step)
            time.sleep(min(left, LOOK_S))

    def _tell(self, said: str, next_step: str, force: bool = False) -> None:
        now = self._now_s()
        if now - self._last_progress < PROGRESS_S and not force:
            return
        self._last_progress = now
        self._notice_ends()
        if self.on_progress is None:
            return
        collector = self.collector
        rate = collector.samples_per_s(RATE_WINDOW_S, now)
        alive, seconds = len(self.swarm.alive), self.timeline.seconds
        self.on_progress(Progress(now, seconds, alive, collector.last_round, rate, said, next_step))

    def _notice_ends(self) -> None:
        """Processes that are gone without a word."""
        self.collector.absorb()
        for name, index in self.lives.items():
            process = self.swarm.peers[name].process
            if not process.is_alive() and self.swarm.peers[name].told_all:
                self.collector.absorb()
                self.collector.end_life(index, f"exit code {process.exitcode}", time.monotonic())

    def _read_wan(self) -> None:
        record, wan = self.collector.record, self.wan
        record.links = [
            LinkBytes(source, target, nbytes)
            for (source, target), nbytes in sorted(wan.bytes_by_link().items())
            if nbytes
        ]
        if wan.kind == NoWan.kind:
            return
        late = record.lateness_p99_s = wan.lateness_p99_s()
        smallest = record.smallest_delay_s = min(self.delays, default=None)
        if smallest is not None and late > LATENESS_SHARE * smallest:
            record.valid = False
            record.notes.append(
                f"not valid: the emulator was {late * 1000:.2f} ms late (p99), more than {LATENESS_SHARE:.0%} of the "
                f"smallest delay, {smallest * 1000:.2f} ms: this machine was too busy"
            )


# --- helpers ----------------------------------------------------------------------------------------------------------


def _opener(seed: int) -> OpenWan:
    from p2ptrain.lab.wan.opening import open_wan

    return lambda hosts, reduced: open_wan(hosts, reduced=reduced, seed=seed)


def _capacity_mbps(reduced: bool) -> float:
    """Measured; 0 (not known) for relays."""
    from p2ptrain.lab.wan.opening import capacity_mbps

    return 0.0 if reduced else capacity_mbps()


def _warm_up() -> None:
    """The fork server has imported torch before the first peer's time runs."""
    from p2ptrain.lab.processes import fork_context

    context: multiprocessing.context.BaseContext = fork_context()
    process = context.Process(target=_nothing, daemon=True)  # type: ignore[attr-defined]
    process.start()
    process.join(120.0)


def _nothing() -> None:
    """What the first process does."""


@contextlib.contextmanager
def _ending_signals() -> Iterator[None]:
    """SIGTERM ends the run as Ctrl-C does; while everything is taken down, neither interrupts."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    old = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def end(number: int, _: object) -> None:
        for each in old:
            signal.signal(each, signal.SIG_IGN)
        raise KeyboardInterrupt(signal.Signals(number).name)

    for number in old:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)
