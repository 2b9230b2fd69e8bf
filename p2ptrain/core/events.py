"""Events (facts, past participle) and effects (orders, imperative): the whole surface between deciding and doing.

Every asynchronous effect ends in exactly one of the events named in its docstring, its failure included. A completion
with a stale id is dropped in one place (``Node.handle``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from p2ptrain.core.messages import Begin, Message
from p2ptrain.core.types import (
    BaseDigest,
    Digest,
    PartDone,
    PeerId,
    PeerInfo,
    Record,
    RoundResult,
    SnapshotInfo,
    Voter,
)

DialFailure = Literal["refused", "timeout", "unreachable", "name", "certificate", "foreign_run", "version", "duplicate"]
"""Why a dial failed. Only ``refused`` (the machine answers, the process is gone) is evidence of death."""

LossCause = Literal["reset", "closed", "silent"]
"""reset/closed: the other end's socket ended; silent: HTTP/2 pings went unanswered."""


class Event:
    __slots__ = ()


class Effect:
    __slots__ = ()


# --- events -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Started(Event):
    """First event of a life. ``contacts``: addresses from the invite or the last known peers; none: found the run."""

    info: PeerInfo
    contacts: tuple[str, ...] = ()
    founds: bool = False


@dataclass(frozen=True, slots=True)
class Ticked(Event):
    """The clock reached ``Node.deadline()`` (or later)."""


@dataclass(frozen=True, slots=True)
class Received(Event):
    sender: Voter
    message: Message


@dataclass(frozen=True, slots=True)
class LinkUp(Event):
    """A link stands and both Hellos are exchanged and verified. ``we_dialled`` tells who opened it."""

    info: PeerInfo
    incarnation: int
    we_dialled: bool
    round_trip_s: float = 0.0


@dataclass(frozen=True, slots=True)
class LinkLost(Event):
    peer: PeerId
    life: int
    cause: LossCause
    detail: str = ""


@dataclass(frozen=True, slots=True)
class DialFailed(Event):
    """Ends ``Dial`` (success is ``LinkUp``). ``address`` names the address when the peer is not yet known."""

    peer: PeerId  # "" while only an address is known
    address: str
    failure: DialFailure
    detail: str = ""


@dataclass(frozen=True, slots=True)
class PeersFound(Event):
    """The DHT (or a cached list) knows these members."""

    infos: tuple[PeerInfo, ...]


@dataclass(frozen=True, slots=True)
class MicrobatchDone(Event):
    round: int
    id: int
    seconds: float
    loss: float


@dataclass(frozen=True, slots=True)
class BundleDone(Event):
    """Ends ``Compute``: ``ids`` are summed and sealed under ``index`` (fewer than ordered after ``Shrink``).

    ``refused``: ids whose own gradient is not finite, left out of the sum (exact mode, where each is taken alone).
    """

    round: int
    index: int
    ids: tuple[int, ...]
    loss_sum: float
    refused: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class BundleFailed(Event):
    """Ends ``Compute``: the sum is not finite; nothing of it is kept."""

    round: int
    index: int
    ids: tuple[int, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class PartHeld(Event):
    """A part of the running exchange is complete here, decoded digest verified. Ends ``FetchPart`` too."""

    begin_digest: Digest  # b"" when fetched by digest
    part: PartDone


@dataclass(frozen=True, slots=True)
class PartTroubled(Event):
    """The exchange cannot finish this part: contributions missing or refused, or its reducer unreachable."""

    begin_digest: Digest
    part: int
    bundles: tuple[int, ...]
    reducer: bool
    reason: str


@dataclass(frozen=True, slots=True)
class PartFetchFailed(Event):
    """Ends ``FetchPart``."""

    digest: Digest
    peer: PeerId
    reason: str


@dataclass(frozen=True, slots=True)
class ExchangeMeasured(Event):
    """Sent once per exchange when its last stream ends: bytes over the wire by this peer."""

    begin_digest: Digest
    bytes_sent: int
    bytes_received: int


@dataclass(frozen=True, slots=True)
class Applied(Event):
    """Ends ``Apply``. ``base`` is the new state's chain and this round's state slice."""

    stage: int
    round: int
    base: BaseDigest


@dataclass(frozen=True, slots=True)
class SnapshotPinned(Event):
    """Ends ``Pin``."""

    info: SnapshotInfo


@dataclass(frozen=True, slots=True)
class PinFailed(Event):
    """Ends ``Pin``."""

    stage: int
    round: int
    reason: str


@dataclass(frozen=True, slots=True)
class ChunkPulled(Event):
    """Ends ``PullChunk``: bytes arrived and their digest matches."""

    key: Digest
    index: int
    peer: PeerId
    nbytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class ChunkFailed(Event):
    """Ends ``PullChunk``. ``corrupt``: the digest did not match."""

    key: Digest
    index: int
    peer: PeerId
    reason: str
    corrupt: bool = False


@dataclass(frozen=True, slots=True)
class StateLoaded(Event):
    """Ends ``LoadState``."""

    key: Digest
    base: BaseDigest


@dataclass(frozen=True, slots=True)
class StateFailed(Event):
    """Ends ``LoadState``: the assembled state is not what the record says."""

    key: Digest
    reason: str


@dataclass(frozen=True, slots=True)
class SlicesHealed(Event):
    """Ends ``HealSlices``."""

    base: BaseDigest
    healed: tuple[int, ...]
    reason: str = ""


@dataclass(frozen=True, slots=True)
class LeaveAsked(Event):
    """Ctrl-C, SIGTERM, ``--until``: finish, contribute, say goodbye."""

    reason: str


# --- effects ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Send(Effect):
    """Queue a message on the link to ``to``; a lost link shows as ``LinkLost``. Never answered otherwise."""

    to: PeerId
    message: Message


@dataclass(frozen=True, slots=True)
class Dial(Effect):
    """Open a link: ends in ``LinkUp`` or ``DialFailed``. Addresses are tried in parallel."""

    peer: PeerId  # "" when only the addresses are known
    addresses: tuple[str, ...]
    timeout_s: float


@dataclass(frozen=True, slots=True)
class Hangup(Effect):
    """Close the link to ``peer`` for good (dead, left, broke the rules). No event follows."""

    peer: PeerId
    reason: str


@dataclass(frozen=True, slots=True)
class Announce(Effect):
    """Publish this (unsigned) info: sign it, use it in Hellos, put it in the DHT. No event follows."""

    info: PeerInfo


@dataclass(frozen=True, slots=True)
class Compute(Effect):
    """Sum the gradients of these ids (in this order) into bundle ``index``: ends in ``BundleDone``/``BundleFailed``."""

    stage: int
    round: int
    index: int
    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Shrink(Effect):
    """Do not start these ids any more. ``ids`` empty with ``seal``: end the bundle after the running microbatch."""

    round: int
    ids: tuple[int, ...]
    seal: bool = False


@dataclass(frozen=True, slots=True)
class Exchange(Effect):
    """Run this exchange (replacing any earlier attempt): yields ``PartHeld``, ``PartTroubled``, ``ExchangeMeasured``.

    ``patience_s``: silence of a contributor or reducer longer than this is told by ``PartTroubled``.
    """

    begin: Begin
    patience_s: float


@dataclass(frozen=True, slots=True)
class StopExchange(Effect):
    """End the streams of this exchange. Parts held stay. No event follows."""

    begin_digest: Digest


@dataclass(frozen=True, slots=True)
class FetchPart(Effect):
    """Pull an averaged part by digest from ``peer``: ends in ``PartHeld`` or ``PartFetchFailed``."""

    part: PartDone
    peer: PeerId


@dataclass(frozen=True, slots=True)
class Apply(Effect):
    """Update the stage with this decided record, all parts held: ends in ``Applied``.

    ``counted`` lists own bundles (by index) per part, so that staged residuals are kept or dropped with the round.
    """

    record: Record
    chain: Digest  # after this record
    slice_index: int
    counted: tuple[tuple[int, tuple[int, ...]], ...] = ()  # (part index, own bundle indices counted in it)


@dataclass(frozen=True, slots=True)
class ReleaseParts(Effect):
    """Averaged parts of rounds below ``before_round`` are needed by nobody. No event follows."""

    before_round: int


@dataclass(frozen=True, slots=True)
class Pin(Effect):
    """Keep an immutable copy of the stage at the current round: ends in ``SnapshotPinned`` or ``PinFailed``."""

    stage: int
    record: Record
    chain: Digest


@dataclass(frozen=True, slots=True)
class Unpin(Effect):
    key: Digest


@dataclass(frozen=True, slots=True)
class PullChunk(Effect):
    """Ends in ``ChunkPulled`` or ``ChunkFailed``; a later ``StopChunk`` ends it without an event."""

    key: Digest
    info: SnapshotInfo
    index: int
    peer: PeerId


@dataclass(frozen=True, slots=True)
class StopChunk(Effect):
    key: Digest
    index: int
    peer: PeerId


@dataclass(frozen=True, slots=True)
class LoadState(Effect):
    """Take the pulled snapshot as the stage's state: ends in ``StateLoaded`` or ``StateFailed``."""

    info: SnapshotInfo


@dataclass(frozen=True, slots=True)
class HealSlices(Effect):
    """Pull these state slices again from a healthy peer, hash the whole state once: ends in ``SlicesHealed``."""

    stage: int
    slices: tuple[int, ...]
    healthy: tuple[PeerId, ...]


@dataclass(frozen=True, slots=True)
class Report(Effect):
    result: RoundResult


@dataclass(frozen=True, slots=True)
class Say(Effect):
    """One line for people: what happened, to whom, what next. ``key`` groups repeats."""

    level: Literal["debug", "info", "warning", "error"]
    key: str
    text: str
    round: int = -1


@dataclass(frozen=True, slots=True)
class RoundsAbandoned(Effect):
    """Policy ``any``: rounds committed here that another, greater history does not contain. Told, never silent."""

    rounds: tuple[int, ...]
    samples: int  # counted in our history and not known to be in the other
    cut: Digest
    winner: Digest


@dataclass(frozen=True, slots=True)
class Halt(Effect):
    """This life is over. ``error`` is the name of the error class in ``p2ptrain.errors``, "" for a clean end."""

    error: str
    text: str
