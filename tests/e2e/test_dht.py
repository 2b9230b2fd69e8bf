"""Peers find each other in the DHT when no address of the invite answers any more."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from p2ptrain.lab.processes import Peer, Swarm
from p2ptrain.net.invite import make_invite, parse_invite
from tests.e2e.support import check, manifest

pytestmark = pytest.mark.e2e

if importlib.util.find_spec("hivemind") is None:  # never imported here: that changes logging for the whole process
    pytest.skip("no hivemind wheel for this platform", allow_module_level=True)

NOBODY = "127.0.0.1:9"  # the discard port: refused at once


def wait_dht(peer: Peer) -> str:
    """An invite of ``peer`` that names its DHT address, once its helper is up."""
    for _ in range(60):
        asked = len(peer.facts)
        peer.do("invite")
        text = peer.wait_kind("invite", 10.0, since=asked)["text"]
        if parse_invite(text).dht_peers:
            return str(text)
        peer.wait_round(peer.round + 1, 30.0)  # the helper comes up beside; rounds go on meanwhile
    raise AssertionError(f"the DHT helper of {peer.name} did not come up within 60 rounds")


@pytest.mark.skipif(sys.platform == "win32", reason="the helper needs a POSIX system")
def test_an_invite_whose_addresses_are_all_dead_still_leads_in(tmp_path: Path) -> None:
    with Swarm(tmp_path, manifest(), no_dht=False, dht_listen="127.0.0.1:0", extra_wait_s=0.1) as swarm:
        first = swarm.start("a")
        invite = parse_invite(wait_dht(first))
        stale = make_invite(replace(invite, addresses=(NOBODY,)))
        late = swarm.start("b", wait=False, invite=stale)
        late.wait_kind("ready", 90.0)
        late.wait_kind("say", 60.0, key="joined")
        swarm.wait_round(max(first.round, late.round) + 2)
        check(swarm)
