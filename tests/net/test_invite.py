"""Invites: round trip, and every way of being none."""

from __future__ import annotations

import base64
import zlib
from pathlib import Path

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2ptrain.errors import ConfigError
from p2ptrain.net.certificates import check_own_chain, der
from p2ptrain.net.identity import Identity
from p2ptrain.net.invite import PREFIX, Invite, make_invite, parse_invite, parse_invite_file
from tests.net.swarm import RUN, TestRun

SWARM = TestRun()
INVITE = Invite(
    RUN,
    "evening",
    SWARM.root.certificate,
    SWARM.invite,
    addresses=("192.0.2.7:4100",),
    dht_peers=("/ip4/192.0.2.7/tcp/4200/p2p/Qm",),
    manifest_digest=RUN,
    created=1.5,
)
TEXT = make_invite(INVITE)


def test_round_trip_and_a_joiner_with_the_starter_gone() -> None:
    parsed = parse_invite(TEXT)
    assert (parsed.run, parsed.name, parsed.addresses, parsed.dht_peers) == (
        RUN,
        "evening",
        INVITE.addresses,
        INVITE.dht_peers,
    )
    assert parsed.root == INVITE.root and parsed.expires > parsed.created == 1.5
    check_own_chain(parsed.credentials(Identity.generate()), RUN)
    again = parse_invite(make_invite(Invite(parsed.run, "again", parsed.root, parsed.intermediate, ("192.0.2.8:1",))))
    assert again.intermediate.serial == SWARM.invite.serial, "made anew on any member, ended by the same serial"
    check_own_chain(again.credentials(Identity.generate()), RUN)


def test_whitespace_of_mail_programs_is_ignored(tmp_path: Path) -> None:
    folded = "\n  ".join(TEXT[i : i + 60] for i in range(0, len(TEXT), 60))
    assert parse_invite(folded).run == RUN
    (tmp_path / "invite").write_text(folded)
    assert parse_invite_file(tmp_path / "invite").run == RUN
    with pytest.raises(ConfigError, match="cannot read the invite"):
        parse_invite_file(tmp_path / "none")


def test_the_secret_is_not_in_the_text_form() -> None:
    scalar = SWARM.invite.key.private_numbers().private_value
    assert str(scalar) not in repr(INVITE) and "key=" not in repr(INVITE)
    assert len(TEXT) < 2500


def _packed(**changes: object) -> str:
    body = base64.urlsafe_b64decode(TEXT[len(PREFIX) :] + "==")[:-4]
    fields = {**msgpack.unpackb(zlib.decompress(body)), **changes}
    packed = zlib.compress(msgpack.packb({k: v for k, v in fields.items() if v is not None}))
    return _framed(packed)


def _framed(body: bytes) -> str:
    return PREFIX + base64.urlsafe_b64encode(body + zlib.crc32(body).to_bytes(4, "big")).decode()


def test_the_repacking_of_these_tests_is_valid() -> None:
    assert parse_invite(_packed()).run == RUN


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "must begin with"),
        ("http://x", "must begin with"),
        (PREFIX, "checksum"),
        (PREFIX + "***", "base64url"),
        (TEXT[:-9], "checksum"),
        (TEXT[:200] + ("A" if TEXT[200] != "A" else "B") + TEXT[201:], "checksum"),
        (PREFIX + "A" * 20_000, "longer than"),
        (_framed(zlib.compress(b"\0" * 1_000_000)), "unpacks to more"),
        (_framed(b"not zlib"), "does not unpack"),
        (_framed(zlib.compress(b"\xc1")), "does not unpack"),
        (_framed(zlib.compress(msgpack.packb([1]))), "does not hold fields"),
        (_packed(run="ab"), "field run"),
        (_packed(run=None), "field run"),
        (_packed(name=7), "field name"),
        (_packed(name="a\x1b[2J"), "field name"),
        (_packed(root=b"x"), "field root: not a certificate"),
        (_packed(cert=None), "field cert: missing"),
        (_packed(key=b"x"), "field key: not a key"),
        (_packed(cert=der(SWARM.root.certificate)), "field key: does not belong"),
        (_packed(addresses="192.0.2.7:1"), "field addresses"),
        (_packed(addresses=["a"] * 65), "field addresses"),
        (_packed(dht=[b"x"]), "field dht"),
        (_packed(expires=float("nan")), "field expires"),
        (_packed(created="now"), "field created"),
    ],
)
def test_what_is_wrong_is_said(text: str, what: str) -> None:
    with pytest.raises(ConfigError, match=r"not a usable invite|not a certificate") as caught:
        parse_invite(text)
    assert what in str(caught.value)


@given(st.text(max_size=300) | st.binary(max_size=300).map(_framed))
def test_no_text_raises_anything_else(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_invite(text)
