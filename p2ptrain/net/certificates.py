"""The run's chain of trust: root, invite, peer.

Decides: what a certificate of this run looks like and whether a chain is one. It does not decide which peers are
wanted: whoever holds an invite's key may sign a leaf for itself; ``revoked`` serials end an invite.

    root (key stays in the starter's run folder)
      └── intermediate (its key travels in the invite; path length 0; expires)
            └── leaf (made by each joiner for its own key; CA false; name = peer id, the hash of that very key)

A leaf's name is only believed after comparing it with the hash of its key: a member could sign a leaf that carries
another's name, but not one for another's key.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from p2ptrain.core.types import PeerId
from p2ptrain.errors import AdmissionError, ConfigError
from p2ptrain.net.identity import (
    Identity,
    load_private_key,
    peer_id_of,
    private_folder,
    private_pem,
    public_bytes,
    read_private,
    write_private,
)

BACKDATED = timedelta(days=1)
ROOT_LIFETIME = timedelta(days=3650)
ROOT_KEY_FILE = "root.key"
ROOT_CERTIFICATE_FILE = "root.crt"

Key = ec.EllipticCurvePrivateKey


@dataclass(frozen=True)
class Root:
    """The run's root: certificate and key. Made once by ``start``; the key never leaves the run folder."""

    certificate: x509.Certificate
    key: Key = field(repr=False)

    @classmethod
    def create(cls, run: str) -> Root:
        """A fresh root for the run with this digest (hex)."""
        key = ec.generate_private_key(ec.SECP256R1())
        name = _run_name(run)
        builder = _builder(name, name, key, _now() + ROOT_LIFETIME)
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=1), critical=True)
        builder = builder.add_extension(_usage(signs_certificates=True), critical=True)
        return cls(builder.sign(key, hashes.SHA256()), key)

    @classmethod
    def load_or_create(cls, folder: Path, run: str) -> Root:
        """The root kept in this run folder, made on first use. Raises ConfigError, also if it is of another run."""
        private_folder(folder)
        key_path, certificate_path = folder / ROOT_KEY_FILE, folder / ROOT_CERTIFICATE_FILE
        if not key_path.exists():
            made = cls.create(run)
            write_private(certificate_path, pem(made.certificate))
            write_private(key_path, private_pem(made.key))
        root = cls(
            load_certificate(read_private(certificate_path), str(certificate_path)),
            load_private_key(read_private(key_path), key_path),
        )
        if run_of(root.certificate) != run or root.certificate.public_key() != root.key.public_key():
            raise ConfigError(
                f"{folder} holds the root of another run", hint="use another run folder", file=str(certificate_path)
            )
        return root


@dataclass(frozen=True)
class Intermediate:
    """What an invite carries: it signs leaves and nothing else."""

    certificate: x509.Certificate
    key: Key = field(repr=False)

    @classmethod
    def create(cls, root: Root, valid_s: float) -> Intermediate:
        """A fresh intermediate of this root, valid for ``valid_s`` seconds from now (and a day back)."""
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name(
            [
                x509.NameAttribute(NameOID.COMMON_NAME, "p2ptrain invite"),
                x509.NameAttribute(NameOID.ORGANIZATION_NAME, run_of(root.certificate)),
            ]
        )
        until = min(_now() + timedelta(seconds=valid_s), root.certificate.not_valid_after_utc)
        builder = _builder(name, root.certificate.subject, key, until)
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        builder = builder.add_extension(_usage(signs_certificates=True), critical=True)
        return cls(builder.sign(root.key, hashes.SHA256()), key)

    @property
    def serial(self) -> int:
        """Names the invite: put it into ``revoked`` to end it."""
        return self.certificate.serial_number


@dataclass(frozen=True)
class Credentials:
    """All that a peer needs for TLS: its key, its leaf, the intermediate that signed it, the root it trusts."""

    identity: Identity
    leaf: x509.Certificate
    intermediate: x509.Certificate
    root: x509.Certificate

    @classmethod
    def issue(cls, identity: Identity, intermediate: Intermediate, root: x509.Certificate) -> Credentials:
        """A leaf for ``identity``, valid exactly as long as the invite, whatever the joiner's clock says."""
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, identity.peer)])
        signer = intermediate.certificate
        since, until = signer.not_valid_before_utc, signer.not_valid_after_utc
        builder = _builder(name, signer.subject, identity.key, until, since)
        builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        builder = builder.add_extension(_usage(signs_certificates=False), critical=True)
        builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName(identity.peer)]), critical=False)
        builder = builder.add_extension(
            x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False
        )
        return cls(identity, builder.sign(intermediate.key, hashes.SHA256()), signer, root)

    @property
    def key_pem(self) -> bytes:
        return private_pem(self.identity.key)

    @property
    def chain_pem(self) -> bytes:
        return pem(self.leaf) + pem(self.intermediate)

    @property
    def root_pem(self) -> bytes:
        return pem(self.root)

    @property
    def chain_der(self) -> tuple[bytes, bytes]:
        return (der(self.leaf), der(self.intermediate))


def check_own_chain(credentials: Credentials, run: str, now: datetime | None = None) -> None:
    """What the others will say, before they are asked. Raises AdmissionError with the remedy."""
    now = now or _now()
    for what, certificate in (("invite", credentials.intermediate), ("run's root", credentials.root)):
        begins, ends = certificate.not_valid_before_utc, certificate.not_valid_after_utc
        if now > ends:
            raise AdmissionError(
                f"the {what} expired on {ends:%Y-%m-%d %H:%M} UTC (this clock says {now:%Y-%m-%d %H:%M})",
                hint="ask any member for a new one (`p2ptrain invite`), or set this machine's clock",
                cause="expired",
            )
        if now < begins:
            raise AdmissionError(
                f"the {what} is valid from {begins:%Y-%m-%d %H:%M} UTC, but this clock says {now:%Y-%m-%d %H:%M}",
                hint="set this machine's clock",
                cause="clock",
            )
    if run_of(credentials.root) != run:
        raise AdmissionError(
            "the invite's root belongs to another run", hint="use the invite of this run", cause="foreign_run"
        )
    chain = (credentials.leaf, credentials.intermediate)
    reason = chain_fault(chain, credentials.root, now=now)
    if reason:
        raise AdmissionError(
            f"the own certificate would be refused: {reason}", hint="ask a member for a new invite", cause="certificate"
        )


def chain_fault(
    chain: tuple[x509.Certificate, x509.Certificate],
    root: x509.Certificate,
    revoked: Collection[int] = (),
    now: datetime | None = None,
) -> str:
    """Why (leaf, intermediate) does not stand for the peer that the leaf names; "" if it does.

    TLS has checked most of this already for a live connection; here it is checked for a chain that came as bytes.
    """
    leaf, intermediate = chain
    now = now or _now()
    if not _issued_by(intermediate, root):
        return "its invite was not made by this run's root (another run?)"
    if not _issued_by(leaf, intermediate):
        return "its certificate was not signed with its invite"
    if not _is_authority(intermediate) or _is_authority(leaf):
        return "its certificate was signed by a key that may not sign"
    for what, certificate in (("invite", intermediate), ("certificate", leaf)):
        begins, ends = certificate.not_valid_before_utc, certificate.not_valid_after_utc
        if not begins <= now <= ends:
            return f"its {what} is valid only from {begins} to {ends}"
    if intermediate.serial_number in revoked:
        return "its invite was revoked"
    return "" if name_of(leaf) == peer_of(leaf) else "its certificate carries another peer's name"


def revocation_fault(leaf: x509.Certificate, others: Collection[x509.Certificate], revoked: Collection[int]) -> str:
    """For a chain that TLS accepted: "" unless the invite that signed ``leaf`` is revoked (or cannot be found)."""
    serial = signer_of(leaf, others)
    if not serial:
        return "it did not send the invite's certificate along"
    return "its invite was revoked" if serial in revoked else ""


def signer_of(leaf: x509.Certificate, others: Collection[x509.Certificate]) -> int:
    """Serial of the invite among ``others`` that signed ``leaf``; 0 if none did."""
    return next((other.serial_number for other in others if _issued_by(leaf, other)), 0)


def peer_of(leaf: x509.Certificate) -> PeerId:
    """The peer id that belongs to the certificate's key, whatever name it carries; "" if the key is of another kind."""
    key = leaf.public_key()
    return peer_id_of(public_bytes(key)) if isinstance(key, ec.EllipticCurvePublicKey) else ""


def name_of(leaf: x509.Certificate) -> str:
    """The certificate's only name; "" if it has none or several."""
    try:
        names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return ""
    common = [str(entry.value) for entry in leaf.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
    texts = [str(name.value) for name in names]
    return texts[0] if len(texts) == 1 and common == texts else ""


def run_of(root: x509.Certificate) -> str:
    """The run digest (hex) that a root was made for."""
    entries = root.subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)
    return str(entries[0].value) if entries else ""


def pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def der(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.DER)


def load_certificate(data: bytes, where: str) -> x509.Certificate:
    """From PEM or DER. Raises ConfigError that says where it came from."""
    try:
        if data.startswith(b"-----"):
            return x509.load_pem_x509_certificate(data)
        return x509.load_der_x509_certificate(data)
    except Exception as error:  # hostile bytes raise many kinds here
        raise ConfigError(f"{where}: not a certificate", file=where) from error


def _run_name(run: str) -> x509.Name:
    return x509.Name(
        [
            x509.NameAttribute(NameOID.COMMON_NAME, "p2ptrain root"),
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, run),
        ]
    )


def _builder(
    subject: x509.Name, issuer: x509.Name, key: Key, until: datetime, since: datetime | None = None
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(since or _now() - BACKDATED)
        .not_valid_after(until)
    )


def _usage(signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _issued_by(certificate: x509.Certificate, issuer: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(issuer)
    except Exception:  # InvalidSignature, ValueError, TypeError: all mean no
        return False
    return True


def _is_authority(certificate: x509.Certificate) -> bool:
    try:
        return certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except x509.ExtensionNotFound:
        return False


def _now() -> datetime:
    return datetime.now(timezone.utc)
