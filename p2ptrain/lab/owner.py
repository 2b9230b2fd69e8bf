"""A process by id and start time: process ids are used again, so an id alone never says whom to end."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Owner:
    """``began``: in the kernel's clock ticks since boot; 0 if it had ended already, or where /proc does not exist."""

    pid: int
    began: int

    @staticmethod
    def of(pid: int) -> Owner:
        return Owner(pid, _began(pid))

    @property
    def lives(self) -> bool:
        return self.began > 0 and _began(self.pid) == self.began


def _began(pid: int) -> int:
    """A process that is dead and only not yet waited for has ended."""
    try:
        after_name = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return 0
    return 0 if after_name[0] in "ZX" else int(after_name[19])
