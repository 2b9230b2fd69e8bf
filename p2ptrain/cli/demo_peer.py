"""What the demo has its peers do beside training, in their own processes: measure before and after it.

Decides what is measured: held-out loss, a text sample, the digest of the whole state. Nothing here touches training.
"""

from __future__ import annotations

from typing import Any

from p2ptrain.core import events as ev

PROMPT = b"def "
SAMPLE_BYTES = 220
SAMPLE_SEED = 7


def measure_first(child: Any, hooks: Any) -> None:
    """Tells ``first`` with the held-out loss of the untrained model: asked for before round 1 can be applied."""
    asked: list[bool] = []

    def watcher(event: ev.Event, effects: list[ev.Effect]) -> None:
        if asked or not isinstance(event, ev.MicrobatchDone) or child.session.network.rounds_done:
            return
        asked.append(True)
        child.session.network.outfit.evaluate(lambda loss: child.tell("first", loss=loss))

    hooks.before.append(watcher)


def measure_last(child: Any, hooks: Any) -> None:
    """Tells ``last`` when the life has ended: round, loss, sample, and the digest of parameters and moments."""
    child.at_end.append(lambda session: child.tell("last", **_last(session)))


def _last(session: Any) -> dict[str, Any]:
    import torch

    from p2ptrain.models.forward import generate, held_out_loss

    outfit = session.network.outfit
    layers = outfit.trainer.stage.layers
    rng = torch.Generator().manual_seed(SAMPLE_SEED)
    return {
        "round": session.network.rounds_done,
        "digest": outfit.trainer.final_digest().hex(),
        "loss": held_out_loss(layers, outfit.data.held_out(outfit.manifest.evaluate.batches)),
        "sample": generate(layers, PROMPT, SAMPLE_BYTES, rng, temperature=0.6).decode("utf-8", "replace"),
    }
