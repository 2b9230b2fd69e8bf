"""The stories in tests/scenarios, compared line by line (see ``tests.sim.scenarios`` to write them anew)."""

from __future__ import annotations

import pathlib

import pytest

from tests.sim.scenarios import FOLDER, compare


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.txt")), ids=lambda path: path.stem)
def test_the_story_goes_as_written(path: pathlib.Path) -> None:
    written, played = compare(path)
    assert played == written


def test_all_stories_are_there() -> None:
    assert len(list(FOLDER.glob("*.txt"))) >= 8
