"""What a run is (``Manifest``) and how one peer takes part (``PeerSettings``): read, checked, named.

A manifest is TOML on disk, immutable, and named by the digest of its canonical JSON: two peers are in the same run if
and only if the digests are equal, so nothing that may differ between peers stands in it. Unknown keys and contradicting
values are a ``ConfigError`` that names the key, the file and the line. Decides nothing about training; the registries
of ``models`` and ``data`` decide which names exist.

    name = "quickstart"
    [model]
    name = "byte_gpt"
    options = { layers = 4, width = 128, heads = 4 }
    [data]
    name = "python_stdlib"
    [batch]
    microbatch = 4
    microbatches = 16
    sequence_length = 128

The settings of one peer are in ``config_peer``, its run folder in ``config_folder``; both are re-exported here.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    PlainSerializer,
    PlainValidator,
    field_validator,
    model_validator,
)

from p2ptrain.config_folder import RunFolder, default_run_dir, open_run_folder, write_private
from p2ptrain.config_peer import (
    Environment,
    HostPort,
    PeerSettings,
    parse_duration,
    parse_host_port,
    parse_memory,
    parse_until,
    read_environment,
)
from p2ptrain.config_toml import canonical_json, check, contradiction, parse_json, parse_toml, read_file, write_toml
from p2ptrain.core.types import Digest, Knobs, Policy, RunSpec, Stage, hash_bytes
from p2ptrain.errors import ConfigError

__all__ = [
    "MAX_MANIFEST_BYTES",
    "Batch",
    "Data",
    "Environment",
    "Evaluate",
    "HostPort",
    "Limits",
    "Manifest",
    "Model",
    "Optimiser",
    "PeerSettings",
    "RunFolder",
    "Sync",
    "default_run_dir",
    "load_manifest",
    "open_run_folder",
    "parse_duration",
    "parse_host_port",
    "parse_memory",
    "parse_until",
    "read_environment",
    "save_manifest",
    "write_private",
]

MAX_MANIFEST_BYTES = 64 * 1024
PLAIN_NAME = r"[a-z][a-z0-9_-]{0,63}"

_OptionKey = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,63}$")]
_Options = Annotated[
    Mapping[_OptionKey, Annotated[bool | int | float | str, PlainValidator(lambda value: _option(value))]],
    Field(max_length=64, default_factory=dict),
    AfterValidator(lambda options: MappingProxyType(dict(options))),
    PlainSerializer(dict),
]
_Name = Annotated[str, Field(min_length=1, max_length=200)]


class _Table(BaseModel):
    """A table of the manifest: strict types, no unknown keys, no NaN, immutable, compared by value."""

    model_config = ConfigDict(
        strict=True, frozen=True, extra="forbid", allow_inf_nan=False, validate_default=True, protected_namespaces=()
    )


class Model(_Table):
    """Which model: a registered name, or ``module:attribute`` that runs only where the peer trusts it."""

    name: _Name
    options: _Options


class Data(_Table):
    """Which data. ``fingerprint`` (64 hex digits) is filled in by ``start`` and names the exact bytes."""

    name: _Name
    options: _Options
    fingerprint: Annotated[str, Field(pattern=r"^([0-9a-f]{64})?$")] = ""


class Batch(_Table):
    """The global batch: ``microbatches`` per round, each of ``microbatch`` sequences of ``sequence_length`` tokens."""

    microbatch: Annotated[int, Field(ge=1, le=65_536)]
    microbatches: Annotated[int, Field(ge=1, le=65_536)]
    sequence_length: Annotated[int, Field(ge=1, le=1_048_576)]

    @property
    def sequences(self) -> int:
        """Sequences per round, constant whoever takes part."""
        return self.microbatch * self.microbatches

    @property
    def tokens(self) -> int:
        """Tokens per round."""
        return self.sequences * self.sequence_length


class Sync(_Table):
    """How gradients are exchanged. ``codec`` is fp16 unless given; in exact mode it is none and may be nothing else.

    Exact mode sends fixed-point integers with its own lossless codec, so a lossy one contradicts it.
    """

    mode: str = "gradient"
    codec: Literal["none", "fp16", "bf16", "int8"] = "fp16"
    exact: bool = False

    @model_validator(mode="before")
    @classmethod
    def _codec_of_exact(cls, values: Any) -> Any:
        if isinstance(values, Mapping) and values.get("exact") is True and "codec" not in values:
            return {**values, "codec": "none"}
        return values

    @field_validator("mode")
    @classmethod
    def _known_mode(cls, mode: str) -> str:
        if mode == "local":
            raise ValueError('"local" is not supported yet: use "gradient"')
        if mode != "gradient":
            raise ValueError('should be "gradient"')
        return mode

    @model_validator(mode="after")
    def _exact_is_lossless(self) -> Sync:
        if self.exact and self.codec != "none":
            raise contradiction(
                "codec", f'exact = true sums integers without loss: codec must be "none", not "{self.codec}"'
            )
        return self


class Optimiser(_Table):
    """AdamW with decoupled weight decay; the learning rate is a function of the swarm's round alone.

    ``warmup_rounds`` of linear rise to ``lr``; then constant, or half a cosine down to ``min_lr`` at
    ``total_rounds``.
    """

    name: Literal["adamw"] = "adamw"
    lr: Annotated[float, Field(gt=0, le=10)] = 1e-3
    min_lr: Annotated[float, Field(ge=0)] = 0.0
    warmup_rounds: Annotated[int, Field(ge=0, le=10**9)] = 0
    total_rounds: Annotated[int, Field(ge=0, le=10**9)] = 0
    schedule: Literal["constant", "cosine"] = "constant"
    beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    beta2: Annotated[float, Field(ge=0, lt=1)] = 0.95
    eps: Annotated[float, Field(gt=0, le=1)] = 1e-8
    weight_decay: Annotated[float, Field(ge=0, le=1)] = 0.1
    clip_norm: Annotated[float, Field(ge=0)] = 1.0  # 0: no clipping

    @model_validator(mode="after")
    def _relations(self) -> Optimiser:
        if self.min_lr > self.lr:
            raise contradiction("min_lr", f"is above lr ({self.min_lr} > {self.lr})")
        if self.weight_decay * self.lr >= 1:
            raise contradiction("weight_decay", f"times lr must be below 1 ({self.weight_decay} * {self.lr})")
        if self.schedule == "cosine" and self.total_rounds == 0:
            raise contradiction("total_rounds", 'must be given for schedule = "cosine"')
        if self.total_rounds and self.warmup_rounds >= self.total_rounds:
            why = f"must be below total_rounds ({self.warmup_rounds} >= {self.total_rounds})"
            raise contradiction("warmup_rounds", why)
        return self


class Limits(_Table):
    """What the run may ask of a peer, and how many may take part; checked before anything is pulled."""

    max_peers: Annotated[int, Field(ge=1, le=100_000)] = 1024
    max_parameters: Annotated[int, Field(ge=1, le=10**12)] = 1_000_000_000
    max_data_bytes: Annotated[int, Field(ge=0, le=2**50)] = 4 * 2**30


class Evaluate(_Table):
    """Held-out loss every ``every_rounds`` committed rounds (0: never) on ``batches`` microbatches."""

    every_rounds: Annotated[int, Field(ge=0, le=10**9)] = 0
    batches: Annotated[int, Field(ge=1, le=65_536)] = 8


class Manifest(_Table):
    """One run: immutable, the same on every peer, named by ``digest``."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,62}$")]
    commit: Literal["any", "majority"] = "any"
    replication: Annotated[int, Field(ge=1, le=64)] = 2
    voters_max: Annotated[int, Field(ge=1, le=63)] = 9
    rounds: Annotated[int, Field(ge=0, le=10**9)] = 0  # 0: no end
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    admission: str = "open"
    model: Model
    data: Data
    batch: Batch
    sync: Sync = Field(default_factory=Sync)
    optimiser: Optimiser = Field(default_factory=Optimiser)
    limits: Limits = Field(default_factory=Limits)
    evaluate: Evaluate = Field(default_factory=Evaluate)

    @field_validator("admission")
    @classmethod
    def _known_admission(cls, admission: str) -> str:
        if admission == "closed":
            raise ValueError('"closed" is not supported yet: use "open" (whoever holds an invite may join)')
        if admission != "open":
            raise ValueError('should be "open"')
        return admission

    @model_validator(mode="after")
    def _relations(self) -> Manifest:
        if self.voters_max < self.replication:
            raise contradiction("voters_max", f"is below replication ({self.voters_max} < {self.replication})")
        if self.limits.max_peers < self.replication:
            why = f"is below replication ({self.limits.max_peers} < {self.replication})"
            raise contradiction("limits.max_peers", why)
        context = self.model.options.get("context")
        if isinstance(context, int) and context < self.batch.sequence_length:
            why = f"is below batch.sequence_length ({context} < {self.batch.sequence_length})"
            raise contradiction("model.options.context", why)
        return self

    # --- its name ---

    @cached_property
    def digest(self) -> Digest:
        """BLAKE2b-256 of the canonical JSON: names the run, on every platform and Python."""
        return hash_bytes(b"p2ptrain manifest 1", self.to_bytes())

    @property
    def run(self) -> str:
        """The digest in hex: what messages, certificates and the DHT call the run."""
        return self.digest.hex()

    # --- to and from text ---

    def to_bytes(self) -> bytes:
        """Canonical JSON, at most ``MAX_MANIFEST_BYTES``."""
        return canonical_json(self.model_dump())

    @classmethod
    def from_bytes(cls, data: bytes, *, file: str = "manifest") -> Manifest:
        """Raises ConfigError: too big, not JSON, or any key wrong. Never runs or opens anything that is named in it."""
        return check(cls, parse_json(data, file=file, max_bytes=MAX_MANIFEST_BYTES), file=file)

    def to_toml(self) -> str:
        """Every key with its value, defaults included; ``from_toml`` of it is equal to this."""
        return write_toml(self.model_dump())

    @classmethod
    def from_toml(cls, text: str | bytes, *, file: str = "manifest") -> Manifest:
        """Raises ConfigError with the key, the file and (where it can be told) the line."""
        data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
        values, decoded = parse_toml(data, file=file, max_bytes=MAX_MANIFEST_BYTES)
        return check(cls, values, file=file, text=decoded)

    # --- what others need of it ---

    def with_fingerprint(self, fingerprint: str) -> Manifest:
        """The same run, its data named exactly, as ``start`` publishes it. Raises ConfigError (not 64 hex digits)."""
        values = self.model_dump()
        values["data"]["fingerprint"] = fingerprint
        return check(type(self), values, file="manifest")

    def untrusted_names(self) -> tuple[str, ...]:
        """Model and data names that are no plain names, so code outside p2ptrain: run only with ``--trust NAME``."""
        names = (self.model.name, self.data.name)
        return tuple(sorted({name for name in names if not re.fullmatch(PLAIN_NAME, name)}))

    def run_spec(
        self, stage_size: int, layers: int = 1, *, first_scale: float = 1.0, knobs: Knobs | None = None
    ) -> RunSpec:
        """What the core must know: one stage of all ``layers``, with ``stage_size`` trainable values.

        ``first_scale`` is the fixed-point scale of the first round (exact mode). Raises ConfigError: too many values.
        """
        if not 1 <= stage_size <= self.limits.max_parameters:
            limit = self.limits.max_parameters
            why = f"the model has {stage_size} trainable values; limits.max_parameters allows 1 to {limit}"
            raise ConfigError(why, key="limits.max_parameters", file="manifest")
        return RunSpec(
            run=self.run,
            stages=(Stage(index=0, first=0, last=max(layers, 1) - 1, size=stage_size),),
            microbatches=self.batch.microbatches,
            policy=Policy(self.commit),
            exact=self.sync.exact,
            replication=self.replication,
            voters_max=self.voters_max,
            rounds=self.rounds,
            first_scale=first_scale,
            samples_per_microbatch=self.batch.microbatch,
            knobs=knobs or Knobs(),
        )


def _option(value: object) -> bool | int | float | str:
    """A scalar that survives JSON and TOML unchanged."""
    if isinstance(value, bool):
        return value
    if isinstance(value, int) and -(2**63) <= value < 2**63:
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    if isinstance(value, str) and len(value) <= 1024 and not any(0xD800 <= ord(sign) <= 0xDFFF for sign in value):
        return value
    raise ValueError("should be true, false, a 64-bit integer, a finite number or a text of at most 1024 characters")


def load_manifest(path: Path | str) -> Manifest:
    """Read a TOML manifest. Raises ConfigError: not there, unreadable, too big, not TOML, any key wrong."""
    where = Path(path)
    return Manifest.from_toml(read_file(where, max_bytes=MAX_MANIFEST_BYTES), file=str(path))


def save_manifest(folder: RunFolder, manifest: Manifest) -> None:
    """Write it into the run folder, once. Raises ConfigError if the folder already belongs to another run."""
    if folder.manifest.exists():
        held = load_manifest(folder.manifest)
        if held.digest != manifest.digest:
            raise ConfigError(
                f"{folder.manifest}: this folder belongs to run {held.name} ({held.run[:8]}), "
                f"not to {manifest.name} ({manifest.run[:8]})",
                key="--run-dir",
                file=str(folder.manifest),
                hint="give another folder with --run-dir",
            )
        return
    write_private(folder.manifest, manifest.to_toml().encode())
