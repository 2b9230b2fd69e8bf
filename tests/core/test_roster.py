"""Evidence -> status: tables first, then properties of merging, then small swarms of rosters on a lossy table."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from p2ptrain.core.events import Dial, DialFailed, Effect, Hangup, LinkLost, LinkUp, Send
from p2ptrain.core.lines import WHOLE_LINES
from p2ptrain.core.messages import Gossip, Hello, Leave, Message, Probe, ProbeAck, ProbeFor, ProbeReport
from p2ptrain.core.roster import LINKS_MIN, Roster
from p2ptrain.core.rumours import merge
from p2ptrain.core.types import Knobs, Member, PeerInfo, Status, Voter
from p2ptrain.wire import limits
from p2ptrain.wire.translate import to_bytes

KNOBS = Knobs()
ADDRESS = "peer-of-the-north-eastern-institute.example.org:7700"


def info(peer: str, life: int = 1, joined_round: int = 0, dialled: bool = True) -> PeerInfo:
    return PeerInfo(peer, life, (f"{peer}:1",) if dialled else (), joined_round=joined_round)


def line(peer: str, status: Status = Status.ALIVE, incarnation: int = 0, life: int = 1) -> Member:
    return Member(info(peer, life), incarnation, status)


def roster(*linked: str, mesh_max: int = 64, dialled: bool = True, now: float = 0.0) -> Roster:
    """Roster of "m", linked to the given members, changes taken."""
    made = Roster(info("m"), KNOBS, random.Random(7), mesh_max)
    for peer in linked:
        made.link_up(LinkUp(info(peer, dialled=dialled), 0, True), now)
    at(made, 1.0)
    made.take_changes()
    made.check()
    return made


def sent(effects: list[Effect], kind: type[Message]) -> list[tuple[str, Message]]:
    return [(e.to, e.message) for e in effects if isinstance(e, Send) and isinstance(e.message, kind)]


def dialled(effects: list[Effect]) -> list[str]:
    return [e.peer for e in effects if isinstance(e, Dial)]


def changes(made: Roster) -> list[tuple[str, Status | None, Status]]:
    made.check()
    return [(c.peer, c.before, c.after) for c in made.take_changes()]


def status(made: Roster, peer: str) -> Status | None:
    known = made.get(peer)
    return known.status if known else None


def at(made: Roster, now: float) -> list[Effect]:
    """Time passes punctually, and everybody linked answers its probes."""
    effects: list[Effect] = []
    while made.deadline() <= now:
        when = made.deadline()
        due = made.tick(when)
        for to, probe in sent(due, Probe):
            made.received(Voter(to, 1), ProbeAck(probe.seq), when)
        effects += due
    return effects + made.tick(now)


def run_until(made: Roster, until: float) -> list[Effect]:
    """Ticks on time, answering nothing."""
    effects: list[Effect] = []
    while made.deadline() <= until:
        effects += made.tick(made.deadline())
        made.check()
    made.tick(until)
    return effects


# --- evidence of death -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cause", ["reset", "closed", "silent"])
def test_link_lost_and_re_dial_refused_is_death_at_once(cause: str) -> None:
    made = roster("a", "b")
    effects = made.link_lost(LinkLost("a", 1, cause), 1.0)
    assert dialled(effects) == ["a"]
    effects = made.dial_failed(DialFailed("a", "a:1", "refused"), 1.001)
    assert status(made, "a") is Status.DEAD
    assert made.is_dead(Voter("a", 1)) and not made.is_proven_dead(Voter("a", 1))
    assert [(to, m.updates[0].status) for to, m in sent(effects, Gossip)] == [("b", Status.DEAD)]
    deaths = [c for c in made.take_changes() if c.after is Status.DEAD]
    assert len(deaths) == 1 and "refused" in deaths[0].cause


def test_reset_and_re_dial_timed_out_is_suspicion_then_death() -> None:
    made = roster("a", "b", "c")
    made.link_lost(LinkLost("a", 1, "reset"), 1.0)
    assert status(made, "a") is Status.ALIVE, "the re-dial decides"
    effects = made.dial_failed(DialFailed("a", "a:1", "timeout"), 1.2)
    asked = sent(effects, ProbeFor)
    assert sorted(to for to, _ in asked) == ["b", "c"]
    assert changes(made) == [("a", Status.ALIVE, Status.SUSPECT)]
    for to, question in asked:
        made.received(Voter(to, 1), ProbeReport(question.seq, "a", 1, False), 1.3)
    at(made, 1.2 + KNOBS.suspicion_s * 0.5 + 0.01)
    assert changes(made) == [("a", Status.SUSPECT, Status.DEAD)], "two witnesses halve the wait"


@pytest.mark.parametrize(
    ("others", "answers", "dead_after_s"),
    [
        ((), {}, 1.0),  # nobody to ask
        (("b", "c", "d"), {"b": 0, "c": 0, "d": 0}, 1.0),  # they never had a link: no witnesses
        (("b", "c", "d"), {"b": 1, "c": 1, "d": 1}, 0.5),
        (("b", "c", "d"), {}, 2.5),  # their links to it still stand
    ],
)
def test_silence_takes_a_time_that_witnesses_shrink(
    others: tuple[str, ...], answers: dict[str, int], dead_after_s: float
) -> None:
    made = roster("a", *others)
    effects = made.link_lost(LinkLost("a", 1, "silent"), 1.0)
    assert status(made, "a") is Status.SUSPECT
    for to, question in sent(effects, ProbeFor):
        if to in answers:
            made.received(Voter(to, 1), ProbeReport(question.seq, "a", answers[to], False), 1.0)
    run_until(made, 1.0 + dead_after_s - 0.01)
    assert status(made, "a") is Status.SUSPECT
    run_until(made, 1.0 + dead_after_s + 0.01)
    assert status(made, "a") is Status.DEAD


def test_one_that_cannot_be_dialled_is_suspected_at_once_and_may_come_back() -> None:
    made = roster("a", dialled=False)
    assert dialled(made.link_lost(LinkLost("a", 1, "reset"), 1.0)) == []
    assert changes(made) == [("a", Status.ALIVE, Status.SUSPECT)]
    made.link_up(LinkUp(info("a", dialled=False), 0, False), 1.5)
    run_until(made, 9.0)
    assert status(made, "a") in (Status.ALIVE, Status.BUSY)


def test_heard_by_another_means_the_link_is_down_not_the_peer() -> None:
    made = roster("a", "b")
    made.link_lost(LinkLost("a", 1, "silent"), 1.0)
    made.received(Voter("b", 1), ProbeReport(1, "a", 1, True), 1.1)
    assert status(made, "a") is Status.LINK_DOWN
    at(made, 2.0)
    made.dial_failed(DialFailed("a", "a:1", "timeout"), 2.0)
    assert status(made, "a") is Status.LINK_DOWN
    effects = at(made, 6.2)
    assert dialled(effects) == ["a"], "dialled again"
    made.link_up(LinkUp(info("a"), 0, True), 6.3)
    assert [after for _, _, after in changes(made)] == [Status.SUSPECT, Status.LINK_DOWN, Status.ALIVE]


def test_link_down_ends_in_death_when_nobody_hears_it_any_more() -> None:
    made = roster("a", "b")
    made.link_lost(LinkLost("a", 1, "silent"), 1.0)
    made.received(Voter("b", 1), ProbeReport(1, "a", 1, True), 1.1)
    at(made, 2.0)
    made.dial_failed(DialFailed("a", "a:1", "timeout"), 2.0)  # asks b again, who does not answer
    at(made, 6.1)
    made.dial_failed(DialFailed("a", "a:1", "timeout"), 6.2)
    assert status(made, "a") is Status.SUSPECT
    run_until(made, 6.2 + KNOBS.suspicion_max_s + 0.1)
    assert status(made, "a") is Status.DEAD


def test_late_probe_makes_busy_and_never_more_while_the_link_stands() -> None:
    made = roster("a")
    probes = sent(run_until(made, 60.0), Probe)
    assert len(probes) > 50
    assert changes(made) == [("a", Status.ALIVE, Status.BUSY)]
    made.received(Voter("a", 1), ProbeAck(probes[-1][1].seq), 60.1)
    assert changes(made) == [("a", Status.BUSY, Status.ALIVE)]


def test_stale_link_losses_and_dials_change_nothing() -> None:
    made = roster("a")
    made.link_lost(LinkLost("a", 0, "reset"), 1.0)
    made.dial_failed(DialFailed("a", "a:1", "refused"), 1.0)
    made.link_lost(LinkLost("stranger", 1, "reset"), 1.0)
    made.dial_failed(DialFailed("", "x:1", "refused"), 1.0)
    assert changes(made) == []


# --- lives and goodbyes ----------------------------------------------------------------------------------------------


def test_a_later_life_replaces_the_ghost_at_once_and_proves_it_dead() -> None:
    made = roster("a")
    made.link_up(LinkUp(info("a", life=2), 0, False), 1.0)
    assert changes(made) == [("a", Status.ALIVE, Status.DEAD), ("a", None, Status.ALIVE)]
    assert made.is_proven_dead(Voter("a", 1)) and made.is_dead(Voter("a", 1))
    assert not made.is_dead(Voter("a", 2))
    made.link_lost(LinkLost("a", 1, "reset"), 1.1)
    assert made.linked("a"), "the old life's link is not this one's"
    assert [type(e) for e in made.link_up(LinkUp(info("a", life=1), 0, False), 1.2)] == []


def test_leave_is_left_and_proof_and_is_passed_on() -> None:
    made = roster("a", "b")
    effects = made.received(Voter("a", 1), Leave("a", 1, "done"), 1.0)
    assert Hangup("a", "left: done") in effects
    assert [to for to, _ in sent(effects, Leave)] == ["b"]
    assert made.is_proven_dead(Voter("a", 1)) and status(made, "a") is Status.LEFT
    assert made.received(Voter("b", 1), Leave("a", 1, "done"), 1.1) == [], "once"
    assert changes(made) == [("a", Status.ALIVE, Status.LEFT)]
    told = made.link_up(LinkUp(info("z"), 0, False), 2.0)
    assert sent(told, Leave) == [("z", Leave("a", 1, "done"))], "a newcomer gets the proof too"
    made.received(Voter("b", 1), Gossip((line("a", Status.ALIVE, incarnation=9),)), 2.1)
    assert status(made, "a") is Status.LEFT, "final for this life"


def test_a_newcomer_gets_the_whole_roster_and_is_told_on() -> None:
    made = roster("a", "b")
    effects = made.link_up(LinkUp(info("z", joined_round=-1), 0, False), 1.0)
    ((to, gossip),) = sent(effects, Gossip)
    assert to == "z" and gossip.whole and [m.info.peer for m in gossip.updates] == ["a", "b", "m"]
    assert status(made, "z") is Status.JOINING
    told = [m.info.peer for _, probe in sent(run_until(made, 3.0), Probe) for m in probe.updates]
    assert "z" in told


def test_a_roster_of_ten_thousand_is_told_in_pieces_that_fit() -> None:
    """Every line arrives, no message nears the limit, and the newcomer spreads none of it as news of its own."""
    crowd = tuple(replace(line(f"p{n:05}"), info=replace(info(f"p{n:05}"), addresses=(ADDRESS,))) for n in range(9_998))
    made = roster("a", mesh_max=8)
    made.received(Voter("a", 1), Gossip(crowd, whole=True), 1.0)
    z = LinkUp(replace(info("z"), joined_round=-1), 0, False)
    pieces = [message for _, message in sent(made.link_up(z, 1.0), Gossip)]
    assert len(pieces) > 50 and all(piece.whole and len(piece.updates) <= WHOLE_LINES for piece in pieces)
    newcomer = Roster(info("z"), KNOBS, random.Random(1), mesh_max=8)
    newcomer.link_up(LinkUp(info("m"), 0, True), 1.0)
    for piece in pieces:
        newcomer.received(Voter("m", 1), piece, 1.0)
    assert {member.info.peer for member in newcomer.members()} == {"a", "m", "z"} | {m.info.peer for m in crowd}
    told = [m.info.peer for _, probe in sent(run_until(newcomer, 2.5), Probe) for m in probe.updates]
    assert set(told) <= {"a", "m", "z"}
    newcomer.check()


def test_a_piece_of_the_longest_lines_fits_a_message() -> None:
    names = limits.MAX_NAME_CHARS * "n"
    long = replace(
        info(limits.MAX_PEER_CHARS * "p"),
        addresses=(limits.MAX_ADDRESS_CHARS * "h",) * limits.MAX_ADDRESSES,
        region=names,
        party=names,
        version=names,
        signature=bytes(limits.MAX_SIGNATURE_BYTES),
        public_key=bytes(limits.MAX_PUBLIC_KEY_BYTES),
    )
    piece = Gossip((Member(long, 1 << 40, Status.ALIVE),) * WHOLE_LINES, whole=True)
    assert len(to_bytes(piece)) <= limits.MAX_MESSAGE_BYTES


# --- gossip ----------------------------------------------------------------------------------------------------------


def test_what_i_hear_outweighs_hearsay_and_the_suspected_is_told() -> None:
    made = roster("a", "b")
    rumour = line("a", Status.DEAD, incarnation=3)
    assert made.received(Voter("b", 1), Gossip((rumour,)), 1.0) == [Send("a", Gossip((rumour,)))]
    assert made.received(Voter("b", 1), Gossip((rumour,)), 1.1) == []
    assert changes(made) == []


def test_i_refute_what_is_said_of_me() -> None:
    made = roster("a", "b")
    effects = made.received(Voter("a", 1), Gossip((line("m", Status.SUSPECT, incarnation=4),)), 1.0)
    assert made.incarnation == 5
    refutation = (line("m", incarnation=5),)
    assert [(to, m.updates) for to, m in sent(effects, Gossip)] == [("a", refutation), ("b", refutation)]
    assert made.received(Voter("a", 1), Gossip((line("m", Status.DEAD, incarnation=4),)), 1.1) == []
    made.received(Voter("a", 1), Gossip((line("m", life=2),)), 1.2)
    assert made.superseded_by == 2


def test_refutation_brings_back_the_dead() -> None:
    made = roster("a", "b")
    made.link_lost(LinkLost("a", 1, "reset"), 1.0)
    made.dial_failed(DialFailed("a", "a:1", "refused"), 1.0)
    made.received(Voter("b", 1), Gossip((line("a"),)), 1.1)
    assert status(made, "a") is Status.DEAD
    effects = made.received(Voter("b", 1), Gossip((line("a", incarnation=1),)), 1.2)
    assert status(made, "a") is Status.ALIVE and not made.is_dead(Voter("a", 1))
    assert dialled(effects + run_until(made, 2.5)) == ["a"]


def test_members_by_hearsay_are_dialled_in_a_mesh_and_not_beyond() -> None:
    for mesh_max, expected in ((64, ["x"]), (1, [])):
        made = roster("a", mesh_max=mesh_max)
        effects = made.received(Voter("a", 1), Gossip((line("x"),)), 1.0)
        assert dialled(effects) == expected
        assert status(made, "x") is Status.ALIVE
    assert dialled(made.link_to(["x"], 1.1)) == ["x"]


def test_a_new_description_of_myself_supersedes_the_old() -> None:
    made = roster("a")
    made.update_me(info("m", joined_round=4))
    told = [m for _, probe in sent(at(made, 3.0), Probe) for m in probe.updates if m.info.peer == "m"]
    assert told and all((m.info.joined_round, m.incarnation) == (4, 1) for m in told)
    assert made.incarnation == 1


def test_found_peers_are_members_only_once_linked() -> None:
    made = roster()
    assert dialled(made.found([info("x"), info("m"), info("y", dialled=False)], 1.0)) == ["x"]
    assert made.get("x") is None
    made.dial_failed(DialFailed("x", "x:1", "refused"), 1.1)
    assert changes(made) == []
    assert dialled(made.found([info("x")], 1.2)) == ["x"]


def test_a_voter_never_heard_of_gets_a_verdict_and_is_told_to_nobody() -> None:
    made = roster("a")
    effects = made.expect([Voter("x", 3)], 1.0)
    assert [(to, m.target) for to, m in sent(effects, ProbeFor)] == [("a", "x")]
    effects = run_until(made, 5.0)
    assert made.is_dead(Voter("x", 3))
    assert all(m.info.peer != "x" for e in effects if isinstance(e, Send) for m in getattr(e.message, "updates", ()))


# --- indirect probes -------------------------------------------------------------------------------------------------


def test_probing_for_another() -> None:
    made = roster("a", "t")
    effects = made.received(Voter("a", 1), ProbeFor(9, "t"), 1.0)
    at(made, 1.1)
    ((to, probe),) = sent(effects, Probe)
    assert to == "t"
    effects = made.received(Voter("t", 1), ProbeAck(probe.seq), 1.1)
    assert effects == [Send("a", ProbeReport(9, "t", 1, True))]
    assert made.received(Voter("t", 1), ProbeAck(probe.seq), 1.1) == [], "answered once"
    made.received(Voter("a", 1), ProbeFor(10, "t"), 1.2)
    effects = made.link_lost(LinkLost("t", 1, "reset"), 1.3)
    assert Send("a", ProbeReport(10, "t", 1, False)) in effects, "lost here too"
    effects = made.received(Voter("a", 1), ProbeFor(11, "t"), 1.4)
    assert effects == [Send("a", ProbeReport(11, "t", 1, False))]
    effects = made.received(Voter("a", 1), ProbeFor(12, "unknown"), 1.5)
    assert effects == [Send("a", ProbeReport(12, "unknown", 0, False))]
    effects = made.received(Voter("a", 1), ProbeFor(13, "m"), 1.6)
    assert effects == [Send("a", ProbeReport(13, "m", 1, True))]


# --- doubt (R12) -----------------------------------------------------------------------------------------------------


def test_after_a_gap_verdicts_are_forgotten_until_somebody_is_heard() -> None:
    made = roster("a", "b", "c")
    made.link_lost(LinkLost("a", 1, "silent"), 1.0)
    made.link_lost(LinkLost("b", 1, "reset"), 1.0)
    made.dial_failed(DialFailed("b", "b:1", "refused"), 1.01)
    made.take_changes()
    effects = made.tick(11.0)
    assert made.doubting
    assert changes(made) == [("a", Status.SUSPECT, Status.ALIVE), ("b", Status.DEAD, Status.ALIVE)]
    assert "b" in dialled(effects)
    made.dial_failed(DialFailed("b", "b:1", "refused"), 11.01)
    assert status(made, "b") is Status.DEAD, "asked anew, same answer"
    made.received(Voter("c", 1), Probe(1), 11.02)
    assert not made.doubting


def test_doubt_ends_after_a_whole_probing_period_without_answers() -> None:
    made = roster("a")
    made.tick(10.0)
    assert made.doubting
    run_until(made, 10.0 + KNOBS.probe_period_s)
    assert not made.doubting


def test_a_lone_peer_never_doubts_and_punctual_ticks_never_cause_doubt() -> None:
    alone = roster()
    alone.tick(100.0)
    assert not alone.doubting
    made = roster("a", "b")
    run_until(made, 50.0)
    assert not made.doubting


def test_proven_deaths_survive_doubt() -> None:
    made = roster("a", "b")
    made.received(Voter("a", 1), Leave("a", 1), 1.0)
    made.tick(20.0)
    assert made.doubting and made.is_dead(Voter("a", 1))


# --- bounds ----------------------------------------------------------------------------------------------------------


def test_the_dead_are_forgotten_in_time_but_the_verdict_stays() -> None:
    made = roster("a", "b")
    made.link_lost(LinkLost("a", 1, "reset"), 1.0)
    made.dial_failed(DialFailed("a", "a:1", "refused"), 1.0)
    effects = []
    while made.get("a") is not None:
        effects = made.tick(made.deadline())
        for peer in dialled(effects):
            made.dial_failed(DialFailed(peer, "a:1", "refused"), made.deadline())
        assert made.deadline() < 2 * KNOBS.forget_dead_s
    assert made.is_dead(Voter("a", 1)) and not made.is_dead(Voter("a", 2))
    made.received(Voter("b", 1), Gossip((line("a"),)), made.deadline())
    assert made.get("a") is None, "an old line does not bring it back"


def test_the_dead_are_dialled_now_and_then() -> None:
    made = roster("a")
    made.link_lost(LinkLost("a", 1, "reset"), 1.0)
    made.dial_failed(DialFailed("a", "a:1", "refused"), 1.0)
    assert dialled(run_until(made, 20.0)).count("a") >= 3
    made.link_up(LinkUp(info("a"), 0, True), 20.0)
    assert status(made, "a") is Status.ALIVE


def test_describe_is_one_line() -> None:
    made = roster("a", "b")
    made.link_lost(LinkLost("a", 1, "silent"), 1.0)
    assert made.describe() == "3 members: 2 alive, 1 suspect; 1 links; suspected: a (pings unanswered)"


# --- properties ------------------------------------------------------------------------------------------------------

LINES = st.builds(
    Member,
    st.builds(PeerInfo, st.just("x"), st.integers(1, 3), joined_round=st.integers(-1, 2), region=st.sampled_from("pq")),
    st.integers(0, 3),
    st.sampled_from(list(Status)),
)


@pytest.mark.parametrize(
    ("loses", "wins"),
    [
        (line("x", incarnation=3), line("x", Status.SUSPECT, 3)),
        (line("x", Status.SUSPECT, 3), line("x", Status.DEAD, 3)),
        (line("x", Status.DEAD, 3), line("x", incarnation=4)),
        (line("x", incarnation=9), line("x", Status.LEFT, 0)),
        (line("x", Status.LEFT, 9), line("x", life=2)),
    ],
)
def test_precedence(loses: Member, wins: Member) -> None:
    assert merge(loses, wins) == merge(wins, loses) == wins


@given(LINES, LINES, LINES)
def test_merging_is_commutative_associative_idempotent(one: Member, two: Member, three: Member) -> None:
    assert merge(one, two) == merge(two, one)
    assert merge(merge(one, two), three) == merge(one, merge(two, three))
    assert merge(one, merge(one, two)) == merge(one, two)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 3), st.sampled_from(list(Status))), min_size=1, max_size=8),
    st.randoms(use_true_random=False),
)
def test_rosters_that_heard_the_same_lines_agree_whatever_the_order(said, rng) -> None:
    """Without a link of its own, a roster's line is the merge of what it was told, in any order and number."""
    lines = [line("x"), *(line("x", status, incarnation) for incarnation, status in said)]
    merged = lines[0]
    for heard in lines:
        merged = merge(merged, heard)
    for _ in range(2):
        made = roster("a", mesh_max=0)
        made.received(Voter("a", 1), Gossip((line("x"),)), 1.0)
        rng.shuffle(lines)
        for heard in lines + lines[::-1]:
            made.received(Voter("a", 1), Gossip((heard,)), 1.0)
            made.check()
        known = made.get("x")
        assert known is not None
        assert (known.incarnation, known.status) == (merged.incarnation, merged.status)


def effect_to_stopped(effect: Effect, stopped: set[str]) -> bool:
    return isinstance(effect, Send) and effect.to in stopped


class Table:
    """A few rosters with instant links; messages are lost by chance; nobody dies unless told so."""

    def __init__(self, peers: str, seed: int, loss: float) -> None:
        self.rng = random.Random(seed)
        self.loss = loss
        self.now = 0.0
        self.rosters = {p: Roster(info(p), KNOBS, random.Random(f"{seed}{p}")) for p in peers}
        self.cut: set[frozenset[str]] = set()
        self.stopped: set[str] = set()
        self.queue: list[tuple[str, Effect]] = []
        for peer in peers[1:]:
            self.connect(peer, peers[0])

    def connect(self, one: str, other: str) -> None:
        for here, there in ((one, other), (other, one)):
            incarnation = self.rosters[there].incarnation
            self.do(here, self.rosters[here].link_up(LinkUp(info(there), incarnation, here == one), self.now))

    def do(self, peer: str, effects: list[Effect]) -> None:
        self.queue += [(peer, effect) for effect in effects]

    def settle(self) -> None:
        while self.queue:
            here, effect = self.queue.pop(0)
            made = self.rosters[here]
            if isinstance(effect, Dial):
                if effect.peer not in self.rosters:
                    self.do(here, made.dial_failed(DialFailed(effect.peer, "", "refused"), self.now))
                elif frozenset((here, effect.peer)) in self.cut or effect.peer in self.stopped:
                    self.do(here, made.dial_failed(DialFailed(effect.peer, "", "timeout"), self.now))
                else:
                    self.connect(here, effect.peer)
            elif effect_to_stopped(effect, self.stopped):
                continue
            elif isinstance(effect, Send) and effect.to in self.rosters and made.linked(effect.to):
                there = self.rosters[effect.to]
                if there.linked(here) and self.rng.random() >= self.loss:
                    self.do(effect.to, there.received(Voter(here, 1), effect.message, self.now))

    def run(self, seconds: float) -> None:
        end = self.now + seconds
        while True:
            self.settle()
            for made in self.rosters.values():
                made.check()
            running = {peer: made for peer, made in self.rosters.items() if peer not in self.stopped}
            self.now = min(made.deadline() for made in running.values())
            if self.now > end:
                self.now = end
                return
            for peer, made in running.items():
                self.do(peer, made.tick(self.now))

    def break_link(self, one: str, other: str, cause: str) -> None:
        for here, there in ((one, other), (other, one)):
            if here in self.rosters and here not in self.stopped:
                self.do(here, self.rosters[here].link_lost(LinkLost(there, 1, cause), self.now))

    def deaths(self) -> list[tuple[str, str]]:
        return [
            (here, change.peer)
            for here, made in self.rosters.items()
            for change in made.take_changes()
            if change.after is Status.DEAD
        ]


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from([0.0, 0.2, 0.6]))
def test_lost_messages_alone_evict_nobody(seed: int, loss: float) -> None:
    table = Table("abcde", seed, loss)
    table.run(30.0)
    assert table.deaths() == []
    if loss < 0.5:
        assert all(len(made.present()) == 5 for made in table.rosters.values())


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000))
def test_a_broken_link_between_two_evicts_nobody(seed: int) -> None:
    table = Table("abcde", seed, 0.0)
    table.run(3.0)
    table.cut.add(frozenset("bc"))
    table.break_link("b", "c", "silent")
    table.run(20.0)
    assert table.deaths() == []
    assert status(table.rosters["b"], "c") is Status.LINK_DOWN
    table.cut.clear()
    table.run(20.0)
    assert table.rosters["b"].linked("c")
    assert status(table.rosters["b"], "c") is Status.ALIVE


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from(["reset", "silent"]))
def test_a_real_death_is_one_change_for_everybody(seed: int, cause: str) -> None:
    table = Table("abcde", seed, 0.0)
    table.run(3.0)
    del table.rosters["c"]
    for other in "abde":
        table.break_link(other, "c", cause)
    table.run(0.1)
    assert sorted(table.deaths()) == [(p, "c") for p in "abde"], "refused: at once"
    table.run(20.0)
    assert table.deaths() == []


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10_000))
def test_two_halves_of_a_partition_find_each_other_again(seed: int) -> None:
    table = Table("abcd", seed, 0.0)
    table.run(3.0)
    for one in "ab":
        for other in "cd":
            table.cut.add(frozenset((one, other)))
            table.break_link(one, other, "silent")
    table.run(10.0)
    assert len(table.deaths()) == 8, "each side holds the other dead"
    table.cut.clear()
    table.run(20.0)
    for made in table.rosters.values():
        assert [m.status for m in made.members()] == [Status.ALIVE] * 4
        assert len([p for p in "abcd" if made.linked(p)]) == 3


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from([1.5, 10.0, 100.0]))
def test_a_stopped_peer_is_held_dead_and_comes_back_without_verdicts_of_its_own(seed: int, seconds: float) -> None:
    table = Table("abcd", seed, 0.0)
    table.run(3.0)
    table.stopped.add("c")
    for other in "abd":
        table.break_link(other, "c", "silent")
    table.run(seconds)
    assert sorted(table.deaths()) == [(p, "c") for p in "abd"]
    table.stopped.clear()
    table.do("c", table.rosters["c"].tick(table.now))
    assert table.rosters["c"].doubting
    for other in "abd":  # its side of the links ends now
        table.do("c", table.rosters["c"].link_lost(LinkLost(other, 1, "reset"), table.now))
    table.run(20.0)
    assert table.deaths() == []
    for made in table.rosters.values():
        assert not made.doubting
        assert [m.status for m in made.members()] == [Status.ALIVE] * 4


def test_a_dial_that_never_ends_counts_as_timed_out() -> None:
    made = roster("a")
    made.link_lost(LinkLost("a", 1, "reset"), 1.0)
    run_until(made, 1.0 + 2 * KNOBS.dial_timeout_s + 0.01)
    assert status(made, "a") is Status.SUSPECT
    run_until(made, 1.0 + 2 * KNOBS.dial_timeout_s + KNOBS.suspicion_s + 0.02)
    assert status(made, "a") is Status.DEAD


def test_hello_of_a_known_link_updates_the_description() -> None:
    made = roster("a")
    newer = replace(info("a"), region="here")
    made.received(Voter("a", 1), Hello("run", newer, 1), 1.0)
    assert made.get("a").info.region == "here"  # type: ignore[union-attr]
    assert made.received(Voter("a", 1), Hello("run", info("b"), 1), 1.0) == [], "nobody speaks for another"


def test_in_a_crowd_a_member_keeps_a_few_links_and_dials_no_more() -> None:
    """A newcomer told of hundreds dials none of them at once; then one a second, until it has enough."""
    crowd = tuple(replace(line(f"p{n:03}"), info=replace(info(f"p{n:03}"), addresses=(ADDRESS,))) for n in range(300))
    made = Roster(info("a"), KNOBS, random.Random(1))
    made.link_up(LinkUp(info("m"), 0, True), 1.0)
    pieces = [crowd[start : start + WHOLE_LINES] for start in range(0, 300, WHOLE_LINES)]
    for piece in pieces:
        assert not dialled(made.received(Voter("m", 1), Gossip(piece, whole=True), 1.0))
    now = 1.0
    while now < 30.0:
        now = max(now, made.deadline())
        for effect in made.tick(now):
            if isinstance(effect, Dial):
                made.link_up(LinkUp(info(effect.peer), 0, True), now)
            elif isinstance(effect, Send) and isinstance(effect.message, Probe):
                made.received(Voter(effect.to, 1), ProbeAck(effect.message.seq), now)
        made.check()
    linked = [member.info.peer for member in made.members() if made.linked(member.info.peer)]
    assert len(linked) == LINKS_MIN and "m" in linked
