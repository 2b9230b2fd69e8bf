"""A pytest plugin: the ``swarm`` fixture, real peers to kill in your own tests. Comes with p2ptrain, needs no rights.

Decides nothing about the swarm. Importing it is cheap (pytest does so in every project): torch and the lab come in when
a test asks for the fixture. Every wait has a deadline; what failed names the peers' logs and journals.

    def test_a_death_costs_no_round(swarm):
        a, b = swarm.start("a"), swarm.start("b")
        swarm.wait_round(3); b.kill(); a.wait_round(6)

    @pytest.mark.p2ptrain(run="run.toml", network=("a", "b"))       # one's own run; a reduced WAN for these peers
    def test_a_cut(swarm):
        a, b = swarm.start("a"), swarm.start("b")
        swarm.wait_members(2); swarm.cut("a", "b"); swarm.wait_noticed("b", by=("a",)); swarm.heal()
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from p2ptrain.config import Manifest
    from p2ptrain.lab.processes import Fact, Peer, Swarm
    from p2ptrain.lab.wan import Wan

WAIT_S = 60.0
RUN: dict[str, Any] = {
    "name": "churn-test",
    "model": {"name": "byte_gpt", "options": {"layers": 2, "width": 32, "heads": 2}},
    "data": {"name": "python_stdlib", "options": {"max_bytes": 300_000}},
    "batch": {"microbatch": 4, "microbatches": 8, "sequence_length": 32},
    "sync": {"codec": "fp16"},
    "optimiser": {"lr": 3e-3},
}
"""A run without an end that needs no files: 8 microbatches a round of a small byte-level GPT."""

MICROBATCH_S = 0.02


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "p2ptrain(run=PATH or DICT, network=NAMES, settings...): what the `swarm` fixture starts from"
    )


@pytest.fixture
def swarm(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ChurnSwarm]:
    """Peers of one run; all are gone after the test, and also when the test run itself is killed.

    By default every peer is at loopback, has one thread, no DHT, and takes 20 ms a microbatch.
    """
    marker = request.node.get_closest_marker("p2ptrain")
    given = dict(marker.kwargs) if marker is not None else {}
    run = given.pop("run", RUN)
    if isinstance(run, (str, Path)):
        run = Path(request.path.parent, run)
    made = ChurnSwarm(tmp_path / "swarm", run, network=given.pop("network", ()), **given)
    try:
        yield made
    finally:
        made.close()


class ChurnSwarm:
    """What the fixture hands over. ``run``: a manifest's file or tables. ``network``: peers with a relay before each.

    Raises ConfigError: the run is not understood. Waits raise AssertionError in ``timeout_s`` and say for what.
    """

    def __init__(
        self, folder: Path, run: Path | Mapping[str, Any], *, network: Sequence[str] = (), **settings: Any
    ) -> None:
        from p2ptrain.lab.processes import Swarm

        self.folder = folder
        self.manifest = _manifest(run)
        self.wan: Wan | None = _relays(network) if network else None
        try:
            self.processes: Swarm = Swarm(folder, self.manifest, extra_wait_s=MICROBATCH_S, **settings)
        except BaseException:
            self._close_wan()
            raise

    def start(self, name: str, **settings: Any) -> Peer:
        """Start a peer and wait until it is ready; the first one founds the run. ``settings``: flags of ``join``.

        The same name again is the same machine coming back. Raises AssertionError: it failed, with its error.
        """
        if self.wan is not None:
            place = self.wan.place(name)
            settings = {"listen": place.listen, "announce": place.announce, **settings}
        if any(peer.round for peer in self.alive):
            self.processes.refresh_invite()
        return self.processes.start(name, **settings)

    def __getitem__(self, name: str) -> Peer:
        return self.processes.peers[name]

    @property
    def alive(self) -> list[Peer]:
        """Those whose process runs (also stopped ones)."""
        return self.processes.alive

    @property
    def round(self) -> int:
        """The last round that anybody alive has applied."""
        return max((peer.round for peer in self.alive), default=0)

    # --- the network, where ``network`` names the peers -------------------------------------------------------------

    def cut(self, one: str, other: str, *, one_way: bool = False) -> None:
        """Silence between two peers (``one_way``: only what ``one`` sends), until ``heal``."""
        for source, target in ((one, other),) if one_way else ((one, other), (other, one)):
            self._network().cut(source, target)

    def partition(self, *side: str) -> None:
        """Silence between ``side`` and all others."""
        for one, other in itertools.product(side, sorted(set(self.processes.peers) - set(side))):
            self.cut(one, other)

    def heal(self) -> None:
        """Every cut is over."""
        for one, other in itertools.permutations(sorted(self.processes.peers), 2):
            self._network().cut(one, other, False)

    def degrade(self, one: str, other: str, *, delay_s: float = 0.0, jitter_s: float = 0.0, mbps: float = 0.0) -> None:
        """Both directions from now on. ``mbps`` 0: as much as the machine carries."""
        from p2ptrain.lab.wan import Shape

        for source, target in ((one, other), (other, one)):
            self._network().shape(source, target, Shape(delay_s, jitter_s, 0.0, mbps))

    # --- facts ------------------------------------------------------------------------------------------------------

    def wait_round(self, round: int, timeout_s: float = WAIT_S) -> None:
        """Every living peer has applied ``round`` or a later one."""
        self.processes.wait_round(round, timeout_s)

    def wait_rounds(self, more: int, timeout_s: float = WAIT_S) -> int:
        """``more`` rounds beyond the latest that anybody has now, at every living peer; returns which round that is."""
        wanted = self.round + more
        self.wait_round(wanted, timeout_s)
        return wanted

    def wait_members(self, count: int, timeout_s: float = WAIT_S) -> Fact:
        """A round from now on in which ``count`` members take part, at every living peer."""
        fact: Fact = {}
        for peer in self.alive:
            what = f"a round of {count} members"
            fact = peer.wait_for(
                lambda e: e["ev"] == "round" and len(e["members"]) == count, timeout_s, what, len(peer.facts)
            )
        return fact

    def wait_noticed(self, name: str, by: Sequence[str] = (), timeout_s: float = WAIT_S) -> None:
        """``by`` (default: all others alive) know that peer ``name`` is dead, silent for good, or has left."""
        from p2ptrain.core.types import short

        lost = short(self[name].peer)
        watchers = [self[each] for each in by] or [peer for peer in self.alive if peer.name != name]
        for peer in watchers:
            peer.wait_for(
                lambda e: e["ev"] == "say" and e["key"] == "peer-lost" and lost in e["text"],
                timeout_s,
                f"news that {name} is gone",
            )

    def wait_plan(self, members: Sequence[str], timeout_s: float = WAIT_S) -> Fact:
        """Every living peer follows a plan that names exactly ``members``."""
        wanted = sorted(self[name].peer for name in members)
        fact: Fact = {}
        for peer in self.alive:
            what = f"a plan of {', '.join(members)}"
            fact = peer.wait_for(lambda e: e["ev"] == "plan" and sorted(e["peers"]) == wanted, timeout_s, what)
        return fact

    # --- what must hold ---------------------------------------------------------------------------------------------

    def assert_digests_equal(self) -> int:
        """Every round that several peers have applied has the same digest at all; returns how many were compared."""
        return self.processes.check_digests()

    def assert_no_round_lost(self) -> None:
        """No peer has gone back behind a round that it had applied, and none has given one up."""
        self.processes.check_progress()
        for peer in (*self.processes.past, *self.processes.peers.values()):
            assert not peer.of("abandoned"), f"{peer.name} gave up rounds: {peer.of('abandoned')}"

    def close(self) -> None:
        self.processes.close()
        self._close_wan()

    def _network(self) -> Wan:
        if self.wan is None:
            raise AssertionError('no network to change: @pytest.mark.p2ptrain(network=("a", "b")) names its peers')
        return self.wan

    def _close_wan(self) -> None:
        if self.wan is not None:
            self.wan.close()


def _manifest(run: Path | Mapping[str, Any]) -> Manifest:
    from p2ptrain.config import Manifest, load_manifest

    return load_manifest(run) if isinstance(run, Path) else Manifest.model_validate(dict(run))


def _relays(names: Sequence[str]) -> Wan:
    from p2ptrain.lab.wan import Host
    from p2ptrain.lab.wan.opening import open_wan

    return open_wan([Host(name) for name in names], reduced=True)
