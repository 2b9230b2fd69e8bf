"""HOST:PORT to multiaddress, for the two DHT options a person sets. Standard library only.

Decides which texts are accepted. Does not resolve names and opens nothing.

    multiaddr_of("0.0.0.0:4001")            -> "/ip4/0.0.0.0/tcp/4001"
    multiaddr_of("[::]:4001")               -> "/ip6/::/tcp/4001"
    multiaddr_of("peer.example.org:4001")   -> "/dns/peer.example.org/tcp/4001"   (only to announce)
"""

from __future__ import annotations

import ipaddress
import re

from p2ptrain.errors import ConfigError

_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?")


def multiaddr_of(text: str, *, key: str = "dht_listen") -> str:
    """``HOST:PORT`` as a TCP multiaddress; port 0 (any free one) only for ``dht_listen``.

    ``key`` names the option in the error: ``dht_listen`` takes IP addresses only, ``dht_announce`` names too. A text
    that already is a multiaddress (begins with ``/``) is returned as it is. Raises ConfigError.
    """
    if text.startswith("/"):
        return text
    host, colon, port_text = text.rpartition(":")
    if not colon or not port_text.isascii() or not port_text.isdigit() or int(port_text) > 65535:
        raise _wrong(text, key, "expected HOST:PORT with a port from 0 to 65535")
    port = int(port_text)
    if port == 0 and key != "dht_listen":
        raise _wrong(text, key, "port 0 cannot be announced")
    return f"/{_host(text, host, key)}/tcp/{port}"


def _host(text: str, host: str, key: str) -> str:
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise _wrong(text, key, "write an IPv6 address in brackets")
    if host in ("", "*"):
        host = "0.0.0.0"
    if host == "localhost":
        host = "127.0.0.1"
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        if key == "dht_listen" or not _NAME.fullmatch(host):
            raise _wrong(text, key, f"{host!r} is not an IP address") from None
        return f"dns/{host}"
    if isinstance(address, ipaddress.IPv6Address) and address.scope_id:
        raise _wrong(text, key, "an IPv6 scope cannot be used here")
    return f"ip{address.version}/{address}"


def _wrong(text: str, key: str, why: str) -> ConfigError:
    return ConfigError(f"{key} = {text!r}: {why}", hint="for example 0.0.0.0:4001", key=key)
