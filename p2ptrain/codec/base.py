"""What every codec is: one chunk of a flat buffer to bytes and back.

    values (n,) float32 --encode--> header + payload --decode--> (n,) float32
                                         |
                                         +--accumulate--> sums += weight * decoded

Decides the common rules: what is accepted, what a malformed payload raises. Not the formats (``plain``, ``block_int8``,
``exact``), not the sizes (``sizes``), not error feedback (``feedback``).

Every codec is deterministic: ``encode`` and ``decode`` give the same bits whatever the thread count and on CPU and
CUDA, because they use separately rounded elementwise operations and order-free maxima only. ``accumulate`` is
deterministic on one device. Codecs hold no state of a chunk and may be used from several threads at once. A malformed
payload (wrong length, scale out of range, wrong width) raises ProtocolError before anything is written. The payloads of
``none``, ``fp16`` and ``bf16`` are not searched for NaN when they arrive: check the finished sum once, with
``reduce.is_finite``, since NaN and infinity survive sums.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch

from p2ptrain.codec.buffers import Blob, Payload
from p2ptrain.codec.sizes import chunk_values_of, encoded_bytes
from p2ptrain.errors import ConfigError, ProtocolError, TrainingError


class Codec(ABC):
    """``name`` is what manifests say; ``dtype`` is of decoded tensors; ``lossless`` codecs have no residuals."""

    name: str
    lossless: bool = False
    dtype: torch.dtype = torch.float32
    chunk_multiple: int = 1

    def __init__(self, chunk_values: int | None = None) -> None:
        self.chunk_values = chunk_values_of(self.name) if chunk_values is None else chunk_values
        if self.chunk_values < 1 or self.chunk_values % self.chunk_multiple:
            raise ConfigError(
                f"chunks of {self.chunk_values} values do not fit codec {self.name}",
                hint=f"a positive multiple of {self.chunk_multiple}",
                key="sync.chunk_values",
            )

    def encoded_bytes(self, n_values: int) -> int:
        """Exact payload size of ``n_values`` values (for ``exact``: its upper bound). See ``sizes``."""
        return encoded_bytes(self.name, n_values)

    def encode(self, values: torch.Tensor, header: bytes = b"") -> bytes:
        """``header`` and the payload of flat, contiguous ``values`` (n <= chunk_values), in one allocation.

        A header length that is a multiple of 8 keeps the payload aligned; others cost one more copy. Raises
        TrainingError if a lossy codec meets a value that is not finite, ValueError for a wrong shape or dtype.
        """
        self._check_values(values)
        blob = Blob(header, self.encoded_bytes(values.numel()))
        if values.numel():
            self._write(values, blob)
        return blob.data

    def decode(self, payload: Payload, n_values: int) -> torch.Tensor:
        """(n_values,) CPU tensor of ``dtype``. It may share the payload's memory: read only. Raises ProtocolError."""
        out = torch.empty(n_values, dtype=self.dtype)
        self.decode_into(payload, out)
        return out

    @abstractmethod
    def decode_into(self, payload: Payload, out: torch.Tensor) -> None:
        """Write the decoded values over flat ``out`` (its length says how many are expected). Raises ProtocolError."""

    @abstractmethod
    def accumulate(self, payload: Payload, acc: torch.Tensor, weight: float, first: bool = False) -> None:
        """``acc += weight * decoded``, or ``acc = weight * decoded`` if ``first`` (acc may then be uninitialised).

        For ``exact`` the payload is a sum already: ``weight`` is the number of microbatches in it and only bounds the
        values. Raises ProtocolError before ``acc`` is touched.
        """

    @abstractmethod
    def _write(self, values: torch.Tensor, blob: Blob) -> None:
        """Put the payload of at least one value."""

    def _check_values(self, values: torch.Tensor) -> None:
        if values.dim() != 1 or values.dtype != self.dtype or not values.is_contiguous():
            raise ValueError(f"codec {self.name} takes flat contiguous {self.dtype}, not {values.dtype} {values.shape}")
        if values.numel() > self.chunk_values:
            raise ValueError(f"{values.numel()} values in a chunk of at most {self.chunk_values}")

    def _check_length(self, payload: Payload, n_values: int) -> None:
        got = payload.nbytes if isinstance(payload, memoryview) else len(payload)
        if got != self.encoded_bytes(n_values):
            raise self._malformed(f"{got} bytes for {n_values} values instead of {self.encoded_bytes(n_values)}")

    def _malformed(self, what: str) -> ProtocolError:
        text = f"malformed {self.name} chunk: {what}"
        return ProtocolError(text, hint="the sender's link is dropped", codec=self.name)

    def _not_finite(self) -> TrainingError:
        return TrainingError(
            f"cannot encode as {self.name}: values are not finite, or beyond what the codec can scale",
            hint="check gradients with is_finite first; such a contribution is refused and counted",
            codec=self.name,
        )
