"""One peer's life as a pure machine: events in, effects out. No clock, no I/O, no torch.

Decides nothing by itself: it owns the machines that do, hands each event to those it concerns, and lets them look
again afterwards. The same class runs under the real runtime and under the simulator.

    roster      who is there, dead, silent, busy          rounds       a member's side of the round
    filling     what we compute                           leading      a leader's side        succession  who leads
    coordinating  who computes what                       catchup      how state comes here   donating    how it leaves
"""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Callable
from typing import Any

from p2ptrain.core import events as ev
from p2ptrain.core import messages as msg
from p2ptrain.core.catchup import CatchUp
from p2ptrain.core.compose import genesis
from p2ptrain.core.coordinating import Coordinating
from p2ptrain.core.desk import Desk
from p2ptrain.core.donating import Donating
from p2ptrain.core.filling import Filling
from p2ptrain.core.knocking import Knocking
from p2ptrain.core.leaving import Leaving
from p2ptrain.core.planning import Planning
from p2ptrain.core.results import result_of
from p2ptrain.core.roster import Roster
from p2ptrain.core.rounds import StageRound
from p2ptrain.core.stalls import Stalls, waits_of
from p2ptrain.core.succession import Succession
from p2ptrain.core.types import (
    BaseDigest,
    Head,
    PeerId,
    PeerInfo,
    RunSpec,
    Status,
    Voter,
    Wait,
    hash_bytes,
    short,
)
from p2ptrain.core.view import View

_ROUND = (msg.Close, msg.Filled, msg.Begin, msg.Have, msg.Trouble, msg.Propose, msg.Accept)
_CHAT = (msg.Gossip, msg.Probe, msg.ProbeAck, msg.ProbeFor, msg.ProbeReport)  # news to the others only by a new line
_ROSTER = (*_CHAT, msg.Leave, msg.Hello)


class Node:
    """``handle`` takes one event and returns its effects; ``deadline`` is when it next wants ``Ticked``.

    Deterministic: same run, info, rng state and events give the same effects. Raises nothing on any event; a remote
    that breaks the rules is logged and ignored. ``check`` asserts the invariants (tests and simulation).
    """

    def __init__(self, run: RunSpec, info: PeerInfo, rng: random.Random) -> None:
        self.run = run
        self.desk = Desk(info.voter, rng)
        self.roster = Roster(info, run.knobs, rng)
        heads: dict[PeerId, Head] = {}
        self.view = View(self.roster, self.desk, run.knobs, heads)
        members = self.view.members
        self.stage = StageRound(run, run.stages[0], self.desk, self.view.present)
        self.succession = Succession(
            self.stage, members, self.roster.is_dead, self.roster.is_proven_dead, self._may_lead, self.view.has_state
        )
        self.coordinating = Coordinating(self.stage, members)
        self.filling = Filling(self.stage)
        self.planning = Planning(run, self.desk, members)
        self.donating = Donating(self.stage)
        self.catchup = CatchUp(self.stage, self.view.donors, self._new_round, heads)
        self.knocking = Knocking(self.desk, run.knobs)
        self.leaving = Leaving(self)
        self.stalls = Stalls(self)
        self.halted = False
        self.bytes_sent = 0
        self.bytes_received = 0
        self._machines_at: float | None = None  # the earliest deadline beside the roster's, as of the last settling
        self._handlers = self._table()

    def _table(self) -> dict[type[ev.Event], Callable[[Any], None]]:
        return {
            ev.Started: self._on_started,
            ev.Ticked: self._on_ticked,
            ev.Received: lambda e: self._on_received(e.sender, e.message),
            ev.LinkUp: self._on_link_up,
            ev.LinkLost: lambda e: self._roster(self.roster.link_lost(e, self.desk.now)),
            ev.DialFailed: lambda e: self._roster(self.roster.dial_failed(e, self.desk.now)),
            ev.PeersFound: lambda e: self._roster(self.roster.found(e.infos, self.desk.now)),
            ev.MicrobatchDone: self.filling.on_microbatch,
            ev.BundleDone: self.filling.on_bundle,
            ev.BundleFailed: self.filling.on_bundle,
            ev.PartHeld: self.stage.part_held,
            ev.PartTroubled: self.stage.part_troubled,
            ev.PartFetchFailed: self.stage.part_fetch_failed,
            ev.ExchangeMeasured: self._on_measured,
            ev.Applied: self._on_applied,
            ev.SnapshotPinned: self.donating.on_pinned,
            ev.PinFailed: self.donating.on_pin_failed,
            ev.ChunkPulled: self.catchup.on_chunk,
            ev.ChunkFailed: self.catchup.on_chunk,
            ev.StateLoaded: self.catchup.on_loaded,
            ev.StateFailed: self.catchup.on_load_failed,
            ev.SlicesHealed: self._on_healed,
            ev.LeaveAsked: self.leaving.on_asked,
        }

    # --- the contract ----------------------------------------------------------------------------------------------

    def handle(self, event: ev.Event, now: float) -> list[ev.Effect]:
        """One event in, its effects out, in order. After ``Halt`` every event is dropped."""
        if self.halted:
            return []
        self.desk.now = max(now, self.desk.now)
        version, doubting = self.roster.version, self.roster.doubting
        self._roster(self.roster.tick(self.desk.now))
        self._handlers[type(event)](event)
        chat = isinstance(event, ev.Received) and isinstance(event.message, _CHAT)
        if not chat or doubting or self.desk.local or self.roster.version != version:
            self._settle()
            self._machines_at = None
        effects = self.desk.take()
        self.halted = any(isinstance(effect, ev.Halt) for effect in effects)
        return effects

    def deadline(self) -> float:
        """When a ``Ticked`` is wanted; ``math.inf`` if never."""
        if self.halted:
            return math.inf
        if self._machines_at is None:
            self._machines_at = min(
                self.succession.deadline(),
                self.coordinating.deadline(),
                self.planning.deadline(),
                self.donating.deadline(),
                self.catchup.deadline(),
                self.knocking.at,
                self.leaving.deadline(),
                self.stalls.deadline(),
                self.stage.deadline(),
            )
        return min(self._machines_at, self.roster.deadline())

    def describe(self) -> str:
        """One line for logs, transcripts and status."""
        tip = self.stage.tip
        where = f"round {tip.round}" if tip else f"no state ({self.catchup.phase})"
        roles = [
            name for name, on in (("leads", self.succession.lead), ("coordinates", self.coordinating.active)) if on
        ]
        who = f"{short(self.desk.me.peer)}#{self.desk.me.life}"
        return f"{who} {where}; {', '.join(roles) or 'member'}; {self.roster.describe()}"

    def waits(self) -> list[Wait]:
        """Every current wait: on whom, since when, until when."""
        return waits_of(self)

    def check(self) -> None:
        """Asserts every invariant that one peer can see."""
        self.stage.check()
        if self.succession.lead is not None:
            self.succession.lead.check()
        for ledger in self.coordinating.ledgers.values():
            ledger.check()

    # --- queries shared by the machines ----------------------------------------------------------------------------

    @property
    def me(self) -> PeerInfo:
        return self.view.members()[self.desk.me.peer].info

    @property
    def coordinator(self) -> PeerId | None:
        """The acting coordinator by this peer's roster."""
        return self.view.coordinator

    def _may_lead(self) -> bool:
        if self.roster.doubting or self.leaving.at_once or self.catchup.phase != "current" or self.stage.finished:
            return False
        return self.me.diallable or not self.view.others_can_lead()

    # --- events ----------------------------------------------------------------------------------------------------

    def _on_started(self, event: ev.Started) -> None:
        if event.founds:
            record = genesis(self.run, self.desk.me)
            chain = hash_bytes(b"genesis", self.run.run.encode())
            self._update_me(joined_round=0)
            self.stage.adopt(record, chain, BaseDigest(chain))
            self._new_round()
        else:
            self.catchup.start("joins")
        self.knocking.start(event.contacts)
        self.desk.emit(ev.Announce(self.me))

    def _on_ticked(self, event: ev.Ticked) -> None:
        self.stage.tick()
        self.succession.tick()
        self.coordinating.tick()
        self.coordinating.look(self.coordinator)
        self.donating.tick()
        self.catchup.tick()
        self.knocking.tick()
        self.leaving.tick()
        self.stalls.tick()

    def _on_link_up(self, event: ev.LinkUp) -> None:
        self._roster(self.roster.link_up(event, self.desk.now))
        peer = event.info.peer
        if self.stage.head is not None:
            self.desk.send(peer, msg.HeadSaid(self.stage.head))
        if self.succession.lead is not None:
            self.succession.lead.link_up(peer)
        if self.stage.promised.peer == peer:
            self.stage.send_filled()
        self.filling.link_up(peer)
        self.coordinating.link_up(peer)
        self.planning.link_up(peer)

    def _on_received(self, sender: Voter, message: msg.Message) -> None:
        if sender != self.desk.me:
            self._roster(self.roster.received(sender, message, self.desk.now))
        if isinstance(message, _ROUND):
            if self.stage.admit(sender, message):
                self.succession.on_message(sender, message)
                if isinstance(message, msg.Begin):
                    self._note_part_taken(message)
        elif isinstance(message, _ROSTER):
            if isinstance(message, msg.Hello) and message.head is not None:
                self.catchup.note_head(sender.peer, message.head)
        elif isinstance(message, msg.Commit):
            self.catchup.heard(sender.peer, message)
            if not self.stage.on_commit(sender, message):
                self.catchup.on_foreign_commit(sender.peer, message)
        elif isinstance(message, msg.HeadSaid):
            self.stage.head_said(sender, message)
            self.catchup.note_head(sender.peer, message.head)
        elif isinstance(message, msg.Grant):
            self.filling.on_grant(sender, message)
        elif isinstance(message, msg.Revoke):
            self.filling.on_revoke(message)
        elif isinstance(message, msg.Progress):
            self.coordinating.on_progress(sender, message)
        elif isinstance(message, msg.PlanSaid):
            self.planning.on_said(message)
        elif isinstance(message, msg.RecordAsk):
            self.stage.on_record_ask(sender, message)
        elif isinstance(message, msg.SnapshotAsk):
            self.donating.on_ask(sender, message)
        elif isinstance(message, msg.SnapshotOffer):
            self.catchup.on_offer(sender, message)
        elif isinstance(message, msg.SnapshotRelease):
            self.donating.on_release(sender, message)
        elif isinstance(message, msg.Heal):
            self._on_heal(sender, message)

    def _on_measured(self, event: ev.ExchangeMeasured) -> None:
        self.bytes_sent += event.bytes_sent
        self.bytes_received += event.bytes_received

    def _on_applied(self, event: ev.Applied) -> None:
        result = result_of(self)
        commit = self.stage.applied(event)
        if commit is None:
            return
        if result is not None:
            self.desk.emit(ev.Report(result))
        self.bytes_sent = self.bytes_received = 0
        self.catchup.progressed(commit)
        self.leaving.round_applied()
        self._new_round()

    def _on_heal(self, sender: Voter, message: msg.Heal) -> None:
        stage = self.stage
        if (
            stage.tip is None
            or message.fence.round != stage.round
            or message.fence.parent != stage.cut
            or stage.healing
        ):
            return
        stage.healing = True
        self.desk.say(
            "warning", "healing", f"own state differs in slices {list(message.slices)}: pulls them again", stage.round
        )
        self.desk.emit(ev.HealSlices(stage.stage.index, message.slices, message.healthy))

    def _on_healed(self, event: ev.SlicesHealed) -> None:
        self.stage.healing = False
        if event.reason:
            self.desk.say("error", "heal-failed", f"slices could not be healed ({event.reason}): pulls the whole state")
            self.stage.retire()
            self.catchup.start("damaged state")
            return
        self.stage.base = event.base
        self.filling.again()
        self.stage.try_apply()

    # --- after every event -----------------------------------------------------------------------------------------

    def _settle(self) -> None:
        """Messages to oneself, roster changes, and the machines' second look, until nothing more happens."""
        for _ in range(200):
            while self.desk.local:
                self._on_received(self.desk.me, self.desk.local.popleft())
            changes = self.roster.take_changes()
            for change in changes:
                if change.after in (Status.DEAD, Status.LEFT):
                    self.catchup.peer_lost(change.peer)
                    self.donating.peer_lost(change.peer)
                    if self.stage.led_by is not None and change.peer == self.stage.led_by.peer and self.stage.head:
                        # It may have died before it told everybody what was decided.
                        linked = [peer for peer in self.view.present() if self.roster.linked(peer)]
                        self.desk.broadcast(linked, msg.HeadSaid(self.stage.head))
                    told = change.cause if change.after is Status.LEFT else f"is dead: {change.cause}"
                    self.desk.say("info", "peer-lost", f"{short(change.peer)} {told}", self.stage.round)
            self.view.changed(changes)
            if changes:
                if self.succession.lead is not None:
                    self.succession.lead.roster_changed()
                self.coordinating.roster_changed()
                self.stage.look_again()
            coordinator = self.coordinator
            self.filling.tell_coordinator(coordinator)
            self.coordinating.look(coordinator)
            self.planning.look(self.coordinating.active, bool(changes))
            self.succession.look()
            self.catchup.look()
            self.knocking.look(self.stage.tip is None and not self.catchup.heads)
            self.leaving.look()
            if not self.desk.local:
                return
        self.desk.say("error", "unsettled", "200 messages to oneself after one event: a bug; goes on")

    def _new_round(self) -> None:
        """The state stands at a new tip."""
        self.stage.archive.keep_from = self.donating.oldest_round
        self._roster(self.roster.expect(self.stage.voters, self.desk.now))
        if len(self.view.members()) > self.roster.mesh_max:  # no full mesh: links to those that a round needs
            named = {voter.peer for voter in self.stage.voters} | {self.coordinator or self.desk.me.peer}
            self._roster(self.roster.link_to(named, self.desk.now))
        self.donating.look()
        self.coordinating.new_round()
        self.succession.new_round()
        self.stage.follow_up()
        if self.stage.decided is None and not self.stage.finished:
            self.filling.new_round()
        for sender, message in self.stage.take_early():
            self._on_received(sender, message)

    def _note_part_taken(self, begin: msg.Begin) -> None:
        """The first exchange that has us as a member: from this round on we take part, and say so."""
        if self.me.joined_round < 0 and self.desk.me in begin.members:
            self._update_me(joined_round=begin.fence.round, microbatch_s=self.filling.microbatch_s)
            self.desk.say("info", "joined", f"takes part from round {begin.fence.round}", begin.fence.round)

    def _update_me(self, **changes: Any) -> None:
        info = dataclasses.replace(self.me, signature=b"", **changes)
        self.roster.update_me(info)
        self.desk.emit(ev.Announce(info))
        mine = self.roster.get(info.peer)
        if mine is not None:
            others = [peer for peer in self.view.present() if peer != info.peer and self.roster.linked(peer)]
            self.desk.broadcast(others, msg.Gossip((mine,)))

    def _roster(self, effects: list[ev.Effect]) -> None:
        for effect in effects:
            if isinstance(effect, ev.Send):
                self.desk.send(effect.to, effect.message)
            else:
                self.desk.emit(effect)
