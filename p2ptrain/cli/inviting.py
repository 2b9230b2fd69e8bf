"""Invites as text: read from the command line or a file, kept in the run folder, made anew with addresses alive now.

Decides which members' addresses go into a new one: those that the peer here sees alive, its own first. Each carries
the key by which this peer has joined, but for one made by ``another``, which can therefore be revoked alone.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from p2ptrain.cli import folders
from p2ptrain.config_folder import RunFolder, write_private
from p2ptrain.errors import ConfigError
from p2ptrain.net.dht_cache import load_last_peers
from p2ptrain.net.invite import Invite, make_invite, parse_invite, parse_invite_file

ADDRESSES_MAX = 16
ANOTHER_LIFE_S = 30 * 86_400.0
MADE_FILE = "invites"
RUN_NAME = r"[a-z0-9][a-z0-9-]{0,62}"
PRESENT = ("alive", "busy", "joining", "link_down", "suspect")


def read(text: str) -> Invite:
    """INVITE or @FILE. Raises ConfigError: malformed, unreadable, or a name that no run has."""
    invite = parse_invite_file(Path(text[1:]).expanduser()) if text.startswith("@") else parse_invite(text)
    if not re.fullmatch(RUN_NAME, invite.name):
        raise ConfigError(
            f"not a usable invite: field name: {invite.name[:40]!r} is no name of a run",
            key="invite",
            hint="ask a member for a new one",
        )
    return invite


def keep(folder: RunFolder, invite: Invite) -> None:
    """In the run folder, for its owner alone: with it this peer can invite others, and rejoin."""
    write_private(folder.invite, make_invite(invite).encode() + b"\n")


def fresh(run_dir: Path | None) -> str:
    """A new invite of the run in that folder. Raises ConfigError: no folder, no invite in it, nobody to be dialled."""
    folder = folders.chosen(run_dir)
    if not folder.invite.exists():
        raise ConfigError(
            f"{folder.invite}: no invite is kept here", file=str(folder.invite), hint="only a member can invite others"
        )
    invite = _addressed(folder, parse_invite_file(folder.invite))
    keep(folder, invite)
    return make_invite(invite)


def another(run_dir: Path | None) -> str:
    """An invite with a key of its own. Raises ConfigError also where the root's key is not: only the starter can."""
    from p2ptrain.net.certificates import ROOT_KEY_FILE, Intermediate, Root
    from p2ptrain.net.revoked import serial_text

    folder = folders.chosen(run_dir)
    if not folder.invite.exists() or not (folder.keys / ROOT_KEY_FILE).exists():
        raise ConfigError(
            f"{folder.path}: the key that makes new invites is not here",
            file=str(folder.path),
            hint="only the peer that began the run has it; without --new any member can invite",
        )
    kept = parse_invite_file(folder.invite)
    made = Intermediate.create(Root.load_or_create(folder.keys, kept.run), ANOTHER_LIFE_S)
    invite = _addressed(folder, replace(kept, intermediate=made, expires=0.0))
    with (folder.keys / MADE_FILE).open("a", encoding="ascii") as file:
        (folder.keys / MADE_FILE).chmod(0o600)
        file.write(serial_text(made.serial) + "\n")
    return make_invite(invite)


def listed(run_dir: Path | None) -> list[tuple[str, str]]:
    """Serial and what is known of it here: the invite of this folder, those made here, those revoked here."""
    from p2ptrain.net.revoked import read_revoked, serial_text

    folder = folders.chosen(run_dir)
    revoked = {serial_text(serial) for serial in read_revoked(folder.keys)}
    known: dict[str, str] = {}
    if folder.invite.exists():
        certificate = parse_invite_file(folder.invite).intermediate.certificate
        until = f"{certificate.not_valid_after_utc:%Y-%m-%d %H:%M} UTC"
        known[serial_text(certificate.serial_number)] = f"this peer has joined by it; valid until {until}"
    made = folder.keys / MADE_FILE
    for serial in made.read_text("ascii").split() if made.exists() else ():
        known.setdefault(serial, "made here")
    return [
        (serial, known.get(serial, "made elsewhere") + ("; revoked here" if serial in revoked else ""))
        for serial in dict.fromkeys([*known, *sorted(revoked)])
    ]


def revoke(run_dir: Path | None, text: str) -> str:
    """From now on this member takes nobody in who shows that invite, and ends their links. Returns what was done.

    Raises ConfigError: no serial, or the one by which this very peer has joined.
    """
    from p2ptrain.net.revoked import parse_serial, serial_text
    from p2ptrain.net.revoked import revoke as write

    folder = folders.chosen(run_dir)
    serial = parse_serial(text)
    if folder.invite.exists() and parse_invite_file(folder.invite).intermediate.serial == serial:
        raise ConfigError(
            f"{serial_text(serial)} is the invite by which this peer itself has joined",
            key="SERIAL",
            hint="revoke it on members that have joined by another one",
        )
    if not write(folder.keys, serial):
        return f"{serial_text(serial)} was revoked here before"
    return f"{serial_text(serial)} is revoked on this member alone: run the same on every other member"


def _addressed(folder: RunFolder, kept: Invite) -> Invite:
    """With the addresses of members alive now. Raises ConfigError: nobody can be dialled."""
    addresses: Sequence[str] = ()
    dht: Sequence[str] = ()
    if folders.is_held(folder):
        status = folders.read_status(folder)
        addresses, dht = _alive(status), [text for text in status.get("dht_addresses", ()) if isinstance(text, str)]
    else:
        addresses = [address for info in load_last_peers(folder.path) for address in info.addresses] or kept.addresses
        dht = kept.dht_peers
    if not addresses and not dht:
        raise ConfigError(
            "no member is known that can be dialled",
            file=str(folder.path),
            hint="run `p2ptrain invite` on a member with an open port, or give --announce there",
        )
    return replace(
        kept, addresses=tuple(dict.fromkeys(addresses))[:ADDRESSES_MAX], dht_peers=tuple(dht)[:4], created=time.time()
    )


def _alive(status: dict[str, Any]) -> list[str]:
    """Own addresses first, then each member's first address, then the others."""
    me = status.get("peer")
    members = [m for m in status.get("members", ()) if m.get("status") in PRESENT and m.get("addresses")]
    members.sort(key=lambda m: (m["peer"] != me, m["status"] != "alive"))
    own = [a for m in members if m["peer"] == me for a in m["addresses"]]
    first = [m["addresses"][0] for m in members]
    return [*own, *first, *(a for m in members for a in m["addresses"])]
