"""Reads command lines out of deploy files and docs, and checks them against the real command line. Runs nothing.

problems_of(app, ["join", "@/invite", "--listne=0.0.0.0:1"])  ->  ["join has no flag --listne"]
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from typing import Any

import typer

from p2ptrain.cli.main import FILE_COMMAND
from p2ptrain.config import PeerSettings
from p2ptrain.errors import ConfigError

SETTINGS = {
    "--threads": int,
    "--memory": str,
    "--upload-mbps": float,
    "--listen": str,
    "--announce": str,
    "--dht-listen": str,
    "--region": str,
    "--party": str,
    "--until": str,
}
SAMPLE_S = 1_800_000_000.0


def commands_in(text: str) -> list[list[str]]:
    """Every ``p2ptrain ...`` in indented code, a fenced block or a comment, as arguments without the program."""
    fenced = re.sub(r"```\w*\n(.*?)```", lambda block: re.sub(r"(?m)^", "    ", block[1]), text, flags=re.DOTALL)
    joined = re.sub(r"\\\n[\s#]*", " ", fenced)
    found = []
    for line in joined.splitlines():
        match = re.match(r"^#?\s{4,}(?:\$ )?(?:\S*/)?(?:python3? -m )?p2ptrain +(?P<rest>[^`]*)$", line)
        inside_docker = re.match(r"^#?\s{4,}docker run .* p2ptrain (?P<rest>.*)$", line)
        chosen = inside_docker or match
        if chosen and re.match(r"(--?\w|[a-z]+( |$))", chosen["rest"]):
            found.append(shlex.split(chosen["rest"], comments=True))
    return found


def problems_of(app: typer.Typer, arguments: Sequence[str]) -> list[str]:
    """What is wrong with these arguments: command, flags, number of arguments, and values of the peer's settings."""
    group: Any = typer.main.get_command(app)
    if list(arguments) in (["--help"], ["--version"]):
        return [] if arguments[0] in {*_flags(group), "--help"} else [f"no flag {arguments[0]}"]
    if not arguments or arguments[0] not in group.commands:
        return [f"no command {arguments[0] if arguments else '(none)'}"]
    name, rest = arguments[0], list(arguments[1:])
    command = group.commands[name]
    if hasattr(command, "commands"):  # a group of its own; what names no command is taken by one that says so
        inner = rest[0] if rest and rest[0] in command.commands else FILE_COMMAND
        if inner not in command.commands:
            return [f"{name} has no command {rest[0] if rest else '(none)'}"]
        name, command, rest = f"{name} {inner}", command.commands[inner], rest[inner != FILE_COMMAND :]
    flags, problems, given, positional = _flags(command), [], {}, 0
    while rest:
        word = rest.pop(0)
        if not word.startswith("--"):
            positional += 1
            continue
        flag, equals, value = word.partition("=")
        if flag not in flags and flag != "--help":
            problems.append(f"{name} has no flag {flag}")
        elif flag == "--help" or flags[flag].is_flag:
            given[flag] = ""
            problems += [f"{name} {flag} takes no value"] if equals else []
        elif not equals and not rest:
            problems.append(f"{name} {flag} needs a value")
        else:
            given[flag] = value if equals else rest.pop(0)
    return problems + _count_problems(name, command, positional) + _value_problems(name, given)


def _flags(command: Any) -> dict[str, Any]:
    options = [param for param in command.params if param.param_type_name == "option"]
    return {flag: option for option in options for flag in (*option.opts, *option.secondary_opts)}


def _count_problems(name: str, command: Any, positional: int) -> list[str]:
    wanted = [param for param in command.params if param.param_type_name == "argument"]
    required = sum(1 for param in wanted if param.required)
    if any(param.nargs == -1 for param in wanted) or required <= positional <= len(wanted):
        return []
    return [f"{name} takes {len(wanted)} arguments ({required} required), not {positional}"]


def _value_problems(name: str, given: dict[str, str]) -> list[str]:
    values: dict[str, Any] = {}
    for flag, convert in SETTINGS.items():
        if flag in given and name in ("start", "join"):
            try:
                values[flag[2:].replace("-", "_")] = convert(given[flag])
            except ValueError:
                return [f"{name} {flag}: {given[flag]!r} is no {convert.__name__}"]
    switches = {key: f"--{key.replace('_', '-')}" in given for key in ("outbound_only", "no_dht")}
    try:
        PeerSettings.from_flags(now_s=SAMPLE_S, **switches, **values)
    except ConfigError as error:
        return [f"{name} {error}"]
    return []
