"""Who a peer is: a P-256 key in its run folder, and the id that is the hash of its public half.

Decides: how keys are made, kept and used for signing. It does not decide who may join (``certificates``). P-256 because
gRPC's TLS takes it on both sides; the same key signs the peer's ``PeerInfo`` and its ``Leave``.

    identity = Identity.load_or_create(run_folder)
    identity.peer                      # "mfzq3..." (52 characters of base32)
    info = identity.sign_info(run, info)
    verify_info(run, info)             # True
"""

from __future__ import annotations

import base64
import hashlib
import os
import secrets
import stat
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from p2ptrain.core.messages import Leave
from p2ptrain.core.types import PeerId, PeerInfo
from p2ptrain.errors import ConfigError
from p2ptrain.wire import records

KEY_FILE = "peer.key"
PUBLIC_KEY_MAX_BYTES = 256


class Identity:
    """A private key. Its text form shows the peer id alone."""

    def __init__(self, key: ec.EllipticCurvePrivateKey) -> None:
        self._key = key
        self.public_key = public_bytes(key.public_key())
        self.peer = peer_id_of(self.public_key)

    @classmethod
    def generate(cls) -> Identity:
        """A fresh key, kept nowhere."""
        return cls(ec.generate_private_key(ec.SECP256R1()))

    @classmethod
    def load_or_create(cls, folder: Path) -> Identity:
        """The key of this run folder, made on first use.

        Raises ConfigError if the folder or file cannot be used, is no P-256 key, or can be read by other users.
        """
        path = folder / KEY_FILE
        private_folder(folder)
        if not path.exists():
            write_private(path, private_pem(ec.generate_private_key(ec.SECP256R1())))
        return cls(load_private_key(read_private(path), path))

    @property
    def key(self) -> ec.EllipticCurvePrivateKey:
        return self._key

    def sign(self, data: bytes) -> bytes:
        """ECDSA over SHA-256, DER form."""
        return self._key.sign(data, ec.ECDSA(hashes.SHA256()))

    def sign_info(self, run: str, info: PeerInfo) -> PeerInfo:
        """``info`` with signature and public key filled in. Raises ValueError if it speaks for another peer."""
        if info.peer != self.peer:
            raise ValueError(f"the info of {info.peer} cannot be signed with the key of {self.peer}")
        return replace(info, signature=self.sign(records.info_signing_bytes(run, info)), public_key=self.public_key)

    def sign_leave(self, run: str, leave: Leave) -> Leave:
        """``leave`` with signature and public key filled in. Raises ValueError if it speaks for another peer."""
        if leave.peer != self.peer:
            raise ValueError(f"the goodbye of {leave.peer} cannot be signed with the key of {self.peer}")
        return replace(leave, signature=self.sign(records.leave_signing_bytes(run, leave)), public_key=self.public_key)

    def __repr__(self) -> str:
        return f"Identity({self.peer})"


def peer_id_of(public_key: bytes) -> PeerId:
    """Lower-case base32, without padding, of the SHA-256 of the public key's SubjectPublicKeyInfo (DER)."""
    return base64.b32encode(hashlib.sha256(public_key).digest()).decode().rstrip("=").lower()


def verify_info(run: str, info: PeerInfo) -> bool:
    """True if the info is signed by the key whose hash is its peer id."""
    if peer_id_of(info.public_key) != info.peer:
        return False
    return verify(info.public_key, info.signature, records.info_signing_bytes(run, info))


def verify_leave(run: str, leave: Leave) -> bool:
    """True if the goodbye is signed by the key whose hash is its peer id."""
    if peer_id_of(leave.public_key) != leave.peer:
        return False
    return verify(leave.public_key, leave.signature, records.leave_signing_bytes(run, leave))


@lru_cache(maxsize=8192)
def verify(public_key: bytes, signature: bytes, data: bytes) -> bool:
    """True if ``signature`` is by ``public_key`` (DER) over ``data``. Gossip repeats itself, so answers are kept."""
    if len(public_key) > PUBLIC_KEY_MAX_BYTES or not signature:
        return False
    try:
        key = serialization.load_der_public_key(public_key)
    except Exception:  # cryptography raises ValueError, UnsupportedAlgorithm and others on hostile bytes
        return False
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        return False
    try:
        key.verify(signature, data, ec.ECDSA(hashes.SHA256()))
    except InvalidSignature:
        return False
    return True


def public_bytes(key: ec.EllipticCurvePublicKey) -> bytes:
    return key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)


def private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def load_private_key(pem: bytes, path: Path) -> ec.EllipticCurvePrivateKey:
    """Raises ConfigError naming the file if these bytes are no P-256 key."""
    try:
        key = serialization.load_pem_private_key(pem, password=None)
    except Exception as error:
        raise ConfigError(
            f"{path} is not a private key", hint="move it away to get a new identity", file=str(path)
        ) from error
    if not isinstance(key, ec.EllipticCurvePrivateKey) or not isinstance(key.curve, ec.SECP256R1):
        raise ConfigError(f"{path} holds a key of another kind", hint="only P-256 keys are used", file=str(path))
    return key


# --- private files --------------------------------------------------------------------------------------------------


def private_folder(folder: Path) -> None:
    """Make ``folder`` with mode 0700, or tighten it if it is ours. Raises ConfigError."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if os.name == "posix" and stat.S_IMODE(folder.stat().st_mode) & 0o077:
            folder.chmod(0o700)
    except OSError as error:
        raise ConfigError(f"cannot use the folder {folder}: {error.strerror}", file=str(folder)) from error


def write_private(path: Path, data: bytes) -> None:
    """Write ``data`` with mode 0600 under a temporary name, then link it in place; an existing file is kept.

    Two processes that start at once end with one key: the first one's. Raises ConfigError.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            try:
                os.link(temporary, path)
            except FileExistsError:
                return
        finally:
            temporary.unlink()
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}", file=str(path)) from error


def read_private(path: Path) -> bytes:
    """Raises ConfigError if the file cannot be read, or others may read it."""
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
        if os.name == "posix" and mode & 0o077:
            raise ConfigError(
                f"{path} can be read by other users (mode {mode:04o})",
                hint=f"if nobody has taken it: chmod 600 {path}; otherwise move it away to get a new identity",
                file=str(path),
            )
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}", file=str(path)) from error
