"""``demo``: a real swarm on this machine that trains, is hurt, and goes on. What is shown comes from the peers' facts.

    start peers ── train ── kill -9 the leader inside an exchange ── a newcomer joins by a survivor's invite ── finish

Decides the story and when it counts as a success: equal digests everywhere, held-out loss at least ``FALL`` lower.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from p2ptrain.cli.demo_peer import measure_first, measure_last
from p2ptrain.config import Manifest
from p2ptrain.core.types import short
from p2ptrain.errors import P2PTrainError
from p2ptrain.lab.processes import Fact, Peer, Swarm

ROUNDS = 100
FALL = 0.35
WAIT_S = 600.0  # for a very slow machine; nothing here waits for a time
MICROBATCH_PAUSE_S = 0.005  # so that a round has a length on a fast machine, and a newcomer comes in time
EVALUATIONS = 6

RUN = """
name = "demo"
commit = "any"
rounds = {rounds}
seed = 1
[model]
name = "byte_gpt"
options = {{ layers = 3, width = 96, heads = 4, context = 96 }}
[data]
name = "python_stdlib"
options = {{ max_bytes = 2097152 }}
[batch]
microbatch = 4
microbatches = 16
sequence_length = 96
[sync]
codec = "int8"
[optimiser]
lr = 6e-3
min_lr = 6e-4
schedule = "cosine"
warmup_rounds = 10
total_rounds = {rounds}
[evaluate]
every_rounds = {every}
batches = 16
"""


@dataclass
class Story:
    """What happened, in numbers; times in seconds."""

    kills: list[dict[str, Any]] = field(default_factory=list)
    joins: list[dict[str, Any]] = field(default_factory=list)
    last: list[Fact] = field(default_factory=list)
    loss_first: float = 0.0
    problems: list[str] = field(default_factory=list)

    @property
    def loss_last(self) -> float:
        return float(self.last[0]["loss"]) if self.last else float("nan")


def run(*, as_json: bool, peers: int, rounds: int | None, keep: bool) -> None:
    """Raises P2PTrainError (exit code 1): digests differ, the loss did not fall, or something did not happen."""
    begun = time.monotonic()
    rounds = rounds or ROUNDS
    teller = Teller(Console(stderr=as_json, highlight=False), begun)
    manifest = Manifest.from_toml(RUN.format(rounds=rounds, every=max(1, rounds // EVALUATIONS)), file="demo")
    folder = Path(tempfile.mkdtemp(prefix="p2ptrain-demo-"))
    teller.say(f"{peers} peers on this machine; folders and logs: {folder}")
    story = Story()
    try:
        with Swarm(folder, manifest, extra_wait_s=MICROBATCH_PAUSE_S) as swarm:
            _play(swarm, story, teller, peers, rounds)
        _judge(story)
    except AssertionError as error:
        story.problems.append(str(error))
    seconds = time.monotonic() - begun
    if story.last:
        teller.summary(story, seconds)
    if as_json:
        print(json.dumps(numbers(story, rounds, seconds)), flush=True)
    if story.problems:
        raise P2PTrainError("; ".join(story.problems), hint=f"the peers' logs are in {folder}")
    if keep:
        teller.say(f"kept: {folder}")
    else:
        shutil.rmtree(folder, ignore_errors=True)


def numbers(story: Story, rounds: int, seconds: float) -> dict[str, Any]:
    """The last line of ``--json``. ``stalls_s``: from each kill to the next round applied by every survivor."""
    return {
        "rounds": max((int(last["round"]) for last in story.last), default=0),
        "rounds_asked": rounds,
        "kills": len(story.kills),
        "joins": len(story.joins),
        "stalls_s": [round(kill["all_on_s"], 3) for kill in story.kills],
        "noticed_s": [round(kill["noticed_s"], 3) for kill in story.kills],
        "digests_equal": digests_equal(story),
        "loss_first": round(story.loss_first, 4),
        "loss_last": round(story.loss_last, 4) if story.last else None,
        "seconds": round(seconds, 1),
    }


def digests_equal(story: Story) -> bool:
    """All who finished hold the same bits after the same round."""
    return len(story.last) > 1 and len({(last["round"], last["digest"]) for last in story.last}) == 1


# --- the story --------------------------------------------------------------------------------------------------------


def _play(swarm: Swarm, story: Story, teller: Teller, peers: int, rounds: int) -> None:
    names = [f"peer-{index + 1}" for index in range(peers)]
    first = swarm.start(names[0], setups=(measure_first, measure_last))
    teller.say(f"[bold]{names[0]}[/] ({short(first.peer)}) founds the run and prints an invite")
    others = [swarm.start(name, setups=(measure_last,), wait=False) for name in names[1:]]
    for peer in others:
        joined = peer.wait_for(_joined, WAIT_S, "taking part")
        teller.say(f"[bold]{peer.name}[/] ({short(peer.peer)}) takes part from round {joined['round']}")
    story.loss_first = float(first.wait_kind("first", WAIT_S)["loss"])
    teller.say(f"held-out loss before training: {story.loss_first:.3f} nats a byte")
    since = max(joined_round(peer) for peer in others)
    teller.tell_losses(swarm)
    _kill_a_leader(swarm, story, teller, max(rounds // 4, min(since + 3, rounds // 2)))
    _join(swarm, story, teller, f"peer-{peers + 1}")
    living = [peer for peer in swarm.peers.values() if peer.killed_at is None]
    _follow(living, teller, rounds)
    for peer in living:
        end = peer.wait_end(WAIT_S)
        if end["ev"] != "ended" or end["error"]:
            story.problems.append(f"{peer.name} ended with {end['error']}: {end['text']}")
        story.last += peer.of("last")
    compared = swarm.check_digests()
    teller.say(f"{compared} digests of rounds compared between peers: all equal")


def _kill_a_leader(swarm: Swarm, story: Story, teller: Teller, from_round: int) -> None:
    """kill -9 of whoever leads, held still in the middle of its exchange: no round is about to end by itself."""
    everyone = list(swarm.peers.values())
    _follow(everyone, teller, from_round)
    begin = everyone[0].of("begin")[-1]
    victim = next((peer for peer in everyone if peer.peer == begin["leader"]), everyone[-1])
    victim.hold("exchanging", when="after", from_round=from_round)
    held = victim.wait_kind("held", WAIT_S)
    begin = victim.of("begin")[-1]
    killed_at = victim.kill()
    roles = ["leader"] if begin["leader"] == victim.peer else []
    roles += ["reducer"] if victim.peer in begin["reducers"] else []
    role = " and ".join(roles) or "contributor"
    teller.say(f"[red]kill -9[/] of [bold]{victim.name}[/], {role} of round {begin['round']}, inside its exchange")
    survivors = [peer for peer in everyone if peer is not victim]
    noticed = [_after(peer, killed_at, _lost(victim), f"news of {victim.name}'s death") for peer in survivors]
    went_on = [_after(peer, killed_at, lambda fact: fact["ev"] == "applied", "the next round") for peer in survivors]
    kill = {
        "name": victim.name,
        "role": role,
        "round": int(held["round"]) + 1,
        "noticed_s": min(fact["t"] for fact in noticed) - killed_at,
        "all_noticed_s": max(fact["t"] for fact in noticed) - killed_at,
        "on_s": min(fact["t"] for fact in went_on) - killed_at,
        "all_on_s": max(fact["t"] for fact in went_on) - killed_at,
        "next_round": min(fact["round"] for fact in went_on),
        "how": noticed[0]["text"],
    }
    story.kills.append(kill)
    teller.say(
        f"  noticed after {_ms(kill['noticed_s'])}, by all after {_ms(kill['all_noticed_s'])} ({escape(kill['how'])})"
    )
    teller.say(
        f"  round {kill['next_round']} committed {_ms(kill['on_s'])} after the kill, "
        f"at every survivor after {_ms(kill['all_on_s'])}"
    )


def _join(swarm: Swarm, story: Story, teller: Teller, name: str) -> None:
    """By an invite made anew by a survivor: the first peer may be the one that is dead."""
    host = next(peer for peer in swarm.peers.values() if peer.killed_at is None)
    host.do("invite")
    invite = host.wait_kind("invite", WAIT_S)["text"]
    begun = time.monotonic()
    joiner = swarm.start(name, setups=(measure_last,), invite=invite, wait=False)
    joined = joiner.wait_for(_joined, WAIT_S, "taking part")
    took_s = joined["t"] - begun
    story.joins.append({"name": name, "round": joined["round"], "seconds": took_s})
    teller.say(
        f"[green]{name}[/] ({short(joiner.peer)}) joins by an invite of {host.name}: pulls the state from the members, "
        f"takes part from round {joined['round']}, {took_s:.1f} s after its process began"
    )


def _follow(living: list[Peer], teller: Teller, rounds: int) -> None:
    """Wait until all have applied round ``rounds``, telling the held-out losses as they come."""
    while (slowest := min(living, key=lambda peer: peer.round)).round < rounds:
        slowest.wait_round(min(rounds, slowest.round + 4), WAIT_S)
        teller.tell_losses(slowest.swarm)


def _judge(story: Story) -> None:
    if not story.last:
        story.problems.append("no peer finished")
        return
    if not digests_equal(story):
        story.problems.append("the peers' digests differ at the end")
    if not story.loss_last <= (1 - FALL) * story.loss_first:
        fell = f"{story.loss_first:.3f} to {story.loss_last:.3f}"
        story.problems.append(f"the held-out loss went from {fell} only: less than {FALL:.0%} lower")


# --- facts ------------------------------------------------------------------------------------------------------------


def joined_round(peer: Peer) -> int:
    return max((int(fact["round"]) for fact in peer.of("say") if _joined(fact)), default=0)


def _joined(fact: Fact) -> bool:
    return bool(fact["ev"] == "say" and fact["key"] == "joined")


def _lost(victim: Peer) -> Any:
    return lambda fact: fact["ev"] == "say" and fact["key"] == "peer-lost" and short(victim.peer) in fact["text"]


def _after(peer: Peer, moment: float, holds: Any, what: str) -> Fact:
    return peer.wait_for(lambda fact: fact["t"] >= moment and holds(fact), WAIT_S, what)


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms"


class Teller:
    """The story for a person."""

    def __init__(self, console: Console, begun: float) -> None:
        self._console = console
        self._begun = begun
        self._told: set[int] = set()

    def say(self, text: str) -> None:
        self._console.print(f"[dim]{time.monotonic() - self._begun:6.1f} s[/]  {text}", soft_wrap=True)

    def tell_losses(self, swarm: Swarm) -> None:
        """Those that have come since, by whichever peer measured them."""
        for fact in sorted(
            (f for peer in swarm.peers.values() for f in peer.of("loss")), key=lambda f: int(f["round"])
        ):
            if fact["round"] not in self._told:
                self._told.add(fact["round"])
                self.say(f"round {fact['round']}: held-out loss {fact['loss']:.3f}")

    def summary(self, story: Story, seconds: float) -> None:
        table = Table("peer's digest of the whole state", "round", "held-out loss", title="at the end")
        for last in story.last:
            table.add_row(last["digest"][:32], str(last["round"]), f"{last['loss']:.4f}")
        self._console.print(table)
        equal = "[green]equal[/]" if digests_equal(story) else "[red]DIFFERENT[/]"
        fall = 1 - story.loss_last / story.loss_first if story.loss_first else 0.0
        self._console.print(
            f"digests {equal}; held-out loss {story.loss_first:.3f} -> {story.loss_last:.3f} ({fall:.0%} lower); "
            f"{seconds:.0f} s in all"
        )
        self._console.print("what the model writes after 'def ':", style="bold")
        sample = "".join(c if c.isprintable() or c == "\n" else "?" for c in story.last[0]["sample"])
        self._console.print(sample, markup=False)
