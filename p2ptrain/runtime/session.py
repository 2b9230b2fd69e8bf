"""The running whole, as a program holds it: one process that trains and talks.

Decides the order in which a life begins and ends. The caller's thread trains (torch); the asyncio loop with gRPC and
the core has a thread of its own; the DHT is a helper process that nothing waits for.

    start:  manifest -> keys -> listen -> node founds the run -> torch -> train
    join:   invite -> keys -> listen -> a member answers -> manifest -> what it will cost is shown -> node joins
            -> torch is imported while state is asked for -> train
"""

from __future__ import annotations

import asyncio
import logging
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from p2ptrain.config import Manifest, PeerSettings, RunFolder, save_manifest
from p2ptrain.core import events as ev
from p2ptrain.core.node import Node
from p2ptrain.core.types import Knobs, PeerInfo, RoundResult
from p2ptrain.data import corpus_by_name
from p2ptrain.data.corpus import Corpus
from p2ptrain.errors import AdmissionError, ConfigError, P2PTrainError, TrainingError
from p2ptrain.net.certificates import Intermediate, Root
from p2ptrain.net.identity import Identity
from p2ptrain.net.invite import Invite, make_invite
from p2ptrain.net.revoked import RevokedInvites
from p2ptrain.runtime.entry import PATIENCE_S, fetch_corpus
from p2ptrain.runtime.network import Network
from p2ptrain.runtime.spec import manifest_spec

logger = logging.getLogger("p2ptrain")

INVITE_LIFE_S = 30 * 86_400.0
READY_S = 90.0


@dataclass(frozen=True)
class Ending:
    """Why a session ended: ``error`` is the name of an error class, "" for a clean end."""

    error: str
    text: str
    rounds: int


@dataclass
class Hooks:
    """For tests, benches and the demo; all optional, called in the loop's thread.

    ``ready(session)``: the node stands. ``confirm(manifest)``: shown before anything is pulled; False: do not join.
    """

    ready: Callable[[Session], None] | None = None
    confirm: Callable[[Manifest], bool] | None = None
    before: list[Callable[[ev.Event, list[ev.Effect]], None]] = field(default_factory=list)
    after: list[Callable[[ev.Event, list[ev.Effect]], None]] = field(default_factory=list)
    on_result: list[Callable[[RoundResult], None]] = field(default_factory=list)
    on_loss: list[Callable[[int, float], None]] = field(default_factory=list)
    on_say: list[Callable[[ev.Say], None]] = field(default_factory=list)
    extra_wait_s: float = 0.0
    microbatch_least_s: float = 0.0  # a peer of stated speed; ``Session.pace`` changes it
    snapshot_chunk_bytes: int = 0  # 0: the default
    patience_s: float = PATIENCE_S  # how long to look for a first member


class Session:
    """One life of one peer. Make it with ``found`` or ``joining``, then ``run()`` in the thread that is to train."""

    def __init__(
        self,
        folder: RunFolder,
        settings: PeerSettings,
        identity: Identity,
        invite: Invite,
        manifest: Manifest | None,
        corpus: Corpus | None,
        hooks: Hooks | None = None,
        revoked: Callable[[], frozenset[int]] | None = None,
    ) -> None:
        self.folder = folder
        self.settings = settings
        self.identity = identity
        self.invite = invite
        self.manifest = manifest
        self.corpus = corpus
        self.hooks = hooks or Hooks()
        self.founds = manifest is not None and corpus is not None and not invite.addresses
        self.life = next_life(folder)
        self.knobs: Knobs | None = None  # None: the defaults
        self.losses: list[tuple[int, float]] = []
        self.run_status: dict[str, Any] = {}  # how a member saw the run when this peer came; {} if none told
        self.network = Network(self, revoked or RevokedInvites(folder.keys))
        self._ready = threading.Event()
        self._failure: BaseException | None = None
        self._stop_training: Callable[[], None] = lambda: None
        self._set_pace: Callable[[float], None] = lambda seconds: None
        self._ended = threading.Event()

    @classmethod
    def found(
        cls, manifest: Manifest, folder: RunFolder, settings: PeerSettings, hooks: Hooks | None = None
    ) -> Session:
        """The first peer of a run. Reads the corpus, fixes its fingerprint in the manifest, makes root and invite.

        Raises ConfigError (folder of another run, unknown names, unreadable data).
        """
        corpus = corpus_by_name(manifest.data.name, trusted=settings.trust, **dict(manifest.data.options))
        if manifest.data.fingerprint and manifest.data.fingerprint != corpus.fingerprint:
            raise ConfigError(
                f"the manifest names corpus {manifest.data.fingerprint[:8]}, this machine has {corpus.fingerprint[:8]}",
                key="data.fingerprint",
                hint="leave it out: start fills it in",
            )
        manifest = manifest.with_fingerprint(corpus.fingerprint)
        check_trust(manifest, settings)
        save_manifest(folder, manifest)
        identity = Identity.load_or_create(folder.keys)
        root = Root.load_or_create(folder.keys, manifest.run)
        invite = Invite(
            run=manifest.run,
            name=manifest.name,
            root=root.certificate,
            intermediate=Intermediate.create(root, INVITE_LIFE_S),
            manifest_digest=manifest.run,
            created=time.time(),
        )
        return cls(folder, settings, identity, invite, manifest, corpus, hooks)

    @classmethod
    def joining(cls, invite: Invite, folder: RunFolder, settings: PeerSettings, hooks: Hooks | None = None) -> Session:
        """A newcomer, or one that comes back. Raises ConfigError, AdmissionError (the invite has expired)."""
        identity = Identity.load_or_create(folder.keys)
        return cls(folder, settings, identity, invite, None, None, hooks)

    # --- life ------------------------------------------------------------------------------------------------------

    def run(self) -> Ending:
        """Live until the run ends, one leaves, or something fails. Blocks; trains in this thread.

        Raises the named error of what failed; returns an ``Ending`` otherwise.
        """
        thread = threading.Thread(target=self._loop_thread, name="p2ptrain-loop", daemon=True)
        thread.start()
        try:
            self._wait_ready()
            if not self._ended.is_set():
                self._train()
        finally:
            self.network.ask_stop()
            thread.join(timeout=15.0)
        if self._failure is not None:
            raise self._failure
        halt = self.network.halt
        rounds = self.network.rounds_done
        return Ending(halt.error, halt.text, rounds) if halt else Ending("", "stopped", rounds)

    def leave(self, reason: str) -> None:
        """Finish the round, say goodbye, end. From any thread or a signal handler; a second call changes nothing."""
        self.network.leave(reason)

    def pace(self, seconds: float) -> None:
        """A microbatch takes at least so long from now on. From any thread, also before training has begun."""
        self.hooks.microbatch_least_s = seconds
        self._set_pace(seconds)

    def fail(self, error: BaseException) -> None:
        """What went wrong outside the torch thread; ``run`` raises it."""
        if self._failure is None:
            self._failure = error
        self.over()

    def over(self) -> None:
        """The life has ended: let the torch thread return."""
        self._ended.set()
        self._ready.set()
        self._stop_training()

    def ready(self) -> None:
        """The node stands and the manifest is known."""
        self._ready.set()

    def fresh_invite(self) -> str:
        """An invite with the addresses of members alive now."""
        return make_invite(self.network.invite_now())

    # --- helpers ---------------------------------------------------------------------------------------------------

    def _loop_thread(self) -> None:
        try:
            asyncio.run(self.network.live())
        except BaseException as error:
            self.fail(error if isinstance(error, P2PTrainError) else _unexpected(error))
        finally:
            self.over()

    def _wait_ready(self) -> None:
        """Until the network side knows the manifest; its own steps have deadlines, which end this wait too."""
        while not self._ready.wait(timeout=1.0):
            pass

    def _train(self) -> None:
        """Import torch, build model and trainer, train until the end."""
        from p2ptrain.runtime.outfit import build

        assert self.manifest is not None
        corpus = self.corpus or self._find_corpus()
        outfit = build(
            self.manifest,
            corpus,
            self.network.post_threadsafe,
            self._trainer_failed,
            threads=self.settings.threads,
            trusted=self.settings.trust,
            extra_wait_s=self.hooks.extra_wait_s,
            microbatch_least_s=self.hooks.microbatch_least_s,
            snapshot_chunk_bytes=self.hooks.snapshot_chunk_bytes,
        )
        self._stop_training = outfit.stop
        self._set_pace = outfit.trainer.pace
        self._set_pace(self.hooks.microbatch_least_s)  # it may have changed while the trainer was built
        if self._ended.is_set():
            outfit.stop()
            return
        self.network.attach(outfit)
        outfit.run_training()

    def _find_corpus(self) -> Corpus:
        """One's own files if they are the run's, a copy kept from before, or the members'."""
        assert self.manifest is not None
        fingerprint = self.manifest.data.fingerprint
        kept = self.folder.data / f"{fingerprint[:16]}.corpus"
        if kept.exists():
            try:
                return Corpus.load(kept, fingerprint)
            except ConfigError as error:
                logger.warning("%s: pulled again", error.text)
        try:
            own = corpus_by_name(
                self.manifest.data.name, trusted=self.settings.trust, **dict(self.manifest.data.options)
            )
            if own.fingerprint == fingerprint:
                return own
            logger.info("own files differ from the run's corpus %s: pulls it from the members", fingerprint[:8])
        except ConfigError as error:
            logger.info("no corpus of our own (%s): pulls it from the members", error.text)
        limit = self.manifest.limits.max_data_bytes
        corpus = self.network.call(
            lambda pulls: fetch_corpus(pulls, self.network.members_to_ask, fingerprint, limit), timeout_s=600.0
        )
        self.folder.data.mkdir(parents=True, exist_ok=True)
        corpus.save(kept)
        return corpus

    def _trainer_failed(self, error: TrainingError) -> None:
        self._failure = self._failure or error
        self.network.fail("TrainingError", error.text)


def make_node(manifest: Manifest, info: PeerInfo, knobs: Knobs | None = None) -> Node:
    """The production node of a manifest."""
    return Node(manifest_spec(manifest, knobs), info, random.Random(node_seed(info)))


def node_seed(info: PeerInfo) -> str:
    """Of a node's random choices (which peer to probe, pauses); also in the journal, for a replay."""
    return f"{info.peer}/{info.life}"


def check_trust(manifest: Manifest, settings: PeerSettings) -> None:
    """Raises AdmissionError if the run wants code that this peer has not named with ``--trust``."""
    missing = [name for name in manifest.untrusted_names() if name not in settings.trust]
    if missing:
        raise AdmissionError(
            f"the run wants to run code from outside p2ptrain: {', '.join(missing)}",
            hint=f"if you trust it, add --trust {missing[0]}",
        )


def next_life(folder: RunFolder) -> int:
    """The number of this process start: growing, also when the clock was set back. Written before it is used."""
    path: Path = folder.path / "life"
    try:
        last = int(path.read_text())
    except (OSError, ValueError):
        last = 0
    life = max(last + 1, int(time.time() * 1000))
    path.write_text(str(life))
    path.chmod(0o600)
    return life


def _unexpected(error: BaseException) -> P2PTrainError:
    logger.error("unexpected %s in the network thread", type(error).__name__, exc_info=error)
    return P2PTrainError(f"unexpected {type(error).__name__}: {error}")
