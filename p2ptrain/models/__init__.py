"""Models as layer lists, by registered name: a span is a slice of the list, and no code travels.

Importing this package imports no torch; ``model_by_name`` does, when it builds.

    shape = model_shape("byte_gpt", {"layers": 4, "width": 128})     # checked, counted, torch not needed
    layers = model_by_name("byte_gpt", layers=4, width=128)           # list[nn.Module], same bits on every peer
    span = layers[1:3]
"""

from p2ptrain.models.registry import model_by_name, model_names, model_shape
from p2ptrain.models.shapes import ByteGPTShape, MemoryEstimate, training_memory

__all__ = ["ByteGPTShape", "MemoryEstimate", "model_by_name", "model_names", "model_shape", "training_memory"]
