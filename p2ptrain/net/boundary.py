"""The last check before the core: is what a peer says of itself (or of others) signed by whom it speaks of?

Decides: which roster lines, Hellos and goodbyes may pass. Lines that cannot be verified are dropped and counted, the
rest of their message goes on; a Hello or Leave that cannot be verified is refused whole.
"""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import replace

from p2ptrain.core.messages import Gossip, Hello, Leave, Message, Probe, ProbeAck
from p2ptrain.core.types import Member, PeerId, short
from p2ptrain.errors import ProtocolError
from p2ptrain.net.identity import verify_info, verify_leave
from p2ptrain.wire import translate

logger = logging.getLogger(__name__)


class HelloRefused(Exception):
    """``failure`` is a ``DialFailure`` or ``superseded`` (another link of this pair stands or is about to)."""

    def __init__(self, failure: str, detail: str) -> None:
        super().__init__(detail)
        self.failure = failure
        self.detail = detail


class Boundary:
    """Checks for one run. ``dropped`` counts what did not pass, by kind."""

    def __init__(self, run: str, version: str) -> None:
        self.run = run
        self.version = version
        self.dropped: Counter[str] = Counter()

    def read(self, data: bytes, sender: PeerId) -> Message | None:
        """The message in ``data``, cleaned; None if nothing of it passes. Raises ProtocolError."""
        message = translate.from_bytes(data, strict=True)
        if isinstance(message, Hello):
            raise ProtocolError("a second Hello on a link")
        if isinstance(message, Leave) and not verify_leave(self.run, message):
            self._drop("leave", sender, f"a goodbye of {short(message.peer)} without its signature")
            return None
        if isinstance(message, Gossip | Probe | ProbeAck):
            kept = tuple(member for member in message.updates if self._passes(member, sender))
            return message if len(kept) == len(message.updates) else replace(message, updates=kept)
        return message

    def read_hello(self, data: bytes, sender: PeerId) -> Hello:
        """The first message of a link. ``sender``: whom the certificate names, "" without TLS. Raises HelloRefused."""
        try:
            hello = translate.from_bytes(data, strict=True)
        except ProtocolError as error:
            raise HelloRefused("version", f"the first message is unreadable: {error}") from None
        if not isinstance(hello, Hello):
            raise HelloRefused("version", f"the first message is {type(hello).__name__}, not Hello")
        if hello.run != self.run:
            text = f"the other side trains run {short(hello.run)}, this is {short(self.run)}"
            raise HelloRefused("foreign_run", text)
        if not compatible(hello.version, self.version):
            text = f"versions {hello.version} and {self.version} do not talk to each other: update the older one"
            raise HelloRefused("version", text)
        if sender and hello.info.peer != sender:
            raise HelloRefused("certificate", "the Hello speaks for another peer than the certificate")
        if not verify_info(self.run, hello.info):
            raise HelloRefused("certificate", "the Hello is not signed by its peer's key")
        return hello

    def _passes(self, member: Member, sender: PeerId) -> bool:
        if verify_info(self.run, member.info):
            return True
        self._drop("info", sender, f"a roster line of {short(member.info.peer)} without its signature")
        return False

    def _drop(self, kind: str, sender: PeerId, what: str) -> None:
        self.dropped[kind] += 1
        count = self.dropped[kind]
        if count & (count - 1) == 0:  # 1, 2, 4, 8, ...: counted, not repeated
            logger.warning("from %s: dropped %s (%d so far)", short(sender), what, count)


def compatible(one: str, other: str) -> bool:
    """Same major version, and below 1.0 same minor version too. An empty version says nothing and passes."""
    if not one or not other:
        return True
    first, second = one.split("."), other.split(".")
    length = 2 if first[0] == "0" else 1
    return first[:length] == second[:length]
