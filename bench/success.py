"""Rounds of 4, 8 and 16 peers: every one complete, or explicitly short with a reason.

A small model, 50 rounds, real processes on loopback. Two measures, which can differ:

    complete rounds    the record counts the whole batch, whoever did the work (a slow peer's share may go to others)
    peer-rounds        members of which the record counts work; also told: rounds in which every peer's work counts

What a record lacks of the batch must be named in the round's result (``left_out``). hivemind's averager is compared by
peer-rounds, with as many peers: ``step`` returned, and the peer's tensors are the mean of all.

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
    whole = everybody = peer_rounds = silent = 0
    for round, fact in sorted(seen.items()):
        counted = {peer for peer, count in fact["contributions"].items() if count}
        missing = set(fact["members"]) - counted
        peer_rounds += len(counted)
        complete = fact["counted"] == fact["expected"]
        whole += complete
        everybody += complete and not missing and len(counted) == len(swarm.peers)
        if not complete or missing:
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
        "everybody": everybody,
        "unexplained": silent,
        "peer_rounds": peer_rounds,
    }


def report(results: Results, peers: int, found: dict[str, Any], theirs: dict[str, Any] | None) -> None:
    share = found["complete"] / found["rounds"]
    results.add(
        f"{peers} peers, complete rounds",
        share,
        "share",
        target="at least 0.99, the rest explained",
        met=share >= 0.99 and found["unexplained"] == 0 and found["reported"] == found["rounds"],
        rounds=found["rounds"],
        reported=found["reported"],
        unexplained=found["unexplained"],
        rounds_with_work_of_all=found["everybody"],
    )
    whole = found["peer_rounds"] / (found["rounds"] * peers)
    against, their_share, more = PUBLISHED, 51 / 80, {}
    if theirs:
        against, their_share = "hivemind 1.1.12 averager, same run", theirs["share"]
        more = {"their_peer_rounds": f"{theirs['whole']} of {theirs['peer_rounds']}"}
    results.add(
        f"{peers} peers, peer-rounds",
        whole,
        "share",
        against,
        whole / their_share if their_share else None,
        peer_rounds=f"{found['peer_rounds']} of {found['rounds'] * peers}",
        **more,
    )


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
        report(results, peers, found, theirs)
    results.table()


if __name__ == "__main__":
    sys.exit(main())
