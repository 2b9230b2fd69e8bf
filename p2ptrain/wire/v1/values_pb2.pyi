from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Status(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    STATUS_UNSPECIFIED: _ClassVar[Status]
    STATUS_JOINING: _ClassVar[Status]
    STATUS_ALIVE: _ClassVar[Status]
    STATUS_BUSY: _ClassVar[Status]
    STATUS_LINK_DOWN: _ClassVar[Status]
    STATUS_SUSPECT: _ClassVar[Status]
    STATUS_DEAD: _ClassVar[Status]
    STATUS_LEFT: _ClassVar[Status]
STATUS_UNSPECIFIED: Status
STATUS_JOINING: Status
STATUS_ALIVE: Status
STATUS_BUSY: Status
STATUS_LINK_DOWN: Status
STATUS_SUSPECT: Status
STATUS_DEAD: Status
STATUS_LEFT: Status

class Ids(_message.Message):
    __slots__ = ("gaps", "counts")
    GAPS_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    gaps: _containers.RepeatedScalarFieldContainer[int]
    counts: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, gaps: _Optional[_Iterable[int]] = ..., counts: _Optional[_Iterable[int]] = ...) -> None: ...

class Norm(_message.Message):
    __slots__ = ("real", "whole")
    REAL_FIELD_NUMBER: _ClassVar[int]
    WHOLE_FIELD_NUMBER: _ClassVar[int]
    real: float
    whole: bytes
    def __init__(self, real: _Optional[float] = ..., whole: _Optional[bytes] = ...) -> None: ...

class Voter(_message.Message):
    __slots__ = ("peer", "life")
    PEER_FIELD_NUMBER: _ClassVar[int]
    LIFE_FIELD_NUMBER: _ClassVar[int]
    peer: str
    life: int
    def __init__(self, peer: _Optional[str] = ..., life: _Optional[int] = ...) -> None: ...

class Ballot(_message.Message):
    __slots__ = ("number", "peer", "life")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    PEER_FIELD_NUMBER: _ClassVar[int]
    LIFE_FIELD_NUMBER: _ClassVar[int]
    number: int
    peer: str
    life: int
    def __init__(self, number: _Optional[int] = ..., peer: _Optional[str] = ..., life: _Optional[int] = ...) -> None: ...

class Fence(_message.Message):
    __slots__ = ("run", "lineage", "stage", "round", "parent", "ballot")
    RUN_FIELD_NUMBER: _ClassVar[int]
    LINEAGE_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    PARENT_FIELD_NUMBER: _ClassVar[int]
    BALLOT_FIELD_NUMBER: _ClassVar[int]
    run: str
    lineage: int
    stage: int
    round: int
    parent: bytes
    ballot: Ballot
    def __init__(self, run: _Optional[str] = ..., lineage: _Optional[int] = ..., stage: _Optional[int] = ..., round: _Optional[int] = ..., parent: _Optional[bytes] = ..., ballot: _Optional[_Union[Ballot, _Mapping]] = ...) -> None: ...

class Stage(_message.Message):
    __slots__ = ("index", "first", "last", "size")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    index: int
    first: int
    last: int
    size: int
    def __init__(self, index: _Optional[int] = ..., first: _Optional[int] = ..., last: _Optional[int] = ..., size: _Optional[int] = ...) -> None: ...

class Span(_message.Message):
    __slots__ = ("first", "last")
    FIRST_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    first: int
    last: int
    def __init__(self, first: _Optional[int] = ..., last: _Optional[int] = ...) -> None: ...

class PeerInfo(_message.Message):
    __slots__ = ("peer", "life", "addresses", "region", "party", "memory_bytes", "microbatch_s", "uplink_mbps", "downlink_mbps", "joined_round", "threads", "version", "signature", "public_key")
    PEER_FIELD_NUMBER: _ClassVar[int]
    LIFE_FIELD_NUMBER: _ClassVar[int]
    ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    REGION_FIELD_NUMBER: _ClassVar[int]
    PARTY_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    MICROBATCH_S_FIELD_NUMBER: _ClassVar[int]
    UPLINK_MBPS_FIELD_NUMBER: _ClassVar[int]
    DOWNLINK_MBPS_FIELD_NUMBER: _ClassVar[int]
    JOINED_ROUND_FIELD_NUMBER: _ClassVar[int]
    THREADS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    PUBLIC_KEY_FIELD_NUMBER: _ClassVar[int]
    peer: str
    life: int
    addresses: _containers.RepeatedScalarFieldContainer[str]
    region: str
    party: str
    memory_bytes: int
    microbatch_s: float
    uplink_mbps: float
    downlink_mbps: float
    joined_round: int
    threads: int
    version: str
    signature: bytes
    public_key: bytes
    def __init__(self, peer: _Optional[str] = ..., life: _Optional[int] = ..., addresses: _Optional[_Iterable[str]] = ..., region: _Optional[str] = ..., party: _Optional[str] = ..., memory_bytes: _Optional[int] = ..., microbatch_s: _Optional[float] = ..., uplink_mbps: _Optional[float] = ..., downlink_mbps: _Optional[float] = ..., joined_round: _Optional[int] = ..., threads: _Optional[int] = ..., version: _Optional[str] = ..., signature: _Optional[bytes] = ..., public_key: _Optional[bytes] = ...) -> None: ...

class Member(_message.Message):
    __slots__ = ("info", "incarnation", "status", "since")
    INFO_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    info: PeerInfo
    incarnation: int
    status: Status
    since: float
    def __init__(self, info: _Optional[_Union[PeerInfo, _Mapping]] = ..., incarnation: _Optional[int] = ..., status: _Optional[_Union[Status, str]] = ..., since: _Optional[float] = ...) -> None: ...

class Bundle(_message.Message):
    __slots__ = ("peer", "life", "index", "ids", "loss_sum")
    PEER_FIELD_NUMBER: _ClassVar[int]
    LIFE_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    LOSS_SUM_FIELD_NUMBER: _ClassVar[int]
    peer: str
    life: int
    index: int
    ids: Ids
    loss_sum: float
    def __init__(self, peer: _Optional[str] = ..., life: _Optional[int] = ..., index: _Optional[int] = ..., ids: _Optional[_Union[Ids, _Mapping]] = ..., loss_sum: _Optional[float] = ...) -> None: ...

class PartDone(_message.Message):
    __slots__ = ("index", "start", "stop", "digest", "counted", "norm_sq", "nbytes")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    COUNTED_FIELD_NUMBER: _ClassVar[int]
    NORM_SQ_FIELD_NUMBER: _ClassVar[int]
    NBYTES_FIELD_NUMBER: _ClassVar[int]
    index: int
    start: int
    stop: int
    digest: bytes
    counted: Ids
    norm_sq: Norm
    nbytes: int
    def __init__(self, index: _Optional[int] = ..., start: _Optional[int] = ..., stop: _Optional[int] = ..., digest: _Optional[bytes] = ..., counted: _Optional[_Union[Ids, _Mapping]] = ..., norm_sq: _Optional[_Union[Norm, _Mapping]] = ..., nbytes: _Optional[int] = ...) -> None: ...

class Record(_message.Message):
    __slots__ = ("lineage", "stage", "round", "parent", "base_digest", "parts", "spent_ids", "norm_sq", "next_scale", "voters_next", "samples_total", "next_id", "owed_ids")
    LINEAGE_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    PARENT_FIELD_NUMBER: _ClassVar[int]
    BASE_DIGEST_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    SPENT_IDS_FIELD_NUMBER: _ClassVar[int]
    NORM_SQ_FIELD_NUMBER: _ClassVar[int]
    NEXT_SCALE_FIELD_NUMBER: _ClassVar[int]
    VOTERS_NEXT_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_TOTAL_FIELD_NUMBER: _ClassVar[int]
    NEXT_ID_FIELD_NUMBER: _ClassVar[int]
    OWED_IDS_FIELD_NUMBER: _ClassVar[int]
    lineage: int
    stage: int
    round: int
    parent: bytes
    base_digest: bytes
    parts: _containers.RepeatedCompositeFieldContainer[PartDone]
    spent_ids: Ids
    norm_sq: Norm
    next_scale: float
    voters_next: _containers.RepeatedCompositeFieldContainer[Voter]
    samples_total: int
    next_id: int
    owed_ids: Ids
    def __init__(self, lineage: _Optional[int] = ..., stage: _Optional[int] = ..., round: _Optional[int] = ..., parent: _Optional[bytes] = ..., base_digest: _Optional[bytes] = ..., parts: _Optional[_Iterable[_Union[PartDone, _Mapping]]] = ..., spent_ids: _Optional[_Union[Ids, _Mapping]] = ..., norm_sq: _Optional[_Union[Norm, _Mapping]] = ..., next_scale: _Optional[float] = ..., voters_next: _Optional[_Iterable[_Union[Voter, _Mapping]]] = ..., samples_total: _Optional[int] = ..., next_id: _Optional[int] = ..., owed_ids: _Optional[_Union[Ids, _Mapping]] = ...) -> None: ...

class BaseDigest(_message.Message):
    __slots__ = ("chain", "slice_index", "slice_digest")
    CHAIN_FIELD_NUMBER: _ClassVar[int]
    SLICE_INDEX_FIELD_NUMBER: _ClassVar[int]
    SLICE_DIGEST_FIELD_NUMBER: _ClassVar[int]
    chain: bytes
    slice_index: int
    slice_digest: bytes
    def __init__(self, chain: _Optional[bytes] = ..., slice_index: _Optional[int] = ..., slice_digest: _Optional[bytes] = ...) -> None: ...

class PartOrder(_message.Message):
    __slots__ = ("index", "start", "stop", "reducer", "bundles", "fixed", "holders")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    REDUCER_FIELD_NUMBER: _ClassVar[int]
    BUNDLES_FIELD_NUMBER: _ClassVar[int]
    FIXED_FIELD_NUMBER: _ClassVar[int]
    HOLDERS_FIELD_NUMBER: _ClassVar[int]
    index: int
    start: int
    stop: int
    reducer: str
    bundles: Ids
    fixed: PartDone
    holders: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, index: _Optional[int] = ..., start: _Optional[int] = ..., stop: _Optional[int] = ..., reducer: _Optional[str] = ..., bundles: _Optional[_Union[Ids, _Mapping]] = ..., fixed: _Optional[_Union[PartDone, _Mapping]] = ..., holders: _Optional[_Iterable[str]] = ...) -> None: ...

class Head(_message.Message):
    __slots__ = ("lineage", "samples_total", "round", "cut")
    LINEAGE_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_TOTAL_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    CUT_FIELD_NUMBER: _ClassVar[int]
    lineage: int
    samples_total: int
    round: int
    cut: bytes
    def __init__(self, lineage: _Optional[int] = ..., samples_total: _Optional[int] = ..., round: _Optional[int] = ..., cut: _Optional[bytes] = ...) -> None: ...

class Assignment(_message.Message):
    __slots__ = ("peer", "span")
    PEER_FIELD_NUMBER: _ClassVar[int]
    SPAN_FIELD_NUMBER: _ClassVar[int]
    peer: str
    span: Span
    def __init__(self, peer: _Optional[str] = ..., span: _Optional[_Union[Span, _Mapping]] = ...) -> None: ...

class Shadow(_message.Message):
    __slots__ = ("stage", "peer")
    STAGE_FIELD_NUMBER: _ClassVar[int]
    PEER_FIELD_NUMBER: _ClassVar[int]
    stage: int
    peer: str
    def __init__(self, stage: _Optional[int] = ..., peer: _Optional[str] = ...) -> None: ...

class Group(_message.Message):
    __slots__ = ("stage", "members")
    STAGE_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    stage: int
    members: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, stage: _Optional[int] = ..., members: _Optional[_Iterable[str]] = ...) -> None: ...

class Plan(_message.Message):
    __slots__ = ("term", "coordinator", "life", "epoch", "stages", "assignments", "shadows", "groups")
    TERM_FIELD_NUMBER: _ClassVar[int]
    COORDINATOR_FIELD_NUMBER: _ClassVar[int]
    LIFE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    STAGES_FIELD_NUMBER: _ClassVar[int]
    ASSIGNMENTS_FIELD_NUMBER: _ClassVar[int]
    SHADOWS_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    term: int
    coordinator: str
    life: int
    epoch: int
    stages: _containers.RepeatedCompositeFieldContainer[Stage]
    assignments: _containers.RepeatedCompositeFieldContainer[Assignment]
    shadows: _containers.RepeatedCompositeFieldContainer[Shadow]
    groups: _containers.RepeatedCompositeFieldContainer[Group]
    def __init__(self, term: _Optional[int] = ..., coordinator: _Optional[str] = ..., life: _Optional[int] = ..., epoch: _Optional[int] = ..., stages: _Optional[_Iterable[_Union[Stage, _Mapping]]] = ..., assignments: _Optional[_Iterable[_Union[Assignment, _Mapping]]] = ..., shadows: _Optional[_Iterable[_Union[Shadow, _Mapping]]] = ..., groups: _Optional[_Iterable[_Union[Group, _Mapping]]] = ...) -> None: ...

class SnapshotInfo(_message.Message):
    __slots__ = ("stage", "record", "chain", "total_bytes", "chunk_bytes", "chunk_digests")
    STAGE_FIELD_NUMBER: _ClassVar[int]
    RECORD_FIELD_NUMBER: _ClassVar[int]
    CHAIN_FIELD_NUMBER: _ClassVar[int]
    TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    CHUNK_BYTES_FIELD_NUMBER: _ClassVar[int]
    CHUNK_DIGESTS_FIELD_NUMBER: _ClassVar[int]
    stage: int
    record: Record
    chain: bytes
    total_bytes: int
    chunk_bytes: int
    chunk_digests: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, stage: _Optional[int] = ..., record: _Optional[_Union[Record, _Mapping]] = ..., chain: _Optional[bytes] = ..., total_bytes: _Optional[int] = ..., chunk_bytes: _Optional[int] = ..., chunk_digests: _Optional[_Iterable[bytes]] = ...) -> None: ...

class Accepted(_message.Message):
    __slots__ = ("ballot", "record")
    BALLOT_FIELD_NUMBER: _ClassVar[int]
    RECORD_FIELD_NUMBER: _ClassVar[int]
    ballot: Ballot
    record: Record
    def __init__(self, ballot: _Optional[_Union[Ballot, _Mapping]] = ..., record: _Optional[_Union[Record, _Mapping]] = ...) -> None: ...
