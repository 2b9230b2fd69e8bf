"""Finding out, per address, whether somebody is there and who: before gRPC, whose one answer is UNAVAILABLE.

Decides the name of a failure (``DialFailure``); not when to dial or what a failure means.

    name resolved? -> TCP connects? -> (who is it, by TLS?) -> gRPC

``refused`` is told apart with care: only it is evidence of death.
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import socket
import ssl
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509

from p2ptrain.core.events import DialFailure
from p2ptrain.core.types import PeerId
from p2ptrain.errors import ConfigError
from p2ptrain.net import certificates
from p2ptrain.net.certificates import Credentials


class DialError(Exception):
    """One address failed."""

    def __init__(self, failure: DialFailure, detail: str, address: str = "") -> None:
        super().__init__(detail)
        self.failure: DialFailure = failure
        self.detail = detail
        self.address = address


@dataclass(frozen=True, slots=True)
class Reached:
    """A numeric address that accepts connections, and who answers there ("" if not asked)."""

    address: str  # as given
    target: str  # for gRPC: ipv4:... or ipv6:...
    peer: PeerId = ""


def split_address(address: str) -> tuple[str, int]:
    """("host", port) of "host:port" or "[v6]:port". Raises ConfigError."""
    host, colon, port = address.rpartition(":")
    host = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not colon or not host or not port.isdigit() or not 0 <= int(port) <= 65535:
        raise ConfigError(f"{address!r} is not an address", hint="write it as HOST:PORT", key="address")
    return host, int(port)


def join_address(host: str, port: int) -> str:
    """The reverse of ``split_address``."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


async def reach(address: str, deadline: float, tls: TlsProbe | None = None, who: bool = False) -> Reached:
    """Connect to ``address`` by ``deadline`` (``time.monotonic``). Raises DialError.

    With ``who``, also ask by TLS whose certificate answers there.
    """
    try:
        host, port = split_address(address)
    except ConfigError as error:
        raise DialError("name", error.text, address) from None
    attempts = [
        asyncio.ensure_future(_connect(family, numeric, port, address, deadline))
        for family, numeric in await _resolve(host, port, address, deadline)
    ]
    target = await _first(attempts)
    if who and tls is not None:
        return Reached(address, target, await tls.ask(target, address, deadline))
    return Reached(address, target)


async def _resolve(host: str, port: int, address: str, deadline: float) -> list[tuple[int, str]]:
    try:
        numeric = ipaddress.ip_address(host)
        return [(socket.AF_INET if numeric.version == 4 else socket.AF_INET6, str(numeric))]
    except ValueError:
        pass
    loop = asyncio.get_running_loop()
    try:
        found = await asyncio.wait_for(loop.getaddrinfo(host, port, type=socket.SOCK_STREAM), _left(deadline))
    except asyncio.TimeoutError:
        raise DialError("name", f"the name {host} was not resolved in time", address) from None
    except OSError as error:
        raise DialError("name", f"the name {host} cannot be resolved: {error.strerror or error}", address) from None
    return list(dict.fromkeys((int(entry[0]), str(entry[4][0])) for entry in found))[:4]


async def _connect(family: int, host: str, port: int, address: str, deadline: float) -> str:
    """The gRPC target, once a connection stood for a moment."""
    try:
        connecting = asyncio.open_connection(host, port, family=family)
        _, writer = await asyncio.wait_for(connecting, _left(deadline))
        writer.transport.abort()
    except asyncio.TimeoutError:
        raise DialError("timeout", f"{address} did not answer: black-holed, or a firewall drops it", address) from None
    except ConnectionRefusedError:
        text = f"{address} refused: the machine is there, nobody listens on the port"
        raise DialError("refused", text, address) from None
    except OSError as error:
        slow = error.errno == errno.ETIMEDOUT
        text = f"{address} cannot be reached: {error.strerror or error}"
        raise DialError("timeout" if slow else "unreachable", text, address) from None
    prefix = "ipv6" if family == socket.AF_INET6 else "ipv4"
    return f"{prefix}:{join_address(host, port)}"


async def _first(attempts: Sequence[asyncio.Task[str]]) -> str:
    failures: list[DialError] = []
    try:
        for done in asyncio.as_completed(attempts):
            try:
                return await done
            except DialError as error:
                failures.append(error)
    finally:
        for attempt in attempts:
            attempt.cancel()
        await asyncio.gather(*attempts, return_exceptions=True)
    raise worst(failures)


def worst(failures: Sequence[DialError], last_good: str = "") -> DialError:
    """What to report of several failures: an answer beats silence, but ``refused`` only where it proves something.

    That is: if every address refused, or the address through which the last link stood.
    """
    refused = [f for f in failures if f.failure == "refused"]
    if refused and (len(refused) == len(failures) or any(f.address == last_good for f in refused)):
        return refused[0]
    order = ("duplicate", "version", "foreign_run", "certificate", "timeout", "unreachable", "name", "refused")
    return min(failures, key=lambda failure: order.index(failure.failure))


def _left(deadline: float) -> float:
    return max(0.001, deadline - time.monotonic())


class TlsProbe:
    """Asks an address for its certificate, and what is wrong with it or with ours, in words."""

    def __init__(self, credentials: Credentials) -> None:
        self._run = certificates.run_of(credentials.root)
        self._context = _client_context(credentials)

    async def ask(self, target: str, address: str, deadline: float, patient: bool = False) -> PeerId:
        """The peer id of whoever answers there. With ``patient``, wait for its word on our certificate as well.

        Raises DialError (certificate, foreign_run, timeout, refused, unreachable).
        """
        host, port = split_address(target.partition(":")[2])
        try:
            opening = asyncio.open_connection(host, port, ssl=self._context, server_hostname="")
            reader, writer = await asyncio.wait_for(opening, _left(deadline))
        except asyncio.TimeoutError:
            raise DialError("timeout", f"{address} accepts connections but does not answer", address) from None
        except ssl.SSLError as error:
            raise _tls_failure(error, address) from None
        except ConnectionRefusedError:
            raise DialError("refused", f"{address} refused", address) from None
        except OSError as error:
            text = f"{address} ended the connection: {error.strerror or type(error).__name__}"
            raise DialError("unreachable", text, address) from None
        try:
            found = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
            if patient:
                await self._hear(reader, address, deadline)
        finally:
            writer.transport.abort()
        return _checked_peer(found, address)

    async def _hear(self, reader: asyncio.StreamReader, address: str, deadline: float) -> None:
        """In TLS 1.3 the server judges our certificate after our handshake; gRPC then speaks first, or just closes."""
        try:
            if not await asyncio.wait_for(reader.read(1), _left(deadline)):
                text = f"{address} closed on seeing our certificate: by its clock it is not valid (is a clock wrong?)"
                raise DialError("certificate", text, address)
        except asyncio.TimeoutError:
            raise DialError("timeout", f"{address} accepts connections but does not answer", address) from None
        except ssl.SSLError as error:
            raise _tls_failure(error, address) from None
        except OSError as error:
            text = f"{address} ended the connection: {error.strerror or type(error).__name__}"
            raise DialError("unreachable", text, address) from None


def _client_context(credentials: Credentials) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False  # the name is the hash of the key: compared by us
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_verify_locations(cadata=credentials.root_pem.decode())
    context.set_alpn_protocols(["h2"])
    with tempfile.TemporaryDirectory(prefix="p2ptrain-") as folder:  # mode 0700; ssl takes files only
        path = Path(folder) / "chain.pem"
        path.touch(mode=0o600)
        path.write_bytes(credentials.key_pem + credentials.chain_pem)
        context.load_cert_chain(path)
    return context


def _checked_peer(found: bytes | None, address: str) -> PeerId:
    try:
        leaf = x509.load_der_x509_certificate(found or b"")
        peer = certificates.peer_of(leaf)
        fault = "" if peer and certificates.name_of(leaf) == peer else "it carries another peer's name"
    except Exception as error:  # hostile bytes
        peer, fault = "", f"unreadable ({type(error).__name__})"
    if fault:
        raise DialError("certificate", f"{address} shows a certificate that is not its own: {fault}", address)
    return peer


def _tls_failure(error: ssl.SSLError, address: str) -> DialError:
    if isinstance(error, ssl.SSLCertVerificationError):
        if error.verify_code in (9, 10):  # not yet valid, expired
            text = f"the certificate at {address} is not valid now ({error.verify_message}): invite over, clock wrong?"
            return DialError("certificate", text, address)
        text = f"{address} belongs to another run, or is no p2ptrain peer ({error.verify_message})"
        return DialError("foreign_run", text, address)
    reason = (error.reason or "").lower()
    if "unknown_ca" in reason or "unknown ca" in reason:
        return DialError("foreign_run", f"{address} says that our certificate is of another run", address)
    if "alert" in reason and ("certificate" in reason or "decrypt" in reason or "access" in reason):
        text = f"{address} refuses our certificate ({reason.replace('_', ' ')}): expired, or a clock is wrong"
        return DialError("certificate", text, address)
    return DialError("foreign_run", f"{address} does not speak our TLS: no p2ptrain peer? ({reason or error})", address)
