"""Builds the torch side of a peer: model, data, trainer, exchange, transfer. Imported late: torch comes in here.

Decides nothing about the swarm; it translates the manifest into the arguments that each piece takes.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch

from p2ptrain.codec import codec_by_name
from p2ptrain.codec.buffers import keep_freed_memory
from p2ptrain.codec.feedback import Residuals
from p2ptrain.config import Manifest
from p2ptrain.core import events as ev
from p2ptrain.core.types import Digest
from p2ptrain.data import dataset_by_name
from p2ptrain.data.corpus import Corpus
from p2ptrain.data.windows import Windows
from p2ptrain.errors import TrainingError
from p2ptrain.models import model_by_name
from p2ptrain.models.forward import held_out_loss
from p2ptrain.ports import Transport
from p2ptrain.runtime.blobs import CORPUS_INFO_INDEX, corpus_name, pack_corpus_info
from p2ptrain.runtime.exchange import Exchanges
from p2ptrain.runtime.hands import Hands, PulledSlices
from p2ptrain.runtime.parts import PartStore
from p2ptrain.runtime.pulls import Pulls, Throttle
from p2ptrain.train.flat import FlatStage
from p2ptrain.train.optimizer import AdamWOptions
from p2ptrain.train.state import SNAPSHOT_CHUNK_BYTES
from p2ptrain.train.trainer import LocalTrainer, TrainerOptions

EXACT_SCALE = 2.0**-24
POOL_THREADS = 2


@dataclass
class Outfit:
    """What stands once torch is imported. ``run_training`` blocks the calling thread until ``stop``."""

    trainer: LocalTrainer
    data: Windows
    parts: PartStore
    residuals: Residuals
    slices: PulledSlices
    pool: ThreadPoolExecutor
    manifest: Manifest
    corpus: Corpus

    def run_training(self) -> None:
        self.trainer.run()
        self.pool.shutdown(wait=True, cancel_futures=True)  # what runs there takes milliseconds

    def stop(self) -> None:
        self.trainer.stop()
        self.pool.shutdown(wait=False, cancel_futures=True)

    def connect(
        self,
        transport: Transport,
        me: str,
        post: Callable[[ev.Event], None],
        round_now: Callable[[], int],
        upload_mbps: float,
    ) -> tuple[Hands, Exchanges, Pulls]:
        """In the loop: the pieces that talk. ``post`` takes events of the loop's thread."""
        run = self.manifest.digest
        exchanges = Exchanges(
            transport, me, run, self.trainer, self.parts, self.residuals.codec, self.residuals, self.pool, post
        )
        pulls = Pulls(
            transport,
            run,
            self.parts,
            self.trainer,
            self.trainer,
            self.trainer,
            post,
            corpus=self._corpus_chunk,
            throttle=Throttle(upload_mbps),
        )
        hands = Hands(
            self.trainer, exchanges, pulls, self.parts, self.residuals, self.slices, self.pool, round_now, post
        )
        return hands, exchanges, pulls

    def evaluate(self, on_loss: Callable[[float], None]) -> None:
        """Held-out loss (nats a token), computed in the training thread between microbatches."""
        batches = self.data.held_out(self.manifest.evaluate.batches)
        future = self.trainer.ask(lambda layers: held_out_loss(layers, batches))

        def done(f) -> None:  # type: ignore[no-untyped-def]
            with contextlib.suppress(Exception):  # cancelled at the end, or the trainer failed and says so itself
                on_loss(f.result())

        future.add_done_callback(done)

    def _corpus_chunk(self, name: Digest, index: int) -> bytes:
        if name != corpus_name(self.corpus.fingerprint):
            raise KeyError("another corpus")
        if index == CORPUS_INFO_INDEX:
            return pack_corpus_info(self.corpus.info())
        return self.corpus.chunk(index)


def build(
    manifest: Manifest,
    corpus: Corpus,
    post_threadsafe: Callable[[ev.Event], None],
    on_failure: Callable[[TrainingError], None],
    *,
    threads: int = 0,
    trusted: tuple[str, ...] = (),
    extra_wait_s: float = 0.0,
    microbatch_least_s: float = 0.0,
    snapshot_chunk_bytes: int = 0,
    device: str = "cpu",
) -> Outfit:
    """The whole torch side for one stage of all layers.

    Raises ConfigError (unknown or untrusted names, wrong options), TrainingError (the device rounds differently).
    """
    keep_freed_memory()
    threads = threads or max(1, (os.cpu_count() or 2) // 2)
    torch.set_num_threads(threads)
    options = dict(manifest.model.options)
    if manifest.model.name == "byte_gpt":
        options.setdefault("context", manifest.batch.sequence_length)
    stage = FlatStage(model_by_name(manifest.model.name, trusted=trusted, **options), device=device)
    data = dataset_by_name(
        manifest.data.name,
        context=manifest.batch.sequence_length,
        samples=manifest.batch.microbatch,
        seed=manifest.seed,
        corpus=corpus,
    )
    exact = manifest.sync.exact
    codec = (
        codec_by_name("exact", max_count=manifest.batch.microbatches) if exact else codec_by_name(manifest.sync.codec)
    )
    residuals = Residuals(codec, stage.size, enabled=codec.name == "int8")
    parts, slices = PartStore(), PulledSlices()
    trainer = LocalTrainer(
        stage,
        data,
        parts,
        post_threadsafe,
        TrainerOptions(
            optimizer=optimizer_options(manifest),
            exact=exact,
            microbatches=manifest.batch.microbatches,
            first_scale=EXACT_SCALE if exact else 1.0,
            threads=threads,
            extra_wait_s=extra_wait_s,
            microbatch_least_s=microbatch_least_s,
            snapshot_chunk_bytes=snapshot_chunk_bytes or SNAPSHOT_CHUNK_BYTES,
        ),
        on_failure=on_failure,
        healthy=slices,
    )
    return Outfit(trainer, data, parts, residuals, slices, codec_pool(), manifest, corpus)


def codec_pool() -> ThreadPoolExecutor:
    """Where frames are encoded, summed and hashed: threads of one torch thread each."""
    return ThreadPoolExecutor(POOL_THREADS, thread_name_prefix="p2ptrain-codec", initializer=_one_thread)


def optimizer_options(manifest: Manifest) -> AdamWOptions:
    """The manifest's optimiser in the trainer's words."""
    given = manifest.optimiser
    return AdamWOptions(
        learning_rate=given.lr,
        beta1=given.beta1,
        beta2=given.beta2,
        epsilon=given.eps,
        weight_decay=given.weight_decay,
        clip_norm=given.clip_norm,
        warmup_rounds=given.warmup_rounds,
        decay_rounds=given.total_rounds if given.schedule == "cosine" else 0,
        final_fraction=given.min_lr / given.lr,
    )


def _one_thread() -> None:
    torch.set_num_threads(1)
