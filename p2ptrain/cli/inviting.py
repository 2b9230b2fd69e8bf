"""Invites as text: read from the command line or a file, kept in the run folder, made anew with addresses alive now.

Decides which members' addresses go into a new one: those that the peer here sees alive, its own first.
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
    kept = parse_invite_file(folder.invite)
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
    invite = replace(
        kept, addresses=tuple(dict.fromkeys(addresses))[:ADDRESSES_MAX], dht_peers=tuple(dht)[:4], created=time.time()
    )
    keep(folder, invite)
    return make_invite(invite)


def _alive(status: dict[str, Any]) -> list[str]:
    """Own addresses first, then each member's first address, then the others."""
    me = status.get("peer")
    members = [m for m in status.get("members", ()) if m.get("status") in PRESENT and m.get("addresses")]
    members.sort(key=lambda m: (m["peer"] != me, m["status"] != "alive"))
    own = [a for m in members if m["peer"] == me for a in m["addresses"]]
    first = [m["addresses"][0] for m in members]
    return [*own, *first, *(a for m in members for a in m["addresses"])]
