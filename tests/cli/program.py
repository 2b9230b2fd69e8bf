"""The real program in a process of its own, its lines read as they come. Every wait has a deadline."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import TracebackType


class Program:
    """``with Program("join", text) as peer: peer.wait_line("takes part")``. Ended with its own id at the latest."""

    def __init__(self, *arguments: object) -> None:
        command = [sys.executable, "-m", "p2ptrain", *map(str, arguments)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.out: list[str] = []
        self.err: list[str] = []
        self._changed = threading.Condition()
        self._readers = [
            threading.Thread(target=self._read, args=(stream, lines), daemon=True)
            for stream, lines in ((self.process.stdout, self.out), (self.process.stderr, self.err))
        ]
        for reader in self._readers:
            reader.start()

    def __enter__(self) -> Program:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
        self.process.wait(timeout=10)

    def wait_line(self, pattern: str, timeout_s: float = 60.0, since: int = 0) -> int:
        """Index of the first line on stderr that matches, from ``since``. AssertionError with all lines otherwise."""
        until = time.monotonic() + timeout_s
        seen = since
        with self._changed:
            while True:
                while seen < len(self.err):
                    if re.search(pattern, self.err[seen]):
                        return seen
                    seen += 1
                left = until - time.monotonic()
                if left <= 0 or (self.process.poll() is not None and not self._readers[1].is_alive()):
                    raise AssertionError(f"no line {pattern!r}; exit {self.process.poll()}:\n" + "\n".join(self.err))
                self._changed.wait(min(left, 0.5))

    def end(self, timeout_s: float = 60.0) -> int:
        """Its exit code."""
        code = self.process.wait(timeout=timeout_s)
        for reader in self._readers:
            reader.join(timeout=10)
        return code

    def _read(self, stream: object, lines: list[str]) -> None:
        for line in stream:  # type: ignore[attr-defined]
            with self._changed:
                lines.append(line.rstrip("\n"))
                self._changed.notify_all()
        with self._changed:
            self._changed.notify_all()


def run(*arguments: object, timeout_s: float = 60.0) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "p2ptrain", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout_s)


def wait_for_file(path: Path, timeout_s: float = 60.0) -> str:
    """Its text, once there is any (it is written whole or not at all)."""
    until = time.monotonic() + timeout_s
    while time.monotonic() < until:
        if path.exists():
            return path.read_text()
        time.sleep(0.05)
    raise AssertionError(f"{path} was not written within {timeout_s:.0f} s")
