"""What must hold after every event, over all processes at once: the invariants of the round protocol (section 7).

I1 one decided record     I2 chains      I3 accepted => held     I4 decided => a live holder
I5 promised never falls   I6/I7 in the node's own checks        I8 equal history => equal state
C3 exact: every part counts the whole round     G4 an id is counted in one round of a history at most
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

from p2ptrain.core import events as ev
from p2ptrain.core.messages import Accept, Commit
from p2ptrain.core.types import Ballot, Digest, PeerId, Policy, Record, Voter, cut_of
from p2ptrain.sim.hands import after
from p2ptrain.sim.world import SimPeer, World

ROSTER_EVERY = 8
"""A roster's own bookkeeping is looked through at every eighth event, in a large swarm more seldom, so that its share
of the time stays the same: it takes longer than all the rest."""


class Violation(AssertionError):
    """An invariant does not hold. The text names it, the peer, the round and the virtual time."""


@dataclass
class Checks:
    """Attach with ``world.watch.append(checks)``. ``true_verdicts``: no live peer is taken for dead (I1, any)."""

    true_verdicts: bool = True
    decided: dict[tuple[int, int, Digest], dict[Digest, Record]] = field(default_factory=dict)
    states: dict[Digest, Digest] = field(default_factory=dict)
    spent: dict[Digest, frozenset[int]] = field(default_factory=dict)  # cut -> ids counted up to it
    promised: dict[Voter, tuple[int, Digest, Ballot]] = field(default_factory=dict)
    accepts: dict[Voter, dict[tuple[int, Digest, Ballot], Digest]] = field(default_factory=dict)
    commits: int = 0
    last_commit: float = 0.0

    def __call__(self, world: World, sim: SimPeer, event: ev.Event, effects: list[ev.Effect]) -> None:
        try:
            sim.node.check()
            if world.handled % _roster_every(len(sim.node.roster.table)) == 0:
                sim.node.roster.check()
            self._promises(sim)
            self._sent(world, sim, effects)
            if isinstance(event, ev.Applied):
                self._applied(world, sim)
            if isinstance(event, ev.StateLoaded):
                self._loaded(sim)
        except AssertionError as error:
            where = f"t={world.now:.4f} {sim.peer}#{sim.life} round {sim.node.stage.round}, seed {world.seed}"
            raise Violation(f"{error} ({where})") from error

    def _promises(self, sim: SimPeer) -> None:
        stage = sim.node.stage
        voter = Voter(sim.peer, sim.life)
        before = self.promised.get(voter)
        now = (stage.round, stage.cut, stage.promised)
        if before is not None and before[:2] == now[:2]:
            assert now[2] >= before[2], "I5: promised fell within a round"
        self.promised[voter] = now
        if stage.accepted is not None:
            for part in stage.accepted[1].parts:
                assert part.digest in sim.hands.parts, "I3: accepted a record whose bytes are not here"

    def _sent(self, world: World, sim: SimPeer, effects: list[ev.Effect]) -> None:
        for effect in effects:
            if isinstance(effect, ev.Send) and isinstance(effect.message, Accept):
                fence = effect.message.fence
                mine = self.accepts.setdefault(Voter(sim.peer, sim.life), {})
                key = (fence.round, fence.parent, fence.ballot)
                assert mine.setdefault(key, effect.message.record_digest) == effect.message.record_digest, (
                    "two accepts in a ballot"
                )
            elif isinstance(effect, ev.Send) and isinstance(effect.message, Commit):
                self._decided(world, effect.message.record)
            elif isinstance(effect, ev.Apply):
                self._decided(world, effect.record)

    def _decided(self, world: World, record: Record) -> None:
        key = (record.lineage, record.round, record.parent)
        known = self.decided.setdefault(key, {})
        if record.digest in known:
            return
        known[record.digest] = record
        if world.run_spec.policy is Policy.MAJORITY or self.true_verdicts:
            assert len(known) == 1, "I1: two decided records of one round"
        holders = [p for p in world.peers.values() if p.alive and all(x.digest in p.hands.parts for x in record.parts)]
        assert holders, "I4: decided, and nobody alive holds it whole"
        if world.run_spec.exact:
            for part in record.parts:
                assert len(set(part.counted)) == len(part.counted) == world.run_spec.microbatches, (
                    "C3: a part lacks ids"
                )
        counted = [i for part in record.parts for i in set(part.counted)]
        before = self.spent.get(record.parent, frozenset())
        assert before.isdisjoint(counted), "G4: an id is counted in two rounds"
        assert set(counted) <= set(record.spent_ids), "C4: counted and not spent"
        self.spent[cut_of((record,))] = before | frozenset(counted)
        size = world.run_spec.stages[0].size
        edges = sorted((part.start, part.stop) for part in record.parts)
        assert edges and edges[0][0] == 0 and edges[-1][1] == size, "parts do not tile the stage"
        assert all(a[1] == b[0] for a, b in pairwise(edges)), "parts overlap or leave gaps"

    def _applied(self, world: World, sim: SimPeer) -> None:
        tip = sim.node.stage.tip
        if tip is None:
            return
        self.commits += 1
        self.last_commit = world.now
        assert (tip.lineage, tip.round, tip.parent) in self.decided, "I2: applied and not decided"
        expected = self.states.get(sim.node.stage.cut)
        if expected is None:
            self.states[sim.node.stage.cut] = sim.hands.state
        else:
            assert expected == sim.hands.state, "I8: equal history, unequal state"

    def _loaded(self, sim: SimPeer) -> None:
        cut = sim.node.stage.cut
        if sim.node.stage.tip is not None and cut in self.states:
            assert self.states[cut] == sim.hands.state, "I8: loaded state is not that of its record"


def _roster_every(members: int) -> int:
    return ROSTER_EVERY if members <= 8 * ROSTER_EVERY else members // 2


def recompute(states: Digest, records: list[Record]) -> Digest:
    """The state that a history must have, from its records alone."""
    for record in records:
        states = after(states, record)
    return states


def heads(world: World) -> dict[PeerId, tuple[int, Digest]]:
    """(round, cut) of every running process that has state."""
    return {
        peer: (sim.node.stage.tip.round, sim.node.stage.cut)
        for peer, sim in world.peers.items()
        if sim.running and sim.node.stage.tip is not None
    }
