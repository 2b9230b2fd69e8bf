"""Small scenarios as TOML text, for tests: three peers, a model of a few thousand values."""

from __future__ import annotations

import json

from p2ptrain.lab.scenario import Scenario
from p2ptrain.lab.scenario_checks import parse_scenario

RUN = """
[run]
name = "tiny"
[run.model]
name = "byte_gpt"
options = { layers = 1, width = 16, heads = 2 }
[run.data]
name = "python_stdlib"
options = { max_bytes = 65536 }
[run.batch]
microbatch = 2
microbatches = 6
sequence_length = 16
[run.sync]
codec = "fp16"
[run.evaluate]
every_rounds = 4
batches = 1
"""

PLAIN = """
name = "plain"
seconds = {seconds}
short = 0.5
seed = 7
{run}
[[regions]]
name = "home"
local_delay_ms = {delay_ms}
[[peers]]
name = "a"
region = "home"
count = {count}
microbatch_s = 0.03
{more}
"""


def scenario(more: str = "", *, seconds: float = 6.0, count: int = 3, delay_ms: float = 0.0) -> Scenario:
    """Three peers of one region; ``more`` is further TOML."""
    return parse_scenario(PLAIN.format(seconds=seconds, count=count, delay_ms=delay_ms, more=more, run=RUN))


def event(at_s: float, do: str, **fields: object) -> str:
    lines = [f"{key} = {json.dumps(value)}" for key, value in fields.items()]
    return "\n".join(["[[events]]", f"at_s = {at_s}", f'do = "{do}"', *lines, ""])
