"""How peers reach each other: identity, invites, TLS, links and bulk streams over gRPC (and the DHT beside).

Implements ``ports.Transport`` and ``ports.Directory``. Decides nothing about training or membership.
"""
