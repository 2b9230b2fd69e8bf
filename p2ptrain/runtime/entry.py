"""Before a node can live: find a member, fetch the manifest, and the corpus where one's own differs.

Decides the order: network first, then what will run is shown, then state (field report rl-swarm#377). Each address
that fails is named with what happened.

    dial all contacts in parallel -> first LinkUp -> BLOB(manifest) -> digest equals the invite's -> Manifest
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from p2ptrain.config import Manifest
from p2ptrain.core import events as ev
from p2ptrain.core.types import Digest, PeerId, PeerInfo, short
from p2ptrain.data.corpus import Corpus, CorpusAssembly
from p2ptrain.errors import AdmissionError, P2PTrainError, ProtocolError, TransferError, TransportError
from p2ptrain.runtime import blobs
from p2ptrain.runtime.pulls import Pulls
from p2ptrain.wire import bulk
from p2ptrain.wire.translate import DialBackAnswer

logger = logging.getLogger("p2ptrain")

DIAL_S = 4.0
PATIENCE_S = 30.0
RETRY_S = 1.0
DIAL_BACK_S = 6.0
DIAL_BACK_MAX = 4
RETRY_MAX_S = 8.0

_REMEDY = {
    "refused": "nobody listens there (any more)",
    "timeout": "no answer: a firewall, or the machine is off",
    "unreachable": "no route there from here",
    "name": "the name is not known: check the spelling or DNS",
    "certificate": "it refuses our certificate, or we its: ask for a new invite",
    "foreign_run": "it serves another run",
    "version": "its version does not talk to ours: update the older one",
    "duplicate": "a live peer uses this key already: give this one its own --run-dir",
}


_FINAL: set[ev.DialFailure] = {"certificate", "foreign_run", "version"}


class Entry:
    """Collects events until the node exists. ``linked``: members with a link, in order of arrival."""

    def __init__(self) -> None:
        self.events: list[ev.Event] = []
        self.linked: list[PeerId] = []
        self.failures: dict[str, str] = {}
        self.kinds: dict[str, ev.DialFailure] = {}
        self.fatal: P2PTrainError | None = None
        self.forward: Callable[[ev.Event], None] | None = None
        self._changed = asyncio.Event()

    def on_event(self, event: ev.Event) -> None:
        """The transport's callback: kept while there is no node, passed on afterwards."""
        if self.forward is not None:
            self.forward(event)
            return
        if isinstance(event, ev.LinkUp):
            self.linked.append(event.info.peer)
        elif isinstance(event, ev.LinkLost) and event.peer in self.linked:
            self.linked.remove(event.peer)
        elif isinstance(event, ev.DialFailed):
            self.failures[event.address] = f"{event.failure}: {event.detail or _REMEDY[event.failure]}"
            self.kinds[event.address] = event.failure
            if event.failure == "duplicate":
                self.fatal = AdmissionError(
                    f"{event.address} refuses us: {event.detail or 'a live peer uses this key already'}",
                    hint="give this peer its own --run-dir, or stop the other one",
                )
        self.events.append(event)
        self._changed.set()

    async def first_member(
        self, dial: Callable[[Sequence[str]], None], addresses: Sequence[str], patience_s: float = PATIENCE_S
    ) -> PeerId:
        """The first member that answers; all addresses at once, again with back-off until ``patience_s`` are over.

        Raises TransportError naming each address and what happened; AdmissionError if this key is in use, or if all who
        answered refuse us for what waiting does not change.
        """
        pause = RETRY_S
        end = time.monotonic() + patience_s
        while True:
            self.failures.clear()
            self.kinds.clear()
            dial(addresses)
            until = time.monotonic() + DIAL_S + 1.0
            while not self.linked and len(self.failures) < len(addresses) and time.monotonic() < until:
                self._changed.clear()
                try:
                    await asyncio.wait_for(self._changed.wait(), max(0.01, until - time.monotonic()))
                except asyncio.TimeoutError:
                    break
            if self.linked:
                return self.linked[0]
            if self.fatal is not None:
                raise self.fatal
            if self.failures and len(self.kinds) == len(addresses) and set(self.kinds.values()) <= _FINAL:
                break  # somebody answers at every address, and none of them will take us
            told = "; ".join(f"{address}: {what}" for address, what in sorted(self.failures.items()))
            left = end - time.monotonic()
            if left <= 0:
                break
            logger.warning("no member reached: %s; tries again for %.0f s", told or "no answer", left)
            await asyncio.sleep(min(pause, left))
            pause = min(RETRY_MAX_S, pause * 1.7)
        attempts = {address: self.failures.get(address, "no answer") for address in addresses}
        told = "; ".join(f"{address}: {what}" for address, what in sorted(attempts.items()))
        if self.kinds and set(self.kinds.values()) <= _FINAL:
            raise AdmissionError(f"no entry: {told}", hint="ask for a newer invite", attempts=attempts)
        raise TransportError(
            f"no member of the run could be reached: {told}",
            hint="check that one of them runs and its port is open, or ask for a newer invite",
            attempts=attempts,
        )

    def forget(self, peer: PeerId) -> None:
        """The link to ``peer`` was hung up by us: what was heard over it does not count."""
        self.linked = [linked for linked in self.linked if linked != peer]
        self.events = [event for event in self.events if _whose(event) != peer]

    def hand_over(self, forward: Callable[[ev.Event], None]) -> None:
        """The node stands: give it what has happened so far, in order, and everything from now on."""
        self.forward = forward
        events, self.events = self.events, []
        for event in events:
            forward(event)


class DialsBack(Protocol):
    """The transport, as far as the question needs it."""

    async def ask_dial_back(self, peer: PeerId, address: str, timeout_s: float) -> DialBackAnswer: ...


async def unreachable(transport: DialsBack, member: PeerId, addresses: Sequence[str]) -> str:
    """Why ``member`` can dial us at none of ``addresses``, each with what happened; "" if it can, or cannot tell."""
    reasons: list[str] = []
    for address in addresses[:DIAL_BACK_MAX]:
        try:
            answer = await transport.ask_dial_back(member, address, DIAL_BACK_S)
        except TransportError as error:
            logger.debug("%s", error.text)
            return ""
        if answer.reached:
            return ""
        reasons.append(f"{address}: {answer.failure}")
    return "; ".join(reasons)


def _whose(event: ev.Event) -> PeerId:
    if isinstance(event, ev.LinkUp):
        return event.info.peer
    if isinstance(event, ev.Received):
        return event.sender.peer
    return event.peer if isinstance(event, ev.LinkLost) else ""


async def fetch_manifest(pulls: Pulls, peers: Sequence[PeerId], digest: Digest) -> Manifest:
    """From the first of ``peers`` that gives it. Raises TransferError; ConfigError if it is not understood."""
    reasons: list[str] = []
    for peer in peers:
        header = bulk.StreamHeader(bulk.StreamKind.BLOB, digest, digest)
        try:
            data = await pulls.pull_bytes(peer, header, blobs.MANIFEST_MAX_BYTES)
        except (P2PTrainError, asyncio.TimeoutError) as error:
            reasons.append(f"{short(peer)}: {error or 'silent'}")
            continue
        manifest = Manifest.from_bytes(bytes(data), file=f"manifest from {short(peer)}")
        if manifest.digest == digest:
            return manifest
        reasons.append(f"{short(peer)}: another manifest ({manifest.run[:8]})")
    raise TransferError(f"the manifest could not be fetched: {'; '.join(reasons)}", hint="ask for a newer invite")


async def fetch_status(pulls: Pulls, peers: Sequence[PeerId], run: Digest) -> dict[str, Any]:
    """How the first of ``peers`` that answers sees the run. {} if none does: nothing depends on it."""
    for peer in peers:
        header = bulk.StreamHeader(bulk.StreamKind.BLOB, run, blobs.STATUS)
        try:
            status = json.loads(await pulls.pull_bytes(peer, header, blobs.STATUS_MAX_BYTES, silence_s=3.0))
        except (P2PTrainError, asyncio.TimeoutError, ValueError) as error:
            logger.debug("no status from %s: %s", short(peer), error)
            continue
        if isinstance(status, dict):
            return status
    return {}


async def fetch_corpus(pulls: Pulls, members: Callable[[], Sequence[PeerInfo]], fingerprint: str, limit: int) -> Corpus:
    """The run's corpus in digested chunks, each from another member in turn. Raises TransferError, ConfigError."""
    name = blobs.corpus_name(fingerprint)
    assembly: CorpusAssembly | None = None
    reasons: list[str] = []
    for attempt in range(20):
        peers = [info.peer for info in members()]
        for peer in peers:
            try:
                if assembly is None:
                    header = bulk.StreamHeader(bulk.StreamKind.CORPUS, pulls.run, name, index=blobs.CORPUS_INFO_INDEX)
                    raw = await pulls.pull_bytes(peer, header, blobs.CORPUS_INFO_MAX_BYTES)
                    info = blobs.unpack_corpus_info(bytes(raw), fingerprint)
                    assembly = CorpusAssembly(info, fingerprint, limit)
                await _fill(pulls, peer, name, assembly)
                return assembly.finish()
            except (TransportError, TransferError, ProtocolError, asyncio.TimeoutError) as error:
                reasons.append(f"{short(peer)}: {error or 'silent'}")
        await asyncio.sleep(min(5.0, 0.5 * (attempt + 1)))
    raise TransferError(f"the corpus {fingerprint[:8]} could not be pulled: {'; '.join(reasons[-4:])}")


async def _fill(pulls: Pulls, peer: PeerId, name: Digest, assembly: CorpusAssembly) -> None:
    for index in list(assembly.missing()):
        header = bulk.StreamHeader(bulk.StreamKind.CORPUS, pulls.run, name, index=index)
        data = await pulls.pull_bytes(peer, header, assembly.info.chunk_bytes)
        if not assembly.write(index, bytes(data)):
            raise TransferError(f"corpus chunk {index} from {short(peer)} does not match its digest")
