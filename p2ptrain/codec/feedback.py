"""Error feedback: what compression left out of a round joins a later one (round protocol, section 6, "Residuals").

One flat buffer per stage, ``owed``, in units of the round's average: what this peer's compression still owes it,
whether as the sender of a contribution or as the reducer of an average.

    sender   sent  = encode(contribution + owed * W/w)   left over l = that - decode(sent)   owed' = l * w/W
    reducer  sent  = encode(average + owed)              left over l = that - decode(sent)   owed' = l

w is the bundle's weight, W the weight of all bundles in the part: a contribution changes the average by w/W of itself.
In these units a residual of a range that one no longer reduces joins one's next contribution, weight-corrected.

Decides when ``owed`` changes: in ``commit`` alone, and only by what the record counts. Until then left-overs are
staged, and every attempt starts from the same ``owed``; a second encoding of the same (bundle, part) gives the same
bytes. Of several bundles of one range only the first staged carries ``owed``. Does not keep payloads. Lossless codecs
(none, exact) never have residuals. Nothing is allocated before it is used.

A left-over may differ from the exact difference by one rounding (``accumulate`` may fuse). Residuals are one peer's own
and outside the state digest.

Threads: chunks may be staged in parallel; ``commit`` and ``drop`` of a round only when its encodings have ended.
Source: error feedback as in 1-bit SGD (Seide et al. 2014) and EF-SGD (Karimireddy et al. 2019), at both ends as in
DoubleSqueeze (Tang et al. 2019); deterministic.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Hashable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import torch

from p2ptrain.codec.base import Codec
from p2ptrain.errors import ConfigError

PartRange = tuple[int, int]


class Counted(NamedTuple):
    """One of one's own bundles that the record counts in part [start, stop), whose bundles weigh ``total_weight``."""

    bundle_index: int
    start: int
    stop: int
    total_weight: float


@dataclass
class _Staged:
    """Left-overs of one encoding of [start, stop). ``bundle_index`` None: as the reducer."""

    start: int
    stop: int
    bundle_index: int | None
    weight: float
    total_weight: float
    carries: bool
    left: torch.Tensor
    chunks: dict[int, int] = field(default_factory=dict)  # first value: how many
    digest: bytes = b""

    @property
    def whole(self) -> bool:
        return sum(self.chunks.values()) == self.stop - self.start

    def overlaps(self, other: _Staged) -> bool:
        return self.start < other.stop and other.start < self.stop


class Residuals:
    """The residuals of one stage's flat buffer of ``size`` values, for one lossy ``codec``. ``enabled`` False: none."""

    def __init__(self, codec: Codec, size: int, enabled: bool = True) -> None:
        self.codec = codec
        self.size = size
        self.enabled = enabled and not codec.lossless
        self._owed: torch.Tensor | None = None
        self._staged: dict[int, dict[Hashable, _Staged]] = {}
        self._lock = threading.Lock()

    def stage_sender(
        self,
        round: int,
        bundle_index: int,
        part: PartRange,
        first: int,
        values: torch.Tensor,
        weight: float,
        total_weight: float,
        header: bytes = b"",
    ) -> bytes:
        """Encode one chunk, ``values`` of the bundle's own mean at [first, first + n), for its reducer.

        ``weight`` is the bundle's, ``total_weight`` that of all bundles the part takes in this attempt. A later attempt
        gives the bytes of the first one again (its weights are remembered). Raises TrainingError (not finite).
        """
        if not self.enabled:
            return self.codec.encode(values, header)
        key = ("sent", bundle_index, part)
        staged = self._entry(round, key, part, bundle_index, weight, total_weight, values.device)
        share = staged.total_weight / staged.weight if staged.carries else 0.0
        return self._encode(staged, first, values, share, header)

    def stage_reducer(
        self,
        round: int,
        attempt: Hashable,
        part: PartRange,
        first: int,
        average: torch.Tensor,
        header: bytes = b"",
    ) -> bytes:
        """Encode one chunk of a finished average for everybody; ``attempt`` names the Begin it belongs to."""
        if not self.enabled:
            return self.codec.encode(average, header)
        staged = self._entry(round, ("reduced", attempt, part), part, None, 1.0, 1.0, average.device)
        return self._encode(staged, first, average, 1.0, header)

    def seal_reducer(self, round: int, attempt: Hashable, part: PartRange, digest: bytes) -> None:
        """The part's digest is known: its left-over is kept if the record names it."""
        staged = self._staged.get(round, {}).get(("reduced", attempt, part))
        if staged is not None:
            staged.digest = digest

    def commit(self, round: int, counted: Iterable[Counted], digests: Collection[bytes]) -> None:
        """The round's record is applied: ``counted`` of one's own bundles are in it, ``digests`` are its parts'.

        Left-overs of all else are dropped, of earlier rounds too. A second call for the same round changes nothing.
        """
        with self._lock:
            staged = self._staged.pop(round, {})
            for old in [r for r in self._staged if r < round]:
                del self._staged[old]
        reduced = [s for s in staged.values() if s.bundle_index is None and s.whole and s.digest in digests]
        sent: list[tuple[_Staged, float]] = []
        for entry in counted:
            found = staged.get(("sent", entry.bundle_index, (entry.start, entry.stop)))
            # what one reduced oneself took the bundle uncompressed: an earlier attempt's encoding was not used
            if found is not None and found.whole and not any(found.overlaps(own) for own in reduced):
                sent.append((found, entry.total_weight))
        for own in reduced:
            self._owed_at(own).copy_(own.left)
        for own, total_weight in sorted(sent, key=lambda pair: not pair[0].carries):
            owed = self._owed_at(own)
            if own.carries:  # with fewer bundles than expected a little too much of what was owed was sent
                owed.mul_(1.0 - own.total_weight / total_weight)
            owed.add_(own.left, alpha=own.weight / total_weight)

    def drop(self, round: int) -> None:
        """The round ended without one's work: forget its left-overs; ``owed`` stays."""
        with self._lock:
            self._staged.pop(round, None)

    def owed(self, start: int, stop: int) -> torch.Tensor:
        """A copy of what is owed to [start, stop), in units of the average; zeros if nothing ever was."""
        if self._owed is None:
            return torch.zeros(stop - start)
        return self._owed[start:stop].clone()

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Plain tensors for one's own snapshot; empty while nothing is owed. Staged left-overs are not in it."""
        return {} if self._owed is None else {"owed": self._owed.clone()}

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        """Replace everything; staged left-overs go. Raises ConfigError for another size or unknown keys."""
        owed = state.get("owed")
        if set(state) - {"owed"} or (owed is not None and (owed.shape != (self.size,) or owed.dtype != torch.float32)):
            raise ConfigError(
                f"residuals do not fit a stage of {self.size} values", hint="the snapshot is of another run", key="owed"
            )
        with self._lock:
            self._staged.clear()
            self._owed = None if owed is None or not self.enabled else owed.clone()

    def _entry(
        self,
        round: int,
        key: Hashable,
        part: PartRange,
        bundle_index: int | None,
        weight: float,
        total_weight: float,
        device: torch.device,
    ) -> _Staged:
        start, stop = part
        if not (0 <= start < stop <= self.size and 0 < weight <= total_weight):
            raise ValueError(f"part [{start}, {stop}) of {self.size}, weight {weight} of {total_weight}")
        with self._lock:
            of_round = self._staged.setdefault(round, {})
            if key not in of_round:
                left = torch.empty(stop - start, dtype=torch.float32, device=device)
                staged = _Staged(start, stop, bundle_index, weight, total_weight, True, left)
                staged.carries = bundle_index is None or not any(
                    other.carries and other.bundle_index not in (None, bundle_index) and other.overlaps(staged)
                    for other in of_round.values()
                )
                of_round[key] = staged
            return of_round[key]

    def _encode(self, staged: _Staged, first: int, values: torch.Tensor, share: float, header: bytes) -> bytes:
        last = first + values.numel()
        if not staged.start <= first <= last <= staged.stop:
            raise ValueError(f"chunk [{first}, {last}) is not in part [{staged.start}, {staged.stop})")
        left = staged.left[first - staged.start : last - staged.start]
        if self._owed is not None and share:
            torch.add(values, self._owed[first:last], alpha=share, out=left)
        else:
            left.copy_(values)
        frame = self.codec.encode(left, header)
        self.codec.accumulate(memoryview(frame)[len(header) :], left, -1.0)
        staged.chunks[first] = values.numel()
        return frame

    def _owed_at(self, staged: _Staged) -> torch.Tensor:
        if self._owed is None:
            self._owed = torch.zeros(self.size, dtype=torch.float32, device=staged.left.device)
        return self._owed[staged.start : staged.stop]
