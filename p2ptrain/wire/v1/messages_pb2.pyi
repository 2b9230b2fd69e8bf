from p2ptrain.wire.v1 import values_pb2 as _values_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Hello(_message.Message):
    __slots__ = ("run", "info", "incarnation", "head", "version")
    RUN_FIELD_NUMBER: _ClassVar[int]
    INFO_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    HEAD_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    run: str
    info: _values_pb2.PeerInfo
    incarnation: int
    head: _values_pb2.Head
    version: str
    def __init__(self, run: _Optional[str] = ..., info: _Optional[_Union[_values_pb2.PeerInfo, _Mapping]] = ..., incarnation: _Optional[int] = ..., head: _Optional[_Union[_values_pb2.Head, _Mapping]] = ..., version: _Optional[str] = ...) -> None: ...

class Leave(_message.Message):
    __slots__ = ("peer", "life", "reason", "signature", "public_key")
    PEER_FIELD_NUMBER: _ClassVar[int]
    LIFE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    PUBLIC_KEY_FIELD_NUMBER: _ClassVar[int]
    peer: str
    life: int
    reason: str
    signature: bytes
    public_key: bytes
    def __init__(self, peer: _Optional[str] = ..., life: _Optional[int] = ..., reason: _Optional[str] = ..., signature: _Optional[bytes] = ..., public_key: _Optional[bytes] = ...) -> None: ...

class Gossip(_message.Message):
    __slots__ = ("updates", "whole")
    UPDATES_FIELD_NUMBER: _ClassVar[int]
    WHOLE_FIELD_NUMBER: _ClassVar[int]
    updates: _containers.RepeatedCompositeFieldContainer[_values_pb2.Member]
    whole: bool
    def __init__(self, updates: _Optional[_Iterable[_Union[_values_pb2.Member, _Mapping]]] = ..., whole: bool = ...) -> None: ...

class Probe(_message.Message):
    __slots__ = ("seq", "updates")
    SEQ_FIELD_NUMBER: _ClassVar[int]
    UPDATES_FIELD_NUMBER: _ClassVar[int]
    seq: int
    updates: _containers.RepeatedCompositeFieldContainer[_values_pb2.Member]
    def __init__(self, seq: _Optional[int] = ..., updates: _Optional[_Iterable[_Union[_values_pb2.Member, _Mapping]]] = ...) -> None: ...

class ProbeAck(_message.Message):
    __slots__ = ("seq", "updates")
    SEQ_FIELD_NUMBER: _ClassVar[int]
    UPDATES_FIELD_NUMBER: _ClassVar[int]
    seq: int
    updates: _containers.RepeatedCompositeFieldContainer[_values_pb2.Member]
    def __init__(self, seq: _Optional[int] = ..., updates: _Optional[_Iterable[_Union[_values_pb2.Member, _Mapping]]] = ...) -> None: ...

class ProbeFor(_message.Message):
    __slots__ = ("seq", "target")
    SEQ_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    seq: int
    target: str
    def __init__(self, seq: _Optional[int] = ..., target: _Optional[str] = ...) -> None: ...

class ProbeReport(_message.Message):
    __slots__ = ("seq", "target", "life", "heard")
    SEQ_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    LIFE_FIELD_NUMBER: _ClassVar[int]
    HEARD_FIELD_NUMBER: _ClassVar[int]
    seq: int
    target: str
    life: int
    heard: bool
    def __init__(self, seq: _Optional[int] = ..., target: _Optional[str] = ..., life: _Optional[int] = ..., heard: bool = ...) -> None: ...

class PlanSaid(_message.Message):
    __slots__ = ("plan",)
    PLAN_FIELD_NUMBER: _ClassVar[int]
    plan: _values_pb2.Plan
    def __init__(self, plan: _Optional[_Union[_values_pb2.Plan, _Mapping]] = ...) -> None: ...

class Grant(_message.Message):
    __slots__ = ("lineage", "round", "serial", "positions", "done")
    LINEAGE_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    SERIAL_FIELD_NUMBER: _ClassVar[int]
    POSITIONS_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    lineage: int
    round: int
    serial: int
    positions: _values_pb2.Ids
    done: bool
    def __init__(self, lineage: _Optional[int] = ..., round: _Optional[int] = ..., serial: _Optional[int] = ..., positions: _Optional[_Union[_values_pb2.Ids, _Mapping]] = ..., done: bool = ...) -> None: ...

class Revoke(_message.Message):
    __slots__ = ("lineage", "round", "positions")
    LINEAGE_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    POSITIONS_FIELD_NUMBER: _ClassVar[int]
    lineage: int
    round: int
    positions: _values_pb2.Ids
    def __init__(self, lineage: _Optional[int] = ..., round: _Optional[int] = ..., positions: _Optional[_Union[_values_pb2.Ids, _Mapping]] = ...) -> None: ...

class Progress(_message.Message):
    __slots__ = ("lineage", "round", "done", "pending", "microbatch_s")
    LINEAGE_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    PENDING_FIELD_NUMBER: _ClassVar[int]
    MICROBATCH_S_FIELD_NUMBER: _ClassVar[int]
    lineage: int
    round: int
    done: _values_pb2.Ids
    pending: _values_pb2.Ids
    microbatch_s: float
    def __init__(self, lineage: _Optional[int] = ..., round: _Optional[int] = ..., done: _Optional[_Union[_values_pb2.Ids, _Mapping]] = ..., pending: _Optional[_Union[_values_pb2.Ids, _Mapping]] = ..., microbatch_s: _Optional[float] = ...) -> None: ...

class Close(_message.Message):
    __slots__ = ("fence", "dead", "reform")
    FENCE_FIELD_NUMBER: _ClassVar[int]
    DEAD_FIELD_NUMBER: _ClassVar[int]
    REFORM_FIELD_NUMBER: _ClassVar[int]
    fence: _values_pb2.Fence
    dead: _containers.RepeatedCompositeFieldContainer[_values_pb2.Voter]
    reform: _containers.RepeatedCompositeFieldContainer[_values_pb2.Voter]
    def __init__(self, fence: _Optional[_Union[_values_pb2.Fence, _Mapping]] = ..., dead: _Optional[_Iterable[_Union[_values_pb2.Voter, _Mapping]]] = ..., reform: _Optional[_Iterable[_Union[_values_pb2.Voter, _Mapping]]] = ...) -> None: ...

class Filled(_message.Message):
    __slots__ = ("fence", "life", "accepted", "bundles", "held", "base", "refused", "expects_more", "receives")
    FENCE_FIELD_NUMBER: _ClassVar[int]
    LIFE_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    BUNDLES_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    BASE_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    EXPECTS_MORE_FIELD_NUMBER: _ClassVar[int]
    RECEIVES_FIELD_NUMBER: _ClassVar[int]
    fence: _values_pb2.Fence
    life: int
    accepted: _values_pb2.Accepted
    bundles: _containers.RepeatedCompositeFieldContainer[_values_pb2.Bundle]
    held: _containers.RepeatedCompositeFieldContainer[_values_pb2.PartDone]
    base: _values_pb2.BaseDigest
    refused: _values_pb2.Ids
    expects_more: bool
    receives: bool
    def __init__(self, fence: _Optional[_Union[_values_pb2.Fence, _Mapping]] = ..., life: _Optional[int] = ..., accepted: _Optional[_Union[_values_pb2.Accepted, _Mapping]] = ..., bundles: _Optional[_Iterable[_Union[_values_pb2.Bundle, _Mapping]]] = ..., held: _Optional[_Iterable[_Union[_values_pb2.PartDone, _Mapping]]] = ..., base: _Optional[_Union[_values_pb2.BaseDigest, _Mapping]] = ..., refused: _Optional[_Union[_values_pb2.Ids, _Mapping]] = ..., expects_more: bool = ..., receives: bool = ...) -> None: ...

class Begin(_message.Message):
    __slots__ = ("fence", "attempt", "members", "bundles", "parts", "scale")
    FENCE_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    BUNDLES_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    SCALE_FIELD_NUMBER: _ClassVar[int]
    fence: _values_pb2.Fence
    attempt: int
    members: _containers.RepeatedCompositeFieldContainer[_values_pb2.Voter]
    bundles: _containers.RepeatedCompositeFieldContainer[_values_pb2.Bundle]
    parts: _containers.RepeatedCompositeFieldContainer[_values_pb2.PartOrder]
    scale: float
    def __init__(self, fence: _Optional[_Union[_values_pb2.Fence, _Mapping]] = ..., attempt: _Optional[int] = ..., members: _Optional[_Iterable[_Union[_values_pb2.Voter, _Mapping]]] = ..., bundles: _Optional[_Iterable[_Union[_values_pb2.Bundle, _Mapping]]] = ..., parts: _Optional[_Iterable[_Union[_values_pb2.PartOrder, _Mapping]]] = ..., scale: _Optional[float] = ...) -> None: ...

class Have(_message.Message):
    __slots__ = ("fence", "begin_digest", "parts")
    FENCE_FIELD_NUMBER: _ClassVar[int]
    BEGIN_DIGEST_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    fence: _values_pb2.Fence
    begin_digest: bytes
    parts: _containers.RepeatedCompositeFieldContainer[_values_pb2.PartDone]
    def __init__(self, fence: _Optional[_Union[_values_pb2.Fence, _Mapping]] = ..., begin_digest: _Optional[bytes] = ..., parts: _Optional[_Iterable[_Union[_values_pb2.PartDone, _Mapping]]] = ...) -> None: ...

class Trouble(_message.Message):
    __slots__ = ("fence", "begin_digest", "part", "bundles", "reducer", "reason")
    FENCE_FIELD_NUMBER: _ClassVar[int]
    BEGIN_DIGEST_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    BUNDLES_FIELD_NUMBER: _ClassVar[int]
    REDUCER_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    fence: _values_pb2.Fence
    begin_digest: bytes
    part: int
    bundles: _values_pb2.Ids
    reducer: bool
    reason: str
    def __init__(self, fence: _Optional[_Union[_values_pb2.Fence, _Mapping]] = ..., begin_digest: _Optional[bytes] = ..., part: _Optional[int] = ..., bundles: _Optional[_Union[_values_pb2.Ids, _Mapping]] = ..., reducer: bool = ..., reason: _Optional[str] = ...) -> None: ...

class Propose(_message.Message):
    __slots__ = ("fence", "record")
    FENCE_FIELD_NUMBER: _ClassVar[int]
    RECORD_FIELD_NUMBER: _ClassVar[int]
    fence: _values_pb2.Fence
    record: _values_pb2.Record
    def __init__(self, fence: _Optional[_Union[_values_pb2.Fence, _Mapping]] = ..., record: _Optional[_Union[_values_pb2.Record, _Mapping]] = ...) -> None: ...

class Accept(_message.Message):
    __slots__ = ("fence", "life", "record_digest")
    FENCE_FIELD_NUMBER: _ClassVar[int]
    LIFE_FIELD_NUMBER: _ClassVar[int]
    RECORD_DIGEST_FIELD_NUMBER: _ClassVar[int]
    fence: _values_pb2.Fence
    life: int
    record_digest: bytes
    def __init__(self, fence: _Optional[_Union[_values_pb2.Fence, _Mapping]] = ..., life: _Optional[int] = ..., record_digest: _Optional[bytes] = ...) -> None: ...

class Commit(_message.Message):
    __slots__ = ("record", "accepted", "holders")
    RECORD_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    HOLDERS_FIELD_NUMBER: _ClassVar[int]
    record: _values_pb2.Record
    accepted: _containers.RepeatedCompositeFieldContainer[_values_pb2.Voter]
    holders: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, record: _Optional[_Union[_values_pb2.Record, _Mapping]] = ..., accepted: _Optional[_Iterable[_Union[_values_pb2.Voter, _Mapping]]] = ..., holders: _Optional[_Iterable[str]] = ...) -> None: ...

class HeadSaid(_message.Message):
    __slots__ = ("head",)
    HEAD_FIELD_NUMBER: _ClassVar[int]
    head: _values_pb2.Head
    def __init__(self, head: _Optional[_Union[_values_pb2.Head, _Mapping]] = ...) -> None: ...

class RecordAsk(_message.Message):
    __slots__ = ("stage", "lineage", "first", "last")
    STAGE_FIELD_NUMBER: _ClassVar[int]
    LINEAGE_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    stage: int
    lineage: int
    first: int
    last: int
    def __init__(self, stage: _Optional[int] = ..., lineage: _Optional[int] = ..., first: _Optional[int] = ..., last: _Optional[int] = ...) -> None: ...

class SnapshotAsk(_message.Message):
    __slots__ = ("stage", "round")
    STAGE_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    stage: int
    round: int
    def __init__(self, stage: _Optional[int] = ..., round: _Optional[int] = ...) -> None: ...

class SnapshotOffer(_message.Message):
    __slots__ = ("stage", "asked_round", "info", "reason", "head")
    STAGE_FIELD_NUMBER: _ClassVar[int]
    ASKED_ROUND_FIELD_NUMBER: _ClassVar[int]
    INFO_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    HEAD_FIELD_NUMBER: _ClassVar[int]
    stage: int
    asked_round: int
    info: _values_pb2.SnapshotInfo
    reason: str
    head: _values_pb2.Head
    def __init__(self, stage: _Optional[int] = ..., asked_round: _Optional[int] = ..., info: _Optional[_Union[_values_pb2.SnapshotInfo, _Mapping]] = ..., reason: _Optional[str] = ..., head: _Optional[_Union[_values_pb2.Head, _Mapping]] = ...) -> None: ...

class SnapshotRelease(_message.Message):
    __slots__ = ("key",)
    KEY_FIELD_NUMBER: _ClassVar[int]
    key: bytes
    def __init__(self, key: _Optional[bytes] = ...) -> None: ...

class Heal(_message.Message):
    __slots__ = ("fence", "slices", "healthy")
    FENCE_FIELD_NUMBER: _ClassVar[int]
    SLICES_FIELD_NUMBER: _ClassVar[int]
    HEALTHY_FIELD_NUMBER: _ClassVar[int]
    fence: _values_pb2.Fence
    slices: _values_pb2.Ids
    healthy: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, fence: _Optional[_Union[_values_pb2.Fence, _Mapping]] = ..., slices: _Optional[_Union[_values_pb2.Ids, _Mapping]] = ..., healthy: _Optional[_Iterable[str]] = ...) -> None: ...
