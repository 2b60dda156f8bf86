"""A program that does not outlive who wants it: ``python -m … LEASH_FD PROGRAM ARGUMENT…``.

This process leads the program's process group and holds the leash, a connected socket. When the
other end is closed, as by the death of the process that has it, the system kills the group. The
program itself, and the solution in it, have no leash to let go of.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from contextlib import suppress
from typing import NoReturn

from flashinfer_bench.bench.candidate.main import hold_leash
from flashinfer_bench.bench.candidate.processes import adopt_orphans


def main(arguments: list[str]) -> NoReturn:
    """Run a program, and exit as a shell does: with its exit code, or 128 plus a signal's number.

    Parameters
    ----------
    arguments : list of str
        Number of the leash's descriptor, and a command line.
    """
    leash = socket.socket(fileno=int(arguments[0]))
    leash.set_inheritable(False)
    hold_leash(leash.fileno())
    with suppress(BlockingIOError):
        leash.recv(1, socket.MSG_DONTWAIT)
        os._exit(1)  # the other end was closed before the leash was held
    adopt_orphans()
    try:
        code = subprocess.call(arguments[1:])
    except OSError as failed:
        sys.stderr.write(f"{arguments[1]}: {failed.strerror}\n")
        code = 127
    sys.exit(code if code >= 0 else 128 - code)
