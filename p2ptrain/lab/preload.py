"""What the fork server imports once, so that a peer starts in a fraction of a second: torch, and nothing of gRPC.

gRPC and threads do not survive a fork: ``p2ptrain.runtime`` and ``p2ptrain.net`` are imported in each peer.
"""

import torch

import p2ptrain.codec.feedback
import p2ptrain.config
import p2ptrain.core.node
import p2ptrain.data.windows
import p2ptrain.models.byte_gpt
import p2ptrain.train.trainer  # noqa: F401

torch.set_num_threads(1)
