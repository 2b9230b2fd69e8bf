"""TOML and JSON text to checked models and back, with errors that name the key, the file and the line.

Decides how a bad value is reported; does not know which keys exist (``config``) nor where files live
(``config_folder``). Example of what a person sees:

    run.toml:14: optimiser.lr: must be greater than 0 (got -1.0)
"""

from __future__ import annotations

import difflib
import json
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails, PydanticCustomError

from p2ptrain.errors import ConfigError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ModelT = TypeVar("ModelT", bound=BaseModel)

SHOWN_PROBLEMS = 5


class Problem(NamedTuple):
    """One thing that is wrong: the dotted key ("" for the file as a whole), the line (0: unknown) and why."""

    key: str
    line: int
    why: str


def contradiction(key: str, why: str) -> PydanticCustomError:
    """What a model's validator raises when its fields contradict each other: the error is shown at ``key``."""
    return PydanticCustomError("contradiction", "{why}", {"key": key, "why": why})


def check(model: type[ModelT], values: Mapping[str, Any], *, file: str, text: str = "") -> ModelT:
    """Validate ``values``; ``text`` is the TOML they came from, to find lines in. Raises ConfigError."""
    try:
        return model.model_validate(dict(values))
    except ValidationError as error:
        lines = key_lines(text)
        problems = [_problem(details, model, lines) for details in error.errors(include_url=False)]
        raise config_error(problems, file) from None


def config_error(problems: list[Problem], file: str) -> ConfigError:
    """One ConfigError for all problems; ``fields``: key and line of the first, file, and ``problems``."""
    shown = [_line_of_text(problem, file) for problem in problems[:SHOWN_PROBLEMS]]
    if len(problems) > SHOWN_PROBLEMS:
        shown.append(f"and {len(problems) - SHOWN_PROBLEMS} more")
    first = problems[0]
    return ConfigError("; ".join(shown), key=first.key, line=first.line, file=file, problems=tuple(problems))


def parse_toml(data: bytes, *, file: str, max_bytes: int) -> tuple[dict[str, Any], str]:
    """(values, text) of a TOML file's bytes. Raises ConfigError: too big, not UTF-8, not TOML."""
    if len(data) > max_bytes:
        raise ConfigError(f"{file}: {len(data)} bytes, more than the {max_bytes} allowed", key="", file=file)
    try:
        text = data.decode("utf-8").replace("\r\n", "\n")
        return tomllib.loads(text), text
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file}: not UTF-8 text (byte {error.start})", key="", file=file) from None
    except RecursionError:
        raise ConfigError(f"{file}: not TOML: nested too deeply", key="", file=file) from None
    except ValueError as error:  # TOMLDecodeError, and integers beyond Python's own text limit
        found = re.search(r"at line (\d+)", str(error))
        line = int(found.group(1)) if found else 0
        raise ConfigError(f"{file}: not TOML: {error}", key="", file=file, line=line) from None


def parse_json(data: bytes, *, file: str, max_bytes: int) -> dict[str, Any]:
    """The object in some JSON bytes. Raises ConfigError: too big, not JSON, repeated keys, NaN, not an object."""
    if len(data) > max_bytes:
        raise ConfigError(f"{file}: {len(data)} bytes, more than the {max_bytes} allowed", key="", file=file)
    try:
        values = json.loads(data.decode("utf-8"), object_pairs_hook=_no_repeats, parse_constant=_no_constants)
    except (ValueError, RecursionError) as error:
        why = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise ConfigError(f"{file}: not JSON: {why}", key="", file=file) from None
    if not isinstance(values, dict):
        raise ConfigError(f"{file}: not a JSON object", key="", file=file)
    return values


def read_file(path: Path, *, max_bytes: int) -> bytes:
    """At most ``max_bytes`` + 1 bytes of a file (so that "too big" can be seen). Raises ConfigError."""
    try:
        with path.open("rb") as stream:
            return stream.read(max_bytes + 1)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror or error}", key="", file=str(path)) from None


def canonical_json(values: Mapping[str, Any]) -> bytes:
    """The one byte string for these values: sorted keys, no blanks, ASCII, shortest exact floats."""
    return json.dumps(values, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False).encode()


def write_toml(values: Mapping[str, Any]) -> str:
    """TOML text of nested mappings of str, bool, int, float and lists of them; plain keys before tables."""
    return "\n".join(_toml_lines(values, ())).strip() + "\n"


def key_lines(text: str) -> dict[str, int]:
    """Dotted key -> line number, read from TOML text well enough to point a person at a line (never to parse)."""
    lines: dict[str, int] = {}
    table = ""
    counts: dict[str, int] = {}  # of ``[[name]]``: its tables are name.0, name.1, ... as in a model's error
    for number, line in enumerate(text.split("\n"), start=1):
        header = re.match(r"\s*\[\[?\s*([^\[\]]+?)\s*\]\]?\s*(#.*)?$", line)
        entry = re.match(r"\s*((?:[A-Za-z0-9_-]+|\"[^\"]*\"|'[^']*')(?:\s*\.\s*[A-Za-z0-9_\"'-]+)*)\s*=", line)
        if header:
            table = _plain_key(header.group(1))
            lines.setdefault(table, number)
            if line.lstrip().startswith("[["):
                counts[table] = counts.get(table, -1) + 1
                table = f"{table}.{counts[table]}"
                lines.setdefault(table, number)
        elif entry:
            key = _plain_key(entry.group(1))
            lines.setdefault(f"{table}.{key}" if table else key, number)
    return lines


def line_for(key: str, lines: dict[str, int]) -> int:
    """The line of ``key``, or of the nearest table around it; 0: unknown. ``lines``: see ``key_lines``."""
    while key:
        if key in lines:
            return lines[key]
        key = key.rpartition(".")[0]
    return 0


# --- helpers ----------------------------------------------------------------------------------------------------------


def _problem(details: ErrorDetails, model: type[BaseModel], lines: dict[str, int]) -> Problem:
    context = details.get("ctx", {})
    path = [str(piece) for piece in details["loc"] if piece != "[key]"]  # the mark of a wrong key, not of a wrong value
    if details["type"] == "contradiction":
        path.append(str(context["key"]))
    key = ".".join(path)
    return Problem(key, line_for(key, lines), _why(details, model, path))


def _why(details: ErrorDetails, model: type[BaseModel], path: list[str]) -> str:
    kind = details["type"]
    if kind == "extra_forbidden":
        near = difflib.get_close_matches(path[-1], _known_keys(model, path[:-1]), n=1)
        return "unknown key" + (f" (did you mean {near[0]!r}?)" if near else "")
    if kind == "missing":
        return "is missing"
    message = details["msg"].removeprefix("Value error, ").removeprefix("Input ")
    if kind == "contradiction":
        return message
    return f"{message} (got {_shortened(details['input'])})"


def _known_keys(model: type[BaseModel], path: list[str]) -> list[str]:
    for piece in path:
        if piece.isdigit():
            continue  # the place in an array of tables
        field = model.model_fields.get(piece)
        annotation = field.annotation if field else None
        inner = get_args(annotation)
        if inner and isinstance(inner[0], type):
            annotation = inner[0]  # of an array, or of a table that may be missing
        if not (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
            return []
        model = annotation
    return list(model.model_fields)


def _shortened(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _line_of_text(problem: Problem, file: str) -> str:
    place = f"{file}:{problem.line}" if problem.line else file
    return ": ".join(piece for piece in (place, problem.key, problem.why) if piece)


def _no_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) != len(pairs):
        raise ValueError("a key is given twice")
    return values


def _no_constants(name: str) -> float:
    raise ValueError(f"{name} is no number here")


def _toml_lines(values: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[str]:
    for key, value in values.items():
        if not isinstance(value, Mapping):
            yield f"{_toml_key(key)} = {_toml_value(value)}"
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            inner = (*path, key)
            yield ""
            yield "[" + ".".join(_toml_key(piece) for piece in inner) + "]"
            yield from _toml_lines(value, inner)


def _toml_key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else _toml_value(key)


def _toml_value(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_toml_value(item) for item in value) + "]"
    raise TypeError(f"cannot write a {type(value).__name__} as TOML")


def _plain_key(key: str) -> str:
    return re.sub(r"\s*\.\s*", ".", key).replace('"', "").replace("'", "")
