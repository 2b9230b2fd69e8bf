"""The chain of trust, without a network."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes

from p2ptrain.errors import AdmissionError, ConfigError
from p2ptrain.net import certificates
from p2ptrain.net.certificates import Credentials, Intermediate, Root, chain_fault, check_own_chain, name_of, peer_of
from p2ptrain.net.identity import Identity
from tests.net.swarm import RUN, TestRun


def _now() -> datetime:
    return datetime.now(timezone.utc)


def test_a_leaf_names_its_peer_and_nothing_else() -> None:
    credentials = TestRun().credentials()
    assert name_of(credentials.leaf) == peer_of(credentials.leaf) == credentials.identity.peer
    names = credentials.leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert [name.value for name in names] == [credentials.identity.peer]
    assert credentials.leaf.not_valid_before_utc < _now() - timedelta(hours=23), "backdated for skewed clocks"
    assert chain_fault((credentials.leaf, credentials.intermediate), credentials.root) == ""
    check_own_chain(credentials, RUN)


def test_the_root_stays_in_its_folder_and_belongs_to_its_run(tmp_path: Path) -> None:
    root = Root.load_or_create(tmp_path, RUN)
    assert Root.load_or_create(tmp_path, RUN).certificate == root.certificate
    assert (tmp_path / certificates.ROOT_KEY_FILE).stat().st_mode & 0o077 == 0
    with pytest.raises(ConfigError, match="another run"):
        Root.load_or_create(tmp_path, "cd" * 32)
    assert "key" not in repr(root) and "key" not in repr(Intermediate.create(root, 60))


def test_an_expired_invite_is_told_before_dialling() -> None:
    credentials = TestRun(valid_s=3600).credentials()
    later = _now() + timedelta(hours=2)
    with pytest.raises(AdmissionError, match=r"invite expired.*p2ptrain invite") as caught:
        check_own_chain(credentials, RUN, later)
    assert caught.value.fields["cause"] == "expired"


def test_a_clock_far_behind_is_told_and_minutes_are_no_matter() -> None:
    credentials = TestRun().credentials()
    check_own_chain(credentials, RUN, _now() - timedelta(minutes=30))
    with pytest.raises(AdmissionError, match="set this machine's clock") as caught:
        check_own_chain(credentials, RUN, _now() - timedelta(days=3))
    assert caught.value.fields["cause"] == "clock"


def test_a_foreign_run_is_told_before_dialling() -> None:
    with pytest.raises(AdmissionError, match="another run") as caught:
        check_own_chain(TestRun("cd" * 32).credentials(), RUN)
    assert caught.value.fields["cause"] == "foreign_run"


def test_an_invite_of_another_root_does_not_fit() -> None:
    one, other = TestRun(), TestRun()
    mixed = Credentials.issue(Identity.generate(), other.invite, one.root.certificate)
    with pytest.raises(AdmissionError, match="not made by this run's root"):
        check_own_chain(mixed, RUN)


def test_a_leaf_cannot_sign() -> None:
    run = TestRun()
    member = run.credentials()
    guest = Credentials.issue(Identity.generate(), Intermediate(member.leaf, member.identity.key), member.root)
    assert chain_fault((guest.leaf, member.leaf), member.root)
    assert "not signed with its invite" in chain_fault((guest.leaf, member.intermediate), member.root)


def test_revoked_and_misnamed_leaves_are_found() -> None:
    run = TestRun()
    chain = (run.credentials().leaf, run.invite.certificate)
    assert "revoked" in chain_fault(chain, run.root.certificate, {run.invite.serial})
    assert certificates.revocation_fault(chain[0], [chain[1]], {run.invite.serial}) == "its invite was revoked"
    assert certificates.revocation_fault(chain[0], [chain[1]], {1}) == ""
    assert certificates.revocation_fault(chain[0], [], {1}) != ""
    forged = forged_leaf(run, Identity.generate(), Identity.generate().peer)
    assert "another peer's name" in chain_fault((forged, run.invite.certificate), run.root.certificate)


def forged_leaf(run: TestRun, identity: Identity, name: str) -> x509.Certificate:
    """What a member could sign with the invite's key: a leaf for its own key with another's name."""
    honest = run.credentials(identity).leaf
    builder = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)]))
        .issuer_name(honest.issuer)
        .public_key(identity.key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(honest.not_valid_before_utc)
        .not_valid_after(honest.not_valid_after_utc)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    )
    return builder.sign(run.invite.key, hashes.SHA256())
