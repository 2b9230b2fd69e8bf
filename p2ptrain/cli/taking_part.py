"""``start`` and ``join``: from flags to a session, and from its ending to an exit.

Decides when this peer rejoins instead of beginning a run again, and what Ctrl-C and SIGTERM mean. The training itself
is ``runtime.session``.

    flags -> settings -> run folder, locked -> Session -> run() -> what it ended with
"""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # gRPC's own lines on stderr are for its developers

from p2ptrain import errors
from p2ptrain.cli import costs, folders, inviting
from p2ptrain.cli.screen import Screen
from p2ptrain.cli.watching import Watching
from p2ptrain.config import Manifest, PeerSettings, RunFolder, default_run_dir, load_manifest, open_run_folder
from p2ptrain.config_folder import write_private
from p2ptrain.config_peer import HostPort, parse_host_port, read_environment
from p2ptrain.errors import ConfigError, P2PTrainError, StalledError, TransportError
from p2ptrain.net.dht_cache import load_last_peers
from p2ptrain.net.invite import Invite, parse_invite_file
from p2ptrain.observe import logs
from p2ptrain.runtime.entry import PATIENCE_S
from p2ptrain.runtime.session import Ending, Hooks, Session

logger = logging.getLogger("p2ptrain")

INTERRUPTED_CODE = 130
LOOPBACK = ("localhost", "127.", "::1")


@dataclass(frozen=True)
class Wishes:
    """The options of ``start`` and ``join`` as typed."""

    flags: dict[str, Any]
    metrics: str | None = None
    patience_s: float | None = None
    yes: bool = False

    def settings(self) -> PeerSettings:
        """Raises ConfigError naming the flag."""
        return PeerSettings.from_flags(now_s=time.time(), **self.flags)

    def metrics_at(self) -> HostPort | None:
        return None if self.metrics is None else parse_host_port(self.metrics, "--metrics")


def start(path: Path, invite_file: Path | None, wishes: Wishes) -> None:
    """Raises the named error that the session ended with."""
    settings, manifest = wishes.settings(), load_manifest(path)
    manifest = _with_data(manifest, settings)
    costs.check_memory(manifest, settings)
    folder = open_run_folder(settings.run_dir or default_run_dir(read_environment().home, manifest.name, manifest.run))
    life = Life(folder, settings, wishes, manifest.name)
    if _was_member(folder, manifest):
        life.say(f"{folder.path} was a member of this run before: rejoins it")
        invite = parse_invite_file(folder.invite)
        try:
            life.run(lambda hooks: Session.joining(invite, folder, settings, hooks))
        except TransportError as error:
            hint = "start another member first; to begin the run again from nothing, give a new --run-dir"
            raise TransportError(error.text, hint=hint, **error.fields) from None
        return
    _refuse_to_begin_again(folder, manifest)
    for line in costs.lines(manifest, settings, {}):
        life.say(line)
    life.invite_file = invite_file
    life.founds = True
    life.run(lambda hooks: Session.found(manifest, folder, settings, hooks))


def join(text: str, wishes: Wishes) -> None:
    """Raises the named error that the session ended with."""
    settings, invite = wishes.settings(), inviting.read(text)
    folder = open_run_folder(settings.run_dir or default_run_dir(read_environment().home, invite.name, invite.run))
    if folder.manifest.exists() and load_manifest(folder.manifest).run != invite.run:
        raise ConfigError(
            f"{folder.path} belongs to another run than the invite's ({invite.name}, {invite.run[:8]})",
            hint="give another folder with --run-dir",
            key="--run-dir",
            file=str(folder.path),
        )
    life = Life(folder, settings, wishes, invite.name)
    life.run(lambda hooks: Session.joining(_keep(folder, invite), folder, settings, hooks))


class Life:
    """One session on this terminal: its lines, its signals, its ending."""

    def __init__(self, folder: RunFolder, settings: PeerSettings, wishes: Wishes, name: str) -> None:
        self.folder = folder
        self.settings = settings
        self.wishes = wishes
        self.invite_file: Path | None = None
        self.founds = False
        self.context = logs.Context(run=name)
        self.screen = Screen()
        self.session: Session | None = None
        self._signals = 0

    def say(self, text: str) -> None:
        """To the person, not to the log; with ``--log-json`` as a line of that form."""
        record = logging.makeLogRecord({"msg": text, "levelno": logging.INFO, "levelname": "INFO"})
        self.screen.line(logs.JsonLines(self.context).format(record) if self.settings.log_json else logs.one_line(text))

    def run(self, make: Callable[[Hooks], Session]) -> None:
        """Until the end. Raises what it ended with; a session that was asked to leave ends in peace."""
        at = self.wishes.metrics_at()
        with folders.held(self.folder):
            undo_logs = logs.install(self.context, self.folder.log, self.screen.line, as_json=self.settings.log_json)
            undo_signals = self._catch_signals()
            watching = Watching(self.context, self.screen, at)
            try:
                self.session = session = make(self._hooks(watching))
                self.context.peer = session.identity.peer
                watching.start(session)
                ending = session.run()
                watching.stop()
                self._tell(ending)
            except P2PTrainError:
                if not self._signals or watching.was_ready:
                    raise
                self.say("left before a member was found")
            except Exception as error:
                logger.error("ends", exc_info=error)
                raise
            finally:
                watching.stop()
                undo_signals()
                undo_logs()

    # --- hooks, called in the session's loop -------------------------------------------------------------------------

    def _hooks(self, watching: Watching) -> Hooks:
        patience_s = PATIENCE_S if self.wishes.patience_s is None else self.wishes.patience_s
        return Hooks(
            ready=self._on_ready,
            confirm=self._confirm,
            after=[watching.on_event],
            on_result=[watching.on_result],
            on_loss=[watching.on_loss],
            patience_s=patience_s,
        )

    def _confirm(self, manifest: Manifest) -> bool:
        assert self.session is not None
        self.screen.pause()
        try:
            seen = self.session.run_status or {"members": []}
            for line in costs.lines(manifest, self.settings, seen, self.session.identity.peer):
                self.say(line)
            costs.check_memory(manifest, self.settings)
            return costs.agreed(self.wishes.yes)
        finally:
            self.screen.go_on()

    def _on_ready(self, session: Session) -> None:
        inviting.keep(self.folder, session.network.invite_now())
        if not self.founds:
            return
        text = session.fresh_invite()
        if self.invite_file is not None:
            write_private(self.invite_file.expanduser().absolute(), text.encode() + b"\n")
        ends = session.invite.intermediate.certificate.not_valid_after_utc
        self.say(f"the invite, a secret: whoever holds it may join, until {ends:%Y-%m-%d}")
        typer.echo(text)
        self.say(f"others join with: p2ptrain join {f'@{self.invite_file}' if self.invite_file else 'INVITE'}")
        for line in _ports(self.settings, session):
            self.say(line)

    # --- helpers -----------------------------------------------------------------------------------------------------

    def _catch_signals(self) -> Callable[[], None]:
        """The first one: leave gracefully. The second: now. Not in a thread that cannot have handlers (tests)."""
        numbers = (signal.SIGINT, signal.SIGTERM)
        try:
            before = {number: signal.signal(number, self._on_signal) for number in numbers}
        except ValueError:
            return lambda: None

        def undo() -> None:
            for number, handler in before.items():
                signal.signal(number, handler)

        return undo

    def _on_signal(self, number: int, _: object) -> None:
        self._signals += 1
        if self._signals > 1:
            os.write(2, b"left at once\n")
            os._exit(INTERRUPTED_CODE)
        name = signal.Signals(number).name
        if not self.settings.log_json:
            os.write(2, f"{name}: finishes the round and says goodbye; once more: leaves at once\n".encode())
        if self.session is None:
            raise KeyboardInterrupt
        self.session.leave(name)

    def _tell(self, ending: Ending) -> None:
        if ending.error:
            kind = getattr(errors, ending.error, P2PTrainError)
            raise kind(ending.text, hint=f"the log is {self.folder.log}")
        self.say(f"ended: {logs.one_line(ending.text)}; the model is at round {ending.rounds}")


def _with_data(manifest: Manifest, settings: PeerSettings) -> Manifest:
    """With the fingerprint of this machine's data, which is part of the run's name. Raises ConfigError."""
    if manifest.data.fingerprint:
        return manifest
    from p2ptrain.data import corpus_by_name

    corpus = corpus_by_name(manifest.data.name, trusted=settings.trust, **dict(manifest.data.options))
    return manifest.with_fingerprint(corpus.fingerprint)


def _was_member(folder: RunFolder, manifest: Manifest) -> bool:
    """This folder has met others of the same run: beginning it again would make a second history."""
    if not folder.manifest.exists() or load_manifest(folder.manifest).run != manifest.run:
        return False
    return folder.invite.exists() and bool(load_last_peers(folder.path))


def _refuse_to_begin_again(folder: RunFolder, manifest: Manifest) -> None:
    """G2: what was committed is never silently replaced by a fresh beginning. Raises StalledError."""
    if not folder.manifest.exists() or load_manifest(folder.manifest).run != manifest.run:
        return
    rounds = folders.rounds_committed(folder)
    if rounds:
        raise StalledError(
            f"{folder.path}: this run has committed round {rounds} here, and its state went with the last process",
            hint="to train it again from nothing, give a new --run-dir",
            rounds=rounds,
        )


def _keep(folder: RunFolder, invite: Invite) -> Invite:
    """Under the lock: the invite lies in the folder before anybody is dialled, so that this peer can come back."""
    inviting.keep(folder, invite)
    return invite


def _ports(settings: PeerSettings, session: Session) -> list[str]:
    """Which ports to open, and a warning where nobody from outside can come in."""
    if settings.outbound_only:
        return ["opens no port (--outbound-only): nobody can join through this peer"]
    transport = session.network.transport
    port = transport.port if transport is not None else settings.listen.port
    dht = "" if settings.no_dht else f" and TCP {settings.dht_listen.port or '(chosen by the system)'} (DHT)"
    lines = [f"let others reach TCP {port} (peers){dht}"]
    if settings.listen.host.startswith(LOOPBACK) and settings.announce is None:
        lines.append("WARNING: listens on loopback only: no other machine can join (use --listen 0.0.0.0:PORT)")
    return lines
