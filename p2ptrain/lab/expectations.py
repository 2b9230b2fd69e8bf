"""Expectations turn the record of a run into a verdict each. Pure: a record in, verdicts out; the same for lab and sim.

    verdicts = judge(record, scenario.expect, times_decide=False)
    all(verdict.ok for verdict in verdicts if verdict.decides)

Facts (digests, rounds, who trains) always decide. Times (a stall, goodput) decide only where asked for: in CI the
machine is shared. A record of a run that was not valid has not met anything.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from p2ptrain.lab.record import PeerLife, Record
from p2ptrain.lab.scenario import Expect

TIMES = frozenset({"stall_per_kill_s", "goodput_at_least"})


@dataclass(frozen=True)
class Verdict:
    """One expectation. ``ok`` None: cannot be told from this record (the simulator has no loss): never decides."""

    name: str
    asked: str
    got: str
    ok: bool | None
    decides: bool

    @property
    def failed(self) -> bool:
        return self.decides and self.ok is not True


def judge(record: Record, expect: Expect, *, times_decide: bool) -> list[Verdict]:
    """A verdict for each expectation that is asked for, in the order of ``Expect``; "valid" first.

    A record is not valid where the emulator itself was late: a time like the others. Where times decide, nothing is met
    then; where they are only printed, facts (equal digests, no round lost) stand on any machine.
    """
    reasons = [note for note in record.notes if note.startswith("not valid")] or record.notes
    found = "yes" if record.valid else f"no: {'; '.join(reasons)}"
    verdicts = [Verdict("valid", "yes", found, record.valid, times_decide)]
    for name in Expect.model_fields:
        asked = getattr(expect, name)
        if asked is None:
            continue
        got, ok = JUDGES[name](record, asked)
        if not record.valid and (times_decide or name in TIMES):
            got, ok = f"not valid ({got})", False
        decides = ok is not None and (times_decide or name not in TIMES)
        verdicts.append(Verdict(name, _text(asked), got, ok, decides))
    return verdicts


def is_met(verdicts: list[Verdict]) -> bool:
    return not any(verdict.failed for verdict in verdicts)


def goodput(record: Record) -> float | None:
    """Counted samples by the samples that the peers alone would have made in the time they were alive; None: no time.

    A life counts from the start of its process until its end, with everything it needs to come up.
    """
    ideal = sum(life.own_samples_per_s * _alive_s(record, life) for life in record.lives)
    return counted_samples(record) / ideal if ideal else None


def counted_samples(record: Record) -> int:
    return sum(fact.counted for fact in record.rounds) * record.microbatch_samples


def digests(record: Record) -> tuple[int, list[int]]:
    """(rounds compared between lives, rounds of which two histories stand).

    What a life applied before it gave up its history for a greater one is compared with nobody.
    """
    held: dict[int, dict[int, str]] = defaultdict(dict)
    for _, life, round, digest in _kept(record):
        held[round][life] = digest
    compared = [round for round, by_life in held.items() if len(by_life) > 1]
    return len(compared), sorted(round for round in compared if len(set(held[round].values())) > 1)


def abandoned_rounds(record: Record) -> set[int]:
    return {round for _, _, first, last in record.abandoned for round in range(first, last + 1)}


# --- one function per expectation -------------------------------------------------------------------------------------


def _digests_equal(record: Record, asked: bool) -> tuple[str, bool]:
    compared, unequal = digests(record)
    got = f"{compared} rounds compared"
    if unequal:
        got += f", two digests of {_numbers(unequal)}"
    elif not compared:
        got += ": no round was applied by two peers"
    return got, (bool(compared) and not unequal) is asked


def _committed_never_drop(record: Record, asked: bool) -> tuple[str, bool]:
    """No round given up, and nobody ever applied a round at or below one that it had."""
    given_up = sorted(abandoned_rounds(record))
    back: list[str] = []
    last: dict[int, int] = {}
    for _, life, round, _ in record.applied:
        if round <= last.get(life, -1):
            back.append(f"{record.lives[life].name} went from {last[life]} to {round}")
        last[life] = round
    told = [f"gave up {_numbers(given_up)}"] if given_up else []
    held = not given_up and not back
    return "; ".join(told + back[:3]) or "none dropped", held is asked


def _rounds_at_least(record: Record, asked: int) -> tuple[str, bool]:
    last = last_round(record)
    return str(last), last >= asked


def _all_alive_train(record: Record, asked: bool) -> tuple[str, bool]:
    applied: dict[int, int] = {}
    for _, life, round, _ in record.applied:
        applied[life] = round
    alive = [index for index, life in enumerate(record.lives) if not life.ended]
    last = max((applied.get(index, 0) for index in alive), default=0)
    behind = [f"{record.lives[i].name} at {applied.get(i, 0)}" for i in alive if applied.get(i, 0) < last - 1]
    got = f"{len(alive) - len(behind)} of {len(alive)} alive at round {last} or the one before"
    if behind:
        got += f" ({', '.join(behind)})"
    return got, (bool(alive) and last > 0 and not behind) is asked


def _abandoned_at_most(record: Record, asked: int) -> tuple[str, bool]:
    given_up = sorted(abandoned_rounds(record))
    return f"{len(given_up)}" + (f" ({_numbers(given_up)})" if given_up else ""), len(given_up) <= asked


def _stalled(record: Record, asked: tuple[str, ...]) -> tuple[str, bool]:
    stalled = sorted({life.name for life in record.lives if life.ended == "StalledError"})
    return ", ".join(stalled) or "none", stalled == sorted(asked)


def _loss_at_most(record: Record, asked: float) -> tuple[str, bool | None]:
    if record.losses:
        _, round, loss = max(record.losses, key=lambda item: item[1])
        return f"{loss:.4f} after round {round}", loss <= asked
    if record.kind == "sim":
        return "not measured in the simulator", None
    return "no held-out loss was measured ([run.evaluate] every_rounds)", False


def _stall_per_kill_s(record: Record, asked: float) -> tuple[str, bool]:
    """The longest. A kill so close to the end that ``asked`` was not over yet is not judged."""
    stalls: list[tuple[float, bool]] = []
    for happening in record.happenings:
        if happening.do == "kill":
            if happening.next_commit_s is not None:
                stalls.append((happening.next_commit_s, True))
            elif record.seconds - happening.t > asked:
                stalls.append((record.seconds - happening.t, False))
    if not stalls:
        return "no kill to measure", False
    worst, ended = max(stalls)
    got = f"{worst:.3f} s at worst, {len(stalls)} kills" if ended else f"no commit for {worst:.1f} s until the end"
    return got, worst <= asked


def _goodput_at_least(record: Record, asked: float) -> tuple[str, bool]:
    share = goodput(record)
    return ("no time to measure", False) if share is None else (f"{share:.3f}", share >= asked)


JUDGES: dict[str, Callable[[Record, Any], tuple[str, bool | None]]] = {
    "digests_equal": _digests_equal,
    "committed_never_drop": _committed_never_drop,
    "rounds_at_least": _rounds_at_least,
    "all_alive_train": _all_alive_train,
    "abandoned_at_most": _abandoned_at_most,
    "stalled": _stalled,
    "loss_at_most": _loss_at_most,
    "stall_per_kill_s": _stall_per_kill_s,
    "goodput_at_least": _goodput_at_least,
}


# --- helpers ----------------------------------------------------------------------------------------------------------


def last_round(record: Record) -> int:
    return max((round for _, _, round, _ in record.applied), default=0)


def _kept(record: Record) -> Iterator[tuple[float, int, int, str]]:
    since: dict[str, float] = {}
    for t, name, _, _ in record.abandoned:
        since[name] = max(t, since.get(name, 0.0))
    for t, life, round, digest in record.applied:
        if t >= since.get(record.lives[life].name, 0.0):
            yield t, life, round, digest


def _alive_s(record: Record, life: PeerLife) -> float:
    return max(0.0, (record.seconds if life.ended_s is None else life.ended_s) - life.began_s)


def _numbers(rounds: list[int]) -> str:
    shown = ", ".join(map(str, rounds[:5]))
    return f"{'round' if len(rounds) == 1 else 'rounds'} {shown}{', ...' if len(rounds) > 5 else ''}"


def _text(asked: object) -> str:
    if isinstance(asked, tuple):
        return ", ".join(map(str, asked)) or "none"
    return {True: "yes", False: "no"}.get(asked, str(asked)) if isinstance(asked, bool) else str(asked)
