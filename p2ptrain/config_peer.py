"""How one peer takes part: its options, parsed and checked with errors that name the flag; and the environment.

Nothing here is part of the manifest: two peers of one run may differ in all of it. This is the one place that reads
environment variables:

    P2PTRAIN_HOME      where run folders live (default: ~/.local/share/p2ptrain, or below XDG_DATA_HOME)
    P2PTRAIN_REGION    as --region
    P2PTRAIN_PARTY     as --party
    P2PTRAIN_LOG_JSON  as --log-json: 1, true, yes or 0, false, no

A flag that is given wins over the environment.
"""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from p2ptrain.errors import ConfigError

DEFAULT_PORT = 7700
DEFAULT_DHT_PORT = 7701
LABEL = r"^[a-z0-9][a-z0-9._-]{0,62}$"

_MEMORY_UNITS = {"B": 1} | {
    prefix + suffix: base**power
    for power, prefix in enumerate("KMGT", start=1)
    for suffix, base in (("iB", 1024), ("B", 1000))
}
_DURATION_UNITS_S = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


class HostPort(NamedTuple):
    """A host (name, IPv4, or IPv6 without brackets) and a TCP port; ``str`` of it can be parsed again."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def wildcard(self) -> bool:
        """True for an address that means "all interfaces": one can listen on it, nobody can dial it."""
        return self.host in ("0.0.0.0", "::")


DEFAULT_LISTEN = HostPort("0.0.0.0", DEFAULT_PORT)
DEFAULT_DHT_LISTEN = HostPort("0.0.0.0", DEFAULT_DHT_PORT)


class PeerSettings(BaseModel):
    """The options of ``start`` and ``join``, checked. Make it with ``from_flags``."""

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True, allow_inf_nan=False)

    threads: Annotated[int, Field(ge=0, le=1024)] = 0  # 0: as torch chooses
    memory_bytes: Annotated[int, Field(ge=0)] = 0  # 0: what the device has
    upload_mbps: Annotated[float, Field(ge=0, le=1e6)] = 0.0  # 0: no cap
    listen: HostPort = DEFAULT_LISTEN
    announce: HostPort | None = None  # None: found by looking at the interfaces
    dht_listen: HostPort = DEFAULT_DHT_LISTEN
    outbound_only: bool = False
    no_dht: bool = False
    region: Annotated[str, Field(pattern=rf"{LABEL}|^$")] = ""
    party: Annotated[str, Field(pattern=rf"{LABEL}|^$")] = ""
    run_dir: Path | None = None  # None: ``default_run_dir``
    until_s: float | None = None  # seconds since 1970 at which this peer leaves; None: when the run ends
    trust: tuple[str, ...] = ()
    log_json: bool = False

    @classmethod
    def from_flags(
        cls,
        *,
        now_s: float,
        environment: Environment | None = None,
        threads: int | None = None,
        memory: str | None = None,
        upload_mbps: float | None = None,
        listen: str | None = None,
        announce: str | None = None,
        dht_listen: str | None = None,
        outbound_only: bool = False,
        no_dht: bool = False,
        region: str | None = None,
        party: str | None = None,
        run_dir: str | Path | None = None,
        until: str | None = None,
        trust: Sequence[str] = (),
        log_json: bool = False,
    ) -> PeerSettings:
        """From the command line's own text; ``now_s`` is the wall clock. Raises ConfigError naming the flag."""
        _refuse_contradictions(listen, announce, dht_listen, outbound_only=outbound_only, no_dht=no_dht)
        around = environment or read_environment()
        values: dict[str, object] = {
            "outbound_only": outbound_only,
            "no_dht": no_dht,
            "region": around.region if region is None else region,
            "party": around.party if party is None else party,
            "trust": tuple(trust),
            "log_json": log_json or around.log_json,
        }
        if threads is not None:
            values["threads"] = _at_least_one(threads)
        if memory is not None:
            values["memory_bytes"] = parse_memory(memory)
        if upload_mbps is not None:
            values["upload_mbps"] = _positive(upload_mbps)
        if listen is not None:
            values["listen"] = parse_host_port(listen, "--listen")
        if announce is not None:
            values["announce"] = _parse_announce(announce)
        if dht_listen is not None:
            values["dht_listen"] = parse_host_port(dht_listen, "--dht-listen")
        if run_dir is not None:
            values["run_dir"] = Path(run_dir).expanduser().absolute()
        if until is not None:
            values["until_s"] = parse_until(until, now_s)
        try:
            settings = cls.model_validate(values)
        except ValidationError as error:
            details = error.errors(include_url=False)[0]
            raise _flag_error(_flag(str(details["loc"][0])), details["msg"], details["input"]) from None
        return settings._with_distinct_ports()

    def _with_distinct_ports(self) -> PeerSettings:
        same = self.listen.port == self.dht_listen.port != 0
        if same and not self.no_dht and not self.outbound_only:
            raise _flag_error("--dht-listen", "has the same port as --listen", self.dht_listen)
        return self


# --- text to values ---------------------------------------------------------------------------------------------------


def parse_memory(text: str, flag: str = "--memory") -> int:
    """Bytes of "8GiB", "512MiB", "16GB" (KiB, MiB, GiB, TiB by 1024; KB, MB, GB, TB by 1000). Raises ConfigError."""
    found = re.fullmatch(r"\s*([0-9]{1,12}(?:\.[0-9]{1,6})?)\s*([A-Za-z]+)\s*", text)
    units = {name.lower(): size for name, size in _MEMORY_UNITS.items()}
    size = units.get(found.group(2).lower()) if found else None
    if found is None or size is None:
        raise _flag_error(flag, "is no size: write a number and a unit, such as 8GiB or 512MiB", text)
    total = int(float(found.group(1)) * size)
    if total < 1:
        raise _flag_error(flag, "must be more than nothing", text)
    return total


def parse_duration(text: str, flag: str = "--until") -> float:
    """Seconds of "90s", "45m", "2h", "1d" or a sum such as "1h30m". Raises ConfigError."""
    pieces = re.findall(r"([0-9]{1,9}(?:\.[0-9]{1,6})?)([smhd])", text.strip())
    if not pieces or "".join(number + unit for number, unit in pieces) != text.strip():
        raise _flag_error(flag, "is no duration: write such as 45m, 2h or 1h30m", text)
    total_s = sum(float(number) * _DURATION_UNITS_S[unit] for number, unit in pieces)
    if total_s <= 0:
        raise _flag_error(flag, "must be more than nothing", text)
    return total_s


def parse_until(text: str, now_s: float, flag: str = "--until") -> float:
    """Seconds since 1970 of a duration from now ("2h") or an ISO time ("2031-05-01T18:00", "...Z", "...+02:00").

    A time without a zone is local time. Raises ConfigError: neither of both, or in the past.
    """
    stripped = text.strip()
    if re.fullmatch(r"\d{4}-\d\d-\d\d.*", stripped):
        try:
            moment = datetime.fromisoformat(re.sub(r"[zZ]$", "+00:00", stripped))
            until_s = moment.timestamp()
        except (ValueError, OverflowError, OSError):
            raise _flag_error(flag, "is no ISO time: write such as 2031-05-01T18:00", text) from None
        if until_s <= now_s:
            raise _flag_error(flag, "is in the past", text)
        return until_s
    try:
        return now_s + parse_duration(stripped, flag)
    except ConfigError:
        why = "is neither a duration (45m, 2h, 1h30m) nor an ISO time (2031-05-01T18:00)"
        raise _flag_error(flag, why, text) from None


def parse_host_port(text: str, flag: str) -> HostPort:
    """HOST:PORT, IPv6 in brackets; port 0 lets the system choose. Raises ConfigError naming the flag."""
    found = re.fullmatch(r"(?:\[([0-9A-Fa-f:.%]+)\]|([A-Za-z0-9._-]{1,253})):([0-9]{1,5})", text.strip())
    if found is None:
        raise _flag_error(flag, "is no address: write HOST:PORT, such as 0.0.0.0:7700 or [::]:7700", text)
    bracketed, plain, port = found.group(1), found.group(2), int(found.group(3))
    if port > 65535:
        raise _flag_error(flag, "has a port above 65535", text)
    try:
        if bracketed is not None:
            return HostPort(str(ipaddress.IPv6Address(bracketed)), port)
        if re.fullmatch(r"[0-9.]+", plain):
            return HostPort(str(ipaddress.IPv4Address(plain)), port)
    except ValueError:
        raise _flag_error(flag, "has a malformed IP address", text) from None
    if not all(re.fullmatch(r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?", label) for label in plain.split(".")):
        raise _flag_error(flag, "has a malformed host name", text)
    return HostPort(plain.lower(), port)


# --- environment ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Environment:
    """What the environment says; see the module's head."""

    home: Path
    region: str = ""
    party: str = ""
    log_json: bool = False


def read_environment(variables: Mapping[str, str] | None = None) -> Environment:
    """Raises ConfigError naming the variable. Variables that are not ours are ignored, whatever their prefix."""
    given = os.environ if variables is None else variables
    yes_no = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False, "": False}
    switch = given.get("P2PTRAIN_LOG_JSON", "").lower()
    if switch not in yes_no:
        raise _flag_error("P2PTRAIN_LOG_JSON", "should be 1 or 0", switch)
    labels = {}
    for variable in ("P2PTRAIN_REGION", "P2PTRAIN_PARTY"):
        labels[variable] = given.get(variable, "")
        if labels[variable] and not re.match(LABEL, labels[variable]):
            raise _flag_error(variable, f"should match {LABEL}", labels[variable])
    return Environment(_home(given), labels["P2PTRAIN_REGION"], labels["P2PTRAIN_PARTY"], yes_no[switch])


def _home(given: Mapping[str, str]) -> Path:
    if given.get("P2PTRAIN_HOME"):
        return Path(given["P2PTRAIN_HOME"]).expanduser().absolute()
    data = given.get("XDG_DATA_HOME", "")
    if data.startswith("/"):  # the XDG rules: a relative one is to be ignored
        return Path(data) / "p2ptrain"
    return Path(given.get("HOME") or "~").expanduser() / ".local" / "share" / "p2ptrain"


# --- helpers ----------------------------------------------------------------------------------------------------------


def _flag_error(flag: str, why: str, value: object) -> ConfigError:
    shown = str(value) if len(str(value)) <= 80 else str(value)[:77] + "..."
    return ConfigError(f"{flag}: {why} (got {shown!r})", key=flag)


def _flag(field: str) -> str:
    named = {"memory_bytes": "--memory", "until_s": "--until"}
    return named.get(field, "--" + field.replace("_", "-"))


def _at_least_one(threads: int) -> int:
    if threads < 1:
        raise _flag_error("--threads", "must be at least 1", threads)
    return threads


def _positive(mbps: float) -> float:
    if not 0 < mbps < float("inf"):
        raise _flag_error("--upload-mbps", "must be above 0", mbps)
    return mbps


def _parse_announce(text: str) -> HostPort:
    address = parse_host_port(text, "--announce")
    if address.port == 0:
        raise _flag_error("--announce", "needs the port that others shall dial, not 0", text)
    if address.wildcard:
        raise _flag_error("--announce", "needs an address that others can dial", text)
    return address


def _refuse_contradictions(
    listen: str | None, announce: str | None, dht_listen: str | None, *, outbound_only: bool, no_dht: bool
) -> None:
    if outbound_only and (listen is not None or announce is not None):
        given = "--listen" if listen is not None else "--announce"
        raise ConfigError(f"{given}: contradicts --outbound-only (a peer that cannot be dialled)", key=given)
    if no_dht and dht_listen is not None:
        raise ConfigError("--dht-listen: contradicts --no-dht", key="--dht-listen")
