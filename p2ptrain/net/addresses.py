"""Under which addresses others may reach this machine. A guess: only a dial-back proves one.

announced("0.0.0.0", 4100)   ->  ("192.0.2.7:4100", "127.0.0.1:4100")
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Sequence

from p2ptrain.net.dialing import join_address

_PROBES = (("192.0.2.1", socket.AF_INET), ("2001:db8::1", socket.AF_INET6))  # documentation addresses: nothing is sent


def announced(host: str, port: int, given: Sequence[str] = ()) -> tuple[str, ...]:
    """``given`` (``--announce``) if there are any; the listening host if it is one address; else this machine's own.

    Best first: routable addresses, then those of a LAN, loopback last (peers on this machine).
    """
    if given:
        return tuple(given)
    if not _is_any(host):
        return (join_address(host, port),)
    return tuple(join_address(address, port) for address in machine_addresses(v6=":" in host))


def machine_addresses(v6: bool = False) -> list[str]:
    """This machine's plausible addresses, best first, loopback last; IPv6 ones only if asked for."""
    found: set[str] = set()
    for probe, family in _PROBES:
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as sock:
                sock.connect((probe, 9))
                found.add(str(sock.getsockname()[0]))
        except OSError:  # no route of this family: no address of it
            continue
    try:
        for entry in socket.getaddrinfo(socket.gethostname(), None, type=socket.SOCK_STREAM):
            found.add(str(entry[4][0]))
    except OSError:
        found.add("127.0.0.1")
    found.add("127.0.0.1")
    parsed = [ipaddress.ip_address(text.partition("%")[0]) for text in found]
    usable = [a for a in parsed if a.version == 4 or (v6 and not a.is_link_local)]
    return [str(a) for a in sorted(usable, key=lambda a: (a.is_loopback, not a.is_global, a.version, int(a)))]


def _is_any(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False
