"""The torch side: a stage's values in flat buffers, the optimiser with the same bits everywhere, and the loop.

Decides nothing about the swarm: it carries out orders (``core.events`` effects) and answers each with its event. Needs
torch; never imports ``torch.optim`` (1.5 s), ``net``, ``runtime`` or asyncio.

    orders (any thread) -> LocalTrainer.submit -> the one training thread in LocalTrainer.run -> on_event(event)
"""
