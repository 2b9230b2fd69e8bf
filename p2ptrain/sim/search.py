"""Exhaustive search of one decision on the production code: every order of delivery, loss, crash, restart, take-over.

Breadth-first over all states of a few members in one round. Each member is the real ``StageRound`` with ``Succession``
and ``Lead``; only time stands still (what a clock would bring about is an action that may come at any moment), and the
hands are reduced to "this part is here now". A message once sent may arrive any number of times, in any order, or
never, which covers loss, delay, duplication, reordering, a stop and a partition.

    outcome = search(Setup(voters=2, ballots=2, crashes=1))      outcome.violation == "", outcome.complete

What a member does depends on its own state and the input alone, so that each such step is computed once and remembered:
a state of the whole is a tuple of small numbers. Checked: I1, I3, I4, I5, one proposal per ballot.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from p2ptrain.core.events import PartHeld, Send
from p2ptrain.core.messages import Close, Commit, Filled, Message, Propose
from p2ptrain.core.types import (
    NO_BALLOT,
    Ballot,
    Digest,
    PartDone,
    PeerId,
    Record,
    Voter,
    hash_bytes,
    short,
)
from p2ptrain.sim.searched import ROUND_MESSAGES, Searched, Setup, clone, records


@dataclass(frozen=True)
class Outcome:
    """``complete``: all reachable states were seen. ``trace``: the steps to the violation, readable."""

    states: int
    complete: bool
    violation: str = ""
    trace: tuple[str, ...] = ()
    decided: frozenset[str] = frozenset()


class Step(NamedTuple):
    """What an input does to a member: its state afterwards, and the letters it sent (bits of their numbers)."""

    state: int
    sent: int


class World(NamedTuple):
    """A state of the whole: per member its state (-1 - state when dead), all letters ever sent (bits), and decisions.

    ``decided``: records by number with the accepting members (bits).
    """

    members: tuple[int, ...]
    letters: int
    decided: frozenset[tuple[Digest, int]]
    crashes: int
    restarts: int


class Facts(NamedTuple):
    """What the search asks of a member's state again and again."""

    me: Voter
    held: frozenset[Digest]
    fetching: frozenset[Digest]
    coming: bool
    impatient: bool
    may_open: bool
    decided: tuple[Digest, int] | None
    whole: frozenset[Digest]  # records whose bytes are all here
    voted: bool  # has promised or accepted something: a restart forgets it
    wrong: str


@dataclass
class Search:
    """Tables: member states, letters (to, sender, message) by number, and the steps already computed."""

    setup: Setup
    mutate: Callable[[Searched], None] | None = None
    states: list[Searched] = field(default_factory=list)
    facts: list[Facts] = field(default_factory=list)
    numbers: dict[Any, int] = field(default_factory=dict)
    letters: list[tuple[PeerId, Voter, Message]] = field(default_factory=list)
    letter_numbers: dict[tuple[PeerId, Voter, Message], int] = field(default_factory=dict)
    inboxes: dict[PeerId, int] = field(default_factory=dict)  # letters to a peer (bits)
    steps: dict[tuple[int, Any], Step] = field(default_factory=dict)
    moves: dict[tuple[int, int], list[tuple[Any, Step]]] = field(default_factory=dict)
    parts: dict[Digest, PartDone] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.travelling = (*ROUND_MESSAGES, "Commit") if self.setup.commits else ROUND_MESSAGES

    def run(self, after: tuple[str, ...] = ()) -> Outcome:
        start = self._start()
        seen: dict[World, tuple[World, int, Any] | None] = {start: None}
        for label in after:
            start = self._follow(start, label, seen)
        queue = deque([start])
        decided: set[str] = set()
        while queue:
            world = queue.popleft()
            for who, event, following in self._following(world):
                if following in seen:
                    continue
                seen[following] = (world, who, event)
                if following.decided != world.decided:
                    decided |= {short(digest) for digest, _ in following.decided}
                wrong = self._wrong(following)
                if wrong:
                    return Outcome(len(seen), False, wrong, self._trace(seen, following), frozenset(decided))
                queue.append(following)
            if len(seen) >= self.setup.cap:
                return Outcome(len(seen), False, decided=frozenset(decided))
        return Outcome(len(seen), True, decided=frozenset(decided))

    def _follow(self, world: World, label: str, seen: dict[World, tuple[World, int, Any] | None]) -> World:
        for who, event, following in self._following(world):
            if self._label(self.peers[who], event).startswith(label):
                seen.setdefault(following, (world, who, event))
                return following
        raise ValueError(f"no step begins with {label!r} here")

    # --- the start -------------------------------------------------------------------------------------------------

    def _start(self) -> World:
        setup = self.setup
        self.peers = tuple("abcdef"[: setup.voters + setup.learners])
        voters = tuple(Voter(peer, 1) for peer in self.peers[: setup.voters])
        self.tip = Record(0, 0, 0, hash_bytes(b"genesis"), b"", (), (), 0.0, 1.0, voters, 0, 0)
        members, sent = [], 0
        for peer in self.peers:
            step = self._enter(self._fresh(peer, 1))
            members.append(step.state)
            sent |= step.sent
        return World(tuple(members), sent, frozenset(), 0, 0)

    def _fresh(self, peer: PeerId, life: int) -> Searched:
        return Searched(self.setup, peer, life, self.peers, self.tip, self.mutate)

    # --- steps -----------------------------------------------------------------------------------------------------

    def _following(self, world: World) -> Iterator[tuple[int, Any, World]]:
        facts, setup = self.facts, self.setup
        holders = frozenset().union(*(facts[n].held for n in world.members if n >= 0))
        gone = [facts[-1 - n].me for n in world.members if n < 0]
        outlived = [Voter(facts[n].me.peer, 1) for n in world.members if n >= 0 and facts[n].me.life > 1]
        for i, number in enumerate(world.members):
            if number < 0:
                continue
            mine = facts[number]
            for event, step in self._received(number, world.letters & self.inboxes.get(mine.me.peer, 0)):
                yield i, event, self._after(world, i, step)
            if mine.decided is not None and not setup.commits:
                inputs: list[Any] = []
            else:
                inputs = self._inputs(number, mine, holders, gone, outlived)
            for event in inputs:
                step = self._step(number, event)
                if step.state != number or step.sent & ~world.letters:
                    yield i, event, self._after(world, i, step)
            if world.crashes < setup.crashes:
                members = _replaced(world.members, i, -1 - number)
                letters = self._unread(members, world.letters)
                yield i, ("dies",), world._replace(members=members, letters=letters, crashes=world.crashes + 1)
            if world.restarts < setup.restarts and mine.voted:
                step = self._enter(self._fresh(mine.me.peer, mine.me.life + (0 if setup.amnesia else 1)))
                yield i, ("restarts",), self._after(world, i, step)._replace(restarts=world.restarts + 1)

    def _inputs(
        self, number: int, mine: Facts, holders: frozenset[Digest], gone: list[Voter], outlived: list[Voter]
    ) -> list[Any]:
        """What may happen to a member beside letters."""
        member = self.states[number]
        inputs: list[Any] = [("fetched", digest) for digest in mine.fetching & holders]
        inputs += [("learn", voter) for voter in gone if voter not in member.dead]
        inputs += [("proof", v) for v in outlived if v.peer != mine.me.peer and v not in member.proven]
        return inputs + [
            (name,)
            for name, on in (("part", mine.coming), ("impatient", mine.impatient), ("lead", mine.may_open))
            if on
        ]

    def _received(self, number: int, inbox: int) -> list[tuple[Any, Step]]:
        """What letters of this inbox change the state, or are answered in a new way: each once."""
        known = self.moves.get((number, inbox))
        if known is None:
            known = []
            for letter in _bits(inbox):
                step = self._step(number, ("letter", letter))
                if step.state != number or step.sent:
                    known.append((("letter", letter), step))
            self.moves[number, inbox] = known
        return known

    def _step(self, number: int, event: Any) -> Step:
        known = self.steps.get((number, event))
        if known is None:
            member = clone(self.states[number], {})
            before, lead = member.stage.promised, member.succession.lead
            proposed = (lead.ballot, lead.record) if lead is not None and lead.record is not None else None
            self._do(member, event)
            known = self._enter(member, before, proposed)
            self.steps[number, event] = known
        return known

    def _do(self, member: Searched, event: Any) -> None:
        kind, lead = event[0], member.succession.lead
        if kind == "letter":
            _, sender, message = self.letters[event[1]]
            member.receive(sender, message)
        elif kind == "part":
            part, begin = member.coming(), member.stage.begin
            assert part is not None and begin is not None
            self.parts[part.digest] = part
            member.stage.part_held(PartHeld(begin.digest, part))
        elif kind == "fetched":
            member.stage.part_held(PartHeld(b"", self.parts[event[1]]))
        elif kind in ("learn", "proof"):
            member.dead.add(event[1])
            if kind == "proof":
                member.proven.add(event[1])
            if lead is not None:
                lead.roster_changed()
        elif kind == "impatient":
            member.patience.over = True
            if lead is not None and lead.phase == "filling":
                lead.go_on()
        else:
            member.succession._take_over()

    def _enter(
        self, member: Searched, promised: Ballot = NO_BALLOT, proposed: tuple[Ballot, Record] | None = None
    ) -> Step:
        """Settle, give the state its number and the letters theirs."""
        sent = 0
        for effect in member.settle():
            if isinstance(effect, Send) and type(effect.message).__name__ in self.travelling:
                sent |= 1 << self._letter(effect.to, member.me, effect.message)
        key = (member.me, member.key())
        number = self.numbers.get(key)
        if number is None:
            number = self.numbers[key] = len(self.states)
            self.states.append(member)
            self.facts.append(self._facts(member, promised, proposed))
        return Step(number, sent)

    def _letter(self, to: PeerId, sender: Voter, message: Message) -> int:
        number = self.letter_numbers.get((to, sender, message))
        if number is None:
            number = self.letter_numbers[to, sender, message] = len(self.letters)
            self.letters.append((to, sender, message))
            self.inboxes[to] = self.inboxes.get(to, 0) | 1 << number
        return number

    def _facts(self, member: Searched, promised: Ballot, proposed: tuple[Ballot, Record] | None) -> Facts:
        stage, lead = member.stage, member.succession.lead
        wrong = "" if stage.promised >= promised else "I5: a promise fell"
        if proposed is not None and lead is not None and lead.ballot == proposed[0] and lead.record != proposed[1]:
            wrong = "I5: two proposals in one ballot"
        try:
            stage.check()
        except AssertionError as error:
            wrong = str(error)
        commit = stage.decided
        accepted = sum(1 << self.peers.index(voter.peer) for voter in commit.accepted) if commit else 0
        highest = max(stage.seen, stage.promised).number
        return Facts(
            member.me,
            frozenset(stage.held),
            frozenset(stage.fetching.running),
            member.coming() is not None,
            member.succession.lead is not None and not member.patience.over,
            highest < self.setup.ballots
            and member.me in stage.voters
            and commit is None
            and self._opens(member.me.peer),
            (commit.record.digest, accepted) if commit else None,
            frozenset(
                record.digest for record in records(stage) if all(part.digest in stage.held for part in record.parts)
            ),
            stage.accepted is not None or stage.promised > stage.first_ballot(),
            wrong,
        )

    def _opens(self, peer: PeerId) -> bool:
        return not self.setup.openers or peer in self.setup.openers

    def _after(self, world: World, i: int, step: Step) -> World:
        decided, found = world.decided, self.facts[step.state].decided
        if found is not None and all(found[0] != digest for digest, _ in decided):
            decided = decided | {found}
        members = _replaced(world.members, i, step.state)
        return World(members, self._unread(members, world.letters | step.sent), decided, world.crashes, world.restarts)

    def _unread(self, members: tuple[int, ...], letters: int) -> int:
        """Letters that can still change anything: not to the dead, nor to those that have decided for good."""
        for peer, number in zip(self.peers, members, strict=True):
            dead = number < 0
            if dead or (not self.setup.commits and self.facts[number].decided is not None):
                letters &= ~self.inboxes.get(peer, 0)
        return letters

    # --- what must hold --------------------------------------------------------------------------------------------

    def _wrong(self, world: World) -> str:
        if len(world.decided) > 1:
            return f"I1: two decided records {sorted(short(digest) for digest, _ in world.decided)}"
        for number in world.members:
            if number >= 0 and self.facts[number].wrong:
                return self.facts[number].wrong
        for digest, voters in world.decided:
            living = [i for i, number in enumerate(world.members) if number >= 0]
            stays = any(voters >> i & 1 and self.facts[world.members[i]].me.life == 1 for i in living)
            if stays and not any(digest in self.facts[world.members[i]].whole for i in living):
                return "I4: decided, some who accepted live, and nobody alive holds it"
        return ""

    def _trace(self, seen: Mapping[World, tuple[World, int, Any] | None], world: World) -> tuple[str, ...]:
        labels: list[str] = []
        entry = seen[world]
        while entry is not None:
            world, who, event = entry
            labels.append(self._label(self.peers[who], event))
            entry = seen[world]
        return tuple(reversed(labels))

    def _label(self, peer: PeerId, event: Any) -> str:
        if event[0] != "letter":
            return f"{peer} {event[0]} {event[1].peer if event[0] in ('learn', 'proof') else ''}".rstrip()
        _, sender, message = self.letters[event[1]]
        ballot = getattr(getattr(message, "fence", None), "ballot", None)
        more = ""
        if isinstance(message, Close):
            more = f" D={[v.peer for v in message.dead]}"
        elif isinstance(message, Filled) and message.accepted:
            more = f" accepted {short(message.accepted[1].digest)}"
        elif isinstance(message, Propose | Commit):
            more = f" {short(message.record.digest)}"
        return f"{sender.peer}->{peer} {type(message).__name__} {tuple(ballot)[:2] if ballot else ''}{more}"


def search(setup: Setup, mutate: Callable[[Searched], None] | None = None, after: tuple[str, ...] = ()) -> Outcome:
    """All reachable states of one decision, breadth-first, up to ``setup.cap``. ``mutate`` spoils members (tests).

    ``after``: begin where these steps lead (each named by the beginning of its line in a trace).
    """
    return Search(setup, mutate).run(after)


def _bits(mask: int) -> Iterator[int]:
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


def _replaced(members: tuple[int, ...], i: int, number: int) -> tuple[int, ...]:
    return (*members[:i], number, *members[i + 1 :])
