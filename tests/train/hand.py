"""A trainer driven by hand: the least that stands in for the core and the exchange in tests of the training side."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from p2ptrain.codec import codec_by_name
from p2ptrain.codec.digest import PartHasher
from p2ptrain.codec.exact import norm_sq_int
from p2ptrain.codec.reduce import norm_sq
from p2ptrain.core.events import Applied, Apply, BundleDone, Compute, Event
from p2ptrain.core.types import Digest, PartDone, Record, chain_digest
from p2ptrain.data import Corpus, dataset_by_name
from p2ptrain.data.windows import Windows
from p2ptrain.models import model_by_name
from p2ptrain.train.flat import FlatStage
from p2ptrain.train.trainer import LocalTrainer, TrainerOptions

TINY = {"layers": 1, "width": 16, "heads": 2, "context": 16}
E = TypeVar("E", bound=Event)


def tiny_corpus() -> Corpus:
    text = b"".join(b"def step_%d(value):\n    return value + %d\n" % (i, i % 7) for i in range(300))
    return Corpus.of(text, text[:3000])


def tiny_windows(samples: int = 2) -> Windows:
    return dataset_by_name("python_stdlib", context=16, samples=samples, corpus=tiny_corpus())


def tiny_layers() -> list[nn.Module]:
    return model_by_name("byte_gpt", **TINY)


class Parts:
    """``ports.PartSource`` from a dictionary."""

    def __init__(self) -> None:
        self.held: dict[Digest, tuple[str, list[bytes]]] = {}

    def payloads(self, digest: Digest) -> Sequence[bytes]:
        return self.held[digest][1]

    def codec_name(self, digest: Digest) -> str:
        return self.held[digest][0]


class Hand:
    """Runs a ``LocalTrainer`` in a thread; ``with Hand(...) as hand`` ends it. Waits have a deadline of 30 s."""

    def __init__(
        self, options: TrainerOptions | None = None, *, data: Any = None, parts: Parts | None = None, **named: Any
    ) -> None:
        self.parts = parts or Parts()
        self.events: queue.Queue[Event] = queue.Queue()
        self.failures: queue.Queue[Exception] = queue.Queue()
        self.stage = FlatStage(tiny_layers())
        self.options = options or TrainerOptions()
        self.trainer = LocalTrainer(
            self.stage,
            data or tiny_windows(),
            self.parts,
            self.events.put,
            self.options,
            on_failure=self.failures.put,
            **named,
        )
        self.chain: Digest = b""
        self.round = 0
        self._thread = threading.Thread(target=self.trainer.run)

    def __enter__(self) -> Hand:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.trainer.stop()
        self._thread.join(30)
        assert not self._thread.is_alive()

    def wait(self, kind: type[E]) -> E:
        """The next event of this kind; others before it are dropped."""
        while True:
            event = self.next_event()
            if isinstance(event, kind):
                return event

    def next_event(self) -> Event:
        for _ in range(300):
            if not self.failures.empty():
                raise AssertionError("the trainer failed") from self.failures.get()
            with contextlib.suppress(queue.Empty):
                return self.events.get(timeout=0.1)
        raise AssertionError("no event within 30 s")

    def compute(self, ids: Sequence[int], index: int = 0) -> tuple[Tensor, BundleDone]:
        round = self.round + 1
        self.trainer.submit(Compute(0, round, index, tuple(ids)))
        done = self.wait(BundleDone)
        return self.trainer.bundle(0, round, index), done

    def apply(self, record: Record) -> Applied:
        self.chain = chain_digest(self.chain, record)
        self.round = record.round
        self.trainer.submit(Apply(record, self.chain, record.round % 16))
        return self.wait(Applied)

    def digest(self) -> str:
        return self.trainer.state_digest().result(30).hex()


def record_of(
    parts: Parts,
    round: int,
    bundles: Sequence[tuple[Tensor, Sequence[int]]],
    *,
    codec_name: str = "none",
    pieces: int = 3,
    scale: float = 1.0,
    microbatches: int = 8,
    chunk_values: int | None = None,
) -> Record:
    """Average (or add) these bundles part by part, encode the parts into ``parts``, and write the record."""
    exact = codec_name == "exact"
    codec = codec_by_name(codec_name, chunk_values=chunk_values, max_count=microbatches)
    counted = tuple(sorted(id for _, ids in bundles for id in ids))
    size = len(bundles[0][0])
    if exact:
        total = torch.stack([tensor for tensor, _ in bundles]).sum(0)
    else:
        total = sum(tensor * (len(ids) / len(counted)) for tensor, ids in bundles)
    done: list[PartDone] = []
    for index in range(pieces):
        start, stop = size * index // pieces, size * (index + 1) // pieces
        hasher, payloads = PartHasher(codec_name, 0, start, stop), []
        norm: float | int = 0 if exact else 0.0
        for first in range(start, stop, codec.chunk_values):
            payloads.append(codec.encode(total[first : min(first + codec.chunk_values, stop)].contiguous()))
            hasher.update(payloads[-1])
            decoded = codec.decode(payloads[-1], min(codec.chunk_values, stop - first))
            norm += norm_sq_int(decoded) if exact else norm_sq(decoded)
        digest = hasher.digest()
        parts.held[digest] = (codec_name, payloads)
        done.append(PartDone(index, start, stop, digest, counted, norm, sum(map(len, payloads))))
    return Record(
        lineage=0,
        stage=0,
        round=round,
        parent=b"",
        base_digest=b"",
        parts=tuple(done),
        spent_ids=counted,
        norm_sq=sum(part.norm_sq for part in done),
        next_scale=scale,
        voters_next=(),
        samples_total=0,
        next_id=0,
    )
