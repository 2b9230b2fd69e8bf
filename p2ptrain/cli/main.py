"""The command line: what the commands are called and what they take. What they do is in the modules beside.

Decides how an error ends the program: its name, text and remedy on stderr, and its own exit code. Imports nothing heavy
before a command runs.

    p2ptrain start run.toml --invite-file invite
    p2ptrain join @invite --threads 2 --until 2h
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from p2ptrain import __version__
from p2ptrain.cli.options import (
    AnnounceTo,
    DhtListen,
    InviteText,
    Listen,
    LogJson,
    Memory,
    MetricsAt,
    NoDht,
    OutboundOnly,
    Party,
    Patience,
    Region,
    RunDir,
    ScenarioFile,
    Short,
    Threads,
    Times,
    Trust,
    Until,
    Upload,
    Yes,
)
from p2ptrain.errors import EXIT_CODES, P2PTrainError

PANIC_CODE = 1
INTERRUPTED_CODE = 130

EPILOG = "\n\n".join(["Exit codes:", *(f"{code}: {meaning}" for code, meaning in EXIT_CODES.items())])


class _Commands(TyperGroup):
    """Ends every command with the exit code of its error."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except P2PTrainError as error:
            tell_error(error)
            raise typer.Exit(error.exit_code) from None


FILE_COMMAND = "FILE"


class FileOrCommand(TyperGroup):
    """``lab check`` and ``lab clean`` are commands; anything else that follows ``lab`` is the file to run."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] in self.commands and args[0] != FILE_COMMAND:
            return super().resolve_command(ctx, args)
        return "", self.commands[FILE_COMMAND], args


app = typer.Typer(
    cls=_Commands,
    name="p2ptrain",
    help="Train one model together: no central server, and it goes on when peers die.",
    epilog=EPILOG,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"p2ptrain {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Train one model together: no central server, and it goes on when peers die."""


@app.command()
def start(
    run: Annotated[Path, typer.Argument(metavar="RUN.toml", help="The manifest of the run.")],
    listen: Listen = None,
    announce: AnnounceTo = None,
    dht_listen: DhtListen = None,
    run_dir: RunDir = None,
    invite_file: Annotated[
        Path | None, typer.Option("--invite-file", metavar="FILE", help="Write the invite there too (0600).")
    ] = None,
    threads: Threads = None,
    memory: Memory = None,
    upload_mbps: Upload = None,
    until: Until = None,
    outbound_only: OutboundOnly = False,
    no_dht: NoDht = False,
    region: Region = None,
    party: Party = None,
    trust: Trust = None,
    log_json: LogJson = False,
    metrics: MetricsAt = None,
    patience: Patience = None,
    yes: Yes = False,
) -> None:
    """Begin a run as its first peer; prints an invite for the others."""
    from p2ptrain.cli import taking_part

    flags = {
        "listen": listen, "announce": announce, "dht_listen": dht_listen, "run_dir": run_dir, "threads": threads,
        "memory": memory, "upload_mbps": upload_mbps, "until": until, "outbound_only": outbound_only,
        "no_dht": no_dht, "region": region, "party": party, "trust": tuple(trust or ()), "log_json": log_json,
    }  # fmt: skip
    taking_part.start(run, invite_file, taking_part.Wishes(flags, metrics, patience, yes))


@app.command()
def join(
    invite: InviteText,
    listen: Listen = None,
    announce: AnnounceTo = None,
    dht_listen: DhtListen = None,
    run_dir: RunDir = None,
    threads: Threads = None,
    memory: Memory = None,
    upload_mbps: Upload = None,
    until: Until = None,
    outbound_only: OutboundOnly = False,
    no_dht: NoDht = False,
    region: Region = None,
    party: Party = None,
    trust: Trust = None,
    log_json: LogJson = False,
    metrics: MetricsAt = None,
    patience: Patience = None,
    yes: Yes = False,
) -> None:
    """Take part in a run; shows what it will cost before anything is pulled."""
    from p2ptrain.cli import taking_part

    flags = {
        "listen": listen, "announce": announce, "dht_listen": dht_listen, "run_dir": run_dir, "threads": threads,
        "memory": memory, "upload_mbps": upload_mbps, "until": until, "outbound_only": outbound_only,
        "no_dht": no_dht, "region": region, "party": party, "trust": tuple(trust or ()), "log_json": log_json,
    }  # fmt: skip
    taking_part.join(invite, taking_part.Wishes(flags, metrics, patience, yes))


@app.command()
def invite(
    run_dir: RunDir = None,
    new: Annotated[bool, typer.Option("--new", help="With a key of its own (on the run's first peer).")] = False,
    listed: Annotated[bool, typer.Option("--list", help="Show the serials of invites known here instead.")] = False,
    revoke: Annotated[
        str | None, typer.Option("--revoke", metavar="SERIAL", help="End an invite, on this member alone.")
    ] = None,
) -> None:
    """Print a new invite with the addresses of members alive now. On any member."""
    from p2ptrain.cli import inviting
    from p2ptrain.errors import ConfigError

    if new + listed + (revoke is not None) > 1:
        raise ConfigError("--new, --list and --revoke exclude each other", key="--new", hint="give one of them")
    if listed:
        for serial, what in inviting.listed(run_dir):
            typer.echo(f"{serial}  {what}")
    elif revoke is not None:
        typer.echo(inviting.revoke(run_dir, revoke))
    else:
        typer.echo(inviting.another(run_dir) if new else inviting.fresh(run_dir))


@app.command()
def status(
    invite: Annotated[str | None, typer.Argument(metavar="INVITE|@FILE", help="Ask a member of that run.")] = None,
    local: Annotated[bool, typer.Option("--local", help="What the peer on this machine last wrote.")] = False,
    run_dir: RunDir = None,
    watch: Annotated[bool, typer.Option("--watch", help="Every second, until Ctrl-C.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line instead of a table.")] = False,
    patience: Patience = None,
) -> None:
    """Show peers, speeds, round, loss, last events, and what is waited for."""
    from p2ptrain.cli import looking

    looking.status(invite, local=local, run_dir=run_dir, watch=watch, as_json=as_json, patience_s=patience)


@app.command()
def demo(
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on the last line of stdout.")] = False,
    peers: Annotated[int, typer.Option("--peers", min=3, max=16, help="Peers at the start.")] = 4,
    rounds: Annotated[
        int | None, typer.Option("--rounds", min=20, help="Rounds to train. Default: what the loss needs.")
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the run folders and logs.")] = False,
) -> None:
    """A swarm on this machine trains on Python's own sources, loses a peer, gains one, and finishes."""
    from p2ptrain.cli.demo import run as play

    play(as_json=as_json, peers=peers, rounds=rounds, keep=keep)


@app.command()
def sim(
    file: ScenarioFile,
    short: Short = False,
    out: Annotated[Path | None, typer.Option("--out", metavar="DIR", help="Write record.json there.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Play a scenario of churn in the simulator: virtual time, no processes."""
    from p2ptrain.cli import simulate

    simulate.run(file, short=short, out=out, as_json=as_json)


lab_app = typer.Typer(
    cls=FileOrCommand,
    help="Run a scenario of churn with real peer processes on an emulated WAN: p2ptrain lab FILE --help",
    no_args_is_help=True,
    rich_markup_mode="rich",
    context_settings={"ignore_unknown_options": True},
    subcommand_metavar="FILE [OPTIONS] | COMMAND",
)
app.add_typer(lab_app, name="lab")


@lab_app.command(FILE_COMMAND)
def lab(
    file: ScenarioFile,
    short: Short = False,
    reduced: Annotated[
        bool, typer.Option("--reduced", help="Relays on loopback instead of network namespaces: needs no rights.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Where the report goes. Default: a new folder here.")
    ] = None,
    times: Annotated[
        Times, typer.Option("--times", help="Whether expectations on times decide the exit code, or are only printed.")
    ] = Times.decide,
    simulated: Annotated[bool, typer.Option("--sim/--no-sim", help="Play it in the simulator too, to compare.")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Run a scenario: real peers, scripted or random churn, a report, and an exit code."""
    from p2ptrain.cli import lab as command

    command.run(
        file,
        short=short,
        reduced=reduced,
        out=out,
        times_decide=times is Times.decide,
        simulated=simulated,
        as_json=as_json,
    )


@lab_app.command("check")
def lab_check(
    reduced: Annotated[bool, typer.Option("--reduced", help="The reduced mode (relays on loopback).")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Measure the emulator: configured against measured, and how much it can carry on this machine."""
    from p2ptrain.cli import lab_check as command

    command.check(reduced=reduced, as_json=as_json)


@lab_app.command("clean")
def lab_clean() -> None:
    """Remove what a lab that was cut off left behind (namespaces, devices), and only that."""
    from p2ptrain.cli import lab_check as command

    command.clean()


def tell_error(error: P2PTrainError) -> None:
    """``ErrorName: text`` and ``what to do: hint`` on stderr, control characters of remotes left out."""
    from p2ptrain.observe.logs import one_line

    typer.echo(one_line(f"{type(error).__name__}: {error.text}"), err=True)
    if error.hint:
        typer.echo(one_line(f"what to do: {error.hint}"), err=True)


def main() -> NoReturn:
    """The console script. An error that nobody foresaw: one line here, the traceback in the run folder's log."""
    try:
        code = app(standalone_mode=False) or 0
    except KeyboardInterrupt:
        code = INTERRUPTED_CODE
    except Exception as error:
        code = _usage_or_panic(error)
    _end(code if isinstance(code, int) else 0)


def _usage_or_panic(error: Exception) -> int:
    """Typer's own errors (an unknown option, a closed pipe) know their form; anything else is a bug."""
    show, code = getattr(error, "show", None), getattr(error, "exit_code", None)
    if isinstance(code, int):
        if show is not None:
            show()
        return code
    if type(error).__name__ == "Abort":
        return INTERRUPTED_CODE
    if isinstance(error, BrokenPipeError):
        return PANIC_CODE
    logging.getLogger("p2ptrain").debug("unexpected", exc_info=error)
    told = f"unexpected {type(error).__name__}: {error}"
    typer.echo(f"{told} (a bug: please report it with the run folder's log)", err=True)
    return PANIC_CODE


def _end(code: int) -> NoReturn:
    """Threads of gRPC or torch that are still busy must not keep the process, nor crash it on its way out."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            code = code or PANIC_CODE
    if threading.active_count() > 1:
        os._exit(code)
    sys.exit(code)
