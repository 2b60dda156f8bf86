"""A candidate that starts on its own: ``python -m … CHANNEL_FD LEASH_FD DEVICE [compile]``."""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import sys
import threading
from typing import NoReturn

from flashinfer_bench.bench.candidate import enter, start
from flashinfer_bench.bench.candidate.processes import IS_LINUX, adopt_orphans, kill_group


def hold_leash(fd: int) -> None:
    """Have this process group killed when the other end of `fd` is closed, whoever closes it.

    Parameters
    ----------
    fd : int
        A connected socket on which nothing is ever sent.
    """
    if IS_LINUX:
        # The system itself sends the signal, so it arrives in the middle of native code, too.
        fcntl.fcntl(fd, fcntl.F_SETOWN, -os.getpgrp())
        fcntl.fcntl(fd, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_ASYNC)
    else:
        threading.Thread(target=_watch, args=(fd,), daemon=True).start()


def _watch(fd: int) -> None:
    os.read(fd, 1)
    kill_group(os.getpid())


def main(arguments: list[str]) -> NoReturn:
    """Run one candidate until the judge ends the conversation.

    Parameters
    ----------
    arguments : list of str
        Numbers of the descriptors of channel and leash, the device, and ``compile`` for a process
        that does nothing else.
    """
    channel, leash = int(arguments[0]), int(arguments[1])
    os.set_inheritable(channel, False)
    os.set_inheritable(leash, False)
    hold_leash(leash)
    adopt_orphans()
    enter.reset_signals()
    enter.open_streams()
    enter.limit_damage()
    device, compiles_only = arguments[2], arguments[3:] == ["compile"]
    start.preload(device, compiles_only=compiles_only)
    start.serve(socket.socket(fileno=channel), device, compiles_only=compiles_only)
    # No teardown of torch, and no atexit function of the solution.
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
