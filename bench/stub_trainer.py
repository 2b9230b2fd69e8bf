"""A trainer that computes nothing, so that a bench of the exchange times the exchange: a fixed gradient, no model.

Everything else is production: session, core, transport, exchange, codecs, digests. The model's size is stated, not
built; pulls and pins carry a tiny state. ``install`` runs in the peer's process before its session is made.
"""

from __future__ import annotations

import hashlib
import time
from dataclasses import replace
from functools import partial
from typing import Any

SIZE = 25_000_000
PAUSE_S = 0.3


def install(child: Any, hooks: Any, *, insecure: bool = False, size: int = SIZE, pause_s: float = PAUSE_S) -> None:
    """Put the stub in the place of the trainer; tell ``began`` and ``committed`` with their times.

    ``pause_s``: what the peer "computes" before each round, so that rounds do not overlap.
    """
    from p2ptrain.core import events as ev
    from p2ptrain.runtime import network, outfit, session, spec

    sized = partial(_spec, size=size)
    session.manifest_spec = spec.manifest_spec = sized
    outfit.build = partial(_build, size=size, pause_s=pause_s)
    if insecure:
        network.GrpcTransport = partial(network.GrpcTransport, insecure=True)

    def watch(event: ev.Event, effects: list[ev.Effect]) -> None:
        for effect in effects:
            if isinstance(effect, ev.Exchange):
                child.tell(
                    "began",
                    round=effect.begin.fence.round,
                    members=len(effect.begin.members),
                    bundles=len(effect.begin.bundles),
                    attempt=effect.begin.attempt,
                )
            elif isinstance(effect, ev.Apply):
                child.tell("committed", round=effect.record.round, counted=len(effect.record.spent_ids))

    hooks.before.append(watch)


def _spec(manifest: Any, knobs: Any = None, *, size: int) -> Any:
    return manifest.run_spec(size, 1, knobs=knobs)


def _build(manifest: Any, corpus: Any, post: Any, on_failure: Any, *, size: int, pause_s: float, **_: Any) -> Any:
    import torch

    from p2ptrain.codec import codec_by_name
    from p2ptrain.codec.buffers import keep_freed_memory
    from p2ptrain.codec.feedback import Residuals
    from p2ptrain.runtime import outfit
    from p2ptrain.runtime.hands import PulledSlices
    from p2ptrain.runtime.parts import PartStore
    from p2ptrain.train.flat import FlatStage

    keep_freed_memory()
    torch.set_num_threads(1)
    codec = codec_by_name(manifest.sync.codec)
    residuals = Residuals(codec, size, enabled=codec.name == "int8")
    parts = PartStore()
    trainer = _stub_class()(FlatStage([torch.nn.Linear(4, 4)]), None, parts, post, on_failure=on_failure)
    trainer.gradient = torch.randn(size)
    trainer.pause_s = pause_s
    pool = outfit.codec_pool()
    return outfit.Outfit(trainer, None, parts, residuals, PulledSlices(), pool, manifest, corpus)


def _stub_class() -> type:
    from p2ptrain.core import events as ev
    from p2ptrain.core.types import BaseDigest
    from p2ptrain.train.trainer import LocalTrainer

    class StubTrainer(LocalTrainer):
        """Answers ``Compute`` and ``Apply`` at once (after ``pause_s``)."""

        def _compute(self, job: Any) -> None:
            order = job.order
            time.sleep(self.pause_s)
            for id in order.ids:
                self._emit(ev.MicrobatchDone(order.round, id, self.pause_s / len(order.ids), 1.0))
            self._emit(ev.BundleDone(order.round, order.index, tuple(order.ids), 1.0 * len(order.ids)))

        def _apply(self, order: Any) -> None:
            self._state.header = replace(self._state.header, round=order.record.round)
            self._emit(ev.Applied(order.record.stage, order.record.round, self._base(order.chain, order.slice_index)))

        def _base(self, chain: bytes, slice_index: int) -> Any:
            self._chain = chain
            return BaseDigest(chain, slice_index, hashlib.sha256(chain).digest())

        def bundle(self, stage: int, round: int, index: int) -> Any:
            return self.gradient

    return StubTrainer
