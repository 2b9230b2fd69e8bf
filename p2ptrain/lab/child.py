"""The main function of one peer process of a ``lab.processes.Swarm``: a real ``Session``, with facts told by a pipe.

Decides nothing about the swarm. It can be told to hold still at a named point of the protocol (``hold``), where the
parent then kills, stops or releases it: tests wait for the point itself, never for a time.
"""

from __future__ import annotations

import logging
import os
import signal
import statistics
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from p2ptrain.core import events as ev
from p2ptrain.lab.faults import skew_clock
from p2ptrain.lab.phases import PHASES, ROLES

HOLD_S = 120.0
MICROBATCHES_KEPT = 64


class Child:
    """One peer's pipe to the process that started it."""

    def __init__(self, pipe: Connection) -> None:
        self.pipe = pipe
        self.session: Any = None
        self.plan: Any = None
        self.at_end: list[Callable[[Any], None]] = []
        """Called with the session once it has ended, in the thread that has trained (see ``setups``)."""
        self._lock = threading.Lock()
        self._microbatches: deque[float] = deque(maxlen=MICROBATCHES_KEPT)
        self._hold: dict[str, Any] | None = None

    def tell(self, kind: str, **fields: Any) -> None:
        """A fact, with the monotonic time (one clock for all processes of a machine)."""
        try:
            with self._lock:
                self.pipe.send({"ev": kind, "t": time.monotonic(), **fields})
        except OSError:
            os._exit(9)  # the parent is gone

    def listen(self) -> None:
        """Commands, until the parent is gone: then this process ends too."""
        while True:
            try:
                command = self.pipe.recv()
            except (EOFError, OSError):
                os._exit(9)
            name = command.pop("do")
            if name == "leave":
                self.session.leave(command.get("reason", "asked by the lab"))
            elif name == "hold":
                self.hold_now(**command)
            elif name == "go":
                self._release()
            elif name == "invite":
                self.tell("invite", text=self.session.fresh_invite())
            elif name == "status":
                self.session.network._call_soon(self._tell_status)
            elif name == "corrupt":
                self._corrupt(command["index"])
            elif name == "pace":
                self.session.pace(command["seconds"])
            elif name == "skew":
                skew_clock(command["seconds"])

    def hold_now(self, phase: str, when: str = "before", role: str = "", from_round: int = 0, times: int = 1) -> None:
        """See ``processes.Peer.hold``. For setups: a hold that stands before the first event."""
        self._release()
        self._hold = {
            "phase": phase,
            "when": when,
            "role": role,
            "from_round": from_round,
            "times": times,
            "go": threading.Event(),
        }

    def took(self, seconds: float) -> None:
        """A microbatch was computed."""
        self._microbatches.append(seconds)

    def microbatch_s(self) -> float:
        """The median of the last ones, the wait for a stated speed included; 0 before the first."""
        return statistics.median(self._microbatches) if self._microbatches else 0.0

    def watch(self, when: str) -> Callable[[ev.Event, list[ev.Effect]], None]:
        """A driver's watcher: hold still (the loop with it) where it was asked for."""

        def watcher(event: ev.Event, effects: list[ev.Effect]) -> None:
            hold = self._hold
            if hold is None or hold["when"] != when or hold["go"].is_set():
                return
            node = self.session.network.driver.node
            if not PHASES[hold["phase"]](event, effects) or not ROLES[hold["role"]](node):
                return
            round = self.session.network.rounds_done
            hold["times"] -= 1
            if round < hold["from_round"] or hold["times"] > 0:
                return
            self.tell("held", phase=hold["phase"], role=hold["role"], round=round, peer=getattr(event, "peer", ""))
            hold["go"].wait(HOLD_S)
            hold["go"].set()

        return watcher

    def _release(self) -> None:
        """Go on, or do not stop if the point was not reached yet."""
        hold, self._hold = self._hold, None
        if hold is not None:
            hold["go"].set()

    def _tell_status(self) -> None:
        from p2ptrain.runtime.status import status_of

        self.tell("status", status=status_of(self.session.network))

    def _corrupt(self, index: int) -> None:
        """Flip one bit of the model's state, in the training thread."""
        import torch

        trainer = self.session.network.outfit.trainer

        def flip(layers: Any) -> None:
            with torch.no_grad():
                view = trainer.stage.parameters[index : index + 1].view(torch.int32)
                view.bitwise_xor_(torch.tensor([1 << 20], dtype=torch.int32))

        trainer.ask(flip)
        self.tell("corrupted", index=index, round=self.session.network.rounds_done)


def peer_main(pipe: Connection, options: dict[str, Any]) -> None:
    """Entry point of the process. ``options``: see ``processes.Swarm.start``."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    log = open(options["log"], "a", buffering=1)  # noqa: SIM115 (it lives as long as the process)
    os.dup2(log.fileno(), 1)
    os.dup2(log.fileno(), 2)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s.%(msecs)03d %(levelname)s %(message)s", "%H:%M:%S"))
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    child = Child(pipe)
    try:
        if options.get("namespace"):
            from p2ptrain.lab.wan.namespaces import enter

            enter(options["namespace"])
        session = _session(child, options)
    except Exception as error:
        child.tell("failed", error=type(error).__name__, text=str(error))
        os._exit(getattr(error, "exit_code", 1))
    child.session = session
    threading.Thread(target=child.listen, name="lab-commands", daemon=True).start()
    signal.signal(signal.SIGTERM, lambda *_: session.leave("SIGTERM"))
    try:
        ending = session.run()
        node = session.network.driver.node if session.network.driver else None
        outfit = session.network.outfit
        for at_end in child.at_end:
            at_end(session)
        child.tell(
            "ended",
            error=ending.error,
            text=ending.text,
            rounds=ending.rounds,
            digest=node.stage.chain.hex() if node else "",
            losses=session.losses,
            threads=[t.name for t in threading.enumerate() if t.name != "lab-commands"],
            state=outfit.trainer.final_digest().hex() if outfit else "",
        )
        code = 0
    except Exception as error:
        logging.getLogger("p2ptrain").exception("the session failed")
        child.tell("failed", error=type(error).__name__, text=str(error))
        code = getattr(error, "exit_code", 1)
    log.flush()
    os._exit(code)


def _session(child: Child, options: dict[str, Any]) -> Any:
    from p2ptrain.config import Manifest, PeerSettings, open_run_folder
    from p2ptrain.net.invite import parse_invite
    from p2ptrain.runtime.session import Hooks, Session

    folder = open_run_folder(Path(options["folder"]))
    settings = PeerSettings.from_flags(now_s=time.time(), **options["settings"])
    hooks = Hooks(
        ready=lambda s: child.tell(
            "ready", peer=s.identity.peer, life=s.life, invite=s.fresh_invite(), pid=os.getpid()
        ),
        before=[child.watch("before")],
        after=[child.watch("after"), lambda event, effects: _facts(child, event, effects)],
        on_result=[lambda r: child.tell("round", **_round(r), microbatch_s=child.microbatch_s())],
        on_loss=[lambda round, loss: child.tell("loss", round=round, loss=loss)],
        on_say=[lambda s: child.tell("say", level=s.level, key=s.key, text=s.text, round=s.round)],
        extra_wait_s=options.get("extra_wait_s", 0.0),
        microbatch_least_s=options.get("microbatch_least_s", 0.0),
        snapshot_chunk_bytes=options.get("snapshot_chunk_bytes", 0),
    )
    for setup in options.get("setups", ()):
        setup(child, hooks)
    if options["invite"] is None:
        session = Session.found(Manifest.from_bytes(options["manifest"]), folder, settings, hooks)
    else:
        session = Session.joining(parse_invite(options["invite"]), folder, settings, hooks)
    knobs = options.get("knobs")
    if knobs:
        session.knobs = knobs
    return session


def _facts(child: Child, event: ev.Event, effects: list[ev.Effect]) -> None:
    for effect in effects:
        if isinstance(effect, ev.Exchange):
            begin = effect.begin
            child.tell(
                "begin",
                round=begin.fence.round,
                attempt=begin.attempt,
                leader=begin.fence.ballot.peer,
                reducers=sorted({o.reducer for o in begin.parts if o.reducer}),
            )
        elif isinstance(effect, ev.Apply):
            counted = [sorted(part.counted) for part in effect.record.parts]
            child.tell(
                "decided",
                round=effect.record.round,
                counted=counted[0] if counted else [],
                even=all(ids == counted[0] for ids in counted),
                spent=sorted(effect.record.spent_ids),
            )
        elif isinstance(effect, ev.RoundsAbandoned):
            rounds = effect.rounds or (child.session.network.rounds_done,)
            child.tell("abandoned", first=min(rounds), last=max(rounds), rounds=len(effect.rounds))
    driver = child.session.network.driver
    plan = driver.node.planning.plan if driver is not None else None
    if plan is not child.plan:
        child.plan = plan
        child.tell("plan", peers=[a.peer for a in plan.assignments] if plan else [], epoch=plan.epoch if plan else 0)
    if isinstance(event, ev.MicrobatchDone):
        child.took(event.seconds)
    elif isinstance(event, ev.Applied):
        child.tell("applied", round=event.round, chain=event.base.chain.hex(), slice=event.base.slice_digest.hex())


def _round(result: Any) -> dict[str, Any]:
    return {
        "round": result.round,
        "members": list(result.members),
        "counted": result.counted,
        "expected": result.expected,
        "attempts": result.attempts,
        "ballot": list(result.ballot),
        "loss": result.loss,
        "stall_s": result.stall_s,
        "digest": result.digest,
        "contributions": dict(result.contributions),
        "voters_next": list(result.voters_next),
        "left_out": [tuple(item) for item in result.left_out],
        "samples_total": result.samples_total,
        "bytes_sent": result.bytes_sent,
        "bytes_received": result.bytes_received,
        "fill_s": result.fill_s,
    }
