"""A corpus as one blob in digested chunks: what it takes to be sure that two peers train on the same bytes.

    blob:  magic (8) | item bytes (1) | train bytes (8, big endian) | validation bytes (8) | train | validation

The fingerprint is the BLAKE3 of the blob's size, the chunk size and every chunk's BLAKE3: it stands in the manifest, so
a ``CorpusInfo`` from any member can be checked against it before a byte is pulled, and each chunk as it comes.
Decides whether bytes are the right ones. Does not find or fetch them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from blake3 import blake3

from p2ptrain.errors import ConfigError, TransferError

MAGIC = b"p2pcorp1"
HEADER_BYTES = len(MAGIC) + 1 + 8 + 8
CHUNK_BYTES = 1 << 20
MAX_CORPUS_BYTES = 1 << 40


@dataclass(frozen=True)
class CorpusInfo:
    """What a member says of its corpus. ``check`` tells whether it is the one that the manifest names."""

    total_bytes: int
    chunk_bytes: int
    chunk_digests: tuple[bytes, ...]
    fingerprint: str  # hex

    def check(self, fingerprint: str) -> None:
        """Raises TransferError if this is not a sound description of the corpus with that fingerprint."""
        count = -(-self.total_bytes // self.chunk_bytes) if self.chunk_bytes > 0 else -1
        sound = (
            HEADER_BYTES < self.total_bytes <= MAX_CORPUS_BYTES
            and count == len(self.chunk_digests)
            and all(len(digest) == 32 for digest in self.chunk_digests)
        )
        if not sound or _fingerprint(self.total_bytes, self.chunk_bytes, self.chunk_digests) != fingerprint:
            raise TransferError(
                f"the corpus offered is not the run's ({self.total_bytes} bytes, wanted {fingerprint[:8]})",
                hint="ask another member",
            )


class Corpus:
    """Train and validation items (bytes of text, or little-endian uint16 tokens), immutable."""

    def __init__(self, blob: bytes | bytearray) -> None:
        """Raises ConfigError if ``blob`` is no corpus."""
        header = bytes(blob[:HEADER_BYTES])
        self.item_bytes = header[8] if len(header) == HEADER_BYTES else 0
        train, validation = int.from_bytes(header[9:17], "big"), int.from_bytes(header[17:25], "big")
        if not header.startswith(MAGIC) or self.item_bytes not in (1, 2):
            raise ConfigError("these bytes are no corpus: wrong header")
        if HEADER_BYTES + train + validation != len(blob) or train % self.item_bytes or validation % self.item_bytes:
            raise ConfigError(f"corpus of {len(blob)} bytes does not match its header ({train} + {validation})")
        self.blob = memoryview(blob)
        self.train = self.blob[HEADER_BYTES : HEADER_BYTES + train]
        self.validation = self.blob[HEADER_BYTES + train :]
        self._info: CorpusInfo | None = None

    @classmethod
    def of(cls, train: bytes, validation: bytes, item_bytes: int = 1) -> Corpus:
        head = MAGIC + bytes([item_bytes]) + len(train).to_bytes(8, "big") + len(validation).to_bytes(8, "big")
        return cls(bytearray().join((head, train, validation)))

    def info(self) -> CorpusInfo:
        if self._info is None:
            starts = range(0, len(self.blob), CHUNK_BYTES)
            digests = tuple(blake3(self.blob[start : start + CHUNK_BYTES]).digest() for start in starts)
            fingerprint = _fingerprint(len(self.blob), CHUNK_BYTES, digests)
            self._info = CorpusInfo(len(self.blob), CHUNK_BYTES, digests, fingerprint)
        return self._info

    @property
    def fingerprint(self) -> str:
        """64 hex digits, for the manifest."""
        return self.info().fingerprint

    def chunk(self, index: int) -> bytes:
        """For a peer that pulls. Raises KeyError if there is no such chunk."""
        if not 0 <= index < len(self.info().chunk_digests):
            raise KeyError(f"corpus chunk {index}")
        return bytes(self.blob[index * CHUNK_BYTES : (index + 1) * CHUNK_BYTES])

    def save(self, path: Path) -> None:
        """Keep it for the next start; written beside and renamed, so that a torn file is never read."""
        partial = path.with_name(path.name + ".partial")
        partial.write_bytes(self.blob)
        partial.replace(path)

    @classmethod
    def load(cls, path: Path, fingerprint: str) -> Corpus:
        """Raises ConfigError if the file is missing, damaged or another corpus."""
        try:
            corpus = cls(bytearray(path.read_bytes()))
        except OSError as error:
            raise ConfigError(f"corpus file {path}: {error.strerror}", file=str(path)) from error
        if corpus.fingerprint != fingerprint:
            raise ConfigError(f"corpus file {path} is not the run's corpus {fingerprint[:8]}", file=str(path))
        return corpus


class CorpusAssembly:
    """A corpus arriving in chunks, in any order, from anybody: each is verified before it is written."""

    def __init__(self, info: CorpusInfo, fingerprint: str, limit_bytes: int) -> None:
        """Raises TransferError if ``info`` is not the manifest's corpus, ConfigError if it is above ``limit_bytes``."""
        info.check(fingerprint)
        if info.total_bytes > limit_bytes:
            raise ConfigError(f"the run's corpus has {info.total_bytes} bytes, your limit is {limit_bytes}")
        self.info = info
        self._blob = bytearray(info.total_bytes)
        self._missing = set(range(len(info.chunk_digests)))

    def missing(self) -> Iterator[int]:
        return iter(sorted(self._missing))

    def write(self, index: int, data: bytes) -> bool:
        """False if these are not the bytes of that chunk (nothing is written)."""
        if not 0 <= index < len(self.info.chunk_digests):
            return False
        start = index * self.info.chunk_bytes
        if len(data) != min(self.info.chunk_bytes, self.info.total_bytes - start):
            return False
        if blake3(data).digest() != self.info.chunk_digests[index]:
            return False
        self._blob[start : start + len(data)] = data
        self._missing.discard(index)
        return True

    def finish(self) -> Corpus:
        """Raises TransferError while chunks are missing, ConfigError if the whole is no corpus."""
        if self._missing:
            raise TransferError(f"{len(self._missing)} of {len(self.info.chunk_digests)} corpus chunks are missing")
        return Corpus(self._blob)


def _fingerprint(total_bytes: int, chunk_bytes: int, digests: tuple[bytes, ...]) -> str:
    hasher = blake3(b"p2ptrain corpus 1" + total_bytes.to_bytes(8, "big") + chunk_bytes.to_bytes(8, "big"))
    for digest in digests:
        hasher.update(digest)
    return hasher.hexdigest()
