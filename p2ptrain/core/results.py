"""The one structured result of a round: who took part, what share, bytes, stall, who was left out and why."""

from __future__ import annotations

from typing import TYPE_CHECKING

from p2ptrain.core.compose import loss_of
from p2ptrain.core.messages import Begin
from p2ptrain.core.once import Once
from p2ptrain.core.types import LeftOut, PeerId, Record, RoundResult, chain_digest

if TYPE_CHECKING:
    from p2ptrain.core.node import Node


def result_of(node: Node) -> RoundResult | None:
    """What this peer saw of the round it is about to count as applied; None if there is no decision at hand.

    Contributions are known to members of the exchange; a peer that only fetched the record reports none.
    """
    stage = node.stage
    if stage.decided is None:
        return None
    record = stage.decided.record
    begin = stage.begin
    counted, contributions, not_counted, members = _shares(record, begin)
    left_out = list(not_counted)
    lead = node.succession.lead
    said = {node.desk.me.peer: set(stage.refused)}
    if lead is not None:
        left_out.extend(lead.left_out_list())
        said.update((voter.peer, set(answer.refused)) for voter, answer in lead.answers.items())
    for peer, ids in said.items():
        if ids:
            left_out.append(LeftOut(peer, f"{len(ids)} microbatches of its own refused: gradient not finite"))
    refused = len(set(record.spent_ids) - counted)
    if refused:
        left_out.append(LeftOut("", f"{refused} microbatches refused: gradient not finite"))
    now = node.desk.now
    return RoundResult(
        round=record.round,
        stage=record.stage,
        ballot=stage.promised,
        attempts=begin.attempt if begin else 0,
        members=members,
        contributions=contributions,
        counted=len(counted),
        expected=node.run.microbatches,
        left_out=tuple(sorted(set(left_out))),
        loss=loss_of(begin) if begin else float("nan"),
        bytes_sent=node.bytes_sent,
        bytes_received=node.bytes_received,
        fill_s=node.filling.fill_s,
        stall_s=max(0.0, now - stage.filled_at) if stage.filled_at is not None else 0.0,
        voters_next=tuple(voter.peer for voter in record.voters_next),
        digest=chain_digest(stage.chain, record).hex(),
        samples_total=record.samples_total,
    )


_Shares = tuple[frozenset[int], tuple[tuple[PeerId, int], ...], tuple[LeftOut, ...], tuple[PeerId, ...]]


def _work_out(record: Record, begin: Begin | None) -> _Shares:
    """Ids counted, how many of whom, whose were not, and the members of the exchange."""
    counted = frozenset(sample for part in record.parts for sample in part.counted)
    contributions: dict[PeerId, int] = {}
    left_out: list[LeftOut] = []
    for bundle in begin.bundles if begin else ():
        some = len(counted.intersection(bundle.ids))
        contributions[bundle.peer] = contributions.get(bundle.peer, 0) + some
        if some < bundle.weight:
            left_out.append(LeftOut(bundle.peer, f"{bundle.weight - some} of {bundle.weight} microbatches not counted"))
    members = tuple(voter.peer for voter in begin.members) if begin else ()
    return counted, tuple(sorted(contributions.items())), tuple(left_out), members


_shares = Once(_work_out, kept=4)
