"""From the death of one of four peers to the survivors' next committed round: kill -9, SIGSTOP, and no false alarms.

Real processes on loopback, default knobs, both commit policies, rounds of about 0.3 s. The victim and the moment come
from a seed. After every kill the victim comes back (same key, a new life) and the swarm is whole before the next one.
Timed: from the signal until the last survivor has its next round committed. Lost: rounds that any life had applied and
that the survivors hold with another digest, or not at all.

    python bench/recovery.py --json
"""

from __future__ import annotations

import random
import subprocess
import sys
import time
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from common import Results, arguments, manifest, median, note, run_other, scratch_folder

NAMES = "abcd"
WAIT_S = 60.0
MICROBATCH_WAIT_S = 0.08
GIL_HELD_S = 5.0


class Watched:
    """A swarm of four, and the chain digest of every round that any life has applied."""

    def __init__(self, swarm: Any) -> None:
        self.swarm = swarm
        self.chains: dict[int, set[tuple[str, str]]] = {}

    def keep_facts(self, peer: Any) -> None:
        """Before a life's facts are replaced by those of the next."""
        for fact in peer.of("applied"):
            self.chains.setdefault(fact["round"], set()).add((fact["chain"], fact["slice"]))

    def others(self, victim: Any) -> list[Any]:
        return [peer for peer in self.swarm.peers.values() if peer is not victim]

    def wait_whole(self, since: float) -> None:
        """Every peer reports a round after ``since`` in which all four take part and vote next."""
        for peer in self.swarm.peers.values():
            peer.wait_for(
                lambda e: (
                    e["ev"] == "round" and e["t"] > since and len(e["voters_next"]) == len(e["members"]) == len(NAMES)
                ),
                WAIT_S,
                "a round of all four",
            )

    def next_commit_s(self, victim: Any, since: float) -> float:
        """Seconds until the last survivor decides its next round."""
        wanted = lambda e: e["ev"] == "decided" and e["t"] > since  # noqa: E731
        return max(peer.wait_for(wanted, WAIT_S, "the next commit")["t"] for peer in self.others(victim)) - since

    def lost(self) -> int:
        """Rounds known with two digests: what one life had committed, the others did not keep."""
        for peer in self.swarm.peers.values():
            self.keep_facts(peer)
        return sum(len(found) > 1 for found in self.chains.values())

    def round_s(self) -> float | None:
        times = [fact["t"] for fact in self.swarm.peers["a"].of("applied")]
        return median([b - a for a, b in pairwise(times)][-200:])


def run_of(policy: str) -> Any:
    return manifest(head=f'name = "bench"\ncommit = "{policy}"')


def kills(policy: str, count: int, stops: int, seed: int) -> dict[str, Any]:
    """``count`` kills, then ``stops`` silent stops, in one swarm. Seconds each; how many rounds were lost."""
    from p2ptrain.lab.processes import Swarm

    rng = random.Random(seed)
    found: dict[str, Any] = {"kill": [], "stop": []}
    with scratch_folder() as folder, Swarm(folder, run_of(policy)) as swarm:
        for name in NAMES:
            swarm.start(name, extra_wait_s=MICROBATCH_WAIT_S)
        watched = Watched(swarm)
        watched.wait_whole(0.0)
        swarm.wait_round(swarm.peers["a"].round + 8, WAIT_S)
        found["round_s"] = watched.round_s()
        for number in range(count + stops):
            kind = "kill" if number < count else "stop"
            victim = swarm.peers[rng.choice(NAMES)]
            mark = swarm.peers["a"].round
            swarm.peers["a"].wait_round(mark + 2, WAIT_S)
            time.sleep(rng.random() * (found["round_s"] or 0.3))
            since = time.monotonic()
            victim.kill() if kind == "kill" else victim.stop()
            seconds = watched.next_commit_s(victim, since)
            found[kind].append(seconds)
            note(f"{policy}: {kind} {number + 1} of {victim.name}: {seconds:.3f} s")
            for peer in watched.others(victim):
                peer.wait_round(peer.round + 2, WAIT_S)
            watched.keep_facts(victim)
            if kind == "stop":
                victim.cont()
            else:
                swarm.start(victim.name, extra_wait_s=MICROBATCH_WAIT_S)
            watched.wait_whole(time.monotonic())
        found["lost"] = watched.lost()
        found["compared"] = swarm.check_digests()
    return found


# --- no false eviction ------------------------------------------------------------------------------------------------


def gil_holder(child: Any, hooks: Any, *, folder: str) -> None:
    """In the peer's process: when a file of its process id appears in ``folder``, hold the GIL in a C call."""
    import ctypes
    import os
    import threading

    def hold() -> None:
        order = Path(folder) / str(os.getpid())
        while True:
            time.sleep(0.1)
            if order.exists():
                order.unlink()
                child.tell("gil", held_s=GIL_HELD_S)
                ctypes.PyDLL(None).usleep(int(GIL_HELD_S * 1e6))  # PyDLL: the GIL is kept during the call

    threading.Thread(target=hold, daemon=True).start()


def quiet(policy: str, minutes: float, seed: int) -> dict[str, Any]:
    """Both cores busy, four processes importing torch again and again, one peer after another holding its GIL."""
    from p2ptrain.lab.processes import Swarm

    rng = random.Random(seed)
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2)]
    importing = [None] * len(NAMES)
    holds = 0
    try:
        with scratch_folder() as folder, Swarm(folder, run_of(policy)) as swarm:
            setup = partial(gil_holder, folder=str(folder))
            for name in NAMES:
                swarm.start(name, extra_wait_s=MICROBATCH_WAIT_S, setups=(setup,))
            watched = Watched(swarm)
            watched.wait_whole(0.0)
            began, first = time.monotonic(), swarm.peers["a"].round
            hold_at = began + 2.0
            while time.monotonic() < began + 60.0 * minutes:
                for index, process in enumerate(importing):
                    if process is None or process.poll() is not None:
                        importing[index] = subprocess.Popen([sys.executable, "-c", "import torch"])
                if time.monotonic() >= hold_at:
                    (folder / str(rng.choice(list(swarm.peers.values())).process.pid)).touch()
                    holds += 1
                    hold_at += 4 * GIL_HELD_S
                time.sleep(0.2)
            said = [
                (peer.name, f["text"])
                for peer in swarm.peers.values()
                for f in peer.of("say")
                if f["t"] > began and f["key"] == "peer-lost"
            ]
            for name, text in said:
                note(f"{policy}: {name} said: {text}")
            rounds = swarm.peers["a"].round - first
            return {"evictions": len(said), "rounds": rounds, "gil_holds": holds, "compared": swarm.check_digests()}
    finally:
        for process in [*busy, *importing]:
            if process is not None:
                process.kill()
                process.wait()


# --- what is printed --------------------------------------------------------------------------------------------------


def report(results: Results, policy: str, found: dict[str, Any], theirs: dict[str, Any] | None) -> None:
    killed, stopped = found["kill"], found["stop"]
    against, their_s = "", None
    if theirs:
        against, their_s = "hivemind.Optimizer", theirs["all_s"]
    common = {"policy": policy, "round_s": found["round_s"]}
    if killed:
        value = median(killed)
        ratio = their_s / value if their_s and value else None
        results.add(
            f"{policy}: kill -9, median",
            value,
            "s",
            against,
            ratio,
            target="at most 0.5 s",
            met=value <= 0.5,
            kills=len(killed),
            **common,
        )
        results.add(f"{policy}: kill -9, worst", max(killed), "s", target="at most 1.5 s", met=max(killed) <= 1.5)
    if stopped:
        results.add(
            f"{policy}: SIGSTOP, worst",
            max(stopped),
            "s",
            target="at most 2.5 s",
            met=max(stopped) <= 2.5,
            stops=len(stopped),
            median_s=median(stopped),
        )
    results.add(
        f"{policy}: committed rounds lost",
        found["lost"],
        "rounds",
        target="0",
        met=found["lost"] == 0,
        survivors="bit-identical",
        digests_compared=found["compared"],
    )


def main() -> None:
    parser = arguments("Time from the death of one of four peers to the next committed round.")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--stops", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--policies", nargs="+", default=["any", "majority"], choices=("any", "majority"))
    parser.add_argument("--quiet-minutes", type=float, default=10.0, help="watch for false evictions; 0: do not")
    parser.add_argument("--hivemind-kills", type=int, default=3, help="the same kills on hivemind.Optimizer; 0: none")
    given = parser.parse_args()
    results = Results("recovery", given.json)
    theirs = None
    if given.hivemind_kills:
        theirs = run_other(
            "hivemind",
            "hivemind_kill.py",
            "--kills",
            given.hivemind_kills,
            "--seed",
            given.seed,
            timeout_s=180.0 * given.hivemind_kills,
        )
    for policy in given.policies if given.kills + given.stops else ():
        report(results, policy, kills(policy, given.kills, given.stops, given.seed), theirs)
    if theirs:
        results.add(
            "hivemind: kill -9 to every survivor's next epoch, median",
            theirs["all_s"],
            "s",
            kills=theirs["kills"],
            nobody_killed_s=theirs["control_s"],
            epoch_s=theirs["epoch_s"],
            partial_rounds=theirs["partial"],
            bit_identical_epochs=f"{theirs['identical']} of {theirs['epochs']}",
        )
    if given.quiet_minutes:
        for policy in given.policies[:1]:
            found = quiet(policy, given.quiet_minutes, given.seed)
            results.add(
                f"{policy}: false evictions",
                found["evictions"],
                "evictions",
                target="0 in 10 minutes",
                met=False if found["evictions"] else (True if given.quiet_minutes >= 10 else None),
                minutes=given.quiet_minutes,
                rounds=found["rounds"],
                gil_held_5s=found["gil_holds"],
                digests_compared=found["compared"],
            )
    results.table()


if __name__ == "__main__":
    sys.exit(main())
