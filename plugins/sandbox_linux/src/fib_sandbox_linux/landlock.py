"""Landlock: a process permanently drops rights to files, ports and other processes.

See https://docs.kernel.org/userspace-api/landlock.html. Rights to files require Linux 5.13, moving
files between folders 5.19, TCP ports 6.7, signals and abstract sockets 6.12.

Each measure is a separate layer, and an action that one layer forbids cannot be allowed by another.
Every layer, even one for ports, forbids moving and linking files between folders unless it
explicitly allows that; so every layer does.
"""

from __future__ import annotations

import ctypes
import os
import stat
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Optional

from fib_sandbox_linux.system import Unavailable, call

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_ASK_VERSION = 1
_RULE_PATH_BENEATH = 1
_NET_BIND_TCP, _NET_CONNECT_TCP = 1 << 0, 1 << 1
_SCOPE_ABSTRACT_SOCKETS, _SCOPE_SIGNALS = 1 << 0, 1 << 1

_READ_FILE = 1 << 2
_WRITE_FILE, _TRUNCATE, _IOCTL_DEVICE = 1 << 1, 1 << 14, 1 << 15
# Rights to remove and create anything in folders; bits 0, 2 and 3 are to execute and to read.
_CHANGE_FOLDERS = sum(1 << bit for bit in range(4, 13))
_MOVE_BETWEEN_FOLDERS = 1 << 13

MOVES_SINCE, NETWORK_SINCE, SCOPES_SINCE = 2, 4, 6
"""Landlock versions that support moves between folders, ports, and signals."""


class _Ruleset(ctypes.Structure):
    _fields_ = (
        ("files", ctypes.c_uint64),
        ("network", ctypes.c_uint64),
        ("scopes", ctypes.c_uint64),
    )


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed", ctypes.c_uint64), ("folder", ctypes.c_int32))


def version() -> int:
    """Return the version of Landlock.

    Raises
    ------
    Unavailable
        If this system does not have it, or it is turned off.
    """
    try:
        return call("landlock_create_ruleset", 0, 0, _ASK_VERSION)
    except OSError as error:
        raise Unavailable(f"this kernel has no Landlock, or has it turned off: {error}") from None


def file_rights(known: int) -> int:
    """Return the write rights that Landlock version `known` can restrict."""
    rights = _WRITE_FILE | _CHANGE_FOLDERS
    rights |= _MOVE_BETWEEN_FOLDERS if known >= MOVES_SINCE else 0
    rights |= _TRUNCATE if known >= 3 else 0
    return rights | (_IOCTL_DEVICE if known >= 5 else 0)


@contextmanager
def write_ruleset(
    writable: Iterable[Path], readable: Optional[Iterable[Path]] = None
) -> Iterator[int]:
    """Open a ruleset under which only the paths in `writable`, and their contents, can be written.

    Parameters
    ----------
    writable : iterable of Path
        Folders and files; missing ones are ignored.
    readable : iterable of Path, optional
        Likewise, paths that can be read but not written. Default: everything is readable.

    Raises
    ------
    OSError, Unavailable
        If it cannot be created.
    """
    known = version()
    rights = file_rights(known) | (0 if readable is None else _READ_FILE)
    with _ruleset(_Ruleset(files=rights), known) as ruleset:
        for path in writable:
            _allow(ruleset, path, rights)
        for path in readable or ():
            _allow(ruleset, path, _READ_FILE)
        yield ruleset


def enter(ruleset: int) -> None:
    """Apply `ruleset` to this process and all its future threads and processes."""
    call("landlock_restrict_self", ruleset, 0)


def forbid_writing(writable: Iterable[Path]) -> None:
    """Allow writing only to `writable`, and forbid reading other processes' memory.

    The latter applies to all processes except descendants, and is part of any use of Landlock.

    Raises
    ------
    OSError
        If the system refuses.
    Unavailable
        If there is no Landlock, or a version that forbids all moves between folders: caches of
        compiled kernels, such as Triton's, write files in a temporary folder and then move them.
    """
    _require(MOVES_SINCE, "moves between folders")
    with write_ruleset(writable) as ruleset:
        enter(ruleset)


def forbid_network() -> None:
    """Forbid connecting to TCP ports and listening on them."""
    _apply(_Ruleset(network=_NET_BIND_TCP | _NET_CONNECT_TCP), NETWORK_SINCE, "TCP ports")


def forbid_signals() -> None:
    """Allow signals and abstract socket connections only to this process's descendants."""
    scopes = _SCOPE_ABSTRACT_SOCKETS | _SCOPE_SIGNALS
    _apply(_Ruleset(scopes=scopes), SCOPES_SINCE, "signals")


def _apply(rules: _Ruleset, since: int, what: str) -> None:
    known = _require(since, what)
    rules.files = _MOVE_BETWEEN_FOLDERS
    with _ruleset(rules, known) as ruleset:
        _allow(ruleset, Path("/"), _MOVE_BETWEEN_FOLDERS)
        enter(ruleset)


def _require(since: int, what: str) -> int:
    known = version()
    if known < since:
        raise Unavailable(f"Landlock supports {what} since version {since}; here it is {known}")
    return known


@contextmanager
def _ruleset(rules: _Ruleset, known: int) -> Iterator[int]:
    size = 8 if known < NETWORK_SINCE else 16 if known < SCOPES_SINCE else 24
    descriptor = call("landlock_create_ruleset", rules, size, 0)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _allow(ruleset: int, path: Path, rights: int) -> None:
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
            rights &= _READ_FILE | _WRITE_FILE | _TRUNCATE | _IOCTL_DEVICE
        rule = _PathBeneath(allowed=rights, folder=descriptor)
        call("landlock_add_rule", ruleset, _RULE_PATH_BENEATH, rule, 0)
    finally:
        os.close(descriptor)
