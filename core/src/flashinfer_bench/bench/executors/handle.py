"""The judge's hold on a process, however it was started."""

from __future__ import annotations

import os
import select
import signal
import socket
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Optional

if TYPE_CHECKING:
    from flashinfer_bench.bench.transport.deadline import Deadline

# How often to look where the system has no way to tell.
_LOOK_S = 0.02
# The system may grant less. Fewer, larger steps make large tensors faster.
_BUFFER_BYTES = 2**22


class ProcessHandle(ABC):
    """A process that can be watched and killed.

    Attributes
    ----------
    pid : int
        Its number; it leads a process group and a session.
    exit_code : int or None
        Negative for a signal; None while it runs, and when nobody knows.
    """

    pid: int
    exit_code: Optional[int] = None

    @abstractmethod
    def fileno(self) -> int:
        """Return a descriptor that is readable when `ended` is worth asking; -1 if none is."""

    @abstractmethod
    def ended(self) -> bool:
        """Return whether the process has ended, without waiting."""

    @abstractmethod
    def kill(self) -> None:
        """Have the whole process group killed, without waiting; from any thread, never raises."""

    @abstractmethod
    def close(self) -> None:
        """Give up what the handle holds, after the process has ended; never raises."""

    def wait(self, deadline: Deadline) -> bool:
        """Wait until the process has ended.

        Parameters
        ----------
        deadline : Deadline
            When to stop waiting.

        Returns
        -------
        bool
            Whether it has.
        """
        while not self.ended():
            if deadline.expired:
                return False
            poller = select.poll()
            if self.fileno() >= 0:
                poller.register(self.fileno(), select.POLLIN)
            poller.poll(deadline.poll_ms(self.look_s))
        return True

    @property
    def look_s(self) -> float:
        """Seconds after which to ask `ended` again although no descriptor has called for it."""
        return float("inf") if self.fileno() >= 0 else _LOOK_S


@dataclass
class Endpoints:
    """Both ends of channel, log pipe and leash; none of them is inherited by other processes.

    Attributes
    ----------
    channel, leash : socket.socket
        The judge's ends.
    log : int
        The judge's end, for reading.
    their_channel, their_leash : socket.socket
        The other ends.
    their_log : int
        The other end, for writing.
    """

    channel: socket.socket
    leash: socket.socket
    log: int
    their_channel: socket.socket
    their_leash: socket.socket
    their_log: int

    @classmethod
    def open(cls, leash_type: socket.SocketKind) -> Endpoints:
        """Connect everything.

        Parameters
        ----------
        leash_type : socket.SocketKind
            Type of the leash.

        Raises
        ------
        OSError
            If no descriptors are left.
        """
        channel, their_channel = socket.socketpair()
        for sock in (channel, their_channel):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)
        leash, their_leash = socket.socketpair(socket.AF_UNIX, leash_type)
        log, their_log = os.pipe()
        return cls(channel, leash, log, their_channel, their_leash, their_log)

    def close_theirs(self) -> None:
        """Close the ends that now are in another process."""
        self.their_channel.close()
        self.their_leash.close()
        os.close(self.their_log)

    def close_ours(self) -> None:
        """Close the judge's ends."""
        self.channel.close()
        self.leash.close()
        os.close(self.log)


def describe_exit(code: Optional[int]) -> str:
    """Say how a process ended.

    Parameters
    ----------
    code : int or None
        As of `subprocess.Popen.returncode`: negative for a signal, None when it is not known.

    Returns
    -------
    str
        Such as ``was killed by signal 11 (SIGSEGV)`` or ``exited with code 3``.
    """
    if code is None:
        return "ended for an unknown reason"
    if code >= 0:
        return f"exited with code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = "a real-time signal"
    remark = "; perhaps memory ran out" if -code == signal.SIGKILL else ""
    return f"was killed by signal {-code} ({name}{remark})"
