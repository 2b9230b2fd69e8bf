"""From a manifest to what the core must know, without torch; and what taking part costs, told before it is spent."""

from __future__ import annotations

from dataclasses import dataclass

from p2ptrain.codec.sizes import part_bytes
from p2ptrain.config import Manifest
from p2ptrain.core.types import Knobs, RunSpec
from p2ptrain.errors import ConfigError
from p2ptrain.models import model_shape
from p2ptrain.models.shapes import training_memory

EXACT_SCALE = 2.0**-24


def model_options(manifest: Manifest) -> dict[str, object]:
    """The model's options, the context taken from the batch where it is not given."""
    options: dict[str, object] = dict(manifest.model.options)
    if manifest.model.name == "byte_gpt":
        options.setdefault("context", manifest.batch.sequence_length)
    return options


def manifest_spec(manifest: Manifest, knobs: Knobs | None = None) -> RunSpec:
    """The core's view of the run. Raises ConfigError for a model whose size only building it would tell."""
    shape = model_shape(manifest.model.name, model_options(manifest))
    if shape is None:
        raise ConfigError(
            f"model {manifest.model.name}: its size is not known before it is built",
            key="model.name",
            hint="runs of one's own models come with the library face",
        )
    scale = EXACT_SCALE if manifest.sync.exact else 1.0
    return manifest.run_spec(shape.parameters(), shape.layers + 2, first_scale=scale, knobs=knobs)


@dataclass(frozen=True)
class Cost:
    """What a peer will hold and move. Bytes; traffic per round for one of ``peers`` equal members."""

    parameters: int
    memory_bytes: int
    state_bytes: int
    sent_per_round: int
    received_per_round: int


def cost_of(manifest: Manifest, peers: int = 4) -> Cost:
    """From size formulas alone. Raises ConfigError as ``manifest_spec`` does."""
    shape = model_shape(manifest.model.name, model_options(manifest))
    size = manifest_spec(manifest).stages[0].size
    activations = shape.activation_bytes(manifest.batch.microbatch) if shape is not None else 0
    memory = training_memory(size, activations, exact=manifest.sync.exact)
    codec = "exact" if manifest.sync.exact else manifest.sync.codec
    whole = part_bytes(codec, size)
    moved = 2 * whole * (peers - 1) // max(1, peers)
    return Cost(size, memory.total_bytes, memory.state_bytes, moved, moved)
