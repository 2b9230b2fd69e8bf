"""Network namespaces: makes them, enters them, removes them, and those that a dead owner left. Decides no traffic.

Every emulated network leaves a note in ``NOTES`` while it stands: who owns it and which namespaces are its own. The
note names a process by id and start time, so that ``clean`` never takes a living lab's, nor anything that is not ours.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

from p2ptrain.errors import LabError
from p2ptrain.lab.owner import Owner

NOTES = Path("/run/p2ptrain-lab")
NAMED = Path("/run/netns")
DEVICE = "wan0"
MTU = 9000
PREFIX = "p2pt-"
PEER_PORT = 7700
COMMAND_S = 30.0
_CLONE_NEWNET = 0x40000000


def why_not() -> str:
    """Why namespaces and TUN devices cannot be made here; "" if they can."""
    if not hasattr(os, "geteuid") or not Path("/proc/self/ns/net").exists():
        return "network namespaces exist on Linux only"
    if os.geteuid() != 0:
        return "making network namespaces takes root"
    if shutil.which("ip") is None:
        return "the command `ip` is missing (package iproute2)"
    if not Path("/dev/net/tun").exists():
        return "/dev/net/tun is missing: this machine or container has no TUN devices"
    try:
        _ip("netns", "list")
        probe = f"{PREFIX}probe-{os.getpid()}"
        _ip("netns", "add", probe)
        _ip("netns", "delete", probe)
    except LabError as error:
        return error.text
    return ""


def address(index: int) -> str:
    """The IPv4 address of host ``index`` inside its own namespace; nothing outside ever sees it."""
    return f"10.213.{(index + 1) >> 8}.{(index + 1) & 255}"


def make(names: Sequence[str]) -> None:
    """Raises LabError. What was made before a failure is removed again."""
    made: list[str] = []
    try:
        for name in names:
            _ip("netns", "add", name)
            made.append(name)
            _ip("-n", name, "link", "set", "lo", "up")
    except LabError:
        remove(made)
        raise


def give_address(name: str, ip_address: str) -> None:
    """The TUN device of a namespace gets its address and becomes the way to everybody. Raises LabError."""
    _ip("-n", name, "link", "set", DEVICE, "mtu", str(MTU), "txqueuelen", "4000", "up")
    _ip("-n", name, "addr", "add", f"{ip_address}/32", "dev", DEVICE)
    _ip("-n", name, "route", "add", "default", "dev", DEVICE)


def remove(names: Sequence[str]) -> None:
    """Those that exist; their devices go with them. Never raises."""
    for name in names:
        if (NAMED / name).exists():
            with contextlib.suppress(LabError):
                _ip("netns", "delete", name)


def enter(path: str) -> None:
    """This thread (and the threads it starts) lives in the namespace from now on. Raises LabError."""
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise LabError(f"network namespace {path}: {error.strerror}", missing=path) from error
    try:
        if libc.setns(descriptor, _CLONE_NEWNET) != 0:
            number = ctypes.get_errno()
            raise LabError(f"network namespace {path}: {os.strerror(number)}", missing=errno.errorcode.get(number, ""))
    finally:
        os.close(descriptor)


# --- notes: what belongs to whom -----------------------------------------------------------------------------------


def write_note(key: str, names: Sequence[str], owner: Owner, router: Owner) -> Path:
    """Raises LabError."""
    try:
        NOTES.mkdir(mode=0o700, exist_ok=True)
        if NOTES.stat().st_uid != os.geteuid():
            raise LabError(f"{NOTES} belongs to somebody else", hint="remove it", missing=str(NOTES))
        path = NOTES / f"{key}.json"
        note = {"names": list(names), "owner": [owner.pid, owner.began], "router": [router.pid, router.began]}
        part = path.with_suffix(".part")
        part.write_text(json.dumps(note), encoding="utf-8")
        os.replace(part, path)
    except OSError as error:
        raise LabError(f"{NOTES}: {error.strerror}", missing=str(NOTES)) from error
    return path


def clean() -> list[str]:
    """Remove what labs left whose owner is dead. What was removed, a line each; living labs are left alone."""
    removed: list[str] = []
    for path in sorted(NOTES.glob("*.json")) if NOTES.is_dir() else ():
        try:
            note = json.loads(path.read_text(encoding="utf-8"))
            owner, router = Owner(*note["owner"]), Owner(*note["router"])
            names = [name for name in note["names"] if name.startswith(PREFIX)]
        except (OSError, ValueError, KeyError, TypeError):
            continue  # not a note of ours, or one that is just being written
        if owner.lives:
            continue
        if router.lives:
            with contextlib.suppress(ProcessLookupError):
                os.kill(router.pid, signal.SIGKILL)
            removed.append(f"router process {router.pid}")
        removed += [f"namespace {name}" for name in names if (NAMED / name).exists()]
        remove(names)
        path.unlink(missing_ok=True)
    return removed


def _ip(*words: str) -> None:
    try:
        done = subprocess.run(["ip", *words], capture_output=True, text=True, timeout=COMMAND_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LabError(f"ip {' '.join(words)}: {error}", missing="ip") from error
    if done.returncode != 0:
        hint = "run `p2ptrain lab clean` if an earlier lab was cut off"
        raise LabError(f"ip {' '.join(words)}: {done.stderr.strip()}", hint=hint, missing=" ".join(words))
