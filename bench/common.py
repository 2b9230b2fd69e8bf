"""What every bench shares: one result line, a table of them, the others' interpreters, medians. Measures nothing.

    {"bench": "allreduce", "case": "int8 tls", "value": 0.61, "unit": "s", "against": "hivemind 1.1.12", "ratio": 3.3}

``ratio`` is above 1 where p2ptrain is better than ``against``. Further keys (``target``, ``met``, spreads) may follow.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
OTHERS = Path(os.environ.get("OTHERS", ROOT / ".others"))
SCRIPTS = ROOT / "bench" / "others"

sys.path.insert(0, str(ROOT))


class Results:
    """Collects result lines; with ``as_json`` each is printed as it comes, otherwise ``table`` shows all."""

    def __init__(self, bench: str, as_json: bool) -> None:
        self.bench = bench
        self.as_json = as_json
        self.lines: list[dict[str, Any]] = []

    def add(
        self,
        case: str,
        value: float | int | None,
        unit: str,
        against: str = "",
        ratio: float | None = None,
        *,
        target: str = "",
        met: bool | None = None,
        **more: Any,
    ) -> dict[str, Any]:
        """One line. ``target`` in words; ``met`` None where nothing is promised. Also tells the load of the machine."""
        line: dict[str, Any] = {
            "bench": self.bench,
            "case": case,
            "value": rounded(value),
            "unit": unit,
            "against": against,
            "ratio": rounded(ratio),
        }
        if target:
            line |= {"target": target, "met": met}
        line |= {key: rounded(item) for key, item in more.items()}
        line["load"] = round(os.getloadavg()[0], 1)
        self.lines.append(line)
        if self.as_json:
            print(json.dumps(line), flush=True)
        return line

    def table(self) -> None:
        """For people, on stdout; nothing with ``as_json``."""
        if self.as_json:
            return
        from rich.console import Console
        from rich.table import Table

        table = Table(title=self.bench)
        for name in ("case", "value", "unit", "against", "ratio", "target", "met", "more"):
            table.add_column(name)
        known = {"bench", "case", "value", "unit", "against", "ratio", "target", "met"}
        for line in self.lines:
            more = ", ".join(f"{key} {item}" for key, item in line.items() if key not in known)
            shown = [line.get(n) for n in ("case", "value", "unit", "against", "ratio", "target", "met")]
            table.add_row(*("" if item is None else str(item) for item in shown), more)
        Console(width=max(140, Console().width)).print(table)


def arguments(what: str) -> argparse.ArgumentParser:
    """A parser with ``--json``."""
    parser = argparse.ArgumentParser(description=what, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one JSON object a line instead of a table")
    return parser


def note(*words: object) -> None:
    """Progress, on stderr."""
    print("[bench]", *words, file=sys.stderr, flush=True)


def median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None


def rounded(value: Any) -> Any:
    return round(value, 4) if isinstance(value, float) else value


def other_python(name: str) -> Path | None:
    """The interpreter of another system's environment (``hivemind``, ``torchft``); None if it is not built."""
    python = OTHERS / name / "bin" / "python"
    if python.exists():
        return python
    note(f"{name} is not built here (bench/make_others.sh; OTHERS names the folder): left out")
    return None


def run_other(name: str, script: str, *words: object, timeout_s: float) -> dict[str, Any] | None:
    """Run ``bench/others/script`` with the other system's interpreter; its last JSON line, or None if it failed."""
    python = other_python(name)
    if python is None:
        return None
    command = [str(python), str(SCRIPTS / script), *map(str, words)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    with tempfile.TemporaryFile("w+") as errors:
        try:
            done = subprocess.run(
                command, stdout=subprocess.PIPE, stderr=errors, text=True, timeout=timeout_s, env=environment
            )
        except subprocess.TimeoutExpired:
            note(f"{script}: not done after {timeout_s:.0f} s")
            return None
        found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        if not found or done.returncode:
            errors.seek(0)
            note(f"{script} ended with {done.returncode}: {errors.read()[-2000:]}")
        return found[-1] if found else None


@contextmanager
def scratch_folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="p2ptrain-bench-") as folder:
        yield Path(folder)


def manifest(**changes: str) -> Any:
    """A small byte GPT on the standard library's source; ``changes`` are TOML tables, replacing those here."""
    from p2ptrain.config import Manifest

    tables = {
        "model": 'name = "byte_gpt"\noptions = { layers = 2, width = 64, heads = 4 }',
        "data": 'name = "python_stdlib"\noptions = { max_bytes = 300000 }',
        "batch": "microbatch = 4\nmicrobatches = 8\nsequence_length = 64",
        "sync": 'codec = "fp16"',
        "optimiser": "lr = 3e-3",
        **changes,
    }
    head = tables.pop("head", 'name = "bench"')
    return Manifest.from_toml(head + "\n" + "\n".join(f"[{name}]\n{body}" for name, body in tables.items()))
