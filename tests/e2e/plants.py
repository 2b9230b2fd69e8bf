"""Faults planted in a peer's process before its session is made (``setups``): picklable, each in few lines."""

from __future__ import annotations

from typing import Any


class BadGradients:
    """Every gradient of this peer is NaN. ``unseen``: its own check misses that, and it sends them."""

    def __init__(self, unseen: bool = False) -> None:
        self.unseen = unseen

    def __call__(self, child: Any, hooks: Any) -> None:
        from p2ptrain.train import bundles, trainer

        honest = trainer.next_token_loss
        if not self.unseen:
            trainer.next_token_loss = lambda *args: honest(*args) * float("nan")  # type: ignore[assignment]
            return
        seal = bundles.Bundles.seal

        def sealed_as_nan(self: Any, key: Any) -> bool:
            self._stage.gradients.fill_(float("nan"))
            bundles.is_finite = lambda tensor: True  # type: ignore[assignment]
            return seal(self, key)

        bundles.Bundles.seal = sealed_as_nan  # type: ignore[method-assign]


class CountsTwice:
    """In exact mode: the gradient of the ``nth`` microbatch of this life is added twice."""

    def __init__(self, nth: int) -> None:
        self.nth = nth

    def __call__(self, child: Any, hooks: Any) -> None:
        from p2ptrain.train.bundles import Bundles

        add, seen, nth = Bundles.add, [0], self.nth

        def planted(self: Any, backward: Any, scale: float) -> bool:
            seen[0] += 1
            if seen[0] == nth:
                add(self, lambda: backward(retain_graph=True), scale)
            return add(self, backward, scale)

        Bundles.add = planted  # type: ignore[method-assign]


class FlipsAChunk:
    """As a donor, this peer serves every snapshot chunk with one bit flipped."""

    def __call__(self, child: Any, hooks: Any) -> None:
        from p2ptrain.train.snapshots import Snapshots

        chunk = Snapshots.chunk

        def flipped(self: Any, key: bytes, index: int) -> bytes:
            data = bytearray(chunk(self, key, index))
            data[len(data) // 2] ^= 4
            return bytes(data)

        Snapshots.chunk = flipped  # type: ignore[method-assign]


class AsksFirst:
    """This joiner takes state from ``peer`` alone, until a chunk of it had a wrong digest (fact ``lied``)."""

    def __init__(self, peer: str) -> None:
        self.peer = peer

    def __call__(self, child: Any, hooks: Any) -> None:
        from p2ptrain.core.events import ChunkFailed
        from p2ptrain.core.view import View

        donors, caught = View.donors, []

        def chosen(view: Any) -> list[str]:
            return [peer for peer in donors(view) if caught or peer == self.peer]

        def watch(event: Any, effects: Any) -> None:
            if isinstance(event, ChunkFailed) and event.corrupt:
                caught.append(event.peer)
                child.tell("lied", peer=event.peer)

        View.donors = chosen  # type: ignore[method-assign]
        hooks.before.append(watch)


class OtherLibrary:
    """This machine's standard library is another release's: another fingerprint."""

    def __call__(self, child: Any, hooks: Any) -> None:
        from p2ptrain.data.corpus import Corpus
        from p2ptrain.runtime import session

        text = b"def f(x):\n    return x\n" * 4000
        session.corpus_by_name = lambda *args, **options: Corpus.of(text, text[:9000])  # type: ignore[assignment]


class Version:
    """This peer runs another release."""

    def __init__(self, version: str) -> None:
        self.version = version

    def __call__(self, child: Any, hooks: Any) -> None:
        from p2ptrain.runtime import network

        network.__version__ = self.version


class Clock:
    """This machine's wall clock is wrong by so many seconds."""

    def __init__(self, off_s: float) -> None:
        self.off_s = off_s

    def __call__(self, child: Any, hooks: Any) -> None:
        import time
        from datetime import timedelta

        from p2ptrain.net import certificates

        now, off_s = certificates._now, self.off_s
        certificates._now = lambda: now() + timedelta(seconds=off_s)  # type: ignore[assignment]
        real = time.time
        time.time = lambda: real() + off_s  # type: ignore[assignment]


class Impatient:
    """Gives up soon when nobody can be reached."""

    def __call__(self, child: Any, hooks: Any) -> None:
        hooks.patience_s = 1.0
