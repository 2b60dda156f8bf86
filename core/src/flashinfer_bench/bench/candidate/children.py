"""The fork server's records of its children, and how each of them ends."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Optional

from flashinfer_bench.bench.candidate.folders import remove_folder
from flashinfer_bench.bench.candidate.processes import children_of, kill, kill_group
from flashinfer_bench.bench.transport.control import MAX_PACKET_BYTES, Exited, pack

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

logger = logging.getLogger(__name__)

_STRAYS_TIMEOUT_S = 2.0


@dataclass
class Child:
    """A forked candidate.

    Attributes
    ----------
    pid : int
        Its process, which leads a group and a session.
    leash : socket.socket
        The server's end.
    workdir : Path
        Its folder.
    condemned : bool
        Whether it has been killed and only its end is awaited.
    """

    pid: int
    leash: socket.socket
    workdir: Path
    condemned: bool = False

    def kill(self) -> None:
        """Kill its group; the leash has called for that, or has ended, which means the same."""
        self.condemned = True
        with contextlib.suppress(OSError):
            self.leash.recv(MAX_PACKET_BYTES, socket.MSG_DONTWAIT)
        kill_group(self.pid)

    def ended(self) -> Optional[int]:
        """Return its exit code (negative: a signal) if it has ended; it stays a zombie.

        As long as it is one, neither its pid nor its group's can belong to anyone else.
        """
        found = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if found is None:
            return None
        return found.si_status if found.si_code == os.CLD_EXITED else -found.si_status

    def bury(self, code: int, spared: Collection[int]) -> None:
        """Kill what it leaves behind, remove its folder, and tell the executor that it has ended.

        Parameters
        ----------
        code : int
            As `ended` returned it.
        spared : collection of int
            The other candidates.
        """
        kill_group(self.pid)
        os.waitpid(self.pid, 0)
        kill_strays(spared)
        remove_folder(self.workdir)
        with contextlib.suppress(OSError):  # the executor may be gone
            self.leash.send(pack(Exited(code)))
        self.leash.close()


def kill_strays(spared: Collection[int]) -> None:
    """Kill every child of this process that is not in `spared`, and what these leave behind.

    A candidate is the adoptive parent of its orphaned descendants, and this process that of its
    own: whatever turns up here unknown was left behind by a candidate that has ended.

    Parameters
    ----------
    spared : collection of int
        Children that are none of that.
    """
    deadline = time.monotonic() + _STRAYS_TIMEOUT_S
    while strays := [child for child in children_of(os.getpid()) if child not in spared]:
        for stray in strays:
            kill(stray)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(stray, os.WNOHANG)
        if time.monotonic() > deadline:
            logger.warning("processes %s outlived their worker", strays)
            return
        time.sleep(0.001)
