"""What a person is told unasked: trains alone, cannot be dialled, work not counted; and how waiting looks."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer

from p2ptrain.cli.main import app
from p2ptrain.cli.screen import Screen, Waiting
from p2ptrain.cli.watching import QUIET_ROUNDS, Watching
from p2ptrain.core import events as ev
from p2ptrain.core.types import PeerInfo
from p2ptrain.observe.logs import Context
from p2ptrain.wire.translate import DialBackAnswer
from tests.command_lines import commands_in, problems_of
from tests.observe.test_metrics import RESULT

ROOT = Path(__file__).resolve().parent.parent.parent


class FakeNetwork:
    """As much of ``runtime.network.Network`` as is looked at."""

    def __init__(self, answers: dict[str, str], members: list[PeerInfo]) -> None:
        self.driver = SimpleNamespace()
        self.pulls = object()
        self.last_counted: dict[str, int] = {}
        self._info = PeerInfo("me", 1, tuple(answers))
        self._members = members
        self.transport = SimpleNamespace(ask_dial_back=self._answer)
        self._answers = answers

    def members_to_ask(self) -> list[PeerInfo]:
        return self._members

    def call(self, make: Callable[[Any], Any], timeout_s: float) -> Any:
        return asyncio.run(make(self.pulls))

    async def _answer(self, peer: str, address: str, timeout_s: float) -> DialBackAnswer:
        failure = self._answers[address]
        return DialBackAnswer(failure, "nobody there") if failure else DialBackAnswer()  # type: ignore[arg-type]


def watching(network: FakeNetwork) -> tuple[Watching, Any]:
    session = SimpleNamespace(network=network, identity=SimpleNamespace(peer="me"), founds=False)
    made = Watching(Context(), Screen(), None)
    made._session = session  # type: ignore[assignment]
    return made, session


@pytest.fixture()
def told(caplog: pytest.LogCaptureFixture) -> Callable[[], str]:
    caplog.set_level(logging.INFO, logger="p2ptrain")
    return lambda: " ".join(record.getMessage() for record in caplog.records)


OTHER = PeerInfo("other" * 8, 1, ("192.0.2.1:7700",))


def test_nobody_met_in_the_first_minute(told: Callable[[], str]) -> None:
    made, session = watching(FakeNetwork({}, [OTHER]))
    made._tell_if_alone(session)
    assert told() == ""
    made, session = watching(FakeNetwork({}, []))
    made._tell_if_alone(session)
    assert "trains alone" in told()


def test_a_peer_that_none_can_dial_is_told_each_address(told: Callable[[], str]) -> None:
    made, session = watching(FakeNetwork({"10.0.0.1:1": "timeout", "10.0.0.2:1": "refused"}, [OTHER]))
    made._ask_dial_back(session)
    assert "cannot dial this peer" in told() and "10.0.0.1:1: timeout" in told() and "10.0.0.2:1: refused" in told()
    assert "--announce" in told()


def test_one_address_that_works_is_enough(told: Callable[[], str]) -> None:
    made, session = watching(FakeNetwork({"10.0.0.1:1": "timeout", "10.0.0.2:1": ""}, [OTHER]))
    made._ask_dial_back(session)
    assert told() == ""


def test_a_peer_that_was_dialled_asks_nobody(told: Callable[[], str]) -> None:
    made, session = watching(FakeNetwork({"10.0.0.1:1": "timeout"}, [OTHER]))
    made.on_event(ev.LinkUp(OTHER, 0, we_dialled=False), [])
    made._ask_dial_back(session)
    assert "was dialled by" in told() and "cannot dial" not in told()


def test_work_that_is_not_counted_is_told_every_few_rounds(told: Callable[[], str]) -> None:
    network = FakeNetwork({}, [])
    made, session = watching(network)
    network.last_counted["me"] = 10
    for round in range(11, 11 + QUIET_ROUNDS - 1):
        made._tell_if_not_counted(replace(RESULT, round=round), session)
    assert told() == ""
    made._tell_if_not_counted(replace(RESULT, round=10 + QUIET_ROUNDS), session)
    assert f"for {QUIET_ROUNDS} rounds (the last was round 10)" in told()
    made._tell_if_not_counted(replace(RESULT, round=10 + 2 * QUIET_ROUNDS, contributions=()), session)
    assert f"for {2 * QUIET_ROUNDS} rounds" not in told(), "a round that was only fetched tells nothing"


def test_waiting_without_a_terminal_is_a_line_for_each_quarter() -> None:
    screen = Screen()
    lines = [screen.waiting(Waiting("looks for a member")), screen.waiting(Waiting("looks for a member"))]
    lines += [screen.waiting(Waiting("pulls the state", done, 100)) for done in range(0, 101, 5)]
    lines += [screen.waiting(None)]
    percents = [0, 25, 50, 75, 100]
    assert [line for line in lines if line] == [
        "looks for a member", *(f"pulls the state: {percent} %" for percent in percents)
    ]  # fmt: skip


def test_the_documented_commands_and_options_exist() -> None:
    assert isinstance(app, typer.Typer)
    text = (ROOT / "docs" / "cli.md").read_text()
    commands = commands_in(text)
    assert {arguments[0] for arguments in commands} == {"start", "join", "invite", "status", "demo", "lab", "sim"}
    for arguments in commands:
        assert problems_of(app, arguments) == [], arguments


def test_every_option_is_documented() -> None:
    text = (ROOT / "docs" / "cli.md").read_text()
    group: Any = typer.main.get_command(app)
    commands = [*group.commands.values(), *group.commands["lab"].commands.values()]
    flags = {flag for command in commands for param in command.params for flag in param.opts}
    missing = sorted(flag for flag in flags if flag.startswith("--") and flag not in text)
    assert missing == []
