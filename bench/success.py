"""Rounds of 4, 8 and 16 peers: every one complete, or explicitly short with a reason.

A small model, 50 rounds, real processes on loopback. A peer-round is complete when the round's record counts work of
that peer; a round is complete when its record counts the whole batch and every member. What is missing must be named
in the round's result (``left_out``). Beside it hivemind's averager with as many peers: a peer-round is whole when
``step`` returned and the peer's tensors are the mean of all.

    python bench/success.py --json
"""

from __future__ import annotations

import sys
from typing import Any

from common import Results, arguments, manifest, note, run_other, scratch_folder

PUBLISHED = "hivemind's published averaging benchmark, 16 peers: 51 of 80 peer-rounds"


def ours(peers: int, rounds: int) -> dict[str, Any]:
    """Counts of ``rounds`` rounds after all ``peers`` take part."""
    from p2ptrain.lab.processes import Swarm

    batch = f"microbatch = 2\nmicrobatches = {2 * peers}\nsequence_length = 32"
    run = manifest(
        model='name = "byte_gpt"\noptions = { layers = 1, width = 32, heads = 2 }',
        batch=batch,
        head=f'name = "bench"\nvoters_max = {max(9, peers)}',
    )
    with scratch_folder() as folder, Swarm(folder, run) as swarm:
        for number in range(peers):
            swarm.start(f"p{number}", wait=number == 0, extra_wait_s=0.02)
        first = swarm.peers["p0"].wait_for(
            lambda e: e["ev"] == "round" and len(e["members"]) == len(e["voters_next"]) == peers, 300, "a round of all"
        )["round"]
        last = first + rounds
        for peer in swarm.peers.values():
            peer.wait_for(lambda e: e["ev"] == "round" and e["round"] >= last, 60 + 20 * rounds, f"round {last}")
        swarm.check_digests()
        return counts(swarm, range(first + 1, last + 1))


def counts(swarm: Any, rounds: range) -> dict[str, Any]:
    """From the results that the peers reported."""
    seen: dict[int, dict[str, Any]] = {}
    told = 0
    for peer in swarm.peers.values():
        for fact in peer.of("round"):
            if fact["round"] in rounds:
                seen.setdefault(fact["round"], fact)
                told += 1
    whole = peer_rounds = silent = 0
    for round, fact in sorted(seen.items()):
        counted = {peer for peer, count in fact["contributions"].items() if count}
        missing = set(fact["members"]) - counted
        peer_rounds += len(counted)
        complete = fact["counted"] == fact["expected"] and len(counted) == len(swarm.peers)
        whole += complete
        if not complete:
            named = {item[0] for item in fact["left_out"]}
            silent += not fact["left_out"] and fact["counted"] < fact["expected"]
            note(
                f"round {round}: {fact['counted']} of {fact['expected']}, {len(missing - named)} idle,",
                fact["left_out"],
            )
    return {
        "rounds": len(rounds),
        "reported": len(seen),
        "results": told,
        "complete": whole,
        "unexplained": silent,
        "peer_rounds": peer_rounds,
    }


def main() -> None:
    parser = arguments("Share of complete rounds with 4, 8 and 16 peers, beside hivemind's averager.")
    parser.add_argument("--peers", type=int, nargs="+", default=[4, 8, 16])
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--hivemind-rounds", type=int, default=10, help="matchmaking takes 3 s each; 0: none")
    given = parser.parse_args()
    results = Results("success", given.json)
    for peers in given.peers:
        theirs = None
        if given.hivemind_rounds:
            theirs = run_other(
                "hivemind",
                "hivemind_success.py",
                "--peers",
                peers,
                "--rounds",
                given.hivemind_rounds,
                timeout_s=120 + 20 * given.hivemind_rounds,
            )
        found = ours(peers, given.rounds)
        share = found["complete"] / found["rounds"]
        against, ratio, more = PUBLISHED, share / (51 / 80), {}
        if theirs:
            against = "hivemind 1.1.12 averager, same run"
            ratio = share / theirs["share"] if theirs["share"] else None
            more = {"theirs": theirs["share"], "their_peer_rounds": f"{theirs['whole']} of {theirs['peer_rounds']}"}
        results.add(
            f"{peers} peers, complete rounds",
            share,
            "share",
            against,
            ratio,
            target="at least 0.99, the rest explained",
            met=share >= 0.99 and found["unexplained"] == 0 and found["reported"] == found["rounds"],
            rounds=found["rounds"],
            reported=found["reported"],
            unexplained=found["unexplained"],
            peer_rounds=f"{found['peer_rounds']} of {found['rounds'] * peers}",
            **more,
        )
    results.table()


if __name__ == "__main__":
    sys.exit(main())
