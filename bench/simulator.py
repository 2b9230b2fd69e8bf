"""How much of a swarm the simulator runs in real time, on the production ``Node`` with default knobs.

    python bench/simulator.py --json [--peers 100] [--seconds 300] [--limit 900] [--wide 10000] [--wide-seconds 300]

Full nodes: ``--peers`` production nodes that join within the first tenth of the time, are killed, leave and come back
for ``--seconds`` of virtual time, invariants checked after every event. A microbatch takes a member 5 s and a round has
two per member, so that a round takes some ten seconds, as over a WAN; the founder is quick, does the first rounds alone
and leaves. After ``--limit`` seconds of wall time it stops, and the case names the virtual time reached.

The goal, 10,000 full nodes and 300 virtual seconds within a minute, is not met: every node learns of every other, which
alone is 100 million roster lines, and probes one member a second, which is 6 million messages. So beside them: what one
node's membership and plan cost among ``--wide`` members, driven message by message, with the same churn per member.
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import math
import random
import time

from common import Results

from p2ptrain.core.events import LeaveAsked, LinkUp, Send
from p2ptrain.core.messages import Gossip, Probe, ProbeAck
from p2ptrain.core.plan import plan
from p2ptrain.core.roster import Roster
from p2ptrain.core.types import Knobs, Member, PeerInfo, Plan, Policy, RunSpec, Stage, Status, Voter
from p2ptrain.sim.checks import Checks
from p2ptrain.sim.churn import Storm, Weather
from p2ptrain.sim.network import NetworkModel
from p2ptrain.sim.world import World

GOAL_S = 60.0
PART = 4096
LINKS = 64
CHURN = 0.002  # deaths and joins per member and virtual second: a member stays for some eight minutes
MICROBATCH_S = 5.0
PER_MEMBER = 2


class Drift(Storm):
    """Churn in a large swarm: a victim is drawn, and spared if the commit policy would not survive its loss."""

    def _kills(self) -> None:
        victim = self.world.rng.choice(self._running())
        if self._may_lose(victim):
            self.world.kill(victim)

    def _leaves(self) -> None:
        victim = self.world.rng.choice(self._running())
        if self._may_lose(victim):
            self.leaving.add((victim, self.world.peers[victim].life))
            self.world.post(self.world.peers[victim], LeaveAsked("has done its share"))


def full_nodes(peers: int, seconds: float, limit_s: float = math.inf) -> tuple[World, Checks, float]:
    """Builds the swarm within the first tenth of the time; returns it with the wall seconds of the whole."""
    run = RunSpec("bench", (Stage(0, 0, 3, 3 * PART),), PER_MEMBER * peers, policy=Policy.ANY)
    assert run.knobs == Knobs(), "the bench runs with default knobs"
    world, checks = World(run, 1, NetworkModel()), Checks()
    world.watch.append(checks)
    started = time.perf_counter()
    founder_s = seconds / 30 / (PER_MEMBER * peers)  # it does the first rounds alone
    world.start("p0", founds=True, region="r0", microbatch_s=founder_s)
    for i in range(1, peers):
        world.run(seconds / 10 * i / peers)
        world.start(f"p{i}", region=f"r{i % 4}", microbatch_s=MICROBATCH_S)
    world.run(seconds / 10)
    world.post(world.peers["p0"], LeaveAsked("the others carry the run"))
    rate = CHURN * peers
    drift = Drift(world, Weather(kills=rate, joins=1.25 * rate, leaves=rate / 4, peers_max=peers))
    while world.now < seconds and time.perf_counter() - started < limit_s:
        drift.blow(1.0)
    return world, checks, time.perf_counter() - started


def one_among(members: int, seconds: float) -> tuple[int, float, Plan | None]:
    """One roster, linked to ``LINKS`` of ``members``: probes, answers and gossip of every death and join; plans."""
    rng, knobs = random.Random(1), Knobs()
    run = RunSpec("bench", (Stage(0, 0, 3, PART),), members)
    me = PeerInfo("me", 1, ("me:1",), joined_round=0)
    roster = Roster(me, knobs, rng)
    infos = {f"p{i:05}": PeerInfo(f"p{i:05}", 1, (f"p{i:05}:1",), joined_round=i) for i in range(members - 1)}
    names = sorted(infos)
    handled, made, now, planned_at, version = 0, None, 0.0, 0.0, -1
    started = time.perf_counter()
    for name in names[:LINKS]:
        roster.link_up(LinkUp(infos[name], 0, True), now)
        handled += 1
    whole = Gossip(tuple(Member(info, 0, Status.ALIVE) for info in infos.values()), whole=True)
    roster.received(Voter(names[0], 1), whole, now)
    waiting: list[Member] = []
    while now < seconds:
        now += 0.1
        for _ in range(round(CHURN * members * 0.1 * 2)):
            name = rng.choice(names[LINKS:])
            info = infos[name] = dataclasses.replace(infos[name], life=infos[name].life + 1)
            waiting += [
                Member(dataclasses.replace(info, life=info.life - 1), 0, Status.DEAD),
                Member(info, 0, Status.ALIVE),
            ]
        effects = roster.tick(now)
        while waiting or effects:
            told, waiting = tuple(waiting[: knobs.gossip_updates]), waiting[knobs.gossip_updates :]
            probed = next((e for e in effects if isinstance(e, Send) and isinstance(e.message, Probe)), None)
            effects = [] if probed is None else [e for e in effects if e is not probed]
            sender = Voter(probed.to if probed else rng.choice(names[:LINKS]), 1)
            seq = probed.message.seq if probed and isinstance(probed.message, Probe) else 0
            roster.received(sender, ProbeAck(seq, told) if probed else Gossip(told), now)
            handled += 1
            effects = [e for e in effects if isinstance(e, Send) and isinstance(e.message, Probe)]
        roster.take_changes()
        if now >= planned_at and roster.version != version:
            planned_at, version = now + 0.5, roster.version
            made, _ = plan(run, roster.members(), made, me)
            handled += 1
    return handled, time.perf_counter() - started, made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--peers", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--limit", type=float, default=900.0, help="seconds of wall time for the full nodes")
    parser.add_argument("--wide", type=int, default=10_000)
    parser.add_argument("--wide-seconds", type=float, default=300.0)
    args = parser.parse_args()
    results = Results("simulator", args.json)
    gc.freeze()
    cpu_s = time.process_time()
    world, checks, wall_s = full_nodes(args.peers, args.seconds, args.limit)
    cpu_s = time.process_time() - cpu_s
    rounds = max(sim.node.stage.tip.round for sim in world.peers.values() if sim.node.stage.tip)
    case = f"{args.peers} full nodes, {world.now:.0f} virtual s"
    results.add(
        case, wall_s, "s", f"{GOAL_S:.0f} s for 10,000", None, target="10,000 full nodes within 60 s", met=False,
        events=world.handled, events_per_s=world.handled / wall_s, cpu_s=cpu_s,
        running=sum(sim.running for sim in world.peers.values()), lives=sum(s.life for s in world.peers.values()),
        rounds=rounds, applied=checks.commits, knobs="default",
    )  # fmt: skip
    results.add(f"{case}, against the clock", world.now / wall_s, "virtual s per s", "real time", world.now / wall_s)
    handled, wall_s, made = one_among(args.wide, args.wide_seconds)
    case = f"membership and plan of one node among {args.wide}, {args.wide_seconds:.0f} virtual s"
    results.add(
        case, wall_s, "s", "real time",
        args.wide_seconds / wall_s, events=handled, events_per_s=handled / wall_s,
        assigned=len(made.assignments) if made else 0,
    )  # fmt: skip
    if not args.json:
        results.table()


if __name__ == "__main__":
    main()
