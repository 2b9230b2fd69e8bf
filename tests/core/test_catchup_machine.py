"""How state comes here, under answers in any order, lost donors and lies (Hypothesis).

A joiner meets donors that offer, refuse, lie, go away and come back, at any time. After every step: it waits for
nothing without a deadline, it loads nothing but a snapshot of which every chunk was verified, and it stands on a state
only after that very state was loaded. At the end one honest donor is left: with it the joiner comes up.
"""

from __future__ import annotations

import math
import random

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from p2ptrain.core import events as ev
from p2ptrain.core import messages as msg
from p2ptrain.core.catchup import CatchUp
from p2ptrain.core.desk import Desk
from p2ptrain.core.rounds import StageRound
from p2ptrain.core.types import BaseDigest, Head, Record, RunSpec, SnapshotInfo, Stage, Voter, cut_of, digest_of

RUN = RunSpec("run", (Stage(0, 0, 0, 100),), 4)
DONORS = "abcd"
PEERS = st.sampled_from(DONORS)
ROUNDS = st.integers(2, 4)
CHUNKS = 5


def snapshot(round: int, lie: bool = False) -> SnapshotInfo:
    """What an honest donor offers for ``round``; a liar's has other chunks under the same record."""
    record = Record(0, 0, round, b"p", b"", (), (), 0.0, 1.0, (Voter("a", 1),), 4 * round, 4 * round)
    chunks = tuple(digest_of((round, lie, index)) for index in range(CHUNKS))
    return SnapshotInfo(0, record, digest_of(("chain", round)), CHUNKS * 10, 10, chunks)


def head(round: int) -> Head:
    record = snapshot(round).record
    return Head(0, record.samples_total, round, cut_of((record,)))


class Joining(RuleBasedStateMachine):
    @initialize()
    def start(self) -> None:
        self.desk = Desk(Voter("z", 1), random.Random(0))
        self.linked: set[str] = set()
        self.stage = StageRound(RUN, RUN.stages[0], self.desk, lambda: [*sorted(self.linked), "z"])
        self.asked: set[tuple[str, int]] = set()
        self.pulls: dict[tuple[bytes, int, str], SnapshotInfo] = {}
        self.verified: dict[bytes, set[int]] = {}
        self.loading: SnapshotInfo | None = None
        self.loads = 0
        self.catchup = CatchUp(self.stage, donors=lambda: sorted(self.linked), loaded=self._loaded)
        self.catchup.start("joins")
        self._out()

    # --- donors --------------------------------------------------------------------------------------------------

    @rule(peer=PEERS, round=ROUNDS)
    def meet(self, peer: str, round: int) -> None:
        self.linked.add(peer)
        self.catchup.note_head(peer, head(round))
        self._out()

    @rule(peer=PEERS)
    def lose(self, peer: str) -> None:
        self.linked.discard(peer)
        self.catchup.peer_lost(peer)
        self._out()

    @precondition(lambda self: self.asked)
    @rule(data=st.data(), lie=st.booleans(), refuses=st.booleans())
    def answer(self, data: st.DataObject, lie: bool, refuses: bool) -> None:
        peer, round = data.draw(st.sampled_from(sorted(self.asked)))
        self.asked.discard((peer, round))
        info = None if refuses else snapshot(round, lie)
        self.catchup.on_offer(Voter(peer, 1), msg.SnapshotOffer(0, round, info, "past" if refuses else ""))
        self._out()

    @rule(peer=PEERS, round=ROUNDS, lie=st.booleans())
    def offers_unasked(self, peer: str, round: int, lie: bool) -> None:
        self.catchup.on_offer(Voter(peer, 1), msg.SnapshotOffer(0, round, snapshot(round, lie), head=head(round)))
        self._out()

    # --- the hands -----------------------------------------------------------------------------------------------

    @precondition(lambda self: self.pulls)
    @rule(data=st.data(), end=st.sampled_from(["pulled", "pulled", "pulled", "failed", "corrupt", "stale"]))
    def chunk(self, data: st.DataObject, end: str) -> None:
        key, index, peer = data.draw(st.sampled_from(sorted(self.pulls)))
        self._end_chunk(key, index, peer, end)

    @precondition(lambda self: self.loading is not None)
    @rule(good=st.booleans(), other=st.booleans())
    def load(self, good: bool, other: bool) -> None:
        assert self.loading is not None
        if other:  # of a load that was given up long ago
            self.catchup.on_loaded(ev.StateLoaded(digest_of("other"), BaseDigest(b"x")))
            assert self.loads == 0 and self.catchup.phase == "loading"
            return
        info, self.loading = self.loading, None
        if good:
            self.catchup.on_loaded(ev.StateLoaded(info.key, BaseDigest(info.chain)))
            assert self.stage.tip == info.record and self.stage.chain == info.chain
        else:
            self.catchup.on_load_failed(ev.StateFailed(info.key, "not what its record says"))
            assert self.stage.tip is None
        self._out()

    @rule(late_s=st.sampled_from([0.0, 0.5, 40.0]))
    def time(self, late_s: float) -> None:
        if self.catchup.deadline() < math.inf:
            self.desk.now = max(self.desk.now, self.catchup.deadline()) + late_s
        self.catchup.tick()
        self._out()

    # --- what must hold ------------------------------------------------------------------------------------------

    @invariant()
    def waits_for_nothing_without_a_deadline(self) -> None:
        if not hasattr(self, "catchup"):
            return
        catchup = self.catchup
        if catchup.pull is not None:
            catchup.pull.check()
        if catchup.phase in ("asking", "pulling"):
            assert catchup.deadline() < math.inf, f"{catchup.phase} for ever"
        assert (catchup.phase == "loading") == (self.loading is not None)
        assert (catchup.phase == "current") == (self.stage.tip is not None)
        assert self.stage.pulling == (catchup.phase in ("pulling", "loading"))
        if catchup.phase not in ("current", "loading"):
            assert catchup.reason, "a wait says why"

    def teardown(self) -> None:
        """Everybody goes; one honest donor comes and answers all that it is asked."""
        if not hasattr(self, "catchup"):
            return
        for peer in DONORS:
            self.lose(peer)
        if self.loading is not None:
            self.load(good=False, other=False)
        self.linked.add("h")
        self.catchup.note_head("h", head(9))
        self._out()
        for _ in range(200):
            if self.catchup.phase == "current":
                break
            self._honest_step()
            self.waits_for_nothing_without_a_deadline()
        assert self.stage.tip is not None, f"not loaded: {self.catchup.phase}, {self.catchup.pull}"

    def _honest_step(self) -> None:
        mine = [entry for entry in self.pulls if entry[2] == "h"]
        if self.loading is not None:
            self.load(good=True, other=False)
        elif mine:
            self._end_chunk(*mine[0], "pulled")
        elif any(peer == "h" for peer, _ in self.asked):
            asked = next(entry for entry in sorted(self.asked) if entry[0] == "h")
            self.asked.discard(asked)
            info = snapshot(asked[1]) if asked[1] == 9 else None
            self.catchup.on_offer(Voter("h", 1), msg.SnapshotOffer(0, asked[1], info, "" if info else "past"))
            self._out()
        else:
            self.time(0.0)

    # --- helpers -------------------------------------------------------------------------------------------------

    def _end_chunk(self, key: bytes, index: int, peer: str, end: str) -> None:
        if end == "stale":
            self.catchup.on_chunk(ev.ChunkPulled(digest_of("old"), index, peer, 10, 0.1))
            self.catchup.on_chunk(ev.ChunkFailed(key, index, "nobody", "stale"))
        else:
            del self.pulls[key, index, peer]
            if end == "pulled":
                self.verified.setdefault(key, set()).add(index)
                self.catchup.on_chunk(ev.ChunkPulled(key, index, peer, 10, 0.1))
            else:
                self.catchup.on_chunk(ev.ChunkFailed(key, index, peer, "planted", end == "corrupt"))
        self._out()

    def _loaded(self) -> None:
        self.loads += 1
        assert self.loads == 1

    def _out(self) -> None:
        for effect in self.desk.take():
            if isinstance(effect, ev.Send) and isinstance(effect.message, msg.SnapshotAsk):
                assert effect.to in self.linked, "asked somebody who cannot hear"
                self.asked.add((effect.to, effect.message.round))
            elif isinstance(effect, ev.PullChunk):
                assert effect.info.key == effect.key
                self.pulls[effect.key, effect.index, effect.peer] = effect.info
            elif isinstance(effect, ev.StopChunk):
                self.pulls.pop((effect.key, effect.index, effect.peer), None)
            elif isinstance(effect, ev.LoadState):
                assert self.loading is None
                assert self.verified.get(effect.info.key, set()) == set(range(CHUNKS)), "loads what is not verified"
                self.loading = effect.info
        if self.catchup.pull is None:
            self.pulls.clear()  # its sink is closed with it


def test_state_comes_or_fails_by_name_in_any_order() -> None:
    examples = settings().max_examples * 3 // 5
    run_state_machine_as_test(Joining, settings=settings(max_examples=examples, stateful_step_count=40))
