"""p2ptrain: peers who do not share a datacentre train one model together, and go on when any of them vanishes.

Importing this package is cheap: no torch, no grpc. The command line is ``p2ptrain`` (``p2ptrain.cli``); ARCHITECTURE.md
walks through the house.

    p2ptrain start run.toml     # the first peer; prints an invite
    p2ptrain join INVITE        # everybody else
"""

__version__ = "0.1.0"
