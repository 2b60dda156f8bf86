"""Stopping a process tree, and reading its memory while it stands still (Linux).

What a solution returned is read from outside, with every thread of it and of its descendants
stopped: nothing can be computed between the end of the timed call and the look at its outputs.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import signal
import sys
import time
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Optional

from flashinfer_bench.bench.candidate.processes import libc, tasks_of, tree_of
from flashinfer_bench.errors import ProtocolError

if TYPE_CHECKING:
    from flashinfer_bench.bench.candidate.processes import Freezer

_LONGEST_READ = 1 << 30  # the system takes less than 2 GiB at once
_LOOK_S, _SPIN_S = 50e-6, 200e-6
# Stopped, stopped by a tracer, ended; or in the middle of a call of the system that no signal
# interrupts, such as vfork: that of a stop is heeded before any code of the process runs again.
_STILL = frozenset("TtZXD")


class _Span(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


@lru_cache(maxsize=1)
def why_not() -> Optional[str]:
    """Return why the memory of a child cannot be read here; None if it can. Asked once."""
    if sys.platform != "linux":
        return f"{sys.platform} has no process_vm_readv"
    probe = ctypes.create_string_buffer(b"?")
    try:
        _read_into(os.getpid(), ctypes.addressof(probe), memoryview(bytearray(1)))
    except (AttributeError, OSError, ProtocolError) as error:
        return f"process_vm_readv does not work: {error}"
    if not Path(f"/proc/self/task/{os.getpid()}/children").exists():
        return "the system does not list the children of a process"
    return _refusal()


def _refusal() -> Optional[str]:
    """Return the setting of the Yama security module that forbids it, if one does."""
    try:
        scope = int(Path("/proc/sys/kernel/yama/ptrace_scope").read_text())
    except (OSError, ValueError):
        return None
    if scope < 2 or os.geteuid() == 0:
        return None
    return f"kernel.yama.ptrace_scope is {scope}: only root may read another process"


class FrozenTree:
    """All processes below, and including, one: stopped by the constructor until `thaw`.

    By its control group, if it is in one of its own; otherwise each by a signal.

    Parameters
    ----------
    pid : int
        The process at the top; it adopts its orphans, so that none gets out of the tree.
    freezer : Freezer, optional
        That of its control group, as of `freezer_of`.
    timeout_s : float
        How long to wait until every thread stands still.

    Raises
    ------
    TimeoutError
        If one does not; all go on again.
    ProcessLookupError
        If the process has ended.
    """

    def __init__(self, pid: int, freezer: Optional[Freezer], *, timeout_s: float) -> None:
        self._pid = pid
        self._stopped: set[int] = set()
        self._freezer = freezer
        began = time.monotonic()
        try:
            if self._freezer is not None:
                self._freezer.freeze()
            while not self._is_still():
                waited_s = time.monotonic() - began
                if waited_s > timeout_s:
                    raise TimeoutError(f"process {pid} did not stop within {timeout_s:g} s")
                if waited_s > _SPIN_S:  # mostly it takes 10 us, and a nap 100
                    time.sleep(_LOOK_S)
        except FileNotFoundError:
            raise _ended(pid) from None
        except BaseException:
            self.thaw()
            raise

    def _is_still(self) -> bool:
        if self._freezer is not None:
            return self._freezer.is_frozen()
        # What was stopped may be told to go on by what was not yet, and may have forked before.
        return self._stop_all() and not self._moving()

    def _stop_all(self) -> bool:
        """Stop what moves; return whether nothing did, and nothing was new."""
        moving = self._moving()
        for pid in moving:
            try:
                os.kill(pid, signal.SIGSTOP)
            except ProcessLookupError:
                if pid == self._pid:
                    raise
            self._stopped.add(pid)
        return not moving

    def _moving(self) -> list[int]:
        if not Path(f"/proc/{self._pid}").exists():
            raise _ended(self._pid)
        tree = tree_of(self._pid)
        return [pid for pid in tree if pid not in self._stopped or not _stands_still(pid)]

    def require_still(self) -> None:
        """Look again: a signal that comes later, such as a timer's, lets a stopped process go on.

        Raises
        ------
        ProtocolError
            If something in the tree moves.
        """
        if not self._is_still():
            raise ProtocolError("it kept running while it should have been stopped")

    def read(self, address: int, nbytes: int) -> memoryview:
        """Copy `nbytes` from the memory of the process into writable memory of this one.

        Raises
        ------
        ProtocolError
            If they are not all readable.
        PermissionError
            If the system does not let this process read that one.
        """
        from flashinfer_bench.bench.transport.values import buffer_of

        into = buffer_of(nbytes)
        for start in range(0, nbytes, _LONGEST_READ):
            _read_into(self._pid, address + start, into[start : start + _LONGEST_READ])
        return into

    def thaw(self) -> None:
        """Let everything go on; idempotent, never raises."""
        if self._freezer is not None:
            self._freezer.thaw()
        while self._stopped:
            with contextlib.suppress(OSError):
                os.kill(self._stopped.pop(), signal.SIGCONT)


def _ended(pid: int) -> ProcessLookupError:
    return ProcessLookupError(errno.ESRCH, f"process {pid} has ended")


def _stands_still(pid: int) -> bool:
    """Return whether no thread of a process runs; the main one, quick to ask, is asked first."""
    if _state(Path(f"/proc/{pid}")) not in _STILL:
        return False
    return all(_state(task) in _STILL for task in tasks_of(pid))


def _state(task: Path) -> str:
    try:
        # The name of the program, in parentheses, may hold anything.
        return (task / "stat").read_text(errors="replace").rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return "X"


def _read_into(pid: int, address: int, into: memoryview) -> None:
    """Fill `into` from the memory of `pid`.

    Raises
    ------
    ProtocolError
        If there is no such memory.
    OSError
        If the system refuses.
    """
    if not len(into):
        return
    read = libc().process_vm_readv
    read.restype = ctypes.c_ssize_t
    local = _Span(ctypes.addressof(ctypes.c_char.from_buffer(into)), len(into))
    remote = _Span(address, len(into))
    # Six arguments of full width: ctypes would pass plain integers as 32 bits.
    one, none = ctypes.c_ulong(1), ctypes.c_ulong(0)
    got = read(pid, ctypes.byref(local), one, ctypes.byref(remote), one, none)
    if got == len(into):
        return
    number = ctypes.get_errno() if got < 0 else errno.EFAULT
    if number in (errno.EFAULT, errno.EINVAL, errno.EIO):
        raise ProtocolError(f"{len(into)} bytes at {address:#x} are not all readable")
    raise OSError(number, os.strerror(number))
