"""Every gRPC option, time-out and bound of the net layer, in one place.

Decides: how fast silence is noticed, how much may be queued or buffered per peer, how large a frame may be. It does not
decide what a lost link means (the core does).

How silence is told from a busy peer: every link carries a tiny pulse when it is otherwise idle. If nothing at all was
read for ``ping_after_s``, gRPC sends an HTTP/2 ping, and if nothing is read for another ``ping_timeout_s``, the
connection ends. gRPC's own threads answer pings, so a process that computes, or holds the GIL in a C call, answers; a
stopped one (or a cut cable) does not. Pulses keep coming at their pace through a long queue in somebody's router, so a
constant delay, however large, trips nothing.

    last bytes read ──── ping_after_s ────► ping ──── ping_timeout_s ────► LinkLost(silent)

Bulk streams have connections of their own (control never waits behind a chunk), large HTTP/2 frames (measured on
loopback: 1.1 to 1.4 times the throughput of 16 KiB frames) and a patient client side: a ping there may wait behind
megabytes on a thin uplink, and the control link tells of a death anyway.
"""

from __future__ import annotations

from dataclasses import dataclass

from p2ptrain.wire import limits

MEBIBYTE = 1 << 20

SERVICE = "p2ptrain.wire.v1.Peer"
LINK_METHOD = f"/{SERVICE}/Link"
BULK_METHOD = f"/{SERVICE}/Bulk"
PULSE_METHOD = f"/{SERVICE}/Pulse"
DIAL_BACK_METHOD = f"/{SERVICE}/DialBack"

Options = list[tuple[str, int | str]]


@dataclass(frozen=True, slots=True)
class NetSettings:
    """Time bounds in seconds, sizes in bytes. The defaults are what the product runs with."""

    ping_after_s: float = 1.0  # nothing read for this long: send an HTTP/2 ping
    ping_timeout_s: float = 0.6  # ... and nothing for this long after it: the link is silent
    bulk_ping_timeout_s: float = 20.0  # the same on the opening side of a bulk connection
    pulse_s: float = 0.5  # a link that sent nothing for this long sends a pulse
    hello_timeout_s: float = 5.0  # an accepted stream that has not said Hello by then is ended
    alive_check_s: float = 0.3  # a standing link answers within this, or a newcomer with its name replaces it
    close_grace_s: float = 0.5  # for saying why before a stream is ended
    message_max_bytes: int = limits.MAX_MESSAGE_BYTES  # one control message
    frame_max_bytes: int = limits.MAX_FRAME_BYTES  # one bulk frame
    queue_max_bytes: int = 32 * MEBIBYTE  # outgoing control bytes waiting per link
    queue_max_messages: int = 20_000
    bulk_window_bytes: int = 8 * MEBIBYTE  # what gRPC buffers per bulk stream that nobody reads
    bulk_streams_max: int = 64  # open bulk streams per peer, either way
    links_max: int = 1024
    strangers_max: int = 128  # accepted streams that have not said Hello yet
    dial_back_addresses_max: int = 8


def server_options(settings: NetSettings) -> Options:
    """For the one listening port, which serves control and bulk connections alike."""
    return [
        *_common(settings),
        *_pings(settings.ping_after_s, settings.ping_timeout_s),
        ("grpc.so_reuseport", 0),  # a port in use must fail, not be shared
        ("grpc.max_concurrent_streams", settings.bulk_streams_max * 2 + 8),
    ]


def control_options(settings: NetSettings, peer: str) -> Options:
    """For the channel that carries the link to ``peer`` ("" without TLS)."""
    return [
        *_common(settings),
        *_client(peer),
        *_pings(settings.ping_after_s, settings.ping_timeout_s),
        ("grpc.primary_user_agent", "p2ptrain-control"),
    ]


def bulk_options(settings: NetSettings, peer: str) -> Options:
    """For the channel that carries our bulk streams to ``peer`` ("" without TLS)."""
    return [
        *_common(settings),
        *_client(peer),
        *_pings(settings.ping_after_s, settings.bulk_ping_timeout_s),
        ("grpc.primary_user_agent", "p2ptrain-bulk"),
    ]


def _common(settings: NetSettings) -> Options:
    longest = max(settings.message_max_bytes, settings.frame_max_bytes) + 64 * 1024
    return [
        ("grpc.max_receive_message_length", longest),
        ("grpc.max_send_message_length", longest),
        ("grpc.http2.max_frame_size", 4 * MEBIBYTE),
        ("grpc.http2.lookahead_bytes", settings.bulk_window_bytes),
        ("grpc.http2.bdp_probe", 0),  # a fixed window: memory is bounded, and no probing pings
        ("grpc.optimization_target", "throughput"),
        ("grpc.max_metadata_size", 16 * 1024),
    ]


def _client(peer: str) -> Options:
    options: Options = [
        ("grpc.use_local_subchannel_pool", 1),  # a channel is a connection of its own
        ("grpc.enable_http_proxy", 0),
        ("grpc.enable_retries", 0),
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.min_reconnect_backoff_ms", 1000),
        ("grpc.max_reconnect_backoff_ms", 2000),
    ]
    if peer:
        options += [("grpc.ssl_target_name_override", peer), ("grpc.default_authority", peer)]
    return options


def _pings(after_s: float, timeout_s: float) -> Options:
    return [
        ("grpc.keepalive_time_ms", int(after_s * 1000)),
        ("grpc.keepalive_timeout_ms", int(timeout_s * 1000)),
        ("grpc.http2.ping_timeout_ms", int(timeout_s * 1000)),  # measured: this one decides, not the one above
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.http2.max_ping_strikes", 0),
        ("grpc.http2.min_ping_interval_without_data_ms", 100),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", 100),
    ]
