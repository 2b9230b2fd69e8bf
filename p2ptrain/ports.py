"""The Protocols through which net, train and runtime meet without importing each other.

Threads: everything ``async`` here, and every ``on_event`` callback, belongs to the one asyncio loop that gRPC runs in
(a thread of its own). ``Trainer`` methods may be called from that loop; they only queue. The stores are thread-safe.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from p2ptrain.core.events import (
    Apply,
    Compute,
    Event,
    HealSlices,
    LoadState,
    Pin,
    Shrink,
    Unpin,
)
from p2ptrain.core.messages import Hello, Message
from p2ptrain.core.types import Digest, PeerId, PeerInfo, SnapshotInfo

if TYPE_CHECKING:
    import torch

OnEvent = Callable[[Event], None]


class BulkStream(Protocol):
    """A two-way stream of raw byte frames between two peers, each frame at most ``max_frame_bytes``.

    The first frame each way is a header (``wire.bulk``). Frames arrive whole and in order, or the stream fails with
    ``TransportError`` (cut, reset, peer dead) or ``ProtocolError`` (oversized frame).
    """

    @property
    def peer(self) -> PeerId: ...

    async def send(self, frame: bytes) -> None:
        """Queue one frame; waits while the other side is slower than we are (back-pressure). Raises TransportError."""

    async def receive(self) -> bytes | None:
        """Next frame, or None when the other side has finished sending. Raises TransportError, ProtocolError."""

    async def finish(self) -> None:
        """No more frames from here."""

    def cancel(self, reason: str) -> None:
        """End the stream at once, both ways; idempotent."""


OnBulk = Callable[[BulkStream], Awaitable[None]]
"""Called for every bulk stream that another peer opened; returns when it is served."""


class Transport(Protocol):
    """Links (control) and bulk streams between peers. The sender's identity comes from its certificate."""

    async def start(self, hello: Callable[[], Hello], on_event: OnEvent, on_bulk: OnBulk) -> tuple[str, ...]:
        """Listen (unless outbound-only) and return the addresses to announce. Raises TransportError (port in use).

        Facts arrive by ``on_event``: ``LinkUp``, ``LinkLost``, ``DialFailed``, ``Received``.
        """

    def send(self, to: PeerId, message: Message) -> None:
        """Queue on the link to ``to``; without a link the message is dropped (the core dials first)."""

    def dial(self, peer: PeerId, addresses: Sequence[str], timeout_s: float) -> None:
        """Open a link, all addresses in parallel; ends in one ``LinkUp`` or one ``DialFailed``."""

    def hangup(self, peer: PeerId, reason: str) -> None: ...

    async def open_bulk(self, peer: PeerId, timeout_s: float) -> BulkStream:
        """A fresh bulk stream to ``peer``, over whichever side can dial. Raises TransportError."""

    async def stop(self, grace_s: float) -> None: ...


class Directory(Protocol):
    """The DHT as the runtime sees it. Nothing waits for it on a path that training waits for."""

    async def start(self, initial_peers: Sequence[str]) -> tuple[str, ...]:
        """Start (in the background) and return the helper's own multiaddresses. Raises TransportError."""

    async def announce(self, info: PeerInfo, expires_in_s: float) -> bool: ...

    async def find(self, limit: int) -> tuple[PeerInfo, ...]: ...

    async def stop(self) -> None: ...


class PartSource(Protocol):
    """Averaged parts by digest, as the trainer needs them when it applies a record."""

    def payloads(self, digest: Digest) -> Sequence[bytes | memoryview]:
        """The part's encoded chunks in order. Raises KeyError if the part is not held."""

    def codec_name(self, digest: Digest) -> str:
        """Name of the codec that these chunks were encoded with. Raises KeyError if the part is not held."""


class SliceSource(Protocol):
    """State slices by index, to heal damage: a donor's own, or what was pulled from a healthy peer."""

    def slice_bytes(self, stage: int, round: int, index: int) -> bytes:
        """The slice as it is after ``round``. Raises KeyError if it is not at hand (any more). Any thread."""


class GradientSource(Protocol):
    """Sealed bundles, as the exchange needs them."""

    def bundle(self, stage: int, round: int, index: int) -> torch.Tensor:
        """Flat (P,) tensor of one's own sealed bundle: float32 mean over its ids, or in exact mode int64 sums.

        Raises KeyError if that bundle is not held (never computed, not finite, or its round is over).
        """


class SnapshotSink(Protocol):
    """Where a joiner puts pulled chunks; each is verified against its digest before it is written."""

    def open(self, info: SnapshotInfo) -> None: ...

    def write(self, key: Digest, index: int, data: bytes) -> bool:
        """False if the digest does not match (nothing is written)."""


class SnapshotSource(Protocol):
    """Chunks of pinned snapshots, for donors."""

    def chunk(self, key: Digest, index: int) -> bytes:
        """Raises KeyError if the snapshot is not pinned here (any more)."""


class Trainer(Protocol):
    """The torch side. Every order is answered by its event through the ``on_event`` given at construction."""

    def submit(self, order: Compute | Shrink | Apply | Pin | Unpin | LoadState | HealSlices) -> None: ...

    def forget_round(self, before_round: int) -> None:
        """Gradients of rounds below are not needed any more."""

    def stop(self) -> None: ...
