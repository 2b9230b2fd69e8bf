"""What a scenario is: regions, peers, links, a timeline, expectations. TOML, read and checked before anything runs.

The same file drives real processes (``p2ptrain lab``) and the simulator (``p2ptrain sim``). Unknown keys and
contradictions are a ``ConfigError`` with key, file and line. Decides nothing about how it is carried out: the timeline
that both follow, random churn and traces spelled out, is made by ``timeline``.

    name = "two-regions-and-a-kill"
    seconds = 40
    [run]                      # a manifest, as for ``p2ptrain start``
    ...
    [[regions]]
    name = "oregon"
    [[regions]]
    name = "virginia"
    [[peers]]
    name = "a"                 # with count = 3: a0, a1, a2
    region = "oregon"
    microbatch_s = 0.05        # its speed: a real small step, then a wait until this time has passed
    [[links]]
    between = ["oregon", "virginia"]
    delay_ms = 33.5
    [[events]]
    at_s = 12.0
    do = "kill"
    peers = ["a1"]
    [expect]
    digests_equal = true
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]{0,31}$")]
Seconds = Annotated[float, Field(ge=0, le=86_400)]
Mbps = Annotated[float, Field(gt=0, le=100_000)]
Millis = Annotated[float, Field(ge=0, le=10_000)]
Chance = Annotated[float, Field(ge=0, le=1)]


class Table(BaseModel):
    """No unknown keys, no NaN, immutable."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Region(Table):
    """Peers of one region meet over ``local_*``; other regions over ``[[links]]`` or the ``[network]`` table."""

    name: Name
    local_delay_ms: Millis = 0.5  # one way
    local_mbps: Mbps = 2_000.0


class Router(Table):
    """A home router: the peers behind it share its up- and downlink. ``nat``: nobody outside can dial them."""

    name: Name
    region: Name
    up_mbps: Mbps = 40.0
    down_mbps: Mbps = 200.0
    delay_ms: Millis = 15.0  # one way, from the router to its region
    jitter_ms: Millis = 0.0
    loss: Chance = 0.0
    nat: bool = True


class PeerGroup(Table):
    """``count`` peers alike: ``name`` itself if one, else ``name0``, ``name1``, ... They join at ``join_s``.

    ``every_s``: so much later each (a flash crowd). The first peer of the file, at 0 s, founds the run.
    """

    name: Name
    region: Name
    count: Annotated[int, Field(ge=1, le=10_000)] = 1
    join_s: Seconds = 0.0
    every_s: Seconds = 0.0
    microbatch_s: Annotated[float, Field(ge=0, le=600)] = 0.05
    memory: str = ""  # as ``p2ptrain join --memory``
    router: str = ""
    up_mbps: Mbps | None = None  # None: as much as its links carry
    down_mbps: Mbps | None = None
    delay_ms: Millis = 0.0  # one way, on top of the region's
    outbound_only: bool = False


class Link(Table):
    """Both directions between two regions; ``one_way`` gives only from the first to the second."""

    between: Annotated[tuple[Name, Name], Field()]
    delay_ms: Millis  # one way
    jitter_ms: Millis = 0.0
    loss: Chance = 0.0
    mbps: Mbps = 1_000.0
    one_way: bool = False


class NetworkTable(Table):
    """Links of named regions from a measured table shipped with the project (``aws-regions``)."""

    table: Literal["aws-regions", ""] = ""


Do = Literal[
    "join", "leave", "kill", "stop", "continue", "slow",
    "degrade", "cut", "heal", "partition",
    "corrupt", "skew", "fill_disk", "free_disk",
]  # fmt: skip


DO_FIELDS: dict[str, tuple[frozenset[str], frozenset[str]]] = {
    **{do: (frozenset(), frozenset({"peers", "region"})) for do in ("join", "leave", "kill", "stop", "continue")},
    "slow": (frozenset({"microbatch_s"}), frozenset({"peers", "region"})),
    "degrade": (frozenset({"between"}), frozenset({"one_way", "delay_ms", "jitter_ms", "loss", "mbps"})),
    "cut": (frozenset({"between"}), frozenset({"one_way"})),
    "heal": (frozenset(), frozenset({"between", "one_way"})),
    "partition": (frozenset(), frozenset({"peers", "region"})),
    "corrupt": (frozenset({"chance"}), frozenset({"peers", "region"})),
    "skew": (frozenset({"seconds"}), frozenset({"peers", "region"})),
    "fill_disk": (frozenset(), frozenset({"peers", "region"})),
    "free_disk": (frozenset(), frozenset({"peers", "region"})),
}
"""Of each ``do``: the fields it must have, and those that it may have. Where it may have both ``peers`` and ``region``
it must have exactly one of them."""


class Event(Table):
    """One thing that happens at ``at_s``. Which fields each ``do`` takes: see ``DO_FIELDS``.

    A peer is named as ``a1``, or all of a group as ``a``. join, leave, kill, stop, continue: ``peers`` (or ``region``:
    all of it). slow: ``microbatch_s``. degrade, cut, heal: ``between`` two names (peers, groups, routers or regions),
    ``one_way``; degrade takes ``delay_ms``, ``jitter_ms``, ``loss``, ``mbps`` (those given replace the path's between
    the two). heal without ``between``: everything. partition: ``peers`` or ``region`` against all others. corrupt:
    flips bits in ``chance`` of the bulk frames from the peers. skew: ``seconds`` on the peers' clocks. fill_disk: their
    run folders take no more bytes.
    """

    at_s: Seconds
    do: Do
    peers: tuple[Name, ...] = ()
    region: str = ""
    between: tuple[Name, Name] | None = None
    one_way: bool = False
    delay_ms: Millis | None = None
    jitter_ms: Millis | None = None
    loss: Chance | None = None
    mbps: Mbps | None = None
    microbatch_s: Annotated[float, Field(ge=0, le=600)] | None = None
    seconds: Annotated[float, Field(ge=-31_536_000, le=31_536_000)] | None = None
    chance: Chance | None = None


class Churn(Table):
    """Random churn by rate (events a minute, all peers together) and the scenario's seed, between two times."""

    from_s: Seconds = 0.0
    to_s: Seconds | None = None
    kills_per_min: Annotated[float, Field(ge=0, le=10_000)] = 0.0
    leaves_per_min: Annotated[float, Field(ge=0, le=10_000)] = 0.0
    joins_per_min: Annotated[float, Field(ge=0, le=10_000)] = 0.0
    stops_per_min: Annotated[float, Field(ge=0, le=10_000)] = 0.0
    stop_s: Seconds = 3.0
    alive_min: Annotated[int, Field(ge=1, le=10_000)] = 1
    alive_max: Annotated[int, Field(ge=1, le=10_000)] = 16


class Trace(Table):
    """A recorded trace: its time divided by ``compress``, peers thinned by a hash of their ids to ``alive_max``."""

    name: Literal["aws-p3-spot-2021", "aws-g4dn-spot-2021", "gcp-v100-spot-2021", "gcp-a100-spot-2021"]
    compress: Annotated[float, Field(ge=1, le=100_000)] = 1.0
    alive_max: Annotated[int, Field(ge=1, le=10_000)] | None = None
    from_s: Seconds = 0.0  # of the trace, before compressing
    group: Name | None = None  # the ``[[peers]]`` entry that its peers are like; that entry itself joins nobody
    groups: tuple[Name, ...] = ()  # or several, dealt out in turn (a trace over four regions)

    @property
    def all_groups(self) -> tuple[str, ...]:
        return self.groups or ((self.group,) if self.group else ())


class Expect(Table):
    """Expectations turn a run into a test. None: not asked. Facts decide everywhere, times where ``--times decide``."""

    digests_equal: bool | None = None
    committed_never_drop: bool | None = None  # no applied round is ever given up
    rounds_at_least: Annotated[int, Field(ge=0)] | None = None
    all_alive_train: bool | None = None  # at the end everybody alive has applied the last round, or the one before
    abandoned_at_most: Annotated[int, Field(ge=0)] | None = None
    stalled: tuple[Name, ...] | None = None  # exactly these end in StalledError
    loss_at_most: Annotated[float, Field(gt=0)] | None = None
    stall_per_kill_s: Annotated[float, Field(gt=0)] | None = None  # a time: from a kill to the next commit
    goodput_at_least: Annotated[float, Field(gt=0)] | None = None  # a time: share of the alive peers' own speeds


class Scenario(Table):
    """The whole file. ``short``: factor on all times of the timeline for ``--short`` (0.5: half as long)."""

    name: Name
    about: str = ""
    seconds: Annotated[float, Field(gt=0, le=86_400)]
    short: Annotated[float, Field(gt=0, le=1)] = 1.0
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    run: dict[str, Any]
    network: NetworkTable = NetworkTable()
    regions: Annotated[tuple[Region, ...], Field(min_length=1)]
    routers: tuple[Router, ...] = ()
    peers: Annotated[tuple[PeerGroup, ...], Field(min_length=1)]
    links: tuple[Link, ...] = ()
    events: tuple[Event, ...] = ()
    churn: Churn | None = None
    trace: Trace | None = None
    expect: Expect = Expect()
