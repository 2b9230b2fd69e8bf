"""A manifest, an invite that names nobody, and the command line as a function."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from p2ptrain.net.certificates import Intermediate, Root
from p2ptrain.net.invite import Invite, make_invite

RUN = "ab" * 32
MANIFEST = """
name = "tiny"
rounds = 0
[model]
name = "byte_gpt"
options = { layers = 1, width = 32, heads = 2, context = 32 }
[data]
name = "python_stdlib"
options = { max_bytes = 65536 }
[batch]
microbatch = 2
microbatches = 4
sequence_length = 32
"""


@pytest.fixture()
def manifest(tmp_path: Path) -> Path:
    path = tmp_path / "run.toml"
    path.write_text(MANIFEST)
    return path


@pytest.fixture()
def invite_text() -> Callable[..., str]:
    """``invite_text(addresses=(...), run=..., name=..., valid_s=...)``: of a run that nobody serves."""

    def make(addresses: tuple[str, ...] = (), run: str = RUN, name: str = "tiny", valid_s: float = 3600.0) -> str:
        root = Root.create(run)
        return make_invite(Invite(run, name, root.certificate, Intermediate.create(root, valid_s), addresses))

    return make


@pytest.fixture()
def p2ptrain() -> Iterator[Callable[..., Any]]:
    """``p2ptrain("join", text)``: in this process; the result has exit_code, stdout, stderr."""
    from p2ptrain.cli.main import app

    yield lambda *arguments: CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert logging.getLogger("p2ptrain").handlers == [], "a command leaves no log handler behind"
