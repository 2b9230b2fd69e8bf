"""A wrong clock and a full disk, each in a process of its own; and peers that die with whoever started them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.lab.waiting import gone

CLOCK = """
import time
from p2ptrain.lab.faults import skew_clock
from p2ptrain.net import certificates
real, seen, mono = time.time, time.time(), time.monotonic()
skew_clock(3600.0)
assert 3599 < time.time() - seen < 3660, time.time() - seen
assert 3599 < certificates._now().timestamp() - seen < 3660
assert time.monotonic() - mono < 60
skew_clock(-60.0)
assert time.time() < seen
skew_clock(0.0)
assert 0 <= time.time() - seen < 60
print("ok")
"""

DISK = """
import os, sys
from p2ptrain.lab.faults import limit_files
path = sys.argv[1]
def write(text):
    with open(path, "a") as file:
        file.write(text)
write("one")
limit_files(os.getpid(), True)
try:
    write("two")
except OSError as error:
    pass
else:
    raise SystemExit("it was written")
os.write(1, b"a pipe is no file\\n")
limit_files(os.getpid(), False)
write("three")
print("ok")
"""

PARENT = """
import sys, time
from pathlib import Path
from p2ptrain.lab.processes import Swarm
from p2ptrain.lab.timeline import spell_out
from tests.lab.scenarios import scenario
if __name__ == "__main__":
    swarm = Swarm(Path(sys.argv[1]), spell_out(scenario(count=1)).manifest)
    peers = [swarm.start("a"), swarm.start("b")]
    peers[1].stop()
    print(*(peer.process.pid for peer in peers), flush=True)
    time.sleep(120)
"""


def run(code: str, *words: object) -> str:
    done = subprocess.run([sys.executable, "-c", code, *map(str, words)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_wrong_clock_can_be_set_again_and_put_right() -> None:
    assert run(CLOCK).strip() == "ok"


@pytest.mark.skipif(sys.platform != "linux", reason="a limit of Linux")
def test_a_full_disk_refuses_bytes_and_takes_them_again(tmp_path: Path) -> None:
    path = tmp_path / "file"
    assert run(DISK, path).splitlines()[-1] == "ok"
    assert path.read_text() == "onethree"


@pytest.mark.e2e
@pytest.mark.skipif(sys.platform != "linux", reason="a signal of Linux")
def test_peers_die_with_a_parent_that_is_killed_even_a_stopped_one(tmp_path: Path) -> None:
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    root = Path(__file__).resolve().parents[2]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    with subprocess.Popen(
        [sys.executable, str(script), str(tmp_path / "run")], stdout=subprocess.PIPE, text=True, env=environment
    ) as parent:
        assert parent.stdout is not None
        pids = [int(word) for word in parent.stdout.readline().split()]
        parent.send_signal(signal.SIGKILL)
    assert len(pids) == 2
    gone(pids)
