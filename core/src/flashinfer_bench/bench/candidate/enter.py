"""Turning a fresh process into a candidate: alone, silent, and gone when its parent goes.

The steps run in the new process before any code of a solution. What it gives up for good comes at
the end of them, see `flashinfer_bench.bench.confinement`.
"""

from __future__ import annotations

import contextlib
import faulthandler
import io
import os
import resource
import signal
import sys
import tempfile
from functools import cache
from pathlib import Path

CHANNEL_FD = 3
"""Descriptor of the channel in a candidate; 0, 1 and 2 are the only others."""

_CHANGED_SIGNALS = (signal.SIGTERM, signal.SIGCHLD, signal.SIGHUP, signal.SIGQUIT)


def arrange_descriptors(channel: int, log: int) -> None:
    """Make `channel` descriptor 3, `log` standard output and error, and close all others.

    Parameters
    ----------
    channel, log : int
        Open descriptors above 2.
    """
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.dup2(channel, CHANNEL_FD)
    # What the solution starts must not hold the channel open.
    os.set_inheritable(CHANNEL_FD, False)
    for fd in [int(entry.name) for entry in Path("/proc/self/fd").iterdir()]:
        if fd > CHANNEL_FD:
            with contextlib.suppress(OSError):  # the descriptor of the listing itself
                os.close(fd)


def reset_signals() -> None:
    """Undo what the fork server, or who started the judge, has done to signals."""
    signal.set_wakeup_fd(-1)
    for number in _CHANGED_SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def open_streams() -> None:
    """Bind Python's standard streams to descriptors 0, 1 and 2, flushed with each line.

    They stay bound to the numbers: a forked child may put other files behind them.
    """
    sys.stdin = sys.__stdin__ = _text(0, "r")  # type: ignore[misc]
    sys.stdout = sys.__stdout__ = _text(1, "w")  # type: ignore[misc]
    sys.stderr = sys.__stderr__ = _text(2, "w")  # type: ignore[misc]
    trace_crashes()


def trace_crashes() -> None:
    """Have a crash in native code leave a Python traceback in the log."""
    faulthandler.disable()
    faulthandler.enable(file=2)


def _text(fd: int, mode: str) -> io.TextIOWrapper:
    raw = io.FileIO(fd, mode, closefd=False)
    buffered = io.BufferedReader(raw) if mode == "r" else io.BufferedWriter(raw)
    return io.TextIOWrapper(
        buffered, encoding="utf-8", errors="backslashreplace", line_buffering=True
    )


def settle_in(workdir: Path) -> None:
    """Make `workdir` the current folder and the one for temporary files.

    Parameters
    ----------
    workdir : Path
        An empty folder that is removed after the process.
    """
    os.chdir(workdir)
    os.environ["TMPDIR"] = str(workdir)
    tempfile.tempdir = None


def limit_damage() -> None:
    """Write no core dump, and be the first to go when the machine runs out of memory."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    with contextlib.suppress(OSError):  # only Linux has it
        Path("/proc/self/oom_score_adj").write_text("1000")


def limit_threads() -> None:
    """Leave a core to the judge, and have torch use no more threads than there are others.

    That starts threads, so it comes after the process is confined: it could not be otherwise.
    """
    import torch

    torch.set_num_threads(_leave_core())


@cache
def _leave_core() -> int:
    """Keep off the judge's core; return how many threads torch may use."""
    from flashinfer_bench.tensors import cpu_threads, judge_core

    threads, core = cpu_threads(), judge_core()
    if core is not None:
        os.sched_setaffinity(0, os.sched_getaffinity(0) - {core})
    return threads
