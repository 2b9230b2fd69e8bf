"""What happens to one packet: which queues it waits in, how long it travels, whether it gets lost. No clock, no I/O.

Every direction of every pair has a ``Shape``; hosts and home routers have an uplink and a downlink, a router's shared
by those behind it. A rate is a queue in virtual time: a packet leaves when the ones before it have left. Rates live
here and not in the kernel's tbf/htb because one queue must see all that a shared uplink carries, and a pair's rate
applies after its sender's uplink; loss lives here because the order of chances is then one seed's. Queues are bounded:
what does not fit is dropped, as routers do, and TCP slows down by it.

    host uplink -> router uplink -> pair (rate, loss, delay, jitter) -> router downlink -> host downlink
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from p2ptrain.lab.wan import Host, Shape

QUEUE_S = 0.1
"""So much waits in front of a bottleneck at most (home routers hold 0.1 to 1 s), but ``QUEUE_BYTES`` always fit."""

QUEUE_BYTES = 64 * 1024
FLOW_S = 300.0
"""A NAT forgets a flow that has been silent for so long."""

FLOWS_MAX = 65_536
Flow = tuple[int, bytes, int, bytes, int]
"""Protocol, source address, source port, target address, target port."""


class Queue:
    """A rate in virtual time. ``mbps`` 0: none."""

    __slots__ = ("free_at", "limit_s", "s_per_byte")

    def __init__(self, mbps: float = 0.0) -> None:
        self.free_at = 0.0
        self.s_per_byte = 0.0
        self.limit_s = 0.0
        self.set(mbps)

    def set(self, mbps: float) -> None:
        self.s_per_byte = 8e-6 / mbps if mbps > 0 else 0.0
        self.limit_s = max(QUEUE_S, QUEUE_BYTES * self.s_per_byte)

    def pass_at(self, now: float, nbytes: int) -> float:
        """When ``nbytes`` that come at ``now`` have left; negative: the queue is full, they are dropped."""
        if self.s_per_byte == 0.0:
            return now
        begin = now if now > self.free_at else self.free_at
        if begin - now > self.limit_s:
            return -1.0
        self.free_at = begin + nbytes * self.s_per_byte
        return self.free_at


@dataclass(slots=True)
class Pair:
    """One direction between two hosts. ``last_at``: when its last packet arrives, so that none overtakes another."""

    shape: Shape = field(default_factory=Shape)
    queue: Queue = field(default_factory=Queue)
    is_cut: bool = False
    last_at: float = 0.0
    nbytes: int = 0

    def set(self, shape: Shape) -> None:
        self.shape = shape
        self.queue.set(shape.mbps)


class Paths:
    """All pairs and queues of one emulated network. ``corrupting``: chance by source host."""

    def __init__(self, hosts: list[Host], seed: int = 0) -> None:
        self.hosts = hosts
        self.rng = random.Random(seed)
        self.index = {host.name: i for i, host in enumerate(hosts)}
        self.pairs: dict[tuple[int, int], Pair] = {}
        self.corrupting: dict[int, float] = {}
        self.nat = [host.nat for host in hosts]
        self.routers: dict[str, tuple[Queue, Queue]] = {h.router: (Queue(), Queue()) for h in hosts if h.router}
        self.own = [(Queue(host.up_mbps), Queue(host.down_mbps)) for host in hosts]
        self._flows: dict[Flow, float] = {}

    def pair(self, source: int, target: int) -> Pair:
        found = self.pairs.get((source, target))
        if found is None:
            found = self.pairs[source, target] = Pair()
        return found

    def shape_uplink(self, name: str, up_mbps: float, down_mbps: float) -> None:
        """Raises KeyError: neither a host nor a router."""
        up, down = self.routers[name] if name in self.routers else self.own[self.index[name]]
        up.set(up_mbps)
        down.set(down_mbps)

    def departs(self, now: float, source: int, target: int, nbytes: int) -> float:
        """When a packet arrives at the target's downlink; negative: it is lost on the way."""
        pair = self.pair(source, target)
        pair.nbytes += nbytes
        if pair.is_cut:
            return -1.0
        shape = pair.shape
        if shape.loss and self.rng.random() < shape.loss:
            return -1.0
        at = self.own[source][0].pass_at(now, nbytes)
        away = not self.same_router(source, target)
        if at >= 0.0 and away and self.hosts[source].router:
            at = self.routers[self.hosts[source].router][0].pass_at(at, nbytes)
        if at >= 0.0:
            at = pair.queue.pass_at(at, nbytes)
        if at < 0.0:
            return at
        at += shape.delay_s
        if shape.jitter_s:
            at += shape.jitter_s * self.rng.random()
        if at < pair.last_at:
            at = pair.last_at
        pair.last_at = at
        return at

    def arrives(self, now: float, source: int, target: int, nbytes: int) -> float:
        """When a packet that is at the target's downlink now has come through; negative: dropped there."""
        if self.pair(source, target).is_cut:
            return -1.0  # it was under way when the link was cut
        at = now
        router = self.hosts[target].router
        if router and not self.same_router(source, target):
            at = self.routers[router][1].pass_at(at, nbytes)
        return self.own[target][1].pass_at(at, nbytes) if at >= 0.0 else at

    def same_router(self, one: int, other: int) -> bool:
        return self.hosts[one].router != "" and self.hosts[one].router == self.hosts[other].router

    def lets_in(self, now: float, source: int, target: int, flow: Flow) -> bool:
        """Whether the target's NAT lets the packet through: answers only, to what was sent from inside before."""
        if self.nat[source]:
            if len(self._flows) >= FLOWS_MAX:
                self._forget(now)
            self._flows[flow] = now
        if not self.nat[target] or self.same_router(source, target):
            return True
        protocol, from_address, from_port, to_address, to_port = flow
        inside = (protocol, to_address, to_port, from_address, from_port)
        seen = self._flows.get(inside)
        if seen is None or now - seen > FLOW_S:
            return False
        self._flows[inside] = now
        return True

    def _forget(self, now: float) -> None:
        kept = {flow: at for flow, at in self._flows.items() if now - at <= FLOW_S}
        while len(kept) >= FLOWS_MAX:
            kept.pop(next(iter(kept)))
        self._flows = kept


def flow_of(packet: bytes) -> Flow:
    """Of an IPv4 packet; ports 0 where it is neither TCP nor UDP."""
    protocol = packet[9]
    start = (packet[0] & 0x0F) * 4
    if protocol not in (6, 17) or len(packet) < start + 4:
        return protocol, packet[12:16], 0, packet[16:20], 0
    return (
        protocol,
        packet[12:16],
        int.from_bytes(packet[start : start + 2], "big"),
        packet[16:20],
        int.from_bytes(packet[start + 2 : start + 4], "big"),
    )


def flip_bit(packet: bytes, rng: random.Random) -> bytes:
    """One bit of a TCP packet's payload flipped and its checksum mended (RFC 1624), so that only the application can
    notice. Unchanged if it is not TCP or carries nothing.
    """
    start = (packet[0] & 0x0F) * 4
    if packet[9] != 6 or len(packet) < start + 20:
        return packet
    first = start + (packet[start + 12] >> 4) * 4
    if first >= len(packet):
        return packet
    changed = bytearray(packet)
    at = rng.randrange(first, len(packet))
    word = at - (at - start) % 2  # checksums count 16-bit words from the TCP header on; an odd end is padded with 0
    before = int.from_bytes(changed[word : word + 2].ljust(2, b"\0"), "big")
    changed[at] ^= 1 << rng.randrange(8)
    after = int.from_bytes(changed[word : word + 2].ljust(2, b"\0"), "big")
    checksum = int.from_bytes(packet[start + 16 : start + 18], "big")
    total = (~checksum & 0xFFFF) + (~before & 0xFFFF) + after
    total = (total & 0xFFFF) + (total >> 16)
    total = (total & 0xFFFF) + (total >> 16)
    changed[start + 16 : start + 18] = (~total & 0xFFFF).to_bytes(2, "big")
    return bytes(changed)


class Lateness:
    """How late packets were, in buckets an eighth of a doubling wide: bounded, whatever the run's length."""

    FLOOR_S = 1e-6

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        self.total = 0

    def add(self, late_s: float) -> None:
        bucket = 0
        if late_s > self.FLOOR_S:
            mantissa = late_s / self.FLOOR_S
            doublings = int(mantissa).bit_length() - 1
            bucket = 8 * doublings + int(8 * (mantissa / (1 << doublings) - 1.0)) + 1
        self._counts[bucket] = self._counts.get(bucket, 0) + 1
        self.total += 1

    def quantile_s(self, share: float) -> float:
        """The upper end of the bucket in which the quantile lies; 0 without packets."""
        wanted, seen = share * self.total, 0
        for bucket in sorted(self._counts):
            seen += self._counts[bucket]
            if seen >= wanted and self.total:
                doublings, eighth = divmod(bucket, 8)
                return self.FLOOR_S * (1 << doublings) * (1.0 + eighth / 8.0) if bucket else self.FLOOR_S
        return 0.0
