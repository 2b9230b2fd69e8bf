"""One member as the exhaustive search sees it: production machines inside, time standing still.

Decides nothing: it feeds messages to ``StageRound``, ``Succession`` and ``Lead`` as ``Node`` does, copies them, and
gives a hashable picture of their state (``key``). What may happen next is ``search``'s.
"""

from __future__ import annotations

import random
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from types import FunctionType, MethodType
from typing import Any

from p2ptrain.core.desk import Desk
from p2ptrain.core.messages import Commit
from p2ptrain.core.rounds import StageRound
from p2ptrain.core.succession import Succession
from p2ptrain.core.types import (
    BaseDigest,
    Bundle,
    Member,
    PartDone,
    PeerId,
    PeerInfo,
    Policy,
    Record,
    RunSpec,
    Stage,
    Status,
    Voter,
    digest_of,
    hash_bytes,
)

ROUND_MESSAGES = ("Close", "Filled", "Begin", "Have", "Trouble", "Propose", "Accept")


@dataclass(frozen=True)
class Setup:
    """``ballots``: how many numbers may be opened after ballot 0. ``learners``: members without a vote.

    ``commits``: whether ``Commit`` arrives; without, a member that has decided changes nothing any more.
    ``openers``: who may open ballots ("": every voter).
    ``amnesia``: a restart keeps its life (finding 5, to see that the search finds it).
    """

    policy: Policy = Policy.MAJORITY
    voters: int = 3
    learners: int = 0
    ballots: int = 1
    crashes: int = 1
    restarts: int = 0
    replication: int = 2
    commits: bool = False
    openers: str = ""
    amnesia: bool = False
    cap: int = 1_000_000


class _Still(random.Random):
    """Draws nothing: orders stay sorted, numbers are the lowest. So a step is a function of state and input."""

    def shuffle(self, x: Any, *_: Any) -> None:
        x.sort()

    def uniform(self, a: float, b: float) -> float:
        return a

    def randrange(self, *args: Any, **kwargs: Any) -> int:
        return 0


class _Patience:
    """Stands for ``Arrivals``: others are waited for until the search says that the wait is over."""

    over = False

    def deadline_s(self) -> float:
        return 0.0 if self.over else 1e9

    def observe(self, seconds: float) -> None:
        return


class Searched:
    """One member, production code inside. ``dead``: lives it holds dead; ``proven``: those of which it has proof."""

    def __init__(
        self,
        setup: Setup,
        peer: PeerId,
        life: int,
        peers: tuple[PeerId, ...],
        tip: Record,
        mutate: Callable[[Searched], None] | None = None,
    ) -> None:
        run = RunSpec("r", (Stage(0, 0, 0, 1),), 1, policy=setup.policy, replication=setup.replication)
        self.me = Voter(peer, life)
        self.peers = peers
        self.desk = Desk(self.me, _Still())
        self.dead: set[Voter] = set()
        self.proven: set[Voter] = set()
        self.patience = _Patience()
        self.stage = StageRound(run, run.stages[0], self.desk, self._present)
        self.succession = Succession(
            self.stage, self._members, self._is_dead, self._is_proven, self._always, self._always
        )
        self.succession.outlook.arrivals = self.patience  # type: ignore[assignment]
        if mutate is not None:
            mutate(self)
        self.stage.adopt(tip, hash_bytes(b"chain"), BaseDigest(hash_bytes(b"chain")))
        if life == 1 or setup.amnesia:
            self.stage.bundles.append(Bundle(peer, life, 0, (0,)))
        self.succession.new_round()
        self.stage.fill_changed(False)

    def _is_dead(self, voter: Voter) -> bool:
        return voter in self.dead

    def _is_proven(self, voter: Voter) -> bool:
        return voter in self.proven

    def _always(self, *_: Any) -> bool:
        return True

    def _present(self) -> list[PeerId]:
        return [peer for peer in self.peers if not any(voter.peer == peer for voter in self.dead)]

    def _members(self) -> Mapping[PeerId, Member]:
        gone = {voter.peer for voter in self.dead}
        return {
            peer: Member(
                PeerInfo(peer, 1, ("x:1",), joined_round=0), 0, Status.DEAD if peer in gone else Status.ALIVE, -1e9
            )
            for peer in self.peers
        }

    def receive(self, sender: Voter, message: Any) -> None:
        if isinstance(message, Commit):
            self.stage.on_commit(sender, message)
        elif type(message).__name__ in ROUND_MESSAGES and self.stage.admit(sender, message):
            self.succession.on_message(sender, message)

    def settle(self) -> list[Any]:
        """Messages to oneself and the second look; returns the effects."""
        while True:
            while self.desk.local:
                self.receive(self.me, self.desk.local.popleft())
            self.succession.look()
            if not self.desk.local:
                return self.desk.take()

    def coming(self) -> PartDone | None:
        """The part that the running exchange would bring: its content is named by the bundles in it."""
        begin = self.stage.begin
        if begin is None or begin.parts[0].fixed is not None:
            return None
        order = begin.parts[0]
        ids = tuple(sorted(i for position in order.bundles for i in begin.bundles[position].ids))
        digest = digest_of(tuple(bundle.key for bundle in begin.bundles))
        part = PartDone(0, 0, 1, digest, ids, float(len(ids)), 1)
        return part if digest not in self.stage.held else None

    def key(self) -> tuple[Any, ...]:
        return (
            _frozen(self.stage),
            _frozen(self.succession.lead),
            frozenset(self.dead),
            frozenset(self.proven),
            self.patience.over,
        )


def records(stage: StageRound) -> list[Record]:
    records = list(stage.proposals.values())
    records += [stage.decided.record] if stage.decided else []
    return records + ([stage.accepted[1]] if stage.accepted else [])


def clone(value: Any, done: dict[int, Any]) -> Any:
    """A copy of a machine: containers and machines anew, frozen values shared, bound methods to the new machine."""
    kind: Any = type(value)
    made: Any
    if id(value) in done:
        return done[id(value)]
    if kind in (dict, OrderedDict):
        made = done[id(value)] = kind()
        made.update((key, clone(item, done)) for key, item in value.items())
        return made
    if kind in (list, set):
        made = done[id(value)] = kind(clone(item, done) for item in value)
        return made
    if kind is deque:
        made = done[id(value)] = deque(value, value.maxlen)
        return made
    if kind is MethodType:
        return MethodType(value.__func__, clone(value.__self__, done))
    if not hasattr(value, "__dict__") or kind in (FunctionType, _Still) or isinstance(value, Enum):
        return value  # messages, records, numbers: frozen
    made = done[id(value)] = kind.__new__(kind)
    for name, item in vars(value).items():
        made.__dict__[name] = clone(item, done)
    return made


_SKIPPED = {
    "desk", "run", "stage", "present", "members", "outlook", "arrivals", "archive", "early", "left_out", "tip", "chain",
    "base", "_ids", "_votes", "gap_serial", "gap_at", "covered_at",
}  # fmt: skip


def _frozen(value: Any) -> Any:
    """A hashable picture of a machine's state: its fields, without its surroundings."""
    if isinstance(value, dict):
        return frozenset((_frozen(key), _frozen(item)) for key, item in value.items())
    if isinstance(value, set | frozenset):
        return frozenset(_frozen(item) for item in value)
    if isinstance(value, list | deque):
        return tuple(_frozen(item) for item in value)
    if isinstance(value, tuple):
        return value
    if hasattr(value, "__dict__") and not hasattr(type(value), "__dataclass_fields__"):
        return tuple(
            (name, _frozen(item))
            for name, item in sorted(vars(value).items())
            if name not in _SKIPPED and not callable(item)
        )
    return value
