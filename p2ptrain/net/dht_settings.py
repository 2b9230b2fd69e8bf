"""What can be set about the DHT, and what ``p2ptrain status`` shows of it: plain values, no behaviour.

DhtSettings(listen="0.0.0.0:4001", folder=run_folder)
status.describe()  ->  "DHT up, 3 neighbours, helper died 0 times; not reached: /ip4/...: connection refused"
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from p2ptrain.net.dht_records import BUCKETS


@dataclass(frozen=True, slots=True)
class DhtSettings:
    """What a person or a test may set. Times in seconds."""

    listen: str = "0.0.0.0:0"  # HOST:PORT or a multiaddress; port 0: any free one
    announce: tuple[str, ...] = ()  # HOST:PORT that others should dial, if not what it listens on
    folder: Path | None = None  # keeps the libp2p identity there; None: a new one each start
    buckets: int = BUCKETS
    client_mode: bool = False  # asks others, is never asked: for peers that cannot be dialled
    auto_nat: bool = False
    port_map: bool = False
    relay: bool = False
    checker: str = "p2ptrain.net.dht_seal:check"  # what the helper lets pass before it stores; "": only the form
    start_timeout_s: float = 60.0
    call_timeout_s: float = 30.0
    calls_max: int = 4
    ping_period_s: float = 10.0  # two pings unanswered for this long: the helper hangs and is replaced
    restart_min_s: float = 0.5
    restart_max_s: float = 30.0
    steady_after_s: float = 60.0  # a life at least this long resets the back-off


@dataclass(frozen=True, slots=True)
class Outcome:
    """How the last call of a kind ended; ``at`` in seconds of ``time.time``."""

    ok: bool
    reason: str
    at: float


@dataclass(frozen=True, slots=True)
class DhtStatus:
    """For ``p2ptrain status``."""

    state: str = "off"  # off, starting, up, restarting, unavailable, stopped
    addresses: tuple[str, ...] = ()
    initial_peers: tuple[tuple[str, str], ...] = ()  # (multiaddress, "connected" or what happened)
    neighbours: int = 0
    deaths: int = 0
    last_death: str = ""
    last_announce: Outcome | None = None
    last_find: Outcome | None = None
    dropped: tuple[tuple[str, int], ...] = ()  # (reason, records), since the start

    def describe(self) -> str:
        """One line."""
        failed = [f"{address}: {text}" for address, text in self.initial_peers if text != "connected"]
        pieces = [f"DHT {self.state}, {self.neighbours} neighbours, helper died {self.deaths} times"]
        pieces += [f"last: {self.last_death}"] if self.last_death else []
        pieces += [f"not reached: {'; '.join(failed)}"] if failed else []
        for name, outcome in (("announce", self.last_announce), ("find", self.last_find)):
            if outcome is not None and not outcome.ok:
                pieces.append(f"{name} failed: {outcome.reason}")
        return "; ".join(pieces)
