"""``status``: where it is read from, and how often. What it looks like is in ``table``.

Decides that a peer which runs here but has written nothing for ``STALE_S`` counts as stuck (exit code 5).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.live import Live

from p2ptrain.cli import folders, table
from p2ptrain.errors import ConfigError, TransportError

WATCH_EVERY_S = 1.0
STALE_S = 30.0
PATIENCE_S = 10.0
NO_TERMINAL_WIDTH = 160

Show = Callable[[dict[str, Any]], None]


def status(
    invite: str | None, *, local: bool, run_dir: Path | None, watch: bool, as_json: bool, patience_s: float | None
) -> None:
    """Raises ConfigError, AdmissionError, TransportError; a watch ends with Ctrl-C."""
    if invite is not None and (local or run_dir is not None):
        raise ConfigError("an invite contradicts --local and --run-dir", key="INVITE", hint="give one of them")
    with contextlib.suppress(KeyboardInterrupt), _showing(watch, as_json) as show:
        if invite is None:
            _local(run_dir, watch, show)
        else:
            from p2ptrain.cli import inviting

            asyncio.run(_remote(inviting.read(invite), watch, show, PATIENCE_S if patience_s is None else patience_s))


def _local(run_dir: Path | None, watch: bool, show: Show) -> None:
    folder = folders.chosen(run_dir)
    while True:
        seen = folders.read_status(folder)
        seen["running"] = folders.is_held(folder)
        seen["age_s"] = round(max(0.0, time.time() - float(seen.get("time", 0.0))), 1)
        if seen["running"] and seen["age_s"] > STALE_S:
            raise TransportError(
                f"the peer in {folder.path} runs but has written no status for {seen['age_s']:.0f} s",
                hint=f"it has stopped or hangs: look into {folder.log}",
            )
        show(seen)
        if not watch:
            return
        time.sleep(WATCH_EVERY_S)


async def _remote(invite: Any, watch: bool, show: Show, patience_s: float) -> None:
    from p2ptrain.cli.guest import visiting

    async with visiting(invite, patience_s) as ask:
        while True:
            show(await ask())
            if not watch:
                return
            await asyncio.sleep(WATCH_EVERY_S)


@contextlib.contextmanager
def _showing(watch: bool, as_json: bool) -> Iterator[Show]:
    if as_json:
        yield lambda seen: typer.echo(json.dumps(seen))
        return
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=NO_TERMINAL_WIDTH)
    if not watch or not console.is_terminal:
        yield lambda seen: console.print(table.render(seen))
        return
    with Live(console=console, auto_refresh=False) as live:
        yield lambda seen: live.update(table.render(seen), refresh=True)
