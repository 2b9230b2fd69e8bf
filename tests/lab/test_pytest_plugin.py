"""The pytest plugin: in this suite, in a stranger's folder from an installed wheel, and when the test run is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from p2ptrain.lab.owner import Owner
from p2ptrain.lab.pytest_plugin import ChurnSwarm
from tests.lab.waiting import eventually

ROOT = Path(__file__).resolve().parents[2]
WAIT_S = 60.0


def test_a_death_is_noticed_planned_around_and_costs_no_round(swarm: ChurnSwarm) -> None:
    for name in "abc":
        swarm.start(name)
    swarm.wait_members(3)
    swarm.wait_plan("abc")
    before = swarm.round
    swarm["b"].kill()
    swarm.wait_noticed("b")
    swarm.wait_plan("ac")
    assert swarm.wait_rounds(2) > before
    swarm.start("b")
    swarm.wait_members(3)
    assert swarm.assert_digests_equal() > 0
    swarm.assert_no_round_lost()


@pytest.mark.p2ptrain(network=("a", "b", "c"))
def test_a_partition_that_heals(swarm: ChurnSwarm) -> None:
    for name in "abc":
        swarm.start(name)
    swarm.wait_members(3)
    swarm.partition("c")
    swarm.wait_noticed("c", by=("a", "b"))
    swarm.heal()
    swarm.wait_members(3)


def test_a_cut_without_a_network_says_what_to_do(swarm: ChurnSwarm) -> None:
    with pytest.raises(AssertionError, match="network="):
        swarm.cut("a", "b")


def test_a_wait_in_vain_names_the_log(swarm: ChurnSwarm) -> None:
    a = swarm.start("a")
    with pytest.raises(AssertionError, match=r"a \(.*waited for a round of 9 members.*a\.log"):
        swarm.wait_members(9, timeout_s=0.1)
    assert a.alive


def test_importing_the_plugin_is_cheap() -> None:
    code = (
        "import sys, p2ptrain.lab.pytest_plugin; print([m for m in ('torch', 'grpc', 'pydantic') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=WAIT_S, check=True)
    assert done.stdout.strip() == "[]"


STRANGER = """
def test_a_death_costs_no_round(swarm):
    a, b = swarm.start("a"), swarm.start("b")
    swarm.wait_round(3); b.kill(); a.wait_round(6)
"""


def test_a_stranger_with_the_wheel(tmp_path: Path) -> None:
    """p2ptrain comes from the wheel alone; its dependencies are those of this environment, to save gigabytes."""
    python = fresh_environment(tmp_path / "env", wheel(tmp_path / "dist"))
    folder = tmp_path / "theirs"
    folder.mkdir()
    for name in ("test_one.py", "test_two.py"):
        (folder / name).write_text(STRANGER, encoding="utf-8")
    command = [str(python), "-m", "pytest", "-n", "2", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=200.0, env=plain_environment())
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout
    where = subprocess.run(
        [str(python), "-c", "import p2ptrain; print(p2ptrain.__file__)"],
        cwd=folder, capture_output=True, text=True, timeout=WAIT_S, check=True, env=plain_environment(),
    )  # fmt: skip
    assert str(tmp_path / "env") in where.stdout


HANGS = """
import os, time
from pathlib import Path
def test_hangs(swarm):
    a, b = swarm.start("a"), swarm.start("b")
    b.stop()
    ids = [str(peer.process.pid) for peer in (a, b)]
    Path("ids.part").write_text(" ".join([*ids, str(os.getpid())]))
    os.replace("ids.part", "ids")
    time.sleep(600)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="processes are told apart by /proc")
@pytest.mark.parametrize("options", [[], ["-n", "2"]], ids=["alone", "xdist"])
def test_nothing_is_left_when_the_test_run_is_killed(tmp_path: Path, options: list[str]) -> None:
    (tmp_path / "test_hangs.py").write_text(HANGS, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options]
    run = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        eventually(lambda: (tmp_path / "ids").exists() or run.poll() is not None, "the peers run")
        assert run.poll() is None
        peers = [Owner.of(int(pid)) for pid in (tmp_path / "ids").read_text(encoding="utf-8").split()]
        assert all(peer.lives for peer in peers)
    finally:
        os.kill(run.pid, signal.SIGKILL)
        run.wait(WAIT_S)
    eventually(lambda: not any(peer.lives for peer in peers), f"processes {[peer.pid for peer in peers]} are gone")


def wheel(folder: Path) -> Path:
    command = [sys.executable, "-m", "build", "--wheel", "--outdir", str(folder), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200.0)
    assert done.returncode == 0, done.stdout + done.stderr
    return next(folder.glob("*.whl"))


def fresh_environment(folder: Path, built: Path) -> Path:
    """Its interpreter. Our own environment's packages come after its own, by a path file."""
    venv.create(folder, with_pip=False)
    site = next((folder / "lib").glob("python3*")) / "site-packages"
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(site), str(built)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200.0)
    assert done.returncode == 0, done.stdout + done.stderr
    ours = Path(pytest.__file__).resolve().parents[1]
    (site / "ours.pth").write_text(f"{ours}\n", encoding="utf-8")
    return folder / "bin" / "python"


def plain_environment() -> dict[str, str]:
    return {key: value for key, value in os.environ.items() if not key.startswith(("PYTEST", "PYTHONPATH"))}
