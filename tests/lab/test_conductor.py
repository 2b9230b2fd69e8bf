"""A real short run of three peers on plain loopback, and what must be gone however a run ends."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from p2ptrain.errors import ConfigError
from p2ptrain.lab.conductor import Progress, conduct
from p2ptrain.lab.expectations import is_met, judge
from p2ptrain.lab.loopback import NoWan, is_plain
from p2ptrain.lab.planned import check_fits, planned_mbps
from p2ptrain.lab.timeline import spell_out
from p2ptrain.lab.wan import Host, Shape
from tests.lab.scenarios import event, scenario
from tests.lab.waiting import gone

KILL = event(2.5, "kill", peers=["a1"]) + event(3.2, "join", peers=["a1"])
HURT = KILL + event(4.0, "slow", peers=["a2"], microbatch_s=0.06) + event(4.0, "skew", peers=["a2"], seconds=90.0)
HURT += event(4.5, "fill_disk", peers=["a0"]) + event(5.5, "free_disk", peers=["a0"])
EXPECT = "[expect]\ndigests_equal = true\ncommitted_never_drop = true\nrounds_at_least = 5\nstalled = []\n"


class FakeWan(NoWan):
    """Loopback that notes what it is asked for."""

    kind = "fake"

    def __init__(self, late_s: float = 0.0) -> None:
        self.asked: list[tuple[Any, ...]] = []
        self.late_s = late_s
        self.closed = 0

    def shape(self, source: str, target: str, shape: Shape) -> None:
        self.asked.append(("shape", source, target, shape.delay_s))

    def cut(self, source: str, target: str, is_cut: bool = True) -> None:
        self.asked.append(("cut", source, target, is_cut))

    def corrupt(self, source: str, chance: float) -> None:
        self.asked.append(("corrupt", source, chance))

    def bytes_by_link(self) -> dict[tuple[str, str], int]:
        return {("a0", "a1"): 10, ("a1", "a0"): 0}

    def lateness_p99_s(self) -> float:
        return self.late_s

    def close(self) -> None:
        self.closed += 1


@pytest.mark.e2e
def test_three_peers_a_kill_and_a_return(tmp_path: Path) -> None:
    hurt = scenario(HURT + EXPECT, seconds=8.0)
    told: list[Progress] = []
    record = conduct(hurt, spell_out(hurt), tmp_path, on_progress=told.append)
    assert record.mode == "loopback" and record.valid
    verdicts = judge(record, hurt.expect, times_decide=False)
    assert is_met(verdicts), verdicts
    assert [life.name for life in record.lives] == ["a0", "a1", "a2", "a1"]
    assert [life.ended for life in record.lives] == ["", "kill", "", ""]
    assert len({record.lives[1].peer, record.lives[3].peer} - {""}) == 1, "the same machine came back"
    assert [h.do for h in record.happenings] == ["join", "kill", "join", "slow", "skew", "fill_disk", "free_disk"]
    assert all(happening.next_commit_s is not None for happening in record.happenings[:2])
    assert record.rounds and record.losses and all(f.t <= record.seconds for f in record.rounds)
    assert record.lives[2].own_samples_per_s < record.lives[0].own_samples_per_s
    assert told[-1].round >= 1 and any(progress.said.startswith("kill") for progress in told)
    record.save(tmp_path / "record.json")


@pytest.mark.e2e
def test_the_wan_is_asked_and_closed_and_a_late_one_makes_the_run_invalid(tmp_path: Path) -> None:
    more = event(0.5, "cut", between=["a0", "a1"], one_way=True)
    more += event(0.6, "corrupt", peers=["a0"], chance=0.5) + event(0.8, "heal") + EXPECT
    cut = scenario(more, seconds=1.2, count=2, delay_ms=10.0)
    wan = FakeWan(late_s=0.002)
    record = conduct(cut, spell_out(cut), tmp_path, open_wan=lambda hosts, reduced: wan)
    assert wan.closed == 1
    assert ("shape", "a0", "a1", 0.01) in wan.asked and ("shape", "a1", "a0", 0.01) in wan.asked
    changes = [asked for asked in wan.asked if asked[0] != "shape"]
    assert changes[0] == ("cut", "a0", "a1", True) and changes[1] == ("corrupt", "a0", 0.5)
    assert ("cut", "a0", "a1", False) in changes
    assert [(link.source, link.target, link.nbytes) for link in record.links] == [("a0", "a1", 10)]
    assert not record.valid and "2.00 ms late" in record.notes[-1]
    assert not is_met(judge(record, cut.expect, times_decide=True))


@pytest.mark.e2e
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_and_nothing_stays(tmp_path: Path, how: signal.Signals) -> None:
    plain = scenario(event(0.1, "stop", peers=["a"]), seconds=60.0, count=1)
    wan = FakeWan()
    pids: list[int] = []
    before = signal.getsignal(how)

    def on_progress(progress: Progress) -> None:
        if progress.said.startswith("stop"):
            pids.extend(_children(tmp_path))
            os.kill(os.getpid(), how)

    with pytest.raises(KeyboardInterrupt):
        conduct(plain, spell_out(plain), tmp_path, open_wan=lambda hosts, reduced: wan, on_progress=on_progress)
    assert wan.closed == 1 and pids
    gone(pids)
    assert signal.getsignal(how) == before


@pytest.mark.e2e
def test_an_error_on_the_way_leaves_nothing(tmp_path: Path) -> None:
    plain = scenario(event(0.2, "cut", between=["a0", "a1"]), seconds=60.0, count=2)
    pids: list[int] = []

    class Broken(FakeWan):
        def cut(self, source: str, target: str, is_cut: bool = True) -> None:
            pids.extend(_children(tmp_path))
            raise OSError("no such device")

    wan = Broken()
    with pytest.raises(OSError, match="no such device"):
        conduct(plain, spell_out(plain), tmp_path, open_wan=lambda hosts, reduced: wan)
    assert wan.closed == 1 and pids
    gone(pids)


def _children(folder: Path) -> list[int]:
    """The processes whose standard output is a log below ``folder``: the peers."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if os.readlink(entry / "fd" / "1").startswith(str(folder)):
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


def test_a_wan_that_cannot_be_opened_starts_nothing(tmp_path: Path) -> None:
    def refused(hosts: Sequence[Host], reduced: bool) -> Any:
        assert [host.name for host in hosts] == ["a0", "a1", "a2"]
        raise ConfigError("not allowed here")

    with pytest.raises(ConfigError, match="not allowed"):
        conduct(scenario(), spell_out(scenario()), tmp_path / "run", open_wan=refused)
    assert not (tmp_path / "run").exists() and threading.current_thread() is threading.main_thread()


# --- what does not fit ------------------------------------------------------------------------------------------------


def test_a_scenario_that_plans_more_than_the_emulator_carries_is_refused(tmp_path: Path) -> None:
    timeline = spell_out(scenario(delay_ms=5.0))
    planned = planned_mbps(timeline)
    assert 0 < planned < 100
    check_fits(timeline, planned * 1.01)
    with pytest.raises(ConfigError, match=r"plans .* Mbit/s in all; the emulator carries"):
        conduct(scenario(), timeline, tmp_path / "run", capacity_mbps=planned * 0.99)
    assert not (tmp_path / "run").exists()


def test_more_processes_than_a_machine_should_run_are_refused() -> None:
    with pytest.raises(ConfigError, match="65 peers alive at once"):
        check_fits(spell_out(scenario(count=65)), 0.0)


@pytest.mark.parametrize(
    ("changed", "plain"),
    [
        ({}, True),
        ({"delay_ms": 1.0}, False),
        ({"more": event(1.0, "corrupt", peers=["a1"], chance=0.1)}, False),
        ({"more": event(1.0, "partition", peers=["a1"])}, False),
        ({"more": event(1.0, "kill", peers=["a1"])}, True),
    ],
)
def test_only_a_scenario_without_any_network_runs_on_plain_loopback(changed: dict[str, Any], plain: bool) -> None:
    assert is_plain(spell_out(scenario(**changed))) is plain
