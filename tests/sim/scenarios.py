"""Readable stories: a head of steps, and below the line what the production nodes say and commit while they are played.

    python -m tests.sim.scenarios            compares all of tests/scenarios/*.txt
    python -m tests.sim.scenarios --update   writes them anew

Steps, one a line: ``policy any``, ``exact``, ``rounds N``, ``microbatches N`` (before the first start), ``start P
[founds] [region R]``, ``run SECONDS``, ``until exchange`` (an exchange runs at every member), ``kill P``, ``stop P``,
``resume P``, ``hang P``, ``leave P``, ``refuse P`` (its running gradient is not finite), ``partition P.. | P..``,
``heal``. P is a peer, or ``leader``, ``coordinator``, ``member`` (neither), as b, else a, sees it.
"""

from __future__ import annotations

import pathlib
import sys
from typing import Any

from p2ptrain.core import events as ev
from p2ptrain.core.types import PeerId, Policy, RunSpec, Stage, short
from p2ptrain.sim.checks import Checks
from p2ptrain.sim.network import NetworkModel
from p2ptrain.sim.world import SimPeer, World

FOLDER = pathlib.Path(__file__).parents[1] / "scenarios"
LINE = "=" * 60
HIDDEN = {"pull", "state"}  # sizes and durations: no part of the story


class Story:
    """Plays the steps of one head; ``lines`` is the transcript."""

    def __init__(self) -> None:
        self.settings: dict[str, Any] = {"policy": Policy.ANY, "exact": False, "rounds": 0, "microbatches": 8}
        self.lines: list[str] = []
        self.commits: dict[int, dict[PeerId, str]] = {}
        self.world: World | None = None

    def play(self, head: str) -> str:
        for line in head.splitlines():
            words = line.split("#")[0].split()
            if words:
                self._step(words)
        self._tell_commits()
        return "\n".join(self.lines) + "\n"

    def _step(self, words: list[str]) -> None:
        name, rest = words[0], words[1:]
        if name in self.settings:
            kinds: dict[str, Any] = {"policy": Policy, "exact": lambda _: True, "rounds": int, "microbatches": int}
            self.settings[name] = kinds[name](rest[0] if rest else "")
            return
        world = self.world = self.world or self._world()
        if name != "run":
            self._tell_commits()
            self.lines.append(f"{world.now:7.3f}  -- {' '.join(words)}")
        if name == "start":
            region = rest[rest.index("region") + 1] if "region" in rest else "x"
            world.start(rest[0], founds="founds" in rest, region=region)
        elif name == "run":
            world.run(world.now + float(rest[0]))
        elif name == "until":
            assert world.run(world.now + 10.0, self._all_exchange)
        elif name == "partition":
            world.partition(frozenset(" ".join(rest).split("|")[0].split()))
        elif name == "heal":
            world.heal()
        elif name == "leave":
            world.post(world.peers[self._who(rest[0])], ev.LeaveAsked("asked to"))
        elif name == "refuse":
            self._refuse(world.peers[self._who(rest[0])])
        else:
            getattr(world, name)(self._who(rest[0]))

    def _world(self) -> World:
        s = self.settings
        run = RunSpec(
            "r", (Stage(0, 0, 3, 100_000),), s["microbatches"], policy=s["policy"], exact=s["exact"], rounds=s["rounds"]
        )
        world = World(run, 1, NetworkModel(local_s=0.002))
        world.watch += [Checks(true_verdicts=False), self._hear]
        return world

    def _all_exchange(self, world: World) -> bool:
        running = [sim.node.stage for sim in world.peers.values() if sim.running and sim.node.stage.tip]
        return all(stage.begin is not None and stage.decided is None for stage in running)

    def _refuse(self, sim: SimPeer) -> None:
        assert self.world is not None
        self.world.run(self.world.now + 2.0, lambda _: sim.node.filling.running is not None)
        running, sim.hands.job = sim.node.filling.running, None
        assert running is not None
        self.world.post(sim, ev.BundleFailed(sim.node.stage.round, *running, "not finite"))

    def _who(self, name: str) -> PeerId:
        assert self.world is not None
        peers = self.world.peers
        node = peers["b" if "b" in peers and peers["b"].running else "a"].node
        roles = {"leader": node.stage.promised.peer, "coordinator": node.coordinator or ""}
        others = sorted(p for p, sim in peers.items() if sim.running and p not in roles.values())
        return roles.get(name) or (others[0] if name == "member" else name)

    # --- what is heard ---------------------------------------------------------------------------------------------

    def _hear(self, world: World, sim: SimPeer, event: ev.Event, effects: list[ev.Effect]) -> None:
        for effect in effects:
            if isinstance(effect, ev.Say) and effect.level != "debug" and effect.key not in HIDDEN:
                self._tell(f"{sim.peer}  {effect.text}")
            elif isinstance(effect, ev.RoundsAbandoned):
                self._tell(f"{sim.peer}  gives up {len(effect.rounds)} kept rounds of the smaller history")
            elif isinstance(effect, ev.Report) and effect.result.left_out:
                told = "; ".join(f"{left.peer or 'round'}: {left.reason}" for left in effect.result.left_out)
                self._tell(f"{sim.peer}  round {effect.result.round}: {effect.result.counted} counted; {told}")
            elif isinstance(effect, ev.Halt):
                self._tell(f"{sim.peer}  halts: {effect.error or 'clean end'}")
        if isinstance(event, ev.Applied) and sim.node.stage.tip is not None:
            self.commits.setdefault(sim.node.stage.tip.round, {})[sim.peer] = short(sim.node.stage.cut)

    def _tell(self, text: str) -> None:
        assert self.world is not None
        self._tell_commits()
        self.lines.append(f"{self.world.now:7.3f}  {text}")

    def _tell_commits(self) -> None:
        """Rounds committed since the last line, those of one group of peers together."""
        spans: list[tuple[int, int, str]] = []
        for round, cuts in sorted(self.commits.items()):
            groups: dict[str, list[PeerId]] = {}
            for peer, cut in sorted(cuts.items()):
                groups.setdefault(cut, []).append(peer)
            told = " | ".join(" ".join(peers) for _, peers in sorted(groups.items()))
            if spans and spans[-1][2] == told and spans[-1][1] == round - 1:
                spans[-1] = (spans[-1][0], round, told)
            else:
                spans.append((round, round, told))
        for first, last, told in spans:
            which = f"round {first}" if first == last else f"rounds {first} to {last}"
            self.lines.append(f"         {which} applied by {told}")
        self.commits.clear()


def compare(path: pathlib.Path) -> tuple[str, str]:
    """(as written, as played now) of one file."""
    text = path.read_text(encoding="utf-8")
    head, _, written = text.partition(LINE + "\n")
    return written, Story().play(head)


def main() -> int:
    changed = 0
    for path in sorted(FOLDER.glob("*.txt")):
        written, played = compare(path)
        if written != played:
            changed += 1
            print(f"{path.name}: differs")
            if "--update" in sys.argv:
                head = path.read_text(encoding="utf-8").partition(LINE + "\n")[0]
                path.write_text(f"{head.rstrip()}\n{LINE}\n{played}", encoding="utf-8")
    return int(bool(changed) and "--update" not in sys.argv)


if __name__ == "__main__":
    sys.exit(main())
