"""The fork server: ``python -m flashinfer_bench.bench.candidate.template FD FOLDER DEVICE``.

It imports torch and everything else that candidates need once, then forks one child per request,
ready in a few milliseconds. It has one thread, no device context and has run no parallel operation,
so its children can do all of that. It never runs code of a solution. With a further argument it
does without torch, and its children only compile for that device.

`FD` is the control socket (see `flashinfer_bench.bench.transport.control`). The server ends, and
with it every candidate, when that socket closes; no candidate outlives it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import signal
import socket
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, Optional

from flashinfer_bench.bench.candidate import enter, processes, start
from flashinfer_bench.bench.candidate.folders import remove_folder
from flashinfer_bench.bench.transport import control
from flashinfer_bench.errors import ProtocolError

if TYPE_CHECKING:
    from collections.abc import Collection
    from types import FrameType

logger = logging.getLogger(__name__)

# The control socket tells when the judge ends, unless another process of its has inherited it.
_PARENT_CHECK_MS = 2000
_END_TIMEOUT_S = 5.0
_START_FAILED = 70
_UNASKED = "unasked"
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
            self.leash.recv(control.MAX_PACKET_BYTES, socket.MSG_DONTWAIT)
        processes.kill_group(self.pid)

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
        processes.kill_group(self.pid)
        os.waitpid(self.pid, 0)
        kill_strays(spared)
        remove_folder(self.workdir)
        _tell(self.leash, control.Exited(code))
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
    while strays := [child for child in processes.children_of(os.getpid()) if child not in spared]:
        for stray in strays:
            processes.kill(stray)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(stray, os.WNOHANG)
        if time.monotonic() > deadline:
            logger.warning("processes %s outlived their worker", strays)
            return
        time.sleep(0.001)


class Template:
    """The server's loop.

    Parameters
    ----------
    sock : socket.socket
        The control socket.
    folder : Path
        Where candidates get a folder each; removed at the end.
    device : str
        What they work on.
    compiles_only : bool
        Whether they only compile.
    """

    def __init__(
        self, sock: socket.socket, folder: Path, device: str, *, compiles_only: bool
    ) -> None:
        self._sock = sock
        self._folder = folder
        self._device = device
        self._compiles_only = compiles_only
        self._pid, self._parent = os.getpid(), os.getppid()
        self._children: dict[int, Child] = {}
        self._stopping = False
        self._wakeup = _wake_up_on_signals()

    def run(self) -> None:
        """Serve until the control socket closes, the parent ends, or SIGTERM comes."""
        signal.signal(signal.SIGTERM, self._stop)
        try:
            while not self._stopping and os.getppid() == self._parent:
                self._step()
        finally:
            self._end_all()

    def _stop(self, number: int, frame: Optional[FrameType]) -> None:
        self._stopping = True

    def _step(self) -> None:
        leashes = {
            child.leash.fileno(): child for child in self._children.values() if not child.condemned
        }
        poller = select.poll()
        for fd in (self._sock.fileno(), self._wakeup.fileno(), *leashes):
            poller.register(fd, select.POLLIN)
        for fd, _ in poller.poll(_PARENT_CHECK_MS):
            if fd in leashes:
                leashes[fd].kill()
            elif fd == self._sock.fileno():
                self._on_request()
            else:
                with contextlib.suppress(BlockingIOError):
                    self._wakeup.recv(4096)
        self._bury_the_dead()

    def _bury_the_dead(self) -> None:
        for child in list(self._children.values()):
            code = child.ended()
            if code is not None:
                del self._children[child.pid]
                child.bury(code, spared=self._children)

    def _on_request(self) -> None:
        data, fds, _, _ = socket.recv_fds(
            self._sock, control.MAX_PACKET_BYTES, control.SPAWN_DESCRIPTORS
        )
        if not data:
            self._stopping = True
            return
        for fd in fds:
            os.set_inheritable(fd, False)
        if len(fds) != control.SPAWN_DESCRIPTORS:
            raise ProtocolError(f"a request came with {len(fds)} descriptors")
        channel, log, leash = fds
        self._spawn(channel, log, socket.socket(fileno=leash))
        os.close(channel)
        os.close(log)

    def _spawn(self, channel: int, log: int, leash: socket.socket) -> None:
        try:
            workdir = Path(tempfile.mkdtemp(prefix="candidate-", dir=self._folder))
            pid = os.fork()
        except OSError as error:
            _tell(leash, control.Refused(f"no process could be forked: {error}"))
            leash.close()
            return
        if pid == 0:
            self._become_candidate(channel, log, workdir)
        self._children[pid] = Child(pid, leash, workdir)
        _tell(leash, control.Started(pid))

    def _become_candidate(self, channel: int, log: int, workdir: Path) -> NoReturn:
        """Do everything that the child does."""
        code = _START_FAILED
        try:
            os.setsid()
            processes.die_with_parent(self._pid)
            processes.adopt_orphans()
            enter.reset_signals()
            enter.arrange_descriptors(channel, log)
            enter.settle_in(workdir)
            enter.limit_damage()
            conversation = socket.socket(fileno=enter.CHANNEL_FD)
            start.serve(conversation, self._device, compiles_only=self._compiles_only)
            code = 0
        except BaseException:  # noqa: BLE001 - nothing may return into the server's loop
            sys.excepthook(*sys.exc_info())
        finally:
            # No teardown of torch, and no atexit function of the solution.
            os._exit(code)

    def _end_all(self) -> None:
        for pid in self._children:
            processes.kill_group(pid)
        deadline = time.monotonic() + _END_TIMEOUT_S
        while self._children and time.monotonic() < deadline:
            self._bury_the_dead()
            time.sleep(0.001)
        kill_strays(())
        remove_folder(self._folder)


def _tell(leash: socket.socket, packet: control.Packet) -> None:
    with contextlib.suppress(OSError):  # the executor has given up already, or is gone
        leash.send(control.pack(packet))


def _wake_up_on_signals() -> socket.socket:
    """Return a socket that becomes readable when a child ends or a signal comes."""
    reader, writer = socket.socketpair()
    for sock in (reader, writer):
        sock.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    signal.set_wakeup_fd(writer.detach(), warn_on_full_buffer=False)
    return reader


def _start_over() -> NoReturn:
    """Become a server that asks no plugins, to be rid of threads that they have left."""
    os.execv(sys.executable, [*sys.orig_argv, _UNASKED])


def main(arguments: list[str]) -> NoReturn:
    """Run the server.

    Parameters
    ----------
    arguments : list of str
        Number of the control socket's descriptor, the folder, and the device. ``compile``
        after that: for processes that do nothing else. ``unasked`` at the end: ask no probes.
    """
    ask_probes, compiles_only = _UNASKED not in arguments[3:], "compile" in arguments[3:]
    sock, device = socket.socket(fileno=int(arguments[0])), arguments[2]
    sock.set_inheritable(False)
    # Ctrl-C is for the judge, who then closes the control socket.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    processes.adopt_orphans()
    enter.open_streams()
    single = start.preload(device, compiles_only=compiles_only, ask_probes=ask_probes)
    if ask_probes and single and not compiles_only:
        single = start.preload_for_solutions(device)
        enter.trace_crashes()  # again: some of these take the signals for themselves
    if ask_probes and not single:
        sock.set_inheritable(True)
        _start_over()
    processes.end_idle_threads()
    template = Template(sock, Path(arguments[1]), device, compiles_only=compiles_only)
    sock.send(control.pack(control.ServerReady()))
    template.run()
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
