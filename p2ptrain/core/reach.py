"""Contacts, dials, probes and questions to others: how a roster reaches members. Effects out, no verdicts.

ask(c)          ->  ProbeFor(c) to up to ``indirect_probes`` linked members
probe_for(c)    ->  our own Probe to c on behalf of the asker, or ProbeReport if there is nothing to wait for
cannot_hear(c)  ->  whoever asked us about c is told so
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable

from p2ptrain.core.contacts import Contacts
from p2ptrain.core.events import Dial, Effect, Send
from p2ptrain.core.lines import Lines
from p2ptrain.core.messages import Message, Probe, ProbeFor, ProbeReport
from p2ptrain.core.probes import Outstanding, Probes
from p2ptrain.core.types import Knobs, PeerId, Status

PUSH_MAX = 8
"""Members told at once of a death, a refutation or a goodbye; the rest learn by gossip."""


class Reach:
    """One peer's contacts by peer id, and its unanswered probes. Deterministic given ``rng``."""

    def __init__(self, me: PeerId, lines: Lines, knobs: Knobs, rng: random.Random) -> None:
        self._me = me
        self._lines = lines
        self._knobs = knobs
        self._rng = rng
        self.table = Contacts()
        self.probes = Probes(knobs, rng)

    def linked(self, peer: PeerId) -> bool:
        contact = self.table.get(peer)
        return contact is not None and contact.linked

    def linked_peers(self) -> list[PeerId]:
        return self.table.linked()

    def wakes(self) -> float:
        """When some contact or probe next wants to be looked at."""
        soonest = self.probes.wakes()
        for contact in self.table.restless.values():
            if not contact.linked or contact.suspicion is not None or contact.redial_at < math.inf:
                soonest = min(soonest, contact.wakes(self._knobs))
        return soonest

    def probe(self, peer: PeerId, now: float, asker: PeerId = "", asker_seq: int = 0) -> Send:
        return Send(peer, Probe(self.probes.send(peer, now, asker, asker_seq), self._lines.piggyback()))

    def dial(self, peer: PeerId, now: float) -> list[Effect]:
        contact = self.table.ensure(peer)
        known = self._lines.get(peer)
        info = contact.info or (known.info if known else None)
        if info is None or not info.diallable or contact.linked or contact.dialling:
            return []
        contact.redial_at = math.inf
        contact.dialling_until = now + 2 * self._knobs.dial_timeout_s
        return [Dial(peer, info.addresses, self._knobs.dial_timeout_s)]

    def push(self, message: Message, first: PeerId = "") -> list[Effect]:
        """Tells linked members at once: all of a small swarm, some of a large one."""
        others = [peer for peer in self.linked_peers() if peer != first]
        if len(others) > PUSH_MAX:
            others = sorted(self._rng.sample(others, PUSH_MAX))
        targets = [first, *others] if first and self.linked(first) else others
        return [Send(peer, message) for peer in targets]

    def ask(self, peer: PeerId, now: float) -> list[Effect]:
        """Asks up to ``indirect_probes`` linked members whether they hear ``peer``."""
        contact = self.table[peer]
        able = [p for p in self.linked_peers() if p != peer]
        helpers = sorted(self._rng.sample(able, min(len(able), self._knobs.indirect_probes)))
        contact.asked_at = now
        if contact.suspicion is not None:
            contact.suspicion.asked = set(helpers)
            contact.suspicion.helpers = len(helpers)
        return [Send(helper, ProbeFor(self.probes.next_seq(), peer)) for helper in helpers]

    def probe_for(self, asker: PeerId, question: ProbeFor, now: float) -> list[Effect]:
        """True comes with the target's answer; False if we lost it too; life 0 if we never had a link to it.

        While our own link stands and the target does not answer, so do we not: that tells nothing.
        """
        if question.target == self._me:
            mine = self._lines[self._me]
            return [Send(asker, ProbeReport(question.seq, self._me, mine.info.life, True))]
        known, contact = self._lines.get(question.target), self.table.get(question.target)
        if contact is not None and contact.linked:
            return [self.probe(question.target, now, asker, question.seq)]
        life = 0
        if known is not None and known.status is not Status.LINK_DOWN:
            lost = not known.present or (contact is not None and contact.met)
            life = known.info.life if lost else 0
        return [Send(asker, ProbeReport(question.seq, question.target, life, False))]

    def reports(self, ended: Iterable[Outstanding], heard: bool) -> list[Effect]:
        effects: list[Effect] = []
        for probe in ended:
            known = self._lines.get(probe.target)
            if probe.asker and known is not None and self.linked(probe.asker):
                report = ProbeReport(probe.asker_seq, probe.target, known.info.life, heard)
                effects.append(Send(probe.asker, report))
        return effects

    def cannot_hear(self, peer: PeerId) -> list[Effect]:
        """Our link to ``peer`` is gone: it answers no question of ours, nor those that we were asked."""
        for other in self.table.restless.values():
            if other.suspicion is not None:
                other.suspicion.asked.discard(peer)
        return self.reports(self.probes.unreachable(peer), heard=False)
