"""Who is in the run and in what state: alive, busy, link down, suspect, dead or left (SWIM with Lifeguard's witnesses).

Decides statuses from evidence, and which members to dial and probe. It does not decide what follows for a round.

    link reset, re-dial refused                    -> DEAD at once (a killed process)
    pings silent, or link lost and dial times out  -> SUSPECT: others are asked; timer -> DEAD, less with witnesses
    another member hears it                        -> LINK_DOWN: dialled again now and then
    link stands, probe late                        -> BUSY, never more
    Leave -> LEFT; a later life -> the earlier one is DEAD; a member that hears itself suspected refutes

Call ``tick`` first for every event of the node (it is cheap before the deadline): a gap between looks at the clock
makes it forget its verdicts (R12) before anything else relies on them.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Mapping
from dataclasses import replace

from p2ptrain.core.contacts import Contact, Suspicion, shortest_suspicion_s
from p2ptrain.core.events import DialFailed, Effect, Hangup, LinkLost, LinkUp, Send
from p2ptrain.core.lines import Change, Lines
from p2ptrain.core.messages import Gossip, Hello, Leave, Message, Probe, ProbeAck, ProbeFor, ProbeReport
from p2ptrain.core.reach import Reach
from p2ptrain.core.rumours import precedence, said, tellable, up_status
from p2ptrain.core.types import Knobs, Member, PeerId, PeerInfo, Status, Voter, short

LEAVES_KEPT = 256

LINKS_MIN = 6
"""Beyond a mesh: so many links at least, to members chosen at random (two until the peer takes part), so that its death
is noticed at once, gossip spreads, and no death of others cuts it off."""

DOUBT_REACH_S = 30.0
"""Own verdicts no older than this are forgotten in doubt; earlier ones rest on evidence from before the gap."""


class Roster:
    """One peer's view of the members. Events in, effects out; deterministic given ``rng`` and the calls.

    ``mesh_max``: up to so many present members every one is linked to every other; beyond, the node names those it
    needs (``link_to``), and ``LINKS_MIN`` at random keep the swarm in one piece.
    """

    def __init__(self, me: PeerInfo, knobs: Knobs, rng: random.Random, mesh_max: int = 64) -> None:
        self._me = me.peer
        self._knobs = knobs
        self._rng = rng
        self.mesh_max = self._mesh_max = mesh_max
        self._lines = Lines(me, knobs)
        self._reach = Reach(me.peer, self._lines, knobs, rng)
        self._contacts = self._reach.table
        self._leaves: dict[PeerId, Leave] = {}
        self._wanted: set[PeerId] = set()
        self._taught_by: PeerId = ""  # who told us its whole roster while we knew nobody else, until its next link
        self._proofs = self._lines.proofs
        self._crowd = 0  # lines of the roster that we are being told whole
        self._now = -math.inf
        self._deadline: float | None = None
        self._probe_at = math.inf
        self._revisit_at = math.inf
        self._doubt_until = math.inf
        self.superseded_by: int | None = None  # a later life of our own key has been seen

    # --- events ------------------------------------------------------------------------------------------------------

    def link_up(self, event: LinkUp, now: float) -> list[Effect]:
        effects = self._wake(now)
        info = event.info
        if info.peer == self._me:
            return effects
        self._proofs.saw_life(info.voter)
        known = self._lines.get(info.peer)
        if (known and info.life < known.info.life) or self._proofs.left(info.voter):
            linked = self.linked(info.peer)
            return effects if linked else [*effects, Hangup(info.peer, "this life of the peer is over")]
        if known and info.life > known.info.life:
            effects += self._retire(known, now)
            known = None
        contact = self._contacts.put(info.peer, Contact(linked=True, met=True, heard_at=now))
        self._taught_by = "" if self._taught_by == info.peer else self._taught_by
        self._end_doubt()
        if self._is_news_to(info, known):
            effects += [Send(info.peer, Gossip(lines, whole=True)) for lines in self._lines.whole()]
            effects += [Send(info.peer, leave) for leave in self._leaves.values() if leave.peer != info.peer]
        if known and known.status in (Status.SUSPECT, Status.DEAD) and known.incarnation >= event.incarnation:
            contact.warned = known.incarnation
            effects.append(Send(info.peer, Gossip((said(known),))))
        newer = known is None or event.incarnation >= known.incarnation
        line = Member(info, event.incarnation, up_status(info)) if newer or known is None else known
        self._put(replace(line, status=up_status(line.info)), now, "link up")
        return effects

    def link_lost(self, event: LinkLost, now: float) -> list[Effect]:
        effects = self._wake(now)
        known, contact = self._lines.get(event.peer), self._contacts.get(event.peer)
        if known is None or contact is None or known.info.life != event.life or not contact.linked:
            return effects
        contact.linked = False
        effects += self._reach.cannot_hear(event.peer)
        if not known.present:
            return effects
        why = "pings unanswered" if event.cause == "silent" else f"link {event.cause}"
        if known.info.diallable:
            effects += self._reach.dial(event.peer, now)
        if event.cause == "silent" or not known.info.diallable:
            effects += self._suspect(event.peer, now, why)
        return effects

    def dial_failed(self, event: DialFailed, now: float) -> list[Effect]:
        effects = self._wake(now)
        contact = self._contacts.get(event.peer)
        if contact is None or contact.linked:
            return effects
        contact.dialling_until = math.inf
        return effects + self._not_reached(event.peer, contact, event.failure, now)

    def received(self, sender: Voter, message: Message, now: float) -> list[Effect]:
        """Any message of a member shows that it lives; those of membership are acted on, others ignored."""
        effects = self._wake(now)
        if isinstance(message, Leave):  # signed: may come from anybody
            return effects + self._on_leave(sender, message, now)
        if isinstance(message, Hello):
            if message.info.peer == sender.peer:
                line = Member(message.info, message.incarnation, up_status(message.info))
                effects += self._learn(line, sender.peer, now)
            return effects
        known = self._lines.get(sender.peer)
        if known is None or known.info.life != sender.life or not known.present:
            return effects
        self._hear(sender.peer, now)
        if isinstance(message, Gossip):
            if message.whole and len(self._lines) <= 2:
                self._taught_by = sender.peer  # a newcomer need not tell the others what they told it
            news = not (message.whole and sender.peer == self._taught_by)
            self._crowd = len(message.updates) if message.whole else 0
            for line in message.updates:
                effects += self._learn(line, sender.peer, now, spread=news)
            self._crowd = 0
        elif isinstance(message, Probe):
            effects += self._learn_all(message.updates, sender.peer, now)
            effects.append(Send(sender.peer, ProbeAck(message.seq, self._lines.piggyback())))
        elif isinstance(message, ProbeAck):
            effects += self._learn_all(message.updates, sender.peer, now)
            effects += self._reach.reports(self._reach.probes.answered(sender.peer, message.seq), heard=True)
        elif isinstance(message, ProbeFor):
            effects += self._reach.probe_for(sender.peer, message, now)
        elif isinstance(message, ProbeReport):
            effects += self._on_probe_report(sender.peer, message, now)
        return effects

    def found(self, infos: Iterable[PeerInfo], now: float) -> list[Effect]:
        """Addresses from the DHT or a cached list: dialled, and members only once a link stands."""
        effects = self._wake(now)
        for info in sorted(infos, key=lambda i: (i.peer, i.life)):
            known = self._lines.get(info.peer)
            later = known is None or info.life > known.info.life or not known.present
            if info.peer == self._me or not later or self._proofs.proven_dead(info.voter) or not info.diallable:
                continue
            few = self._lines.present_count <= self._mesh_max or not self._reach.linked_peers()
            if few or info.peer in self._wanted:
                contact = self._contacts.ensure(info.peer)
                if contact.info is None or contact.info.life <= info.life:
                    contact.info = info
                effects += self._reach.dial(info.peer, now)
        return effects

    def link_to(self, peers: Iterable[PeerId], now: float) -> list[Effect]:
        """The members that the node needs links to beside a mesh (replaces the last such set)."""
        effects = self._wake(now)
        self._wanted = set(peers) - {self._me}
        for peer in sorted(self._wanted):
            known = self._lines.get(peer)
            contact = self._contacts.get(peer)
            if known and known.present and (contact is None or contact.idle):
                effects += self._reach.dial(peer, now)
        return effects

    def expect(self, voters: Iterable[Voter], now: float) -> list[Effect]:
        """These lives are named by a record: one never heard of becomes SUSPECT, so that a verdict on it comes."""
        effects = self._wake(now)
        for voter in voters:
            if voter.peer not in self._lines and not self.is_dead(voter):
                self._put(Member(PeerInfo(*voter), -1, Status.JOINING), now, "named by a record")
                effects += self._suspect(voter.peer, now, "never heard of")
        return effects

    def tick(self, now: float) -> list[Effect]:
        """Whatever is due by ``now``; returns at once before ``deadline()``."""
        if now < self.deadline():
            self._now = max(self._now, now)
            return []
        effects = self._wake(now)
        if now >= self._doubt_until:
            self._end_doubt()
        for peer in self._reach.probes.turned_late(now):
            known = self._lines[peer]
            if self.linked(peer) and known.status in (Status.ALIVE, Status.JOINING):
                self._lines.set_status(peer, Status.BUSY, now, "probe late while the link stands")
        for peer in sorted(self._contacts.restless):
            contact = self._contacts.get(peer)
            if contact is not None and contact.wakes(self._knobs) <= now:
                effects += self._contact_due(peer, contact, now)
        if now >= self._probe_at:
            effects += self._probe_next(now)
        if now >= self._revisit_at:
            effects += self._revisit(now)
        return effects

    def update_me(self, info: PeerInfo) -> None:
        """A new description of ourselves (same life): supersedes the old one everywhere."""
        mine = self._lines[self._me]
        self._put(Member(info, mine.incarnation + 1, up_status(info)), max(self._now, 0.0), "updated")

    def take_changes(self) -> list[Change]:
        return self._lines.take_changes()

    # --- questions ---------------------------------------------------------------------------------------------------

    def deadline(self) -> float:
        """When ``tick`` next has something to do; ``math.inf`` while nobody else is known."""
        if self._deadline is None:
            self._deadline = min(self._probe_at, self._revisit_at, self._doubt_until, self._reach.wakes())
        return self._deadline

    @property
    def doubting(self) -> bool:
        """After a gap in our own time, until somebody is heard or a probing period has passed (R12): do not lead."""
        return self._doubt_until < math.inf

    @property
    def version(self) -> int:
        """Grows whenever any line changes."""
        return self._lines.version

    @property
    def incarnation(self) -> int:
        return self._lines[self._me].incarnation

    @property
    def table(self) -> Mapping[PeerId, Member]:
        """The lines by peer id, live and not to be changed: for who looks often among many members."""
        return self._lines.table

    def members(self) -> list[Member]:
        return self._lines.all()

    def present(self) -> list[Member]:
        return [self._lines[peer] for peer in self._lines.present]

    @property
    def present_ids(self) -> list[PeerId]:
        """By id, one's own included; alive, and not to be changed."""
        return self._lines.present

    def get(self, peer: PeerId) -> Member | None:
        return self._lines.get(peer)

    def linked(self, peer: PeerId) -> bool:
        return self._reach.linked(peer)

    def is_dead(self, voter: Voter) -> bool:
        """Our verdict on this life: dead or left, or a later life is known."""
        return self._lines.is_dead(voter)

    def is_proven_dead(self, voter: Voter) -> bool:
        """A signed goodbye of this life, or a signed info of a later one, has been seen. Silence proves nothing."""
        return self._proofs.proven_dead(voter)

    def describe(self) -> str:
        told = ", ".join(f"{count} {status.value}" for status, count in self._lines.counts().items())
        running = [(peer, self._contacts[peer].suspicion) for peer in self._contacts.suspected()]
        silent = [f"{short(peer)} ({suspicion.why})" for peer, suspicion in running if suspicion]
        tail = f"; suspected: {', '.join(silent)}" if silent else ""
        links = len(self._reach.linked_peers())
        return f"{len(self._lines)} members: {told}; {links} links{tail}{', in doubt' if self.doubting else ''}"

    def check(self) -> None:
        """Asserts what must hold after every event."""
        self._lines.check(self._contacts.suspected())
        for peer, contact in self._contacts.items():
            assert contact.waits == (peer in self._contacts.restless), peer
            known = self._lines.get(peer)
            assert not contact.linked or (known is not None and known.present), peer

    # --- what lines say ----------------------------------------------------------------------------------------------

    def _learn_all(self, lines: Iterable[Member], source: PeerId, now: float) -> list[Effect]:
        return [effect for line in lines for effect in self._learn(line, source, now)]

    def _learn(self, line: Member, source: PeerId, now: float, spread: bool = True) -> list[Effect]:
        """A line that ``source`` tells us, merged by precedence; what we hear ourselves outweighs hearsay."""
        info = line.info
        peer = info.peer
        if peer == self._me:
            return self._about_me(said(line), source, now)
        known = self._lines.get(peer)
        if (
            known is not None
            and known.info.life == info.life
            and known.incarnation >= line.incarnation
            and line.present
            and line.status is not Status.SUSPECT
        ):
            return []  # told before: nearly all of what is heard, so first of all
        line = said(line)
        self._proofs.saw_life(info.voter)
        if line.status is not Status.LEFT and self._proofs.left(line.info.voter):
            return []
        if known is None or line.info.life > known.info.life:
            effects = self._retire(known, now) if known else []
            if not line.present or (self._proofs.buried(line.info.voter) and line.incarnation <= 0):
                self._proofs.bury(line.info.voter)
                return effects
            up = line if line.status is not Status.SUSPECT else replace(line, status=up_status(info))
            self._put(up, now, f"told by {short(source)}", spread)
            if line.status is Status.SUSPECT:
                return effects + self._suspect(peer, now, f"suspected by {short(source)}", direct=False)
            return effects + self._meet(peer, now)
        told, ours = precedence(line), precedence(known)
        if told <= ours:
            behind = told < ours and line.status is not up_status(line.info)
            return [Send(source, Gossip((said(known),)))] if behind and self.linked(source) else []
        if line.status is Status.LEFT:
            self._put(replace(known, info=line.info, incarnation=line.incarnation), now, "")
            return self._gone(peer, Status.LEFT, now, f"left, says {short(source)}")
        if line.status in (Status.SUSPECT, Status.DEAD):
            return self._hearsay(known, line, source, now)
        return self._better_known(known, line, now)

    def _hearsay(self, known: Member, line: Member, source: PeerId, now: float) -> list[Effect]:
        """Somebody holds a member suspect or dead that we do not."""
        peer = line.info.peer
        contact = self._contacts.get(peer)
        if contact is not None and contact.linked:  # we hear it: let it refute
            if contact.warned >= line.incarnation:
                return []
            contact.warned = line.incarnation
            return [Send(peer, Gossip((line,)))]
        heard_s = now - contact.heard_at if contact is not None else math.inf
        if line.status is Status.SUSPECT and known.status is Status.LINK_DOWN and heard_s < self._knobs.suspicion_max_s:
            return []
        self._put(replace(known, info=line.info, incarnation=line.incarnation), now, "")
        if line.status is Status.DEAD:
            return self._gone(peer, Status.DEAD, now, f"dead, says {short(source)}")
        effects = self._suspect(peer, now, f"suspected by {short(source)}", direct=False)
        return effects + (self._reach.ask(peer, now) if contact is not None and contact.met else [])

    def _better_known(self, known: Member, line: Member, now: float) -> list[Effect]:
        """A higher incarnation: it lives, or describes itself anew."""
        peer = line.info.peer
        local = known.status in (Status.BUSY, Status.LINK_DOWN)
        cause = "refuted" if known.status in (Status.SUSPECT, Status.DEAD) else f"joined at {line.info.joined_round}"
        self._put(replace(line, status=known.status if local else up_status(line.info)), now, cause)
        contact = self._contacts.get(peer)
        if contact is not None:
            contact.suspicion, contact.heard_at = None, now
        return [] if self.linked(peer) or local else self._meet(peer, now)

    def _about_me(self, line: Member, source: PeerId, now: float) -> list[Effect]:
        mine = self._lines[self._me]
        if line.info.life > mine.info.life:
            self.superseded_by = line.info.life
            return []
        if line.info.life < mine.info.life:
            return [Send(source, Gossip((said(mine),)))] if line.present and self.linked(source) else []
        harmless = line.present and line.status is not Status.SUSPECT
        if harmless or line.incarnation < mine.incarnation:
            return []
        mine = replace(mine, incarnation=line.incarnation + 1)
        self._put(mine, now, "refuted")
        return self._reach.push(Gossip((said(mine),)), first=source)

    def _on_leave(self, sender: Voter, leave: Leave, now: float) -> list[Effect]:
        voter = Voter(leave.peer, leave.life)
        if leave.peer == self._me or self._proofs.left(voter):
            return []
        self._proofs.saw_leave(voter)
        self._leaves.pop(leave.peer, None)
        self._leaves[leave.peer] = leave
        if len(self._leaves) > LEAVES_KEPT:
            del self._leaves[next(iter(self._leaves))]
        known = self._lines.get(leave.peer)
        effects: list[Effect] = []
        if known and known.info.life <= leave.life and known.status is not Status.LEFT:
            effects += self._gone(leave.peer, Status.LEFT, now, f"left: {leave.reason or 'no reason given'}")
        return effects + (self._reach.push(leave) if sender.peer == leave.peer else [])

    # --- indirect probes ---------------------------------------------------------------------------------------------

    def _on_probe_report(self, helper: PeerId, report: ProbeReport, now: float) -> list[Effect]:
        known = self._lines.get(report.target)
        contact = self._contacts.get(report.target)
        if known is None or report.target == self._me or known.status is Status.LEFT:
            return []
        same_life = report.life == known.info.life
        if report.heard:
            return self._heard_by(known, helper, now) if same_life else []
        if contact is not None and contact.suspicion is not None:
            contact.suspicion.asked.discard(helper)
            if same_life:
                contact.suspicion.witnesses.add(helper)
        return []

    def _heard_by(self, known: Member, helper: PeerId, now: float) -> list[Effect]:
        """The peer lives, only our link to it is down."""
        peer = known.info.peer
        contact = self._contacts.ensure(peer, met=True)
        contact.heard_at = now
        if contact.linked:
            return []
        contact.suspicion = None
        if known.status is not Status.LINK_DOWN:
            contact.redials = 0
            self._lines.set_status(peer, Status.LINK_DOWN, now, f"no link, but {short(helper)} hears it")
        if known.info.diallable and not contact.dialling and contact.redial_at == math.inf:
            contact.redial_at = now + self._knobs.redial_s
        elif not known.info.diallable:
            contact.redial_at = now + self._knobs.redial_s  # asks again instead
        return []

    # --- suspicion and death -----------------------------------------------------------------------------------------

    def _suspect(self, peer: PeerId, now: float, why: str, direct: bool = True) -> list[Effect]:
        """Starts the timer; ``direct`` evidence (our own) runs shorter and asks others."""
        contact = self._contacts.ensure(peer)
        patience_s = self._knobs.suspicion_s if direct and contact.met else self._knobs.suspicion_max_s
        running = contact.suspicion
        if running is not None and running.patience_s <= patience_s:
            return []
        contact.suspicion = Suspicion(now, why, patience_s)
        contact.redial_at = math.inf
        self._lines.set_status(peer, Status.SUSPECT, now, why)
        return self._reach.ask(peer, now) if direct else []

    def _not_reached(self, peer: PeerId, contact: Contact, failure: str, now: float) -> list[Effect]:
        """A dial ended without a link."""
        known = self._lines.get(peer)
        if known is None or not known.present:
            contact.info = None
            if contact.idle:
                self._contacts.pop(peer)
            return []
        if known.status is Status.LINK_DOWN:
            contact.redials += 1
            if contact.heard_at < contact.asked_at:  # nobody answered for it since the last question
                return self._suspect(peer, now, f"dial {failure}, and nobody hears it any more")
            contact.redial_at = now + self._knobs.redial_s * 2 ** min(contact.redials, 3)
            return self._reach.ask(peer, now)
        if failure == "refused" and contact.met:
            return self._gone(peer, Status.DEAD, now, "link lost and connection refused", own=True)
        return self._suspect(peer, now, f"dial {failure}")

    def _contact_due(self, peer: PeerId, contact: Contact, now: float) -> list[Effect]:
        suspicion = contact.suspicion
        if suspicion is not None and suspicion.ends(self._knobs) <= now:
            told = f"{len(suspicion.witnesses)} of {suspicion.helpers} others lost it too"
            cause = f"{suspicion.why}; silent for {now - suspicion.since:.2f} s; {told}"
            return self._gone(peer, Status.DEAD, now, cause, own=True)
        if contact.dialling_until <= now:
            contact.dialling_until = math.inf
            return self._not_reached(peer, contact, "timeout", now)
        if contact.redial_at <= now:
            contact.redial_at = math.inf
            known = self._lines[peer]
            if known.info.diallable:
                return self._reach.dial(peer, now)
            return self._not_reached(peer, contact, "not possible", now)
        return []

    def _gone(self, peer: PeerId, status: Status, now: float, cause: str, own: bool = False) -> list[Effect]:
        """The one place where a life ends."""
        effects = self._reach.cannot_hear(peer)
        contact = self._contacts.pop(peer)
        if contact is not None and contact.linked:
            effects.append(Hangup(peer, cause))
        self._lines.entomb(peer, status, now, cause, own)
        if own and tellable(self._lines[peer]):
            effects += self._reach.push(Gossip((said(self._lines[peer]),)))
        if self._revisit_at == math.inf:
            self._revisit_at = now + 2 * self._knobs.redial_s
        return effects

    def _retire(self, known: Member, now: float) -> list[Effect]:
        """A later life of the peer is known: this one is over."""
        effects = self._reach.cannot_hear(known.info.peer)
        self._contacts.pop(known.info.peer)
        self._lines.retire(known.info.peer)
        return effects

    # --- doubt (R12) -------------------------------------------------------------------------------------------------

    def _wake(self, now: float) -> list[Effect]:
        """Start of every event: how late is it against what was promised?"""
        late_s = now - max(self.deadline(), self._now)
        self._now = max(self._now, now)
        self._deadline = None
        if late_s > shortest_suspicion_s(self._knobs) / 2 and len(self._lines) > 1:
            return self._doubt(now, late_s)
        return []

    def _doubt(self, now: float, late_s: float) -> list[Effect]:
        cause = f"doubt after a pause of {late_s:.2f} s"
        effects: list[Effect] = []
        self._reach.probes.forget()
        recent = [p for p, g in self._lines.graves.items() if g.own and now - late_s - g.at <= DOUBT_REACH_S]
        for peer in sorted({*recent, *self._contacts.suspected()}):
            known = self._lines[peer]
            if known.status is Status.LEFT or self._proofs.proven_dead(known.info.voter):
                continue
            contact = self._contacts.ensure(peer, met=True)
            contact.suspicion = None
            self._lines.set_status(peer, up_status(known.info), now, cause)
            effects += self._reach.dial(peer, now) if known.info.diallable else self._suspect(peer, now, cause)
        for contact in list(self._contacts.restless.values()):
            if contact.dialling:
                contact.dialling_until = now + 2 * self._knobs.dial_timeout_s
        self._doubt_until = now + self._knobs.probe_period_s
        self._probe_at = self._doubt_until
        for peer in self._reach.linked_peers():
            effects.append(self._reach.probe(peer, now))
        return effects

    def _end_doubt(self) -> None:
        self._doubt_until = math.inf

    def _hear(self, peer: PeerId, now: float) -> None:
        self._end_doubt()
        contact = self._contacts.get(peer)
        if contact is None or not contact.linked:
            return
        contact.heard_at = now
        known = self._lines[peer]
        if known.status is Status.BUSY:
            self._lines.set_status(peer, up_status(known.info), now, "heard again")

    # --- dials, probes, rumours --------------------------------------------------------------------------------------

    def _meet(self, peer: PeerId, now: float) -> list[Effect]:
        """A member to be linked to: the smaller id dials at once, the other if nothing came of it."""
        contact = self._contacts.get(peer)
        if contact is not None and not contact.idle:
            return []
        if max(self._lines.present_count, self._crowd) > self._mesh_max and peer not in self._wanted:
            return []
        mine = self._lines[self._me].info
        if not self._lines[peer].info.diallable:
            return []
        if self._me > peer and mine.diallable and contact is None:
            self._contacts.put(peer, Contact(redial_at=now + self._knobs.probe_period_s))
            return []
        return self._reach.dial(peer, now)

    def _probe_next(self, now: float) -> list[Effect]:
        for peer in self._lines.forget_old(now):
            self._leaves.pop(peer, None)
            self._contacts.pop(peer)
        others = self._lines.present_count > 1 or self._lines.graves
        self._probe_at = now + self._knobs.probe_period_s if others else math.inf
        target = self._reach.probes.next_target(self._reach.linked_peers())
        probes = [self._reach.probe(target, now)] if target is not None else []
        return [*probes, *self._link_at_random(now)]

    def _link_at_random(self, now: float) -> list[Effect]:
        """Beyond a mesh: one more link each time while there are too few."""
        present = self._lines.present
        if len(present) <= self._mesh_max:
            return []
        takes_part = self._lines[self._me].info.joined_round >= 0
        if len(self._reach.linked_peers()) >= (LINKS_MIN if takes_part else 2):
            return []
        peer = self._rng.choice(present)
        contact = self._contacts.get(peer)
        return self._reach.dial(peer, now) if peer != self._me and (contact is None or contact.idle) else []

    def _is_news_to(self, info: PeerInfo, known: Member | None) -> bool:
        """Whether a member that has just linked to us is told our whole roster.

        Not one that takes part in a large swarm and of which only we had not heard yet: it has met others before.
        """
        if known is not None:
            return not known.present
        return info.joined_round < 0 or self._lines.present_count <= self._mesh_max

    def _revisit(self, now: float) -> list[Effect]:
        """Dials one of the dead now and then, so that two halves of a partition find each other again."""
        able = [
            peer
            for peer in self._lines.graves
            if self._lines[peer].info.diallable and not self._proofs.proven_dead(self._lines[peer].info.voter)
        ]
        self._revisit_at = now + 2 * self._knobs.redial_s if able else math.inf
        return self._reach.dial(self._rng.choice(able), now) if able else []

    def _put(self, line: Member, now: float, cause: str, spread: bool = True) -> None:
        self._lines.put(line, now, cause, spread)
        if self._probe_at == math.inf and self._lines.present_count > 1:
            self._probe_at = now + self._rng.uniform(0.0, self._knobs.probe_period_s)
