"""The nouns of p2ptrain as plain values (see ARCHITECTURE.md, "The nouns").

Everything here is frozen, compares by value and hashes, so that a message, an event or a search state can be kept in a
set. Nothing here decides. Digests are 32-byte BLAKE2b over a canonical text form, the same on every platform.

Units: times are seconds (float, from the clock that is passed in), sizes are bytes, rates are named with their unit.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, fields, is_dataclass
from enum import Enum
from typing import Any, NamedTuple

PeerId = str
"""Lower-case base32 of the hash of a peer's public key."""

Digest = bytes
"""32 bytes. b"" means "none yet"."""


class Voter(NamedTuple):
    """A vote belongs to one life of a peer: a restart is a new voter (round protocol, section 1)."""

    peer: PeerId
    life: int


class Ballot(NamedTuple):
    """Ordered by number, then owner, then the owner's life. ``NO_BALLOT`` is below all others."""

    number: int
    peer: PeerId
    life: int

    @property
    def owner(self) -> Voter:
        return Voter(self.peer, self.life)


NO_BALLOT = Ballot(-1, "", 0)


class Policy(str, Enum):
    """When a round may commit (round protocol, section 5)."""

    MAJORITY = "majority"
    ANY = "any"


class Status(str, Enum):
    """What the roster holds of a member. Only DEAD and LEFT end waits."""

    JOINING = "joining"
    ALIVE = "alive"
    BUSY = "busy"  # pings answered, probes late: never evicted by probes
    LINK_DOWN = "link_down"  # others reach it, we do not
    SUSPECT = "suspect"  # silent: on its way to DEAD unless somebody hears it
    DEAD = "dead"
    LEFT = "left"


_DEAD, _LEFT = Status.DEAD, Status.LEFT


@dataclass(frozen=True, slots=True)
class Stage:
    """A contiguous range of layers, ``first`` to ``last`` inclusive; ``size`` is its number of trainable values."""

    index: int
    first: int
    last: int
    size: int


class Span(NamedTuple):
    """Contiguous stages that one peer serves, ``first`` to ``last`` inclusive."""

    first: int
    last: int

    def stages(self) -> range:
        return range(self.first, self.last + 1)


@dataclass(frozen=True, slots=True)
class PeerInfo:
    """What a peer says of itself. Signed as a whole by the peer's key before it travels (net checks it)."""

    peer: PeerId
    life: int
    addresses: tuple[str, ...] = ()  # "host:port", best first; empty: cannot be dialled
    region: str = ""
    party: str = ""
    memory_bytes: int = 0
    microbatch_s: float = 0.0  # measured seconds per microbatch; 0: not measured yet
    uplink_mbps: float = 0.0  # 0: unknown
    downlink_mbps: float = 0.0
    joined_round: int = -1  # the round from which it has taken part in this life; -1: not yet
    threads: int = 1
    version: str = ""
    signature: bytes = field(default=b"", compare=False)
    public_key: bytes = field(default=b"", compare=False)

    @property
    def diallable(self) -> bool:
        return bool(self.addresses)

    @property
    def voter(self) -> Voter:
        return Voter(self.peer, self.life)


@dataclass(frozen=True, slots=True)
class Member:
    """One line of the roster."""

    info: PeerInfo
    incarnation: int
    status: Status
    since: float = field(default=0.0, compare=False)

    @property
    def present(self) -> bool:
        """True unless it is held dead or has left."""
        status = self.status
        return status is not _DEAD and status is not _LEFT


@dataclass(frozen=True, slots=True)
class Bundle:
    """Gradients one member has summed over these sample ids. Never split. ``index`` tells a peer's bundles apart."""

    peer: PeerId
    life: int
    index: int
    ids: tuple[int, ...]
    loss_sum: float = field(default=0.0, compare=False)

    @property
    def weight(self) -> int:
        return len(self.ids)

    @property
    def key(self) -> tuple[PeerId, int, int]:
        return (self.peer, self.life, self.index)


@dataclass(frozen=True, slots=True)
class PartDone:
    """An averaged part: values [start, stop) of the stage's flat buffer, and exactly which ids it contains.

    ``digest`` is of the encoded bytes as sent; ``norm_sq`` the squared L2 norm of the decoded values, taken once by the
    reducer: a float, or in exact mode an int (the sum of squared fixed-point integers, never rounded).
    """

    index: int
    start: int
    stop: int
    digest: Digest
    counted: tuple[int, ...]
    norm_sq: float | int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Record:
    """What was decided for one (stage, round). Holds no ballot: the same digest whoever proposes it.

    ``next_id`` and ``owed_ids`` fix which ids the next round is made of (see ``ledger.ids_of_round``).
    """

    lineage: int
    stage: int
    round: int
    parent: Digest  # Cut(round - 1)
    base_digest: Digest  # chain digest of the state this was computed from
    parts: tuple[PartDone, ...]
    spent_ids: tuple[int, ...]
    norm_sq: float | int
    next_scale: float
    voters_next: tuple[Voter, ...]
    samples_total: int
    next_id: int
    owed_ids: tuple[int, ...] = ()

    @property
    def digest(self) -> Digest:
        return digest_once(self)


def cut_of(records: tuple[Record, ...]) -> Digest:
    """Cut(r): digest of the decided records of one round of all stages, in stage order."""
    return hash_bytes(b"cut", *(record.digest for record in sorted(records, key=lambda r: r.stage)))


@dataclass(frozen=True, slots=True)
class Fence:
    """Carried by every round message and compared whole: anything else changes nothing (G5)."""

    run: str
    lineage: int
    stage: int
    round: int
    parent: Digest
    ballot: Ballot


@dataclass(frozen=True, slots=True)
class BaseDigest:
    """State proof that goes with ``Filled``: chain over averaged parts; one slice of the real state (guarantees.md)."""

    chain: Digest
    slice_index: int = -1
    slice_digest: Digest = b""


@dataclass(frozen=True, slots=True)
class PartOrder:
    """One part as ordered by ``Begin``: to be reduced by ``reducer``, or ``fixed`` and held by ``holders``."""

    index: int
    start: int
    stop: int
    reducer: PeerId = ""
    bundles: tuple[int, ...] = ()  # positions in Begin.bundles that this part takes
    fixed: PartDone | None = None
    holders: tuple[PeerId, ...] = ()


@dataclass(frozen=True, slots=True)
class Head:
    """How far a history reaches; ordered by (samples_total, round, cut) (section 5, policy any)."""

    lineage: int
    samples_total: int
    round: int
    cut: Digest

    @property
    def order(self) -> tuple[int, int, int, bytes]:
        return (self.lineage, self.samples_total, self.round, self.cut)


@dataclass(frozen=True, slots=True)
class Assignment:
    """One peer's slice of a plan."""

    peer: PeerId
    span: Span


@dataclass(frozen=True, slots=True)
class Plan:
    """Who serves what. Advisory: only records change voters. Ordered by ``order``."""

    term: int
    coordinator: PeerId
    life: int
    epoch: int
    stages: tuple[Stage, ...]
    assignments: tuple[Assignment, ...]
    shadows: tuple[tuple[int, PeerId], ...] = ()
    groups: tuple[tuple[int, tuple[PeerId, ...]], ...] = ()  # (stage, members)

    @property
    def order(self) -> tuple[int, PeerId, int, int]:
        return (self.term, self.coordinator, self.life, self.epoch)

    def span_of(self, peer: PeerId) -> Span | None:
        return next((a.span for a in self.assignments if a.peer == peer), None)


@dataclass(frozen=True, slots=True)
class SnapshotInfo:
    """What a donor offers: the state of a stage at a committed round, in digested chunks of ``chunk_bytes``."""

    stage: int
    record: Record
    chain: Digest
    total_bytes: int
    chunk_bytes: int
    chunk_digests: tuple[Digest, ...]

    @property
    def round(self) -> int:
        return self.record.round

    @property
    def key(self) -> Digest:
        """Names the content: equal on every donor that holds the same state."""
        return digest_once(self)


class LeftOut(NamedTuple):
    """Why a peer's work is not in a round."""

    peer: PeerId
    reason: str


@dataclass(frozen=True, slots=True)
class RoundResult:
    """The one structured result of a round, as one peer saw it. Times in seconds, sizes in bytes."""

    round: int
    stage: int
    ballot: Ballot
    attempts: int
    members: tuple[PeerId, ...]
    contributions: tuple[tuple[PeerId, int], ...]  # (peer, microbatches counted)
    counted: int
    expected: int
    left_out: tuple[LeftOut, ...]
    loss: float
    bytes_sent: int
    bytes_received: int
    fill_s: float
    stall_s: float  # from the end of one's own fill to the commit
    voters_next: tuple[PeerId, ...]
    digest: str
    samples_total: int

    @property
    def share(self) -> float:
        """Part of the round's microbatches that some part of the record counts."""
        return self.counted / self.expected if self.expected else 1.0


@dataclass(frozen=True, slots=True)
class Wait:
    """One current wait, for ``p2ptrain status``: on whom, since when, until when, and for what."""

    what: str
    on: tuple[PeerId, ...]
    since: float
    until: float
    why: str = ""


@dataclass(frozen=True, slots=True)
class Knobs:
    """Every time bound and size bound of the core. The defaults are what the product runs with."""

    tick_s: float = 0.25  # longest pause between looks at the clock while something is awaited
    probe_period_s: float = 1.0
    probe_timeout_s: float = 0.5
    indirect_probes: int = 3
    suspicion_s: float = 1.0  # from silence to DEAD without witnesses; shrinks with independent ones
    suspicion_max_s: float = 2.5
    dial_timeout_s: float = 1.0
    redial_s: float = 2.0  # pause between dials of a member whose link is down
    forget_dead_s: float = 600.0  # a dead member is forgotten after this
    deadline_min_s: float = 0.25
    deadline_max_s: float = 30.0
    deadline_factor: float = 6.0  # median + factor * median deviation of observed arrivals
    takeover_min_s: float = 0.02  # randomised wait before a voter leads
    takeover_max_s: float = 0.12
    silent_leader_s: float = 3.0  # a leader heard of but not beginning: lower bound before others lead
    exchange_max_s: float = 120.0
    repeat_s: float = 0.5  # an unanswered round message is sent again after this
    lease_ahead: int = 2  # grants are sent this many microbatches ahead of need
    parts_kept_rounds: int = 8  # averaged parts kept for those who catch up
    parts_kept_bytes: int = 1 << 30  # bound on what is kept beyond that for a running pull
    pull_lease_s: float = 60.0
    chunk_timeout_s: float = 4.0
    pull_streams: int = 2  # chunks in flight per donor
    gossip_updates: int = 8  # roster updates per probe
    gossip_factor: int = 3
    stalled_after_s: float = 10.0
    journal_events: int = 20_000


@dataclass(frozen=True, slots=True)
class RunSpec:
    """What the core must know of a run's manifest. Immutable for the whole run."""

    run: str  # digest of the manifest, hex
    stages: tuple[Stage, ...]
    microbatches: int  # per round: the global batch is this times the microbatch size, always
    policy: Policy = Policy.ANY
    exact: bool = False
    replication: int = 2
    voters_max: int = 9
    rounds: int = 0  # stop after this many; 0: never
    first_scale: float = 1.0
    samples_per_microbatch: int = 1
    knobs: Knobs = field(default_factory=Knobs)


# --- digests ----------------------------------------------------------------------------------------------------------


def hash_bytes(*pieces: bytes) -> Digest:
    """BLAKE2b-256 over length-prefixed pieces."""
    hasher = hashlib.blake2b(digest_size=32)
    for piece in pieces:
        hasher.update(len(piece).to_bytes(8, "big"))
        hasher.update(piece)
    return hasher.digest()


def digest_of(value: Any) -> Digest:
    """Digest of a value made of dataclasses, tuples, numbers, text and bytes. Floats by their exact hex form."""
    return hash_bytes(_canonical(value).encode())


_DIGESTS: dict[int, tuple[object, Digest]] = {}
_DIGESTS_KEPT = 1024


def digest_once(value: Any) -> Digest:
    """``digest_of`` a frozen value, remembered for this very object: records and orders are asked for theirs often."""
    known = _DIGESTS.get(id(value))
    if known is not None and known[0] is value:
        return known[1]
    if len(_DIGESTS) >= _DIGESTS_KEPT:
        _DIGESTS.clear()
    digest = digest_of(value)
    _DIGESTS[id(value)] = (value, digest)
    return digest


def _canonical(value: Any) -> str:
    kind = type(value)
    if kind is int:
        return f"i{value}"
    if kind is tuple and value and type(value[0]) is int and all(type(item) is int for item in value):
        return "(i" + ",i".join(map(str, value)) + ")"  # ids, mostly: many, so without a call for each
    if isinstance(value, bytes):
        return f"b{value.hex()}"
    if isinstance(value, Enum):
        return f"e{value.value}"
    if isinstance(value, bool) or value is None:
        return f"k{value}"
    if isinstance(value, int):
        return f"i{value}"
    if isinstance(value, float):
        return f"f{value.hex()}"
    if isinstance(value, str):
        return f"s{len(value)}:{value}"
    if isinstance(value, tuple):
        return "(" + ",".join(_canonical(item) for item in value) + ")"
    if is_dataclass(value):
        inner = ",".join(_canonical(getattr(value, f.name)) for f in fields(value) if f.compare)
        return f"{type(value).__name__}[{inner}]"
    raise TypeError(f"cannot take the digest of a {type(value).__name__}")


def chain_digest(previous: Digest, record: Record) -> Digest:
    """The chain of guarantees.md: previous digest, the round, and the digests of the averaged parts as received."""
    return hash_bytes(previous, record.round.to_bytes(8, "big"), *(part.digest for part in record.parts))


def short(value: str | bytes) -> str:
    """First eight characters of an id or digest, for logs and transcripts."""
    return (value.hex() if isinstance(value, bytes) else value)[:8]
