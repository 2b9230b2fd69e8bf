"""What the trainer, the exchange and the transfer would do, as later events: times from bytes, speed and latency.

State is a digest chained over what was applied, so that equal histories have equal states and nothing else has (I8).
The value of an averaged part is the multiset of ids in it: a doubled or lost contribution changes its digest.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from p2ptrain.core import events as ev
from p2ptrain.core.messages import Begin
from p2ptrain.core.types import (
    BaseDigest,
    Digest,
    PartDone,
    PartOrder,
    PeerId,
    Record,
    SnapshotInfo,
    digest_of,
    hash_bytes,
)

if TYPE_CHECKING:
    from p2ptrain.sim.world import SimPeer, World

RETRY_S = 0.06


@dataclass(frozen=True)
class Costs:
    """What work takes: seconds, and bytes on the wire. The defaults are round numbers for a small model.

    ``wire_bytes``: of a part of so many values. ``exchange_s``: to encode, sum and hash what one exchange moves here.
    """

    wire_bytes: Callable[[int], int] = int
    state_bytes_per_value: int = 12
    chunk_bytes: int = 1 << 20
    apply_s: float = 0.003
    pin_s: float = 0.002
    load_s: float = 0.003
    exchange_s: float = 0.0


@dataclass(slots=True)
class _Running:
    """One attempt of an exchange, seen from above. ``arrived``: per part the bundles that its reducer has."""

    begin: Begin
    joined: set[PeerId] = field(default_factory=set)
    arrived: dict[int, set[int]] = field(default_factory=dict)
    done: dict[int, PartDone] = field(default_factory=dict)
    waiting: dict[int, set[PeerId]] = field(default_factory=dict)


class Hands:
    """The hands of one process: they die with it. ``state``: digest of the stage's state."""

    def __init__(self, world: World, peer: PeerId, microbatch_s: float) -> None:
        self.world = world
        self.peer = peer
        self.microbatch_s = microbatch_s
        self.state: Digest = hash_bytes(b"initial", world.run_spec.run.encode())
        self.corrupt_slices: set[int] = set()
        self.parts: dict[Digest, tuple[int, PartDone]] = {}
        self.job: list[Any] | None = None  # [round, index, ids left, ids done, loss]
        self.jobs: list[ev.Compute] = []
        self.exchanging: Digest = b""
        self.pinned: dict[Digest, tuple[SnapshotInfo, Digest]] = {}
        self.pulled: dict[Digest, Digest] = {}  # snapshot key -> state

    def do(self, sim: SimPeer, effect: ev.Effect) -> None:
        handler = getattr(self, f"_{type(effect).__name__.lower()}", None)
        if handler is None:
            raise AssertionError(f"the simulator does not know {type(effect).__name__}")
        handler(sim, effect)

    def _soon(self, sim: SimPeer, delay_s: float, action: Callable[[], None]) -> None:
        """Later, unless this life has ended; a stopped process does it when it goes on."""

        def act() -> None:
            if not sim.alive or sim.halted:
                return
            if sim.stopped:
                self.world.after(0.05, act)
            else:
                action()

        self.world.after(delay_s, act)

    def _carry(self, one: PeerId, other: PeerId, nbytes: int, ways: int = 1) -> float:
        """As ``World.carry``. What is damaged on its way breaks its connection and is sent once more."""
        delay = self.world.carry(one, other, nbytes, ways)
        if self.world.network.spoils(one, self.world.rng):
            delay += self.world.carry(one, other, nbytes, ways=4)
        return delay

    # --- computing -------------------------------------------------------------------------------------------------

    def _compute(self, sim: SimPeer, effect: ev.Compute) -> None:
        self.jobs.append(effect)
        if self.job is None:
            self._next_job(sim)

    def _next_job(self, sim: SimPeer) -> None:
        if self.jobs:
            order = self.jobs.pop(0)
            self.job = [order.round, order.index, list(order.ids), [], 0.0]
            self._microbatch(sim, self.job)

    def _microbatch(self, sim: SimPeer, job: list[Any]) -> None:
        round, index, left, done, loss = job
        if not left:
            self.job = None
            self.world.post(sim, ev.BundleDone(round, index, tuple(done), loss))
            self._next_job(sim)
            return
        sample = left.pop(0)

        def finish() -> None:
            if self.job is not job:
                return
            done.append(sample)
            job[4] += 1.0
            self.world.post(sim, ev.MicrobatchDone(round, sample, self.microbatch_s, 1.0))
            self._microbatch(sim, job)

        self._soon(sim, self.microbatch_s, finish)

    def _shrink(self, sim: SimPeer, effect: ev.Shrink) -> None:
        if self.job is not None and self.job[0] == effect.round:
            self.job[2] = [] if effect.seal else [i for i in self.job[2] if i not in effect.ids]

    # --- exchanging ------------------------------------------------------------------------------------------------

    def _exchange(self, sim: SimPeer, effect: ev.Exchange) -> None:
        begin, digest = effect.begin, effect.begin.digest
        running: _Running = self.world.exchanges.setdefault(digest, _Running(begin))
        self.exchanging = digest
        running.joined.add(self.peer)
        for order in begin.parts:
            if order.fixed is not None:
                continue
            for position in order.bundles:
                if begin.bundles[position].peer == self.peer:
                    self._contribute(sim, running, order, position)
            if order.reducer == self.peer:
                self._reduce(running, order)
                self._soon(sim, effect.patience_s, lambda o=order: self._complain(sim, running, o))  # type: ignore[misc]
            elif order.index in running.done:
                self._receive(sim, running, order)
            else:
                running.waiting.setdefault(order.index, set()).add(self.peer)
                self._soon(sim, effect.patience_s, lambda o=order: self._complain(sim, running, o))  # type: ignore[misc]

    def _contribute(self, sim: SimPeer, running: _Running, order: PartOrder, position: int) -> None:
        nbytes = self.world.costs.wire_bytes(order.stop - order.start)
        delay = self._carry(self.peer, order.reducer, nbytes) + self.world.costs.exchange_s

        def arrive() -> None:
            ok = order.reducer == self.peer or self.world.can_hear(self.peer, order.reducer)
            if ok and self.exchanging == running.begin.digest:
                running.arrived.setdefault(order.index, set()).add(position)
                reducer = self.world.peers.get(order.reducer)
                if reducer is not None:
                    reducer.hands._reduce(running, order)

        self._soon(sim, delay, arrive)

    def _reduce(self, running: _Running, order: PartOrder) -> None:
        """At the reducer: all contributions of the part have arrived?"""
        sim = self.world.peers[self.peer]
        if order.index in running.done or not sim.running or self.exchanging != running.begin.digest:
            return
        if not set(order.bundles) <= running.arrived.get(order.index, set()):
            return
        part = self._average(running.begin, order)
        running.done[order.index] = part
        self._hold(sim, part, running.begin.fence.round)
        self.world.post(sim, ev.PartHeld(running.begin.digest, part))
        for peer in sorted(running.waiting.get(order.index, ())):
            other = self.world.peers.get(peer)
            if other is not None:
                other.hands._receive(other, running, order)

    def _average(self, begin: Begin, order: PartOrder) -> PartDone:
        counted = tuple(sorted(i for position in order.bundles for i in begin.bundles[position].ids))
        ids = counted if self.world.run_spec.exact else (counted, tuple(begin.bundles[p].key for p in order.bundles))
        digest = digest_of((order.start, order.stop, begin.fence.round, begin.fence.parent, ids))
        norm: float | int = len(counted) if self.world.run_spec.exact else float(len(counted))
        nbytes = self.world.costs.wire_bytes(order.stop - order.start)
        return PartDone(order.index, order.start, order.stop, digest, counted, norm, nbytes)

    def _receive(self, sim: SimPeer, running: _Running, order: PartOrder) -> None:
        part = running.done[order.index]
        delay = self._carry(order.reducer, self.peer, part.nbytes)

        def arrive() -> None:
            if self.exchanging == running.begin.digest and self.world.can_hear(self.peer, order.reducer):
                self._hold(sim, part, running.begin.fence.round)
                self.world.post(sim, ev.PartHeld(running.begin.digest, part))

        self._soon(sim, delay, arrive)

    def _complain(self, sim: SimPeer, running: _Running, order: PartOrder) -> None:
        """Patience is over: say what is missing."""
        if self.exchanging != running.begin.digest:
            return
        held = any(
            (p.start, p.stop) == (order.start, order.stop)
            for _, p in self.parts.values()
            if _ == running.begin.fence.round
        )
        if held:
            return
        missing = tuple(sorted(set(order.bundles) - running.arrived.get(order.index, set())))
        reducer = order.reducer != self.peer
        event = ev.PartTroubled(running.begin.digest, order.index, () if reducer else missing, reducer, "silent")
        self.world.post(sim, event)

    def look_for_links(self, sim: SimPeer) -> None:
        """A stream to a reducer without a link breaks at once, and is tried once more: then it is told."""
        running: _Running | None = self.world.exchanges.get(self.exchanging) if self.exchanging else None
        for order in running.begin.parts if running is not None else ():
            if order.fixed is None and order.reducer != self.peer and order.reducer not in sim.links:
                self._soon(sim, RETRY_S, lambda r=running, o=order: self._unlinked(sim, r, o))  # type: ignore[misc]

    def _unlinked(self, sim: SimPeer, running: _Running, order: PartOrder) -> None:
        held = any((p.start, p.stop) == (order.start, order.stop) and n == running.begin.fence.round
                   for n, p in self.parts.values())  # fmt: skip
        if self.exchanging == running.begin.digest and order.reducer not in sim.links and not held:
            event = ev.PartTroubled(running.begin.digest, order.index, (), True, "no link to it")
            self.world.post(sim, event)

    def _stopexchange(self, sim: SimPeer, effect: ev.StopExchange) -> None:
        if self.exchanging == effect.begin_digest:
            self.exchanging = b""
            self.world.post(sim, ev.ExchangeMeasured(effect.begin_digest, 0, 0))

    def _hold(self, sim: SimPeer, part: PartDone, round: int) -> None:
        self.parts[part.digest] = (round, part)

    def _fetchpart(self, sim: SimPeer, effect: ev.FetchPart) -> None:
        delay = self._carry(effect.peer, self.peer, effect.part.nbytes, ways=2)

        def arrive() -> None:
            target = self.world.peers.get(effect.peer)
            if (
                target is not None
                and self.world.can_hear(self.peer, effect.peer)
                and effect.part.digest in target.hands.parts
            ):
                self._hold(sim, effect.part, target.hands.parts[effect.part.digest][0])
                self.world.post(sim, ev.PartHeld(b"", effect.part))
            else:
                self.world.post(sim, ev.PartFetchFailed(effect.part.digest, effect.peer, "not there"))

        self._soon(sim, delay, arrive)

    def _releaseparts(self, sim: SimPeer, effect: ev.ReleaseParts) -> None:
        for digest in [d for d, (round, _) in self.parts.items() if round < effect.before_round]:
            del self.parts[digest]

    # --- state -----------------------------------------------------------------------------------------------------

    def base(self, chain: Digest, round: int) -> BaseDigest:
        index = round % 16
        flaw = b"flip" if index in self.corrupt_slices else b""
        return BaseDigest(chain, index, hash_bytes(self.state, bytes([index]), flaw))

    def _apply(self, sim: SimPeer, effect: ev.Apply) -> None:
        for part in effect.record.parts:
            assert part.digest in self.parts, "I3: applies a part whose bytes are not here"
        if self.job is not None and self.job[0] <= effect.record.round:
            job, self.job = self.job, None
            self.world.post(sim, ev.BundleFailed(job[0], job[1], tuple(job[2]), "decided without it"))
        self.jobs = [order for order in self.jobs if order.round > effect.record.round]

        def finish() -> None:
            self.state = after(self.state, effect.record)
            self.world.post(
                sim, ev.Applied(effect.record.stage, effect.record.round, self.base(effect.chain, effect.record.round))
            )

        self._soon(sim, self.world.costs.apply_s, finish)

    def _pin(self, sim: SimPeer, effect: ev.Pin) -> None:
        costs = self.world.costs
        size = self.world.run_spec.stages[0].size * costs.state_bytes_per_value
        count = max(1, -(-size // costs.chunk_bytes))
        digests = tuple(hash_bytes(self.state, i.to_bytes(4, "big")) for i in range(count))
        info = SnapshotInfo(effect.stage, effect.record, effect.chain, size, costs.chunk_bytes, digests)
        self.pinned[info.key] = (info, self.state)
        self.world.post(sim, ev.SnapshotPinned(info), costs.pin_s)

    def _unpin(self, sim: SimPeer, effect: ev.Unpin) -> None:
        self.pinned.pop(effect.key, None)

    def _pullchunk(self, sim: SimPeer, effect: ev.PullChunk) -> None:
        nbytes = min(effect.info.chunk_bytes, effect.info.total_bytes)
        delay = self._carry(effect.peer, self.peer, nbytes, ways=2)

        def arrive() -> None:
            donor = self.world.peers.get(effect.peer)
            if donor is not None and self.world.can_hear(self.peer, effect.peer) and effect.key in donor.hands.pinned:
                self.pulled[effect.key] = donor.hands.pinned[effect.key][1]
                self.world.post(sim, ev.ChunkPulled(effect.key, effect.index, effect.peer, nbytes, delay))
            else:
                self.world.post(sim, ev.ChunkFailed(effect.key, effect.index, effect.peer, "donor gone"))

        self._soon(sim, delay, arrive)

    def _stopchunk(self, sim: SimPeer, effect: ev.StopChunk) -> None:
        return

    def _loadstate(self, sim: SimPeer, effect: ev.LoadState) -> None:
        def finish() -> None:
            if effect.info.key not in self.pulled:
                self.world.post(sim, ev.StateFailed(effect.info.key, "nothing pulled"))
                return
            self.state = self.pulled[effect.info.key]
            self.corrupt_slices.clear()
            base = self.base(effect.info.chain, effect.info.round)
            self.world.post(sim, ev.StateLoaded(effect.info.key, base))

        self._soon(sim, self.world.costs.load_s, finish)

    def _healslices(self, sim: SimPeer, effect: ev.HealSlices) -> None:
        def finish() -> None:
            self.corrupt_slices -= set(effect.slices)
            stage = self.world.peers[self.peer].node.stage
            round = stage.tip.round if stage.tip else 0
            self.world.post(sim, ev.SlicesHealed(self.base(stage.chain, round), effect.slices))

        self._soon(sim, 0.05, finish)


def after(state: Digest, record: Record) -> Digest:
    """The state after applying ``record`` to ``state``."""
    return hash_bytes(state, *(part.digest for part in record.parts))
