"""The demo: what counts as a success, and the real one in small."""

from __future__ import annotations

import json
from typing import Any

import pytest

from p2ptrain.cli import demo
from p2ptrain.config import Manifest
from tests.cli.program import run


def story(**last: Any) -> demo.Story:
    same = {"round": 9, "digest": "aa", "loss": 2.0, "sample": "x"}
    return demo.Story(loss_first=5.5, last=[same, {**same, **last}])


def test_its_manifest_is_one() -> None:
    run = Manifest.from_toml(demo.RUN.format(rounds=demo.ROUNDS, every=20))
    assert run.rounds == demo.ROUNDS
    assert run.untrusted_names() == ()


class TestJudge:
    def problems(self, told: demo.Story) -> str:
        demo._judge(told)
        return " ".join(told.problems)

    def test_a_success(self) -> None:
        assert self.problems(story()) == ""
        assert demo.digests_equal(story())

    def test_other_bits_or_another_round(self) -> None:
        assert "digests differ" in self.problems(story(digest="bb"))
        assert "digests differ" in self.problems(story(round=8))

    def test_one_peer_alone_proves_nothing(self) -> None:
        told = story()
        told.last.pop()
        assert not demo.digests_equal(told)

    def test_a_loss_that_did_not_fall_enough(self) -> None:
        told = story()
        told.loss_first = 3.0
        assert "less than 35% lower" in self.problems(told)
        told.loss_first = float("nan")
        assert self.problems(told)

    def test_nobody_finished(self) -> None:
        assert "no peer finished" in self.problems(demo.Story())


@pytest.mark.e2e
@pytest.mark.timeout(300)
def test_a_small_demo_ends_with_one_json_object() -> None:
    done = run("demo", "--json", "--peers", "3", "--rounds", "24", timeout_s=280)
    assert done.returncode == 0, done.stderr
    values = json.loads(done.stdout.splitlines()[-1])
    assert {"rounds", "kills", "joins", "stalls_s", "digests_equal", "loss_first", "loss_last", "seconds"} <= set(
        values
    )
    assert (values["rounds"], values["kills"], values["joins"]) == (24, 1, 1)
    assert values["digests_equal"] is True
    assert values["loss_last"] <= 0.65 * values["loss_first"]
    assert len(values["stalls_s"]) == 1
    for wanted in ("kill -9", "noticed after", "committed", "takes part from round", "digests equal"):
        assert wanted in done.stderr
