"""An invite: one line of text with which somebody joins a run.

Decides: what is in it and what a well-formed one looks like. It does not decide whether it is still valid
(``certificates.check_own_chain``) or who is reachable.

    text = make_invite(Invite(run=..., intermediate=..., root=..., addresses=("192.0.2.7:4100",), ...))
    invite = parse_invite("p2p1:...")       # ConfigError that says what and where, if it is not one

Whoever holds the text may join until it expires or is revoked: treat it like a password. Its repr hides the key.
"""

from __future__ import annotations

import base64
import binascii
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgpack
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from p2ptrain.errors import ConfigError
from p2ptrain.net.certificates import Credentials, Intermediate, der, load_certificate
from p2ptrain.net.identity import Identity

PREFIX = "p2p1:"
TEXT_MAX_CHARS = 16_384
PLAIN_MAX_BYTES = 32_768
ADDRESSES_MAX = 64


@dataclass(frozen=True)
class Invite:
    """Parsed. ``created`` and ``expires`` are seconds since 1970 (UTC), informative: the certificate's dates count."""

    run: str  # digest of the manifest, hex
    name: str
    root: x509.Certificate
    intermediate: Intermediate
    addresses: tuple[str, ...] = ()  # "host:port" of members alive when it was made
    dht_peers: tuple[str, ...] = ()  # multiaddresses
    manifest_digest: str = ""
    created: float = 0.0
    expires: float = 0.0

    def credentials(self, identity: Identity) -> Credentials:
        """TLS credentials for a joiner: its own key, a leaf signed with the invite's key."""
        return Credentials.issue(identity, self.intermediate, self.root)


def make_invite(invite: Invite) -> str:
    """One line of text. Any member that holds an invite can make another with fresh addresses."""
    fields = {
        "run": invite.run,
        "name": invite.name,
        "root": der(invite.root),
        "cert": der(invite.intermediate.certificate),
        "key": _key_der(invite.intermediate),
        "addresses": list(invite.addresses[:ADDRESSES_MAX]),
        "dht": list(invite.dht_peers[:ADDRESSES_MAX]),
        "manifest": invite.manifest_digest,
        "created": float(invite.created),
        "expires": float(invite.expires or invite.intermediate.certificate.not_valid_after_utc.timestamp()),
    }
    packed: bytes = msgpack.packb(fields, use_bin_type=True)
    body = zlib.compress(packed, 9)
    return PREFIX + base64.urlsafe_b64encode(body + zlib.crc32(body).to_bytes(4, "big")).decode().rstrip("=")


def parse_invite(text: str) -> Invite:
    """Raises ConfigError: what is wrong and where. Whitespace, as mail programs add it, is ignored."""
    fields = _unpack("".join(text.split()))
    run = _text(fields, "run", 64)
    if len(run) != 64 or any(c not in "0123456789abcdef" for c in run):
        raise _bad("field run: not a digest of 64 hex digits")
    return Invite(
        run=run,
        name=_text(fields, "name", 200),
        root=load_certificate(_bytes(fields, "root"), "invite, field root"),
        intermediate=_intermediate(fields),
        addresses=_texts(fields, "addresses"),
        dht_peers=_texts(fields, "dht"),
        manifest_digest=_text(fields, "manifest", 128),
        created=_number(fields, "created"),
        expires=_number(fields, "expires"),
    )


def parse_invite_file(path: Path) -> Invite:
    """An invite kept in a file. Raises ConfigError."""
    try:
        with path.open("rb") as file:
            text = file.read(TEXT_MAX_CHARS * 2)
    except OSError as error:
        raise ConfigError(f"cannot read the invite {path}: {error.strerror}", file=str(path)) from error
    return parse_invite(text.decode("ascii", errors="replace"))


def _unpack(text: str) -> dict[str, Any]:
    if len(text) > TEXT_MAX_CHARS:
        raise _bad(f"longer than {TEXT_MAX_CHARS} characters")
    if not text.startswith(PREFIX):
        start = text[:5] if text.isprintable() else ""
        raise _bad(f"it must begin with {PREFIX!r}, not {start!r}")
    body = text[len(PREFIX) :]
    try:
        data = base64.b64decode(body + "=" * (-len(body) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError) as error:
        raise _bad("a character in it is not base64url (cut or mistyped?)") from error
    if len(data) < 5 or zlib.crc32(data[:-4]).to_bytes(4, "big") != data[-4:]:
        raise _bad("its checksum does not match (cut or mistyped?)")
    try:
        inflater = zlib.decompressobj()
        plain = inflater.decompress(data[:-4], PLAIN_MAX_BYTES)
        if inflater.unconsumed_tail or not inflater.eof:
            raise _bad(f"it unpacks to more than {PLAIN_MAX_BYTES} bytes")
        fields = msgpack.unpackb(plain, raw=False, strict_map_key=True)
    except ConfigError:
        raise
    except Exception as error:  # zlib.error and msgpack's many kinds
        raise _bad("it does not unpack") from error
    if not isinstance(fields, dict):
        raise _bad("it does not hold fields")
    return fields


def _intermediate(fields: dict[str, Any]) -> Intermediate:
    certificate = load_certificate(_bytes(fields, "cert"), "invite, field cert")
    try:
        key = serialization.load_der_private_key(_bytes(fields, "key"), password=None)
    except Exception as error:
        raise _bad("field key: not a key") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
        raise _bad("field key: does not belong to its certificate")
    return Intermediate(certificate, key)


def _key_der(intermediate: Intermediate) -> bytes:
    return intermediate.key.private_bytes(
        serialization.Encoding.DER, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _text(fields: dict[str, Any], key: str, longest: int) -> str:
    value = fields.get(key)
    if not isinstance(value, str) or len(value) > longest or not (value.isprintable() or value == ""):
        raise _bad(f"field {key}: not a text of at most {longest} characters")
    return value


def _texts(fields: dict[str, Any], key: str) -> tuple[str, ...]:
    value = fields.get(key)
    if not isinstance(value, list) or len(value) > ADDRESSES_MAX:
        raise _bad(f"field {key}: not a list of at most {ADDRESSES_MAX}")
    return tuple(_text({key: item}, key, 300) for item in value)


def _bytes(fields: dict[str, Any], key: str) -> bytes:
    value = fields.get(key)
    if not isinstance(value, bytes):
        raise _bad(f"field {key}: missing")
    return value


def _number(fields: dict[str, Any], key: str) -> float:
    value = fields.get(key)
    if not isinstance(value, float | int) or isinstance(value, bool) or not 0 <= value < 1e12:
        raise _bad(f"field {key}: not a time")
    return float(value)


def _bad(what: str) -> ConfigError:
    hint = "copy the whole line, or ask a member for a new one"
    return ConfigError(f"not a usable invite: {what}", hint=hint, key="invite")
