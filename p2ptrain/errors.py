"""Every error a user can meet: one root, fields and not only text, and a documented exit code each.

The text says what failed, where, and what to do. Library code raises these; only ``cli`` turns them into exit codes.
"""

from __future__ import annotations


class P2PTrainError(Exception):
    """Root of all errors. ``exit_code`` is what ``p2ptrain`` ends with; ``hint`` is the remedy shown to a person."""

    exit_code = 1

    def __init__(self, text: str, *, hint: str = "", **fields: object) -> None:
        super().__init__(text)
        self.text = text
        self.hint = hint
        self.fields = fields

    def __str__(self) -> str:
        return f"{self.text} ({self.hint})" if self.hint else self.text


class ConfigError(P2PTrainError):
    """A manifest, invite, option or file is wrong. ``fields`` has ``key`` and ``file`` where they are known."""

    exit_code = 2


class ProtocolError(P2PTrainError):
    """A remote broke the rules: its message is refused and its link dropped."""

    exit_code = 3


class AdmissionError(P2PTrainError):
    """No entry: certificate missing, foreign, expired, revoked, or a second live peer with the same key."""

    exit_code = 4


class TransportError(P2PTrainError):
    """Nobody could be reached, or a stream broke: try elsewhere.

    ``fields['attempts']``: each address and what happened.
    """

    exit_code = 5


class TransferError(P2PTrainError):
    """State or parts could not be copied from anybody."""

    exit_code = 6


class StalledError(P2PTrainError):
    """No commit is possible: says whom it waits for and what would help."""

    exit_code = 7


class TrainingError(P2PTrainError):
    """The model, the data or the device failed in the trainer's own code."""

    exit_code = 8


class LabError(P2PTrainError):
    """The lab cannot emulate here what was asked for: missing rights, a missing tool, a device that could not be made.

    ``fields['missing']``: what is not there or not allowed.
    """

    exit_code = 9


class ExpectationError(P2PTrainError):
    """A scenario ran, and not as it expects. ``fields['missed']``: the names of the expectations."""

    exit_code = 10


EXIT_CODES: dict[int, str] = {
    0: "finished, or left cleanly",
    1: "an unexpected error (a bug: please report it with the journal)",
    2: "ConfigError: a manifest, invite, option or file is wrong",
    3: "ProtocolError: a remote broke the rules",
    4: "AdmissionError: no entry with these credentials",
    5: "TransportError: nobody could be reached",
    6: "TransferError: state could not be copied from anybody",
    7: "StalledError: no commit is possible",
    8: "TrainingError: the model, the data or the device failed",
    9: "LabError: the lab cannot emulate this here",
    10: "ExpectationError: a scenario did not go as it expects",
    130: "interrupted twice: left at once",
}
