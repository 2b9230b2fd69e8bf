"""Starts real peer processes from a fork server, tells them what to do, waits for facts, ends them by their own ids.

Decides nothing about the swarm. Every wait has a deadline and says what it waited for. When this process dies, so do
its peers (their pipe closes; ``guard`` ends those that are stopped).

    with Swarm(folder, manifest) as swarm:
        a = swarm.start("a"); b = swarm.start("b")
        b.wait_for(lambda e: e["ev"] == "round" and e["round"] >= 5, 60, "round 5")
        b.kill(); a.wait_round(8)
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from p2ptrain.config import Manifest
from p2ptrain.core.types import short
from p2ptrain.lab.child import peer_main
from p2ptrain.lab.faults import limit_files
from p2ptrain.lab.guard import Guard

Fact = dict[str, Any]


class Peer:
    """One real process. ``facts``: all it has told so far, in order. ``peer``: its id, once it is ready."""

    def __init__(self, swarm: Swarm, name: str, process: Any, pipe: Any) -> None:
        self.swarm = swarm
        self.name = name
        self.process = process
        self.facts: list[Fact] = []
        self.peer = ""
        self.killed_at: float | None = None
        self._pipe = pipe
        self._changed = threading.Condition()
        self._closed = False
        threading.Thread(target=self._read, daemon=True).start()

    # --- what it does ----------------------------------------------------------------------------------------------

    def kill(self) -> float:
        """kill -9. Returns the monotonic time."""
        self.killed_at = time.monotonic()
        self._signal(signal.SIGKILL)
        self.process.join(10.0)
        return self.killed_at

    def stop(self) -> None:
        self._signal(signal.SIGSTOP)

    def cont(self) -> None:
        self._signal(signal.SIGCONT)

    def terminate(self) -> None:
        """SIGTERM: it leaves gracefully."""
        self._signal(signal.SIGTERM)

    def pace(self, seconds: float) -> None:
        """A microbatch takes at least so long from now on."""
        self.do("pace", seconds=seconds)

    def skew(self, seconds: float) -> None:
        """Its wall clock goes wrong by so much."""
        self.do("skew", seconds=seconds)

    def fill_disk(self, is_full: bool = True) -> None:
        """Whatever it writes to a file fails, as on a full disk (by a limit of the kernel's on its files)."""
        limit_files(self.process.pid, is_full)

    def do(self, command: str, **fields: Any) -> None:
        """Send a command (see ``child.Child.listen``); nothing if the process has ended."""
        with contextlib.suppress(OSError):
            self._pipe.send({"do": command, **fields})

    def hold(self, phase: str, when: str = "before", *, role: str = "", from_round: int = 0, times: int = 1) -> None:
        """Let it hold still when it reaches ``phase`` (in ``role``) for the ``times``-th time from now.

        The fact is ``held``. ``go`` releases it, or calls the hold off. Names: ``lab.phases``.
        """
        self.do("hold", phase=phase, when=when, role=role, from_round=from_round, times=times)

    def go(self) -> None:
        """Release a hold."""
        self.do("go")

    # --- waiting for facts -----------------------------------------------------------------------------------------

    def wait_for(self, holds: Callable[[Fact], bool], timeout_s: float, what: str, since: int = 0) -> Fact:
        """The first fact (from index ``since``) for which ``holds``. AssertionError when time is up or it has ended."""
        until = time.monotonic() + timeout_s
        seen = since
        with self._changed:
            while True:
                while seen < len(self.facts):
                    if holds(self.facts[seen]):
                        return self.facts[seen]
                    seen += 1
                left = until - time.monotonic()
                if left <= 0 or self._closed:
                    ended = "it has ended" if self._closed else f"{timeout_s:.0f} s are over"
                    raise AssertionError(
                        f"{self.name} ({short(self.peer)}): waited for {what}, {ended}; {self._tail()}"
                    )
                self._changed.wait(min(left, 0.5))

    def wait_kind(self, kind: str, timeout_s: float = 60.0, since: int = 0, **fields: Any) -> Fact:
        """The first fact of this kind whose fields are as given."""
        what = f"{kind} {fields}" if fields else kind
        return self.wait_for(
            lambda e: e["ev"] == kind and all(e.get(k) == v for k, v in fields.items()), timeout_s, what, since
        )

    def wait_round(self, round: int, timeout_s: float = 60.0) -> Fact:
        """Round ``round`` (or a later one) is applied here."""
        return self.wait_for(lambda e: e["ev"] == "applied" and e["round"] >= round, timeout_s, f"round {round}")

    def of(self, kind: str) -> list[Fact]:
        """All facts of a kind so far."""
        with self._changed:
            return [fact for fact in self.facts if fact["ev"] == kind]

    @property
    def round(self) -> int:
        """The last round applied here."""
        applied = self.of("applied")
        return applied[-1]["round"] if applied else 0

    @property
    def told_all(self) -> bool:
        """Its process has ended and every fact that it told is here."""
        return self._closed

    @property
    def alive(self) -> bool:
        return bool(self.process.is_alive())

    def wait_end(self, timeout_s: float = 60.0) -> Fact:
        """``ended`` or ``failed``, and the process gone."""
        fact = self.wait_for(lambda e: e["ev"] in ("ended", "failed"), timeout_s, "its end")
        self.process.join(10.0)
        return fact

    # --- helpers ---------------------------------------------------------------------------------------------------

    def _read(self) -> None:
        while True:
            try:
                fact = self._pipe.recv()
            except (EOFError, OSError):
                break
            if fact["ev"] == "ready":
                self.peer = fact["peer"]
            with self._changed:
                self.facts.append(fact)
                self._changed.notify_all()
            self.swarm._told.set()
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.process.pid, number)

    def _tail(self) -> str:
        told = [f"{f['ev']} {f.get('text', f.get('round', ''))}" for f in self.facts[-5:]]
        return f"last facts: {told}; log {self.swarm.log_of(self.name)}"

    def close(self) -> None:
        """End it for good."""
        self._signal(signal.SIGCONT)
        self._signal(signal.SIGKILL)
        self.process.join(5.0)
        self._pipe.close()


class Swarm:
    """Peers of one run under ``folder``. The first one started founds the run; later ones join by its invite.

    ``settings``: flags for every peer (see ``PeerSettings.from_flags``); by default one thread, loopback, no DHT.
    ``extra_wait_s``: after each microbatch, so that rounds have a length on any machine. ``knobs``: core.types.Knobs.
    """

    def __init__(
        self,
        folder: Path,
        manifest: Manifest,
        *,
        extra_wait_s: float = 0.0,
        snapshot_chunk_bytes: int = 0,
        knobs: Any = None,
        **settings: Any,
    ) -> None:
        self.knobs = knobs
        self.extra_wait_s = extra_wait_s
        self.snapshot_chunk_bytes = snapshot_chunk_bytes
        self._told = threading.Event()
        self.folder = Path(folder)
        self.manifest = manifest
        self.settings: dict[str, Any] = {"threads": 1, "listen": "127.0.0.1:0", "no_dht": True, **settings}
        self.peers: dict[str, Peer] = {}
        self.past: list[Peer] = []  # earlier lives of names that came back
        self.invite: str | None = None
        self._context = fork_context()
        self._guard: Guard | None = None

    def __enter__(self) -> Swarm:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(
        self,
        name: str,
        *,
        wait: bool = True,
        setups: Sequence[Callable[..., None]] = (),
        extra_wait_s: float | None = None,
        microbatch_least_s: float = 0.0,
        namespace: str = "",
        snapshot_chunk_bytes: int = 0,
        knobs: Any = None,
        invite: str | None = None,
        **settings: Any,
    ) -> Peer:
        """Start a process. The same ``name`` again is the same machine coming back (same key, a new life).

        ``setups``: picklable functions of (child, hooks) run in the process before its session is made.
        ``wait``: until it is ready (has listened, and knows the manifest). ``microbatch_least_s``: its speed.
        ``namespace``: path of a network namespace that it enters first.
        """
        here, there = self._context.Pipe()
        options = {
            "folder": str(self.folder / name),
            "log": str(self.log_of(name)),
            "manifest": self.manifest.to_bytes(),
            "invite": invite or self.invite,
            "settings": self._settings_of(settings),
            "setups": tuple(setups),
            "extra_wait_s": self.extra_wait_s if extra_wait_s is None else extra_wait_s,
            "microbatch_least_s": microbatch_least_s,
            "namespace": namespace,
            "snapshot_chunk_bytes": snapshot_chunk_bytes or self.snapshot_chunk_bytes,
            "knobs": knobs or self.knobs,
        }
        self.folder.mkdir(parents=True, exist_ok=True)
        process = self._context.Process(target=peer_main, args=(there, options), daemon=True)
        process.start()
        there.close()
        if self._guard is None:
            self._guard = Guard(self._context)
        self._guard.add(process.pid)
        peer = Peer(self, name, process, here)
        old = self.peers.get(name)
        if old is not None:
            old.close()
            self.past.append(old)
        self.peers[name] = peer
        if wait or self.invite is None:
            ready = peer.wait_for(lambda e: e["ev"] in ("ready", "failed"), 90.0, "its start")
            if ready["ev"] == "failed":
                raise AssertionError(f"{name} failed to start: {ready['error']}: {ready['text']}")
            self.invite = self.invite or ready["invite"]
        return peer

    def refresh_invite(self) -> str:
        """A fresh invite, by a living member that has joined; later ``start`` calls use it."""
        for peer in self.alive:
            if peer.round or peer.of("round"):
                since = len(peer.facts)
                peer.do("invite")
                self.invite = str(peer.wait_kind("invite", 20.0, since)["text"])
                break
        assert self.invite is not None
        return self.invite

    def log_of(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    @property
    def alive(self) -> list[Peer]:
        return [peer for peer in self.peers.values() if peer.alive]

    def wait_round(self, round: int, timeout_s: float = 60.0, peers: Sequence[Peer] | None = None) -> None:
        """All (living) peers have applied ``round``."""
        for peer in peers if peers is not None else self.alive:
            peer.wait_round(round, timeout_s)

    def check_digests(self) -> int:
        """Every round applied by several peers has one chain digest (G1); returns how many were compared."""
        seen: dict[int, tuple[str, str, str]] = {}
        compared = 0
        for peer in (*self.past, *self.peers.values()):
            for fact in peer.of("applied"):
                known = seen.setdefault(fact["round"], (fact["chain"], fact["slice"], peer.name))
                if known[2] != peer.name:
                    compared += 1
                    assert known[:2] == (fact["chain"], fact["slice"]), (
                        f"G1: round {fact['round']}: {known[2]} and {peer.name} differ"
                    )
        return compared

    def check_progress(self) -> None:
        """No peer ever applied a round twice, or went back behind one (G2); call it where no history was given up."""
        for peer in (*self.past, *self.peers.values()):
            rounds = [fact["round"] for fact in peer.of("applied")]
            assert rounds == sorted(set(rounds)), f"G2: {peer.name} applied rounds {rounds}"

    def first_held(
        self, peers: Sequence[Peer], timeout_s: float, what: str, since: dict[str, int]
    ) -> tuple[Peer, Fact]:
        """The first of ``peers`` that is held (``since``: how many facts of each to skip). AssertionError in time."""
        until = time.monotonic() + timeout_s
        while time.monotonic() < until:
            for peer in peers:
                with peer._changed:
                    held = [fact for fact in peer.facts[since[peer.name] :] if fact["ev"] == "held"]
                if held:
                    return peer, held[0]
            self._told.wait(0.2)
            self._told.clear()
        raise AssertionError(f"nobody was held {what} within {timeout_s:.0f} s; " + "; ".join(p._tail() for p in peers))

    def close(self) -> None:
        for peer in self.peers.values():
            peer.close()
        if self._guard is not None:
            self._guard.close()
            self._guard = None

    def _settings_of(self, given: dict[str, Any]) -> dict[str, Any]:
        settings = {**self.settings, **given}
        if settings.get("outbound_only"):
            settings.pop("listen", None)
        return settings


def fork_context() -> Any:
    """A fork server that has imported torch once; spawn where fork is missing."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["p2ptrain.lab.preload"])
    return context
