"""The split is optimal; a pull completes while one honest donor lives, and fetches little twice."""

from __future__ import annotations

import heapq
import itertools
import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from p2ptrain.core.events import ChunkFailed, ChunkPulled, Effect, PullChunk, StopChunk
from p2ptrain.core.transfer import Pull, Tier, greedy_split
from p2ptrain.core.types import Knobs, Record, SnapshotInfo

KNOBS = Knobs()
CHUNK = 1000
RECORD = Record(0, 0, 4, b"", b"", (), (), 0.0, 1.0, (), 0, 0)


def snapshot(chunks: int) -> SnapshotInfo:
    return SnapshotInfo(0, RECORD, b"", chunks * CHUNK, CHUNK, tuple(bytes([i]) * 32 for i in range(chunks)))


def pull(chunks: int, donors: dict[str, float], seed: int = 3) -> Pull:
    return Pull(snapshot(chunks), donors, KNOBS, random.Random(seed))


def asked(effects: list[Effect]) -> list[tuple[int, str]]:
    return [(e.index, e.peer) for e in effects if isinstance(e, PullChunk)]


def stopped(effects: list[Effect]) -> list[tuple[int, str]]:
    return [(e.index, e.peer) for e in effects if isinstance(e, StopChunk)]


def good(made: Pull, index: int, peer: str, seconds: float = 1.0) -> ChunkPulled:
    return ChunkPulled(made.key, index, peer, CHUNK, seconds)


def bad(made: Pull, index: int, peer: str, corrupt: bool = False) -> ChunkFailed:
    return ChunkFailed(made.key, index, peer, "busy", corrupt)


# --- the split -------------------------------------------------------------------------------------------------------


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(st.floats(0, 5), st.floats(0.1, 10)), min_size=1, max_size=4),
    st.integers(0, 8),
)
def test_the_greedy_is_optimal(donors: list[tuple[float, float]], chunks: int) -> None:
    delays, rates = [d for d, _ in donors], [r for _, r in donors]

    def end(counts: tuple[int, ...]) -> float:
        return max((d + n / r for d, r, n in zip(delays, rates, counts, strict=True) if n), default=0.0)

    every = (c for c in itertools.product(range(chunks + 1), repeat=len(donors)) if sum(c) == chunks)
    counts = greedy_split(delays, rates, chunks)
    assert sum(counts) == chunks
    assert end(tuple(counts)) <= min(map(end, every)) * (1 + 1e-12) + 1e-12


def test_nobody_to_split_among() -> None:
    assert greedy_split([], [], 5) == []


# --- event -> effects ------------------------------------------------------------------------------------------------


def test_start_asks_every_donor_with_all_its_streams() -> None:
    made = pull(12, {"a": 1000.0, "b": 1000.0, "c": 0.0})
    requests = asked(made.start(0.0))
    assert sorted(peer for _, peer in requests) == ["a", "a", "b", "b", "c", "c"], "an untried donor is tried"
    made.check()


def test_equal_newcomers_do_not_all_begin_with_the_same_donor() -> None:
    pulls = [pull(2, {"a": 0.0, "b": 0.0, "c": 0.0}, seed) for seed in range(9)]
    first = {peer for made in pulls for index, peer in asked(made.start(0.0)) if index == 0}
    assert len(first) > 1


def test_a_snapshot_without_chunks_is_done() -> None:
    made = pull(0, {"a": 0.0})
    assert made.start(0.0) == [] and made.done and made.deadline() == math.inf and made.failed is None


def test_a_wrong_digest_marks_the_donor_and_the_chunk_comes_from_elsewhere() -> None:
    made = pull(4, {"a": 0.0, "b": 0.0})
    requests = asked(made.start(0.0))
    index = next(i for i, peer in requests if peer == "a")
    effects = made.chunk_failed(bad(made, index, "a", corrupt=True), 1.0)
    assert asked(effects) == [], "b is busy with its own"
    mine = [i for i, peer in requests if peer == "b"]
    assert (index, "b") in asked(made.chunk_pulled(good(made, mine[0], "b"), 1.0))
    assert made.tier_of("a") is Tier.FAILED and made.tier_of("b") is Tier.MEASURED
    assert "wrong digest" in made.describe()
    made.check()


def test_a_late_chunk_is_fetched_twice_and_the_first_copy_wins() -> None:
    made = pull(3, {"a": 0.0, "b": 0.0})
    requests = asked(made.start(0.0))
    late = next(i for i, peer in requests if peer == "a")
    for index, peer in requests:
        if index != late:
            assert stopped(made.chunk_pulled(good(made, index, peer), 1.0)) == []
    assert made.deadline() == pytest.approx(KNOBS.chunk_timeout_s) or made.deadline() < KNOBS.chunk_timeout_s
    effects = made.tick(made.deadline())
    assert asked(effects) == [(late, "b")]
    made.check()
    effects = made.chunk_pulled(good(made, late, "b"), 5.0)
    assert stopped(effects) == [(late, "a")] and made.done
    assert made.chunk_pulled(good(made, late, "a"), 5.1) == [], "the copy that crossed the order to stop"
    assert made.progress()[:2] == (3, 3)


def test_an_idle_donor_steals_from_the_end_of_the_slow_ones_queue() -> None:
    made = pull(20, {"a": 1000.0, "b": 1000.0})
    requests = asked(made.start(0.0))
    now = 0.0
    open_by_a = [i for i, peer in requests if peer == "a"]
    taken = []
    while open_by_a and not made.done:
        now += 0.01
        new = [i for i, peer in asked(made.chunk_pulled(good(made, open_by_a.pop(0), "a", 0.01), now)) if peer == "a"]
        open_by_a += new
        taken += new
        made.check()
    assert made.progress()[0] >= 18, "b never answered: everything but its streams came from a"


def test_donors_lost_and_added() -> None:
    made = pull(6, {"a": 0.0, "b": 0.0})
    requests = asked(made.start(0.0))
    of_a = sorted(i for i, peer in requests if peer == "a")
    effects = made.donor_lost("a", 1.0)
    assert stopped(effects) == [(i, "a") for i in of_a]
    assert made.failed is None
    made.donor_lost("b", 1.0)
    assert made.failed == "0 of 6 chunks copied, no donor left (a: lost; b: lost)"
    assert made.deadline() == math.inf
    assert asked(made.donor_added("c", 0.0, 2.0)) == [(0, "c"), (1, "c")] and made.failed is None
    assert made.donor_lost("stranger", 2.0) == []
    made.check()


def test_the_only_donor_is_asked_again_after_a_failure_and_given_up_in_the_end() -> None:
    made = pull(1, {"a": 0.0})
    made.start(0.0)
    tries, now = 1, 0.0
    while made.failed is None:
        assert asked(made.chunk_failed(bad(made, 0, "a"), now)) == [], "not at once"
        if made.failed is None:
            now = made.deadline()
            assert asked(made.tick(now)) == [(0, "a")]
            tries += 1
    assert tries == 4 and "chunk 0 busy" in made.failed


def test_a_silent_only_donor_ends_in_a_reason_not_in_waiting_for_ever() -> None:
    made = pull(2, {"a": 0.0})
    made.start(0.0)
    for _ in range(100):
        if made.failed:
            break
        made.tick(made.deadline())
        made.check()
    assert made.failed is not None and "silent" in made.failed


def test_stale_and_foreign_events_change_nothing() -> None:
    made = pull(2, {"a": 0.0})
    made.start(0.0)
    assert made.chunk_pulled(ChunkPulled(b"other", 0, "a", 1, 1.0), 1.0) == []
    assert made.chunk_pulled(good(made, 99, "a"), 1.0) == []
    assert made.chunk_failed(bad(made, 0, "z"), 1.0) == []
    assert made.progress() == (0, 2, {"a": 0.0})


# --- a whole pull over bad donors ------------------------------------------------------------------------------------


class Donor:
    """``seconds`` per chunk; ``dies`` after so many chunks (silently or with notice); ``wrong`` chunks by chance."""

    def __init__(self, kind: str, seconds: float, dies: int) -> None:
        self.kind, self.seconds, self.dies, self.served = kind, seconds, dies, 0


def simulate(made: Pull, donors: dict[str, Donor], rng: random.Random) -> float:
    """Runs to the end in virtual time; returns when."""
    events: list[tuple[float, int, object]] = []
    ticket = itertools.count()
    stopped_flights: dict[tuple[int, str], int] = {}
    now = 0.0

    def act(effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, StopChunk):
                stopped_flights[effect.index, effect.peer] = next(ticket)
            elif isinstance(effect, PullChunk):
                donor = donors[effect.peer]
                donor.served += 1
                when = now + donor.seconds * rng.uniform(0.5, 1.5)
                if donor.kind == "dies" and donor.served > donor.dies:
                    heapq.heappush(events, (when, next(ticket), effect.peer))
                elif donor.kind == "hangs" and donor.served > donor.dies:
                    continue
                elif donor.kind == "corrupt" or (donor.kind == "flaky" and rng.random() < 0.3):
                    heapq.heappush(events, (when, next(ticket), bad(made, effect.index, effect.peer, True)))
                else:
                    seconds = when - now
                    heapq.heappush(events, (when, next(ticket), good(made, effect.index, effect.peer, seconds)))

    act(made.start(now))
    for _ in range(5000):
        if made.done or made.failed:
            return now
        made.check()
        due = made.deadline()
        if events and events[0][0] <= due:
            now, number, event = heapq.heappop(events)
            if isinstance(event, str):
                act(made.donor_lost(event, now))
            elif stopped_flights.get((event.index, event.peer), -1) > number:
                continue
            elif isinstance(event, ChunkPulled):
                act(made.chunk_pulled(event, now))
            else:
                act(made.chunk_failed(event, now))
        else:
            assert due < math.inf, "somebody must be waited for"
            now = due
            act(made.tick(now))
    raise AssertionError("the pull neither ends nor fails")


DONORS = st.lists(
    st.builds(
        Donor,
        st.sampled_from(["honest", "dies", "hangs", "corrupt", "flaky"]),
        st.sampled_from([0.01, 0.3, 3.0]),
        st.integers(0, 6),
    ),
    max_size=4,
)


@settings(max_examples=150, deadline=None)
@given(DONORS, st.integers(0, 25), st.integers(0, 10_000), st.sampled_from([0.01, 0.3, 3.0]))
def test_it_completes_while_one_honest_donor_lives(others: list[Donor], chunks: int, seed: int, seconds: float) -> None:
    donors = {f"d{i}": donor for i, donor in enumerate([*others, Donor("honest", seconds, 0)])}
    made = pull(chunks, dict.fromkeys(donors, 0.0), seed)
    simulate(made, donors, random.Random(seed))
    assert made.done, made.describe()
    failures = sum(donor.served for donor in others if donor.kind != "honest")
    assert made.chunks_requested <= 2 * chunks + failures + 4
    if not others:
        assert made.chunks_requested == chunks, "one good donor: nothing twice"


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000))
def test_good_donors_alone_fetch_little_twice_and_share_the_work(seed: int) -> None:
    donors = {f"d{i}": Donor("honest", s, 0) for i, s in enumerate([0.1, 0.1, 0.2, 0.4])}
    made = pull(60, dict.fromkeys(donors, 0.0), seed)
    end = simulate(made, donors, random.Random(seed))
    assert made.chunks_requested <= 60 + 8
    assert end <= 1.5 * 60 / sum(KNOBS.pull_streams / d.seconds for d in donors.values()) + 0.6
    assert all(donor.served > 0 for donor in donors.values())


@settings(max_examples=60, deadline=None)
@given(DONORS.filter(lambda ds: all(d.kind in ("corrupt", "dies", "hangs") for d in ds)), st.integers(0, 100))
def test_without_a_good_donor_it_fails_and_names_each(others: list[Donor], seed: int) -> None:
    donors = {f"d{i}": donor for i, donor in enumerate(others)}
    made = pull(40, dict.fromkeys(donors, 0.0), seed)
    simulate(made, donors, random.Random(seed))
    assert made.failed and all(peer in made.failed for peer in donors)


def test_same_inputs_same_pull() -> None:
    def transcript() -> list[Effect]:
        made = pull(30, {"a": 0.0, "b": 500.0, "c": 2000.0}, 11)
        effects = made.start(0.0)
        seen = list(effects)
        while effects:
            request = next(e for e in effects if isinstance(e, PullChunk))
            effects = effects[1:] + made.chunk_pulled(good(made, request.index, request.peer), 1.0)
            effects = [e for e in effects if isinstance(e, PullChunk)]
            seen += effects
        return seen

    assert transcript() == transcript()
