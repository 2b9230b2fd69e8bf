"""Which invites have ended before their time: serial numbers in a file of the run folder.

Decides: what the file holds, and that a running peer heeds a change of it without a restart. Local to the member whose
folder it is: the set does not spread (only the root's key could sign it for all, and it stays with the starter).

    keys/revoked     4f3a..91    one serial a line, hex
"""

from __future__ import annotations

import logging
from pathlib import Path

from p2ptrain.errors import ConfigError
from p2ptrain.net.identity import private_folder

logger = logging.getLogger(__name__)

FILE = "revoked"
FILE_MAX_BYTES = 1 << 20
SERIAL_MAX_DIGITS = 40


class RevokedInvites:
    """Call it for the set as it stands now: the file is read anew when it has changed.

    A file that cannot be read or parsed leaves the last set in force, and is said once.
    """

    def __init__(self, keys: Path) -> None:
        self._path = keys / FILE
        self._stamp: tuple[int, int] | None = None
        self._serials: frozenset[int] = frozenset()

    def __call__(self) -> frozenset[int]:
        try:
            found = self._path.stat()
        except FileNotFoundError:
            self._stamp, self._serials = None, frozenset()
            return self._serials
        except OSError as error:
            logger.error("%s: cannot be looked at (%s): the last known set stays", self._path, error.strerror)
            return self._serials
        stamp = (found.st_mtime_ns, found.st_size)
        if stamp != self._stamp:
            self._stamp = stamp
            try:
                self._serials = read_revoked(self._path.parent)
            except ConfigError as error:
                logger.error("%s: the last known set of revoked invites stays", error.text)
        return self._serials


def read_revoked(keys: Path) -> frozenset[int]:
    """The serials in the file of this folder; none if there is no file. Raises ConfigError naming the line."""
    path = keys / FILE
    try:
        with path.open("rb") as file:
            data = file.read(FILE_MAX_BYTES + 1)
    except FileNotFoundError:
        return frozenset()
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}", file=str(path)) from error
    if len(data) > FILE_MAX_BYTES:
        raise ConfigError(f"{path} is longer than {FILE_MAX_BYTES} bytes", file=str(path))
    lines = enumerate(data.decode("ascii", errors="replace").splitlines(), 1)
    return frozenset(parse_serial(line, f"{path}, line {number}") for number, line in lines if line.strip())


def revoke(keys: Path, serial: int) -> bool:
    """Add a serial. False if it was there already. Raises ConfigError."""
    if serial in read_revoked(keys):
        return False
    private_folder(keys)
    path = keys / FILE
    try:
        with path.open("a", encoding="ascii") as file:
            path.chmod(0o600)
            file.write(serial_text(serial) + "\n")
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}", file=str(path)) from error
    return True


def serial_text(serial: int) -> str:
    """As it is shown and typed: hex."""
    return f"{serial:x}"


def parse_serial(text: str, where: str = "SERIAL") -> int:
    """Raises ConfigError if ``text`` is no serial number."""
    digits = text.strip().lower()
    if not digits or len(digits) > SERIAL_MAX_DIGITS or any(c not in "0123456789abcdef" for c in digits):
        raise ConfigError(
            f"{where}: {digits[:50]!r} is no serial number of an invite",
            key="SERIAL",
            hint="`p2ptrain invite --list` shows them",
        )
    return int(digits, 16)
