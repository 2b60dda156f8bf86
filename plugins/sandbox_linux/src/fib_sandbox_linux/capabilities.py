"""Capabilities: what makes root more than any other user."""

from __future__ import annotations

import ctypes
from pathlib import Path

from fib_sandbox_linux.system import (
    PR_CAP_AMBIENT,
    PR_CAPBSET_DROP,
    call,
    prctl,
)

READ_ANY_FILE = 2
"""CAP_DAC_READ_SEARCH: without it root could not read what belongs to others, such as a virtual
environment in the home folder of the user who started a container."""

_VERSION_3 = 0x20080522
_CLEAR_AMBIENT = 4


class _Header(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _Sets(ctypes.Structure):
    _fields_ = (
        ("effective", ctypes.c_uint32),
        ("permitted", ctypes.c_uint32),
        ("inheritable", ctypes.c_uint32),
    )


def drop_capabilities(kept: int = 1 << READ_ANY_FILE) -> None:
    """Give up all capabilities but those in the mask `kept`, for programs to come, too.

    What is not there cannot be kept: an ordinary user has none before and after.

    Raises
    ------
    OSError
        If the system refuses that.
    """
    held = held_capabilities()
    if held:
        prctl(PR_CAP_AMBIENT, _CLEAR_AMBIENT)
    for number in range(_last() + 1):
        if held and not kept >> number & 1:
            prctl(PR_CAPBSET_DROP, number)
    left = held & kept & 0xFFFFFFFF
    sets = (_Sets * 2)(_Sets(left, left, 0), _Sets(0, 0, 0))
    call("capset", _Header(_VERSION_3, 0), sets)


def held_capabilities() -> int:
    """Return the mask of the capabilities that this process may use."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next((int(line.split()[1], 16) for line in lines if line.startswith("CapPrm:")), 0)


def _last() -> int:
    return int(Path("/proc/sys/kernel/cap_last_cap").read_text())
