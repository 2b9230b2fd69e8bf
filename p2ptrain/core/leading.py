"""The leader of one ballot: choose, begin, mend, propose (rules R0, R3, R4, R5).

Decides what is proposed. Does not decide that a ballot begins (``succession``) nor what the record contains in detail
(``compose``). The leader is a member too: its own messages reach it like everybody else's.

    filling -----> exchanging -----> proposed -----> (decided: the member's side sees it)
       ^  all ids covered |  all parts held   |
       +-- exact: lost ids+                   +-- quorum no longer possible: ``spent`` -> next ballot
"""

from __future__ import annotations

import math
from typing import Literal

from p2ptrain.core import choosing, compose
from p2ptrain.core.choosing import Outlook
from p2ptrain.core.gathering import Fixed, Gathering
from p2ptrain.core.messages import Begin, Close, Filled, Have, Message, Propose, Trouble
from p2ptrain.core.rounds import StageRound
from p2ptrain.core.types import (
    Ballot,
    Bundle,
    PartDone,
    PartOrder,
    PeerId,
    Record,
    Status,
    Voter,
    short,
)


class Lead(Gathering):
    """One ballot led by this peer.

    ``spent``: why this ballot can bring nothing more ("" while it can); then
    ``overdue`` names voters that did not answer in time (for D under ``any``).
    """

    def __init__(
        self,
        stage: StageRound,
        ballot: Ballot,
        dead: frozenset[Voter],
        reform: tuple[Voter, ...],
        outlook: Outlook,
        exchanged: bool = False,
    ) -> None:
        super().__init__(stage, ballot, dead, reform, outlook, exchanged)
        self.phase: Literal["filling", "exchanging", "proposed"] = "filling"
        self.shunned: set[PeerId] = set()  # peers that cannot reduce
        self.blamed: dict[int, tuple[float, str]] = {}  # parts whose reducer is silent: since when, and who said so
        self.overdue: set[Voter] = set()
        self.begin: Begin | None = None
        self.attempt = 0
        self._checked: Begin | None = None
        self.record: Record | None = None
        self.spent = ""
        self.began_at = math.inf
        self.repeat_at = self.desk.now + stage.run.knobs.repeat_s

    # --- events ----------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Announce the ballot. The first ballot of a round needs no ``Close`` (R0)."""
        if self.ballot.number > 0:
            peers = {v.peer for v in self.electorate.standing} | self._alive_peers()
            self.desk.broadcast(peers, self._close())
        self._watch_quorum()

    def on_filled(self, sender: Voter, message: Filled) -> None:
        if message.fence.ballot != self.ballot or message.life != sender.life:
            return
        self.outlook.slow.discard(sender)
        if self.answers.get(sender) == message and sender != self.desk.me:
            self.stage.say_head(sender.peer)  # it waits for us: we are here
        if self.phase == "proposed":
            return
        self.set_answer(sender, message)
        for part in message.held:
            self.parts.setdefault(part.digest, part)
            self.holders.setdefault(part.digest, set()).add(sender.peer)
            self.exchanged = True
        if self.phase == "filling":
            self.go_on()
        else:
            self._try_propose()

    def on_have(self, sender: Voter, message: Have) -> None:
        if message.fence.ballot != self.ballot or self.begin is None or message.begin_digest != self.begin.digest:
            return
        for part in message.parts:
            self.parts.setdefault(part.digest, part)
            self.holders.setdefault(part.digest, set()).add(sender.peer)
        if self.phase != "proposed":
            self._try_propose()

    def on_trouble(self, sender: Voter, message: Trouble) -> None:
        """A part cannot be done as ordered: without the named bundles, or by another reducer."""
        if self.begin is None or message.begin_digest != self.begin.digest or self.phase == "proposed":
            return
        if message.part >= len(self.begin.parts):
            return
        order = self.begin.parts[message.part]
        if choosing.averaged_part(order, self.begin, self.holders, self.parts) is not None:
            return
        lost = [self.begin.bundles[position] for position in message.bundles if position < len(self.begin.bundles)]
        foreign = {bundle.peer for bundle in self.begin.bundles} - {sender.peer}
        missed = {bundle.peer for bundle in lost} - {sender.peer}
        if len(missed) > 1 and 2 * len(missed) > len(foreign):  # it hears hardly anybody: the fault is on its side
            self.shunned.add(sender.peer)
        else:
            for bundle in lost:
                self._exclude(bundle, message.reason)
                self.shunned.add(bundle.peer)
        why = f"{message.reason} (part {message.part}, told by {short(sender.peer)})"
        if lost and self.phase == "exchanging":
            self._mend(why)
        elif message.reducer and order.reducer and self.phase == "exchanging":
            self._blame(order, why)

    def _blame(self, order: PartOrder, why: str) -> None:
        """A reducer from which nothing comes may itself wait for a contribution, and is about to say so."""
        member = self.members().get(order.reducer)
        since, _ = self.blamed.setdefault(order.index, (self.desk.now, why))
        alive = member is not None and member.status is Status.ALIVE
        if not alive or self.desk.now >= since + self.stage.run.knobs.repeat_s:
            self.shunned.add(order.reducer)
            self._mend(why)

    def roster_changed(self) -> None:
        """Somebody died, left or came: answers of the dead do not count, and a running exchange is mended."""
        alive = self._alive_peers()
        self.waiting_on = ""
        for holders in self.holders.values():
            holders &= alive
        if self._watch_quorum():
            return
        if self.phase == "exchanging" and self.begin is not None:
            gone = [v.peer for v in self.begin.members if not self._is_alive(v)]
            if gone:
                for bundle in self.begin.bundles:
                    if bundle.peer in gone:
                        self._exclude(bundle, "died in the exchange")
                self._mend(f"{', '.join(short(p) for p in gone)} gone in the exchange")
        elif self.phase == "filling":
            self.go_on()
        elif self._bytes_lost():
            self._spend("a proposed part died with its holders")

    def link_up(self, peer: PeerId) -> None:
        """A link stands again: what this ballot last said may have been lost on the old one."""
        if self.ballot.number > 0 and self.phase == "filling":
            self.desk.send(peer, self._close())
        if self.begin is not None and self.phase == "exchanging":
            self.desk.send(peer, self.begin)
        if self.record is not None:
            self.desk.send(peer, Propose(self.stage.fence(self.ballot), self.record))

    def tick(self) -> None:
        now, knobs = self.desk.now, self.stage.run.knobs
        if self.phase == "filling":
            self.go_on()
        self._watch_voters()
        if self.phase == "exchanging" and self.begin is not None:
            for index, (_, why) in list(self.blamed.items()):
                if index in self.blamed and self.phase == "exchanging":  # one mended orders all parts anew
                    self._blame(self.begin.parts[index], why)
        if self.phase == "exchanging" and self.begin is not None and now >= self.began_at + knobs.exchange_max_s:
            self.shunned |= {
                order.reducer
                for order in self.begin.parts
                if choosing.averaged_part(order, self.begin, self.holders, self.parts) is None
            }
            self._mend(f"not done after {knobs.exchange_max_s:.0f} s")
        if now >= self.repeat_at:
            self.repeat_at = now + knobs.repeat_s * (2 if self.phase == "exchanging" else 1)
            self._repeat()

    def deadline(self) -> float:
        soonest = self.repeat_at
        if self.blamed and self.phase == "exchanging":
            soonest = min(soonest, min(at for at, _ in self.blamed.values()) + self.stage.run.knobs.repeat_s)
        if self.covered_at is not None and self.phase == "filling":
            soonest = min(soonest, self.covered_at + self._wait_s())
        return soonest

    # --- exchanging (R4) -------------------------------------------------------------------------------------------

    def begin_exchange(self, fixed: Fixed, chosen: tuple[Bundle, ...]) -> None:
        members = tuple(sorted(v for v, answer in self.answers.items() if answer.receives and self._is_alive(v)))
        reducers = choosing.reducers(members, self.members(), self.shunned)
        if not members or not reducers:
            return
        tip = self.stage.tip
        assert tip is not None
        self.attempt += 1
        orders = compose.order_parts(self.stage.stage.size, fixed, reducers, len(chosen))
        self.begin = Begin(self.stage.fence(self.ballot), self.attempt, members, chosen, orders, tip.next_scale)
        self.phase = "exchanging"
        self.began_at = self.said_at = self.desk.now
        self.blamed.clear()
        self.exchanged = True
        self.desk.broadcast([v.peer for v in members], self.begin)
        self._try_propose()

    def _mend(self, why: str) -> None:
        """A loss inside the exchange: next attempt of the same ballot; what is averaged and held stays."""
        self.desk.say("info", "mended", f"exchange of round {self.stage.round} mended: {why}", self.stage.round)
        self.phase = "filling"
        self.covered_at = None
        self.gap_at = None
        self.go_on()

    # --- proposing (R5) --------------------------------------------------------------------------------------------

    def _try_propose(self) -> None:
        """Once every part is held by somebody alive, and as many have answered as must accept.

        In the first ballot nobody need have answered yet. A voter that is silent must not stand in a record's
        ``voters_next`` again: whoever led on would have to propose that record unchanged (R3).
        """
        assert self.begin is not None
        if not self.electorate.is_quorum(set(self.answers)):
            return
        parts = [choosing.averaged_part(order, self.begin, self.holders, self.parts) for order in self.begin.parts]
        if all(part is not None for part in parts):
            self.propose(self._compose([part for part in parts if part is not None]))

    def _compose(self, parts: list[PartDone]) -> Record:
        stage = self.stage
        assert stage.tip is not None
        dead = frozenset(v for v in stage.voters if not self._is_alive(v)) | self.electorate.dead
        absent = [v for v in stage.voters if v not in dead and v not in self.answers]
        if len(stage.voters) - len(dead) - len(absent) >= self.electorate.write_size:
            dead |= set(absent)  # they learn, and vote again once they answer
        proven = compose.proven_voters(self._living(), stage.base)
        voters = compose.voters_after(stage.run, stage.voters, dead, proven, self.members())
        return compose.compose_record(
            stage.run, stage.tip, stage.cut, stage.chain, stage.ids(), parts, self.refused(), voters, stage.stage.index
        )

    def propose(self, record: Record) -> None:
        self.record = record
        self.phase = "proposed"
        self.said_at = self.desk.now
        peers = {v.peer for v in self.electorate.standing} | {v.peer for v in self.answers}
        self.desk.broadcast(peers, Propose(self.stage.fence(self.ballot), record))

    # --- waiting ---------------------------------------------------------------------------------------------------

    def _watch_voters(self) -> None:
        """Voters alive by the roster that do not answer: after a while, go on without them."""
        if self.spent or (self.phase == "filling" and self.ballot.number == 0):
            return
        if self.phase == "proposed" and self._bytes_lost():
            self._spend("a proposed part died with its holders")
        elif self.desk.now >= self.said_at + self.stage.run.knobs.silent_leader_s:
            answered = self._accepted() if self.phase == "proposed" else set(self.answers)
            silent = self.electorate.missing(answered)
            if silent and not self.electorate.is_quorum(answered):
                self.overdue.update(silent)
                self._spend(f"no answer from {', '.join(short(v.peer) for v in silent)}")

    def _bytes_lost(self) -> bool:
        """A part of the proposal is held by nobody alive, as far as we know."""
        accepted = {voter.peer for voter in self._accepted() if self._is_alive(voter)}
        if self.record is None or accepted:
            return False
        return any(not self.holders.get(part.digest) for part in self.record.parts)

    def _accepted(self) -> set[Voter]:
        return self.stage.accepts.get((self.ballot, self.record.digest), set()) if self.record else set()

    def _watch_quorum(self) -> bool:
        """Voters are lost (they may have been named after their death already). True if this ballot has no quorum."""
        lost = [v for v in self.electorate.standing if not self._is_alive(v)]
        if not lost or self.electorate.possible(lost):
            return False
        self._spend(f"{', '.join(short(v.peer) for v in lost)} lost: no quorum in this ballot")
        return True

    def _spend(self, why: str) -> None:
        if not self.spent:
            self.spent = why

    def _repeat(self) -> None:
        """Say again what has not been answered (messages may be lost with a link)."""
        if self.phase == "filling" and self.ballot.number > 0:
            missing = {v.peer for v in self.electorate.standing if v not in self.answers}
            self.desk.broadcast(missing, self._close())
        elif self.phase == "exchanging" and self.begin is not None:
            message: Message = self.begin
            self.desk.broadcast([v.peer for v in self.begin.members], message)
        elif self.record is not None:
            self.desk.broadcast(
                {v.peer for v in self.electorate.standing}, Propose(self.stage.fence(self.ballot), self.record)
            )

    def _close(self) -> Close:
        return Close(self.stage.fence(self.ballot), tuple(sorted(self.electorate.dead)), self.electorate.reform)

    def check(self) -> None:
        """I7, and the shape of the state (I5 and I6 hold by construction: ``record`` is set once)."""
        assert self.attempt >= 0 and not math.isnan(self.opened_at)
        if self.begin is not None and self.begin is not self._checked:
            self._checked = self.begin  # it never changes
            seen: set[int] = set()
            for bundle in self.begin.bundles:
                assert seen.isdisjoint(bundle.ids), "I7: bundles of a Begin overlap"
                seen.update(bundle.ids)
