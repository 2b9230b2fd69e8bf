"""What a model will cost, counted without torch: values, bytes of state, bytes while training.

Decides which options a registered model takes and which of them contradict each other. Builds nothing.

    ByteGPTShape(layers=2, width=64, heads=4).parameters()   ->  131_072
"""

from __future__ import annotations

from dataclasses import dataclass

from p2ptrain.errors import ConfigError

VALUE_BYTES = 4  # everything that is trained is float32


@dataclass(frozen=True)
class ByteGPTShape:
    """Options of ``byte_gpt``: ``layers`` blocks between an embedding and a head. Raises ConfigError if they clash."""

    layers: int = 4
    width: int = 128
    heads: int = 4
    context: int = 128
    vocabulary: int = 256
    seed: int = 0

    def __post_init__(self) -> None:
        limits = {
            "layers": (1, 512),
            "width": (8, 65_536),
            "heads": (1, 1024),
            "context": (2, 1 << 20),
            "vocabulary": (2, 65_536),
            "seed": (0, (1 << 63) - 1),
        }
        for key, (low, high) in limits.items():
            value = getattr(self, key)
            if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
                raise ConfigError(f"byte_gpt: {key} = {value!r} must be an integer from {low} to {high}", key=key)
        if self.width % self.heads or (self.width // self.heads) % 2:
            raise ConfigError(
                f"byte_gpt: width {self.width} over {self.heads} heads gives no even number of values a head",
                hint="choose a width that is a multiple of twice the number of heads",
                key="width",
            )

    def layer_parameters(self) -> tuple[int, ...]:
        """Trainable values of each layer in order: embedding, blocks, head."""
        block = 12 * self.width * self.width
        ends = self.vocabulary * self.width
        return (ends, *([block] * self.layers), ends)

    def parameters(self) -> int:
        return sum(self.layer_parameters())

    def activation_bytes(self, samples: int) -> int:
        """Bytes that a forward pass of ``samples`` windows keeps for its backward pass, roughly (within 2x)."""
        tokens = samples * self.context
        return tokens * VALUE_BYTES * (self.layers * 20 * self.width + 3 * self.vocabulary)


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes that a peer holds for its stages. Shown before a joiner pulls anything."""

    state_bytes: int  # parameters and both moments
    gradient_bytes: int
    activation_bytes: int

    @property
    def total_bytes(self) -> int:
        return self.state_bytes + self.gradient_bytes + self.activation_bytes


def training_memory(trainable: int, activation_bytes: int, *, bundles: int = 2, exact: bool = False) -> MemoryEstimate:
    """Memory follows the *trainable* values: frozen ones need neither gradients nor moments.

    ``bundles``: gradient buffers alive at once; in exact mode each sealed one is int64, beside one float32 buffer.
    """
    gradients = VALUE_BYTES * trainable + 8 * trainable * bundles if exact else VALUE_BYTES * trainable * bundles
    return MemoryEstimate(3 * VALUE_BYTES * trainable, gradients, activation_bytes)
