"""A peer's numbers for Prometheus. Off unless ``--metrics HOST:PORT`` is given; decides nothing.

metrics = Metrics(run="quickstart", peer="abcd..."); stop = metrics.serve("127.0.0.1", 9100)
metrics.round_done(result, peers=4, loop_lag_s=0.01)          # after each round
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server

from p2ptrain.core.types import RoundResult
from p2ptrain.errors import TransportError

STALL_BUCKETS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)


class Metrics:
    """Its own registry, so that two peers in one process (tests) do not mix."""

    def __init__(self, run: str, peer: str) -> None:
        self.registry = CollectorRegistry()
        names = {"run": run, "peer": peer}

        def gauge(name: str, what: str) -> Gauge:
            return Gauge(f"p2ptrain_{name}", what, tuple(names), registry=self.registry)

        def counter(name: str, what: str) -> Counter:
            return Counter(f"p2ptrain_{name}", what, tuple(names), registry=self.registry)

        self._round = gauge("round", "last round applied here").labels(**names)
        self._loss = gauge("loss", "training loss of the last round, nats a token").labels(**names)
        self._held_out = gauge("held_out_loss", "last held-out loss measured here, nats a token").labels(**names)
        self._peers = Gauge("p2ptrain_peers", "members by status", (*names, "status"), registry=self.registry)
        self._lag = gauge("loop_lag_seconds", "longest delay of the event loop since the round before").labels(**names)
        self._share = gauge("share", "part of the last round's microbatches that was counted").labels(**names)
        self._sent = counter("sent_bytes", "bytes sent in exchanges").labels(**names)
        self._received = counter("received_bytes", "bytes received in exchanges").labels(**names)
        self._rounds = counter("rounds", "rounds applied in this life").labels(**names)
        self._stall = Histogram(
            "p2ptrain_stall_seconds",
            "from the end of the own fill to the commit",
            tuple(names),
            buckets=STALL_BUCKETS,
            registry=self.registry,
        ).labels(**names)
        self._names = names
        self._statuses: set[str] = set()
        self.port = 0

    def round_done(self, result: RoundResult, peers: Mapping[str, int], loop_lag_s: float) -> None:
        """``peers``: how many members have each status."""
        self._round.set(result.round)
        if not math.isnan(result.loss):
            self._loss.set(result.loss)
        self._share.set(result.share)
        self._lag.set(loop_lag_s)
        self._stall.observe(result.stall_s)
        self._sent.inc(max(0, result.bytes_sent))
        self._received.inc(max(0, result.bytes_received))
        self._rounds.inc()
        self._statuses |= set(peers)
        for status in self._statuses:
            self._peers.labels(**self._names, status=status).set(peers.get(status, 0))

    def held_out(self, loss: float) -> None:
        self._held_out.set(loss)

    def serve(self, host: str, port: int) -> Callable[[], None]:
        """Answer HTTP on ``host``:``port``; returns what ends it. Raises TransportError (port in use)."""
        try:
            server, thread = start_http_server(port, host, self.registry)
        except OSError as error:
            raise TransportError(
                f"metrics: cannot listen on {host}:{port}: {error.strerror}",
                hint="choose another with --metrics",
                address=f"{host}:{port}",
            ) from None

        self.port = server.server_port

        def stop() -> None:
            server.shutdown()
            server.server_close()
            thread.join(timeout=2.0)

        return stop
