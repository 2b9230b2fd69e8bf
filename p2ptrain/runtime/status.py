"""What ``p2ptrain status`` shows: one JSON object of plain values. Decides nothing."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any

from p2ptrain import __version__

if TYPE_CHECKING:
    from p2ptrain.core.node import Node
    from p2ptrain.core.types import PeerId
    from p2ptrain.runtime.network import Network


def status_of(network: Network) -> dict[str, Any]:
    """Run, own place, members, last round, current waits, last events. Times are seconds ago or from now."""
    driver, session = network.driver, network.session
    assert driver is not None
    node, now = driver.node, time.monotonic()
    tip, manifest = node.stage.tip, session.manifest
    result = network.last_result
    lead = node.succession.lead
    return {
        "version": __version__,
        "time": time.time(),
        "run": {
            "name": session.invite.name,
            "id": session.invite.run,
            "commit": node.run.policy.value,
            "rounds": node.run.rounds,
            "microbatches": node.run.microbatches,
            "codec": "exact" if node.run.exact else (manifest.sync.codec if manifest else ""),
        },
        "peer": node.desk.me.peer,
        "life": node.desk.me.life,
        "phase": node.catchup.phase,
        "round": tip.round if tip else None,
        "samples_total": tip.samples_total if tip else 0,
        "digest": node.stage.chain.hex(),
        "voters": [voter.peer for voter in node.stage.voters],
        "coordinator": node.coordinator,
        "leader": node.stage.promised.peer if tip else None,
        "leads": lead is not None,
        "stalled": node.stalls.text,
        "loss": None if result is None or math.isnan(result.loss) else result.loss,
        "held_out": session.losses[-1] if session.losses else None,
        "members": [
            {
                "peer": member.info.peer,
                "life": member.info.life,
                "status": member.status.value,
                "region": member.info.region,
                "party": member.info.party,
                "addresses": list(member.info.addresses),
                "joined_round": member.info.joined_round,
                "microbatch_s": node.coordinating.speeds.get(member.info.peer, member.info.microbatch_s),
                "linked": node.roster.linked(member.info.peer),
                "span": span_of(node, member.info.peer),
                "counted": dict(result.contributions).get(member.info.peer, 0) if result else 0,
                "last_counted": network.last_counted.get(member.info.peer),
            }
            for member in node.roster.members()
        ],
        "waits": [
            {
                "what": wait.what,
                "on": list(wait.on),
                "for_s": round(now - wait.since, 2),
                "until_s": None if math.isinf(wait.until) else round(wait.until - now, 2),
                "why": wait.why,
            }
            for wait in node.waits()
        ],
        "events": [{"level": say.level, "text": say.text, "round": say.round} for say in network.said[-12:]],
        "dht": network.beside.dht_status(),
        "dht_addresses": list(network.beside.dht_addresses),
        "round_s": network.round_s,
        "loop_lag_s": round(network.last_lag_s, 4),
        "ended": None if network.halt is None else network.halt.text or network.halt.error,
        "describe": node.describe(),
        "abandoned_rounds": node.catchup.abandoned[-64:],
    }


def span_of(node: Node, peer: PeerId) -> list[int] | None:
    """First and last stage that the plan gives this peer; None while there is no plan for it."""
    span = node.planning.plan.span_of(peer) if node.planning.plan is not None else None
    return None if span is None else [span.first, span.last]
