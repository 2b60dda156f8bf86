"""System calls for which Python has no interface."""

from __future__ import annotations

import ctypes
import os
import platform
import sys
from functools import lru_cache
from pathlib import Path

from fib_sandbox_linux.numbers import NUMBERS

PR_SET_NO_NEW_PRIVS = 38
PR_CAPBSET_DROP = 24
PR_CAP_AMBIENT = 47


class Unavailable(Exception):
    """A measure cannot be applied here; the message gives the reason."""


@lru_cache(maxsize=1)
def _libc() -> ctypes.CDLL:
    library = ctypes.CDLL(None, use_errno=True)
    library.syscall.restype = ctypes.c_long
    return library


@lru_cache(maxsize=1)
def machine() -> str:
    """Return the name of this machine's instruction set, as in `NUMBERS`.

    Raises
    ------
    Unavailable
        If the numbers of its system calls are not known here.
    """
    name = {"AMD64": "x86_64", "arm64": "aarch64"}.get(platform.machine(), platform.machine())
    if sys.platform != "linux" or sys.maxsize < 2**32 or sys.byteorder != "little":
        raise Unavailable("only 64-bit Linux offers it")
    if name not in NUMBERS:
        raise Unavailable(f"unsupported on {name}, only on {', '.join(sorted(NUMBERS))}")
    return name


def call(name: str, *arguments: object) -> int:
    """Make a system call.

    Parameters
    ----------
    name : str
        Name of the call, as in `NUMBERS`.
    *arguments : int, bytes or ctypes object
        Its arguments; ctypes objects are passed by reference.

    Raises
    ------
    OSError
        The error that it returns.
    Unavailable
        If its number is unknown.
    """
    number = NUMBERS[machine()][name]
    result = int(_libc().syscall(ctypes.c_long(number), *map(_converted, arguments)))
    if result == -1:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


def _converted(argument: object) -> object:
    if isinstance(argument, int):
        return ctypes.c_long(argument)
    if isinstance(argument, (ctypes.Structure, ctypes.Array)):
        return ctypes.byref(argument)
    return argument


def prctl(option: int, second: int = 0, third: int = 0) -> int:
    """Change an attribute of this thread; see `call`."""
    return call("prctl", option, second, third, 0, 0)


def forbid_new_privileges() -> None:
    """Prevent programs started from here from gaining rights, for example by a set-user-ID bit."""
    prctl(PR_SET_NO_NEW_PRIVS, 1)


READ_ANY_FILE = 2
"""CAP_DAC_READ_SEARCH: without it root could not read files of other users, such as a virtual
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
    """Permanently drop all capabilities except those in the mask `kept`.

    Capabilities that the process does not have cannot be kept: an ordinary user has none.

    Raises
    ------
    OSError
        If the system refuses.
    """
    held = held_capabilities()
    if held:
        prctl(PR_CAP_AMBIENT, _CLEAR_AMBIENT)
    last = int(Path("/proc/sys/kernel/cap_last_cap").read_text())
    for number in range(last + 1):
        if held and not kept >> number & 1:
            prctl(PR_CAPBSET_DROP, number)
    left = held & kept & 0xFFFFFFFF
    sets = (_Sets * 2)(_Sets(left, left, 0), _Sets(0, 0, 0))
    call("capset", _Header(_VERSION_3, 0), sets)


def held_capabilities() -> int:
    """Return the mask of the capabilities that this process may use."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next((int(line.split()[1], 16) for line in lines if line.startswith("CapPrm:")), 0)
