"""Opens the emulated WAN that this machine allows, and measures how much it carries. Decides which kind.

wan = open_wan([Host("a"), Host("b")])      # namespaces; LabError with the reason and the way out where not allowed
wan = open_wan(hosts, reduced=True)         # relays on loopback
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from p2ptrain.errors import LabError
from p2ptrain.lab.wan import Host, Wan, namespaces

SHARE = 0.7
"""Of what the router carries alone; the peers need the machine too."""


def open_wan(hosts: Sequence[Host], *, reduced: bool = False, seed: int = 0) -> Wan:
    """Raises LabError: not allowed here, or it could not be made; nothing is left then."""
    if reduced:
        from p2ptrain.lab.wan.relays import RelayWan

        return RelayWan(hosts, seed=seed)
    why = namespaces_allowed()
    if why:
        hint = "run it as root, or with --reduced (relays on loopback)"
        raise LabError(f"no network namespaces here: {why}", hint=hint, missing="namespaces")
    from p2ptrain.lab.wan.emulated import NamespaceWan

    return NamespaceWan(hosts, seed=seed)


def namespaces_allowed() -> str:
    """Why not; "" if they are."""
    return namespaces.why_not()


@lru_cache(maxsize=1)
def capacity_mbps() -> float:
    """What a scenario may plan in all, in Mbit/s: measured for a second, once a process. 0 where it is not known."""
    if namespaces_allowed():
        return 0.0
    from p2ptrain.lab.wan.check import carried_mbps

    return SHARE * carried_mbps(seconds=1.0)
