"""Sample windows of a corpus: microbatch ids to tensors, and held-out batches. Decides which sample an id stands for.

Sample s of the run (microbatch id times samples, plus its place) lies in epoch s // n at position s % n; a seeded
permutation of the epoch names the window, and a seeded shift moves all windows of an epoch, so that epochs cut the text
at different places. A pure function of (corpus, seed, id): whoever computes a microbatch computes the same one.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache

import torch
from torch import Tensor

from p2ptrain.data.corpus import Corpus
from p2ptrain.data.shuffle import Permutation
from p2ptrain.errors import ConfigError


class Windows:
    """``microbatch(id)`` gives (inputs, targets), each (samples, context) int64 on the CPU."""

    def __init__(self, corpus: Corpus, *, context: int, samples: int, seed: int = 0) -> None:
        """Raises ConfigError if the corpus is too short, or the sizes are senseless."""
        if context < 1 or samples < 1:
            raise ConfigError(f"context {context} and samples {samples} must be at least 1", key="samples")
        self.corpus = corpus
        self.context = context
        self.samples = samples
        self._seed = seed
        self._train = _tokens(corpus.train, corpus.item_bytes)
        self._validation = _tokens(corpus.validation, corpus.item_bytes)
        self.windows = len(self._train) // context - 1  # of one epoch; one is given up to the shift
        if self.windows < 1:
            raise ConfigError(
                f"the corpus has {len(self._train)} training tokens: no two windows of {context}", key="context"
            )
        self._shuffle = lru_cache(maxsize=4)(lambda epoch: Permutation(self.windows, seed, epoch))

    def microbatch(self, id: int) -> tuple[Tensor, Tensor]:
        first = id * self.samples
        return self._cut(self._train, [self._start(first + place) for place in range(self.samples)])

    def held_out(self, batches: int = 8) -> list[tuple[Tensor, Tensor]]:
        """The same batches always, spread evenly over the validation text; fewer (never none) if it is short.

        Raises ConfigError if the validation text is shorter than one batch of windows.
        """
        windows = (len(self._validation) - 1) // self.context
        batches = min(batches, windows // self.samples)
        if batches < 1:
            raise ConfigError(
                f"the validation text has {windows} windows, a batch needs {self.samples}",
                hint="raise the validation fraction or the corpus size",
            )
        wanted = batches * self.samples
        starts = [(place * windows // wanted) * self.context for place in range(wanted)]
        return [self._cut(self._validation, starts[batch::batches]) for batch in range(batches)]

    def _start(self, sample: int) -> int:
        epoch, position = divmod(sample, self.windows)
        return self._shuffle(epoch)(position) * self.context + _shift(self._seed, epoch, self.context)

    def _cut(self, tokens: Tensor, starts: list[int]) -> tuple[Tensor, Tensor]:
        samples = torch.stack([tokens[start : start + self.context + 1] for start in starts]).to(torch.int64)
        return samples[:, :-1].contiguous(), samples[:, 1:].contiguous()


def _tokens(view: memoryview, item_bytes: int) -> Tensor:
    if not len(view):
        return torch.empty(0, dtype=torch.uint8)
    data = view if not view.readonly else memoryview(bytearray(view))  # torch wants memory that could be written
    tokens = torch.frombuffer(data, dtype=torch.uint8)
    if item_bytes == 1:
        return tokens
    pairs = tokens.view(-1, 2).to(torch.int32)  # little endian on every platform; torch's uint16 knows few operations
    return pairs[:, 0] | (pairs[:, 1] << 8)


def _shift(seed: int, epoch: int, context: int) -> int:
    digest = hashlib.blake2b(f"p2ptrain shift 1/{seed}/{epoch}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % context
