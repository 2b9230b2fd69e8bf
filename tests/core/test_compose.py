"""What goes into a Begin and a record: disjoint bundles, parts that tile, ids that add up, voters by the rules."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from p2ptrain.core import compose
from p2ptrain.core.ledger import ids_of_round
from p2ptrain.core.messages import Begin
from p2ptrain.core.types import (
    Ballot,
    Bundle,
    Fence,
    Member,
    PartDone,
    PeerInfo,
    Policy,
    Record,
    RunSpec,
    Stage,
    Status,
    Voter,
    digest_of,
)

SIZE = 10 * compose.PART_ALIGN + 17
STAGE = Stage(0, 0, 3, SIZE)
RUN = RunSpec("r", (STAGE,), 6, policy=Policy.MAJORITY)
FENCE = Fence("r", 0, 0, 1, b"p", Ballot(0, "a", 1))

BUNDLES = st.lists(
    st.builds(
        lambda peer, index, ids: Bundle(peer, 1, index, tuple(sorted(ids))),
        st.sampled_from("abcd"),
        st.integers(0, 3),
        st.sets(st.integers(0, 9), max_size=5),
    ),
    max_size=8,
    unique_by=lambda bundle: bundle.key,
)
RANGES = st.lists(st.integers(0, SIZE), min_size=2, max_size=9, unique=True).map(sorted)


def part(start: int, stop: int, counted: tuple[int, ...] = (0,)) -> PartDone:
    return PartDone(0, start, stop, digest_of((start, stop, counted)), counted, 1.0, stop - start)


@given(BUNDLES)
def test_chosen_bundles_are_disjoint_and_leave_out_none_that_would_fit(bundles: list[Bundle]) -> None:
    chosen = compose.choose_bundles(bundles)
    ids = [sample for bundle in chosen for sample in bundle.ids]
    assert len(ids) == len(set(ids))
    assert all(set(ids) & set(bundle.ids) for bundle in bundles if bundle.ids and bundle not in chosen)
    assert chosen == compose.choose_bundles(reversed(bundles))


@given(RANGES, st.data())
def test_orders_tile_the_stage_and_keep_what_is_fixed(edges: list[int], data: st.DataObject) -> None:
    held = {}
    for start, stop in zip(edges[::2], edges[1::2], strict=False):
        done = part(start, stop)
        held[done.digest] = (done, frozenset(data.draw(st.sets(st.sampled_from("abc")))))
    fixed = compose.fixed_parts(SIZE, held, None)
    assert all(holders for _, holders in fixed)
    orders = compose.order_parts(SIZE, fixed, [("a", 1.0), ("b", 3.0)], 2)
    begin = Begin(FENCE, 1, (Voter("a", 1),), (Bundle("a", 1, 0, (0,)), Bundle("b", 1, 0, (1,))), orders)
    assert compose.is_sound_begin(begin, SIZE)
    assert [order.fixed for order in orders if order.fixed] == [done for done, _ in fixed]


@given(st.lists(RANGES, min_size=1, max_size=3))
def test_fixed_parts_never_overlap(cuts: list[list[int]]) -> None:
    parts = [part(a, b, (i,)) for i, edges in enumerate(cuts) for a, b in pairwise(edges)]
    fixed = compose.fixed_parts(SIZE, {done.digest: (done, frozenset("a")) for done in parts}, None)
    assert all(a.stop <= b.start for (a, _), (b, _) in pairwise(fixed))


def test_in_exact_mode_a_part_stands_only_if_it_counts_the_whole_round() -> None:
    some, whole = part(0, 10, (0, 1)), part(10, 20, (0, 1, 2))
    held = {done.digest: (done, frozenset("a")) for done in (some, whole)}
    assert [done for done, _ in compose.fixed_parts(SIZE, held, frozenset((0, 1, 2)))] == [whole]


def test_a_begin_that_does_not_tile_is_unsound() -> None:
    orders = compose.order_parts(SIZE, [], [("a", 1.0)], 1)
    bundles = (Bundle("a", 1, 0, (0,)),)
    assert compose.is_sound_begin(Begin(FENCE, 1, (), bundles, orders), SIZE)
    assert not compose.is_sound_begin(Begin(FENCE, 1, (), bundles, orders), SIZE + 1)
    assert not compose.is_sound_begin(Begin(FENCE, 1, (), (), orders), SIZE)  # names a bundle that is not there
    assert not compose.is_sound_begin(Begin(FENCE, 1, (), bundles, ()), SIZE)


# --- records --------------------------------------------------------------------------------------------------------


def tip(voters: str = "ab") -> Record:
    names = tuple(Voter(name, 1) for name in voters)
    return Record(0, 0, 0, b"p", b"", (), (), 0.0, 1.0, names, 0, 0)


@given(st.lists(st.sets(st.integers(0, 5)), min_size=1, max_size=6))
def test_every_id_is_spent_once_and_the_others_are_owed(rounds: list[set[int]]) -> None:
    last, spent_before = tip(), set()
    for counted_positions in rounds:
        ids = ids_of_round(last.next_id, last.owed_ids, RUN.microbatches)
        counted = tuple(ids[position] for position in sorted(counted_positions))
        record = compose.compose_record(
            RUN, last, b"p", b"c", ids, [part(0, SIZE, counted)], [], last.voters_next, STAGE.index
        )
        assert set(record.spent_ids) == set(counted)
        assert spent_before.isdisjoint(record.spent_ids)
        assert set(ids) == set(record.spent_ids) | set(record.owed_ids)
        assert record.samples_total == last.samples_total + len(counted)
        assert compose.is_sound_record(record, STAGE)
        spent_before |= set(record.spent_ids)
        last = record


def test_refused_ids_are_spent_and_not_counted() -> None:
    ids = ids_of_round(0, (), 6)
    record = compose.compose_record(RUN, tip(), b"p", b"c", ids, [part(0, SIZE, (0, 1))], {2}, (), 0)
    assert record.spent_ids == (0, 1, 2)
    assert record.owed_ids == (3, 4, 5)
    assert record.samples_total == 2


def members(*rows: tuple[str, int, str, bool]) -> dict[str, Member]:
    return {
        name: Member(PeerInfo(name, 1, ("x:1",) if dialled else (), region, joined_round=joined), 0, Status.ALIVE)
        for name, joined, region, dialled in rows
    }


def test_voters_are_the_living_and_the_proven_rotated_by_seniority() -> None:
    roster = members(("a", 0, "x", True), ("b", 3, "x", True), ("c", 5, "x", True), ("d", 9, "x", True))
    voters = tuple(Voter(name, 1) for name in "abc")
    chosen = compose.voters_after(RUN, voters, frozenset([Voter("b", 1)]), [Voter("d", 1)], roster)
    assert [voter.peer for voter in chosen] == ["c", "d", "a"]  # a coordinates, c leads


def test_the_leader_can_be_dialled_and_voters_are_spread_over_regions() -> None:
    roster = members(("a", 0, "x", True), ("b", 1, "x", False), ("c", 2, "x", True), ("d", 3, "y", True))
    run = RunSpec("r", (STAGE,), 6, voters_max=3)
    chosen = compose.voters_after(run, [Voter(name, 1) for name in "abcd"], frozenset(), [], roster)
    assert {voter.peer for voter in chosen} >= {"a", "d"}
    assert roster[chosen[0].peer].info.diallable
