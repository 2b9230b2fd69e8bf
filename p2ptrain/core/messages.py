"""What nodes say to each other. The sender is never a field: it comes from the link's certificate (G6).

Round messages carry the whole ``Fence``. Bulk bytes are no messages: averaged parts, contributions and state chunks
travel on streams of their own, named here by digest. Table: round protocol, section 3; the rest is membership, leases,
plans and snapshots.
"""

from __future__ import annotations

from dataclasses import dataclass

from p2ptrain.core.types import (
    Ballot,
    BaseDigest,
    Bundle,
    Digest,
    Fence,
    Head,
    Member,
    PartDone,
    PartOrder,
    PeerId,
    PeerInfo,
    Plan,
    Record,
    SnapshotInfo,
    Voter,
    digest_once,
)

NO_BASE = BaseDigest(b"")


class Message:
    """Root of all messages."""

    __slots__ = ()


# --- membership -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Hello(Message):
    """First on every link, both ways. ``info`` is signed; a later life of the same peer proves the earlier one dead."""

    run: str
    info: PeerInfo
    incarnation: int
    head: Head | None = None
    version: str = ""


@dataclass(frozen=True, slots=True)
class Leave(Message):
    """A signed goodbye: proof that this life will not vote again. May be passed on by others."""

    peer: PeerId
    life: int
    reason: str = ""
    signature: bytes = b""
    public_key: bytes = b""


@dataclass(frozen=True, slots=True)
class Gossip(Message):
    """Roster lines, newest first. ``whole`` marks a piece of a complete roster (told to a newcomer)."""

    updates: tuple[Member, ...]
    whole: bool = False


@dataclass(frozen=True, slots=True)
class Probe(Message):
    seq: int
    updates: tuple[Member, ...] = ()


@dataclass(frozen=True, slots=True)
class ProbeAck(Message):
    seq: int
    updates: tuple[Member, ...] = ()


@dataclass(frozen=True, slots=True)
class ProbeFor(Message):
    """Please probe ``target`` for me (SWIM's indirect probe)."""

    seq: int
    target: PeerId


@dataclass(frozen=True, slots=True)
class ProbeReport(Message):
    """Answer to ``ProbeFor``: whether the target was heard."""

    seq: int
    target: PeerId
    life: int
    heard: bool


@dataclass(frozen=True, slots=True)
class PlanSaid(Message):
    plan: Plan


# --- leases -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Grant(Message):
    """Positions in the round's list of ids (not ids: so it can be sent before the record that fixes them).

    A later grant with a higher ``serial`` for the same round adds to the earlier ones. ``done`` says that the
    coordinator means to grant no more for this round unless somebody dies or lags.
    """

    lineage: int
    round: int
    serial: int
    positions: tuple[int, ...]
    done: bool = True


@dataclass(frozen=True, slots=True)
class Revoke(Message):
    """Do not start these positions any more (somebody faster took them)."""

    lineage: int
    round: int
    positions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Progress(Message):
    """To the coordinator: positions finished and still leased here in this round; measured seconds per microbatch."""

    lineage: int
    round: int
    done: tuple[int, ...]
    pending: tuple[int, ...]
    microbatch_s: float


# --- the round --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Close(Message):
    """``dead``: voters held dead, frozen for this ballot. ``reform``: who stands in if all are (``any``)."""

    fence: Fence
    dead: tuple[Voter, ...] = ()
    reform: tuple[Voter, ...] = ()


@dataclass(frozen=True, slots=True)
class Filled(Message):
    """Answer to ``Close`` (or, in the first ballot, sent unasked): what I have accepted, summed and hold.

    May be sent again in the same ballot with more bundles. ``accepted`` is the ballot and record of my last acceptance
    in this round. ``expects_more`` is true while the sender still computes leased work. ``refused`` are ids whose
    gradient was not finite.
    """

    fence: Fence
    life: int
    accepted: tuple[Ballot, Record] | None = None
    bundles: tuple[Bundle, ...] = ()
    held: tuple[PartDone, ...] = ()
    base: BaseDigest = NO_BASE
    refused: tuple[int, ...] = ()
    expects_more: bool = False
    receives: bool = True  # False: a learner that wants the record only


@dataclass(frozen=True, slots=True)
class Begin(Message):
    """Order to exchange. ``members`` receive every average; ``bundles`` are pairwise disjoint."""

    fence: Fence
    attempt: int
    members: tuple[Voter, ...]
    bundles: tuple[Bundle, ...]
    parts: tuple[PartOrder, ...]
    scale: float = 1.0

    @property
    def digest(self) -> Digest:
        return digest_once(self)


@dataclass(frozen=True, slots=True)
class Have(Message):
    """These averaged parts are held here, whole and verified."""

    fence: Fence
    begin_digest: Digest
    parts: tuple[PartDone, ...]


@dataclass(frozen=True, slots=True)
class Trouble(Message):
    """To the leader: what keeps part ``part`` from being done here.

    ``bundles``: positions in ``Begin.bundles`` that are late, lost or refused; ``reducer``: true if it is the part's
    reducer that cannot be reached.
    """

    fence: Fence
    begin_digest: Digest
    part: int
    bundles: tuple[int, ...]
    reducer: bool
    reason: str


@dataclass(frozen=True, slots=True)
class Propose(Message):
    fence: Fence
    record: Record


@dataclass(frozen=True, slots=True)
class Accept(Message):
    """Sent to all members, only when all bytes of the record and its base are held."""

    fence: Fence
    life: int
    record_digest: Digest


@dataclass(frozen=True, slots=True)
class Commit(Message):
    """A decision. ``accepted``: who accepted; ``holders``: who holds the parts' bytes (fetch hints)."""

    record: Record
    accepted: tuple[Voter, ...]
    holders: tuple[PeerId, ...] = ()


# --- heads, records, snapshots ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class HeadSaid(Message):
    head: Head


@dataclass(frozen=True, slots=True)
class RecordAsk(Message):
    """Please send your decided records of rounds ``first`` to ``last`` inclusive (as ``Commit``), for catching up."""

    stage: int
    lineage: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class SnapshotAsk(Message):
    """Please pin the state of ``stage`` at exactly ``round`` (-1: your latest) and offer it."""

    stage: int
    round: int


@dataclass(frozen=True, slots=True)
class SnapshotOffer(Message):
    """``info`` is None if it cannot be offered; then ``reason`` says why and ``head`` what is held instead."""

    stage: int
    asked_round: int
    info: SnapshotInfo | None
    reason: str = ""
    head: Head | None = None


@dataclass(frozen=True, slots=True)
class SnapshotRelease(Message):
    """The puller is done with (or gave up) the snapshot named by ``key``."""

    key: Digest


@dataclass(frozen=True, slots=True)
class Heal(Message):
    """Your state differs in these slices from what the others hold (R9): pull them again before contributing."""

    fence: Fence
    slices: tuple[int, ...]
    healthy: tuple[PeerId, ...]
