"""A helper process of an emulated network: orders and answers as JSON lines over its stdin and stdout.

It ends when its stdin closes, so also when this process is killed. Decides nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import threading
from typing import Any

from p2ptrain.errors import LabError

ANSWER_S = 30.0
END_S = 30.0


class HelperProcess:
    """``module`` run with ``python -m``. Methods may be called from any thread and raise LabError once it has ended."""

    def __init__(self, module: str) -> None:
        self.name = module.rpartition(".")[2]
        self._lock = threading.Lock()
        self._closed = False
        path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)  # it finds the package that runs here
        self._process = subprocess.Popen(
            [sys.executable, "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": path},
        )
        assert self._process.stdin is not None
        os.set_blocking(self._process.stdin.fileno(), False)
        self.pid = self._process.pid

    def tell(self, **order: Any) -> None:
        with self._lock:
            self._write(order)

    def ask(self, **order: Any) -> dict[str, Any]:
        """Its answer. Raises LabError: none within ``ANSWER_S``."""
        with self._lock:
            self._write(order)
            stdout = self._process.stdout
            assert stdout is not None
            ready, _, _ = select.select([stdout], (), (), ANSWER_S)
            line = stdout.readline() if ready else b""
        if not line:
            what = "has ended" if ready else f"does not answer within {ANSWER_S:.0f} s"
            raise LabError(f"the {self.name} process {what}", hint="its errors are on stderr", missing=self.name)
        return dict(json.loads(line))

    def close(self) -> None:
        """It is gone afterwards."""
        self._closed = True
        assert self._process.stdin is not None and self._process.stdout is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(END_S)
        self._process.stdout.close()

    def _write(self, order: dict[str, Any]) -> None:
        if self._closed:
            raise LabError("the emulated network is closed", missing=self.name)
        stdin, rest = self._process.stdin, json.dumps(order).encode() + b"\n"
        assert stdin is not None
        try:
            while rest:
                if not select.select((), [stdin], (), ANSWER_S)[1]:
                    text = f"the {self.name} process has taken no order for {ANSWER_S:.0f} s"
                    raise LabError(text, hint="is it stopped, or the machine overloaded?", missing=self.name)
                rest = rest[os.write(stdin.fileno(), rest) :]
        except OSError as error:
            text = f"the {self.name} process has ended"
            raise LabError(text, hint="its errors are on stderr", missing=self.name) from error
