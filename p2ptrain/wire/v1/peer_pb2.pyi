from p2ptrain.wire.v1 import messages_pb2 as _messages_pb2
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Envelope(_message.Message):
    __slots__ = ("format", "hello", "leave", "gossip", "probe", "probe_ack", "probe_for", "probe_report", "plan_said", "grant", "revoke", "progress", "close", "filled", "begin", "have", "trouble", "propose", "accept", "commit", "head_said", "record_ask", "snapshot_ask", "snapshot_offer", "snapshot_release", "heal")
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    HELLO_FIELD_NUMBER: _ClassVar[int]
    LEAVE_FIELD_NUMBER: _ClassVar[int]
    GOSSIP_FIELD_NUMBER: _ClassVar[int]
    PROBE_FIELD_NUMBER: _ClassVar[int]
    PROBE_ACK_FIELD_NUMBER: _ClassVar[int]
    PROBE_FOR_FIELD_NUMBER: _ClassVar[int]
    PROBE_REPORT_FIELD_NUMBER: _ClassVar[int]
    PLAN_SAID_FIELD_NUMBER: _ClassVar[int]
    GRANT_FIELD_NUMBER: _ClassVar[int]
    REVOKE_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    CLOSE_FIELD_NUMBER: _ClassVar[int]
    FILLED_FIELD_NUMBER: _ClassVar[int]
    BEGIN_FIELD_NUMBER: _ClassVar[int]
    HAVE_FIELD_NUMBER: _ClassVar[int]
    TROUBLE_FIELD_NUMBER: _ClassVar[int]
    PROPOSE_FIELD_NUMBER: _ClassVar[int]
    ACCEPT_FIELD_NUMBER: _ClassVar[int]
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    HEAD_SAID_FIELD_NUMBER: _ClassVar[int]
    RECORD_ASK_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_ASK_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_OFFER_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_RELEASE_FIELD_NUMBER: _ClassVar[int]
    HEAL_FIELD_NUMBER: _ClassVar[int]
    format: int
    hello: _messages_pb2.Hello
    leave: _messages_pb2.Leave
    gossip: _messages_pb2.Gossip
    probe: _messages_pb2.Probe
    probe_ack: _messages_pb2.ProbeAck
    probe_for: _messages_pb2.ProbeFor
    probe_report: _messages_pb2.ProbeReport
    plan_said: _messages_pb2.PlanSaid
    grant: _messages_pb2.Grant
    revoke: _messages_pb2.Revoke
    progress: _messages_pb2.Progress
    close: _messages_pb2.Close
    filled: _messages_pb2.Filled
    begin: _messages_pb2.Begin
    have: _messages_pb2.Have
    trouble: _messages_pb2.Trouble
    propose: _messages_pb2.Propose
    accept: _messages_pb2.Accept
    commit: _messages_pb2.Commit
    head_said: _messages_pb2.HeadSaid
    record_ask: _messages_pb2.RecordAsk
    snapshot_ask: _messages_pb2.SnapshotAsk
    snapshot_offer: _messages_pb2.SnapshotOffer
    snapshot_release: _messages_pb2.SnapshotRelease
    heal: _messages_pb2.Heal
    def __init__(self, format: _Optional[int] = ..., hello: _Optional[_Union[_messages_pb2.Hello, _Mapping]] = ..., leave: _Optional[_Union[_messages_pb2.Leave, _Mapping]] = ..., gossip: _Optional[_Union[_messages_pb2.Gossip, _Mapping]] = ..., probe: _Optional[_Union[_messages_pb2.Probe, _Mapping]] = ..., probe_ack: _Optional[_Union[_messages_pb2.ProbeAck, _Mapping]] = ..., probe_for: _Optional[_Union[_messages_pb2.ProbeFor, _Mapping]] = ..., probe_report: _Optional[_Union[_messages_pb2.ProbeReport, _Mapping]] = ..., plan_said: _Optional[_Union[_messages_pb2.PlanSaid, _Mapping]] = ..., grant: _Optional[_Union[_messages_pb2.Grant, _Mapping]] = ..., revoke: _Optional[_Union[_messages_pb2.Revoke, _Mapping]] = ..., progress: _Optional[_Union[_messages_pb2.Progress, _Mapping]] = ..., close: _Optional[_Union[_messages_pb2.Close, _Mapping]] = ..., filled: _Optional[_Union[_messages_pb2.Filled, _Mapping]] = ..., begin: _Optional[_Union[_messages_pb2.Begin, _Mapping]] = ..., have: _Optional[_Union[_messages_pb2.Have, _Mapping]] = ..., trouble: _Optional[_Union[_messages_pb2.Trouble, _Mapping]] = ..., propose: _Optional[_Union[_messages_pb2.Propose, _Mapping]] = ..., accept: _Optional[_Union[_messages_pb2.Accept, _Mapping]] = ..., commit: _Optional[_Union[_messages_pb2.Commit, _Mapping]] = ..., head_said: _Optional[_Union[_messages_pb2.HeadSaid, _Mapping]] = ..., record_ask: _Optional[_Union[_messages_pb2.RecordAsk, _Mapping]] = ..., snapshot_ask: _Optional[_Union[_messages_pb2.SnapshotAsk, _Mapping]] = ..., snapshot_offer: _Optional[_Union[_messages_pb2.SnapshotOffer, _Mapping]] = ..., snapshot_release: _Optional[_Union[_messages_pb2.SnapshotRelease, _Mapping]] = ..., heal: _Optional[_Union[_messages_pb2.Heal, _Mapping]] = ...) -> None: ...

class DialBackRequest(_message.Message):
    __slots__ = ("format", "address")
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    format: int
    address: str
    def __init__(self, format: _Optional[int] = ..., address: _Optional[str] = ...) -> None: ...

class DialBackReply(_message.Message):
    __slots__ = ("format", "reached", "failure", "detail")
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    REACHED_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    format: int
    reached: bool
    failure: str
    detail: str
    def __init__(self, format: _Optional[int] = ..., reached: bool = ..., failure: _Optional[str] = ..., detail: _Optional[str] = ...) -> None: ...
