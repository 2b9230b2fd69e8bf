"""Before a node can live: find a member, fetch the manifest, and the corpus where one's own differs.

Decides the order: network first, then what will run is shown, then state (field report rl-swarm#377). Each address
that fails is named with what happened.

    dial all contacts in parallel -> first LinkUp -> BLOB(manifest) -> digest equals the invite's -> Manifest
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence

from p2ptrain.config import Manifest
from p2ptrain.core import events as ev
from p2ptrain.core.types import Digest, PeerId, PeerInfo, short
from p2ptrain.data.corpus import Corpus, CorpusAssembly
from p2ptrain.errors import AdmissionError, P2PTrainError, ProtocolError, TransferError, TransportError
from p2ptrain.runtime import blobs
from p2ptrain.runtime.pulls import Pulls
from p2ptrain.wire import bulk

logger = logging.getLogger("p2ptrain")

DIAL_S = 4.0
RETRIES = 6
RETRY_S = 1.0
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


class Entry:
    """Collects events until the node exists. ``linked``: members with a link, in order of arrival."""

    def __init__(self) -> None:
        self.events: list[ev.Event] = []
        self.linked: list[PeerId] = []
        self.failures: dict[str, str] = {}
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
            if event.failure == "duplicate":
                self.fatal = AdmissionError(
                    f"{event.address} refuses us: {event.detail or 'a live peer uses this key already'}",
                    hint="give this peer its own --run-dir, or stop the other one",
                )
        self.events.append(event)
        self._changed.set()

    async def first_member(self, dial: Callable[[Sequence[str]], None], addresses: Sequence[str]) -> PeerId:
        """The first member that answers; all addresses at once, again with back-off.

        Raises TransportError naming each address and what happened, AdmissionError if this key is in use.
        """
        pause = RETRY_S
        for attempt in range(RETRIES):
            self.failures.clear()
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
            told = "; ".join(f"{address}: {what}" for address, what in sorted(self.failures.items()))
            logger.warning("no member reached (try %d of %d): %s", attempt + 1, RETRIES, told or "no answer")
            await asyncio.sleep(pause)
            pause = min(RETRY_MAX_S, pause * 1.7)
        attempts = {address: self.failures.get(address, "no answer") for address in addresses}
        told = "; ".join(f"{address}: {what}" for address, what in sorted(attempts.items()))
        raise TransportError(
            f"no member of the run could be reached: {told}",
            hint="check that one of them runs and its port is open, or ask for a newer invite",
            attempts=attempts,
        )

    def hand_over(self, forward: Callable[[ev.Event], None]) -> None:
        """The node stands: give it what has happened so far, in order, and everything from now on."""
        self.forward = forward
        events, self.events = self.events, []
        for event in events:
            forward(event)


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
