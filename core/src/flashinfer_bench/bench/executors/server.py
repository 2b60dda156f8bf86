"""The judge's side of a fork server."""

from __future__ import annotations

import contextlib
import logging
import select
import socket
import subprocess
import tempfile
import threading
from pathlib import Path
from typing import Optional, TypeVar

from flashinfer_bench.bench.candidate.folders import remove_folder
from flashinfer_bench.bench.candidate.processes import kill_group, tasks_of
from flashinfer_bench.bench.executors import launch
from flashinfer_bench.bench.executors.handle import Endpoints, ProcessHandle, describe_exit
from flashinfer_bench.bench.transport import control
from flashinfer_bench.bench.transport.deadline import Deadline
from flashinfer_bench.bench.transport.frames import wait_ready
from flashinfer_bench.bench.transport.messages import Record
from flashinfer_bench.errors import RunnerError, RunnerFatalError

logger = logging.getLogger(__name__)

_MODULE = "flashinfer_bench.bench.candidate.template"
_END_TIMEOUT_S = 8.0
_SHOWN_BYTES = 4000

RecordT = TypeVar("RecordT", bound=Record)


class ForkedProcess(ProcessHandle):
    """A child of a fork server, on its leash.

    Parameters
    ----------
    pid : int
        Its process.
    leash : socket.socket
        The judge's end.
    """

    def __init__(self, pid: int, leash: socket.socket) -> None:
        leash.setblocking(False)
        self.pid = pid
        self._leash = leash
        self._ended = False
        self._lock = threading.Lock()

    def fileno(self) -> int:
        """Return the leash's descriptor."""
        return -1 if self._ended else self._leash.fileno()

    def ended(self) -> bool:
        """Return whether the server has reported the end, or has ended itself."""
        with self._lock:
            if not self._ended:
                self._look()
            return self._ended

    def _look(self) -> None:
        try:
            data = self._receive()
        except BlockingIOError:
            return
        self._ended = True
        if data:
            self.exit_code = control.unpack(data, control.Exited).code

    def _receive(self) -> bytes:
        with contextlib.suppress(ConnectionResetError):
            return self._leash.recv(control.MAX_PACKET_BYTES)
        # The server has closed the leash with an order unread; its report comes after that error.
        try:
            return self._leash.recv(control.MAX_PACKET_BYTES)
        except OSError:
            return b""

    def kill(self) -> None:
        """Tell the server to kill the group; do it here if there is no server any more."""
        try:
            self._leash.send(control.KILL)
        except BlockingIOError:
            pass  # many such orders are waiting already
        except OSError:
            if self.exit_code is None:
                kill_group(self.pid)

    def close(self) -> None:
        """Let go of the leash."""
        self._leash.close()


class ForkServer:
    """A fork server: started here, of use after `await_ready`.

    Parameters
    ----------
    device : str
        What its processes work on.
    compiles_only : bool
        Whether they only compile for it: the server is up sooner then, as it needs no torch.

    Raises
    ------
    RunnerFatalError
        If it cannot be started.
    """

    def __init__(self, device: str, *, compiles_only: bool = False) -> None:
        self._device, self._compiles_only = device, compiles_only
        self._role = (device, *(("compile",) if compiles_only else ()))
        self._folder = Path(tempfile.mkdtemp(prefix="fib-"))
        # Kept in a file: nobody would read a pipe while the server works.
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - closed in `close`
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._process: Optional[subprocess.Popen[bytes]] = None
        self._ready = False
        try:
            with theirs:
                self._process = self._launch(theirs)
        except BaseException:
            self.close()
            raise

    def await_ready(self, timeout_s: float) -> None:
        """Wait until it has imported everything; it is closed if that fails.

        Parameters
        ----------
        timeout_s : float
            How long that may take.

        Raises
        ------
        RunnerFatalError
            If it does not come up.
        """
        try:
            self._await_ready(Deadline(timeout_s))
            self._ready = True
        except BaseException:
            self.close()
            raise

    def kill(self) -> None:
        """Kill it and what its probes have started, such as compilers that tell their version.

        Another thread may be in `await_ready`, which then fails.
        """
        if self.alive:
            kill_group(self.pid)

    def _launch(self, theirs: socket.socket) -> subprocess.Popen[bytes]:
        try:
            return subprocess.Popen(
                launch.command(_MODULE, theirs.fileno(), self._folder, *self._role),
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=self._output,
                cwd=self._folder,
                env=launch.environment(self._folder, self._device),
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
        except OSError as error:
            raise RunnerFatalError(f"the fork server could not be started: {error}") from error

    def _await_ready(self, deadline: Deadline) -> None:
        try:
            ready = _receive(self._control, control.ServerReady, deadline)
        except (RunnerError, OSError) as error:
            raise RunnerFatalError(
                f"the fork server did not start: {self._state(error)}{self._last_output()}",
                hint="executor 'spawn' needs no fork server",
            ) from error
        if self._compiles_only:  # its probes may have started the driver's; compilers do not care
            return
        # Forked children can rely on locks and OpenMP only if there is no other thread.
        threads = []
        for task in tasks_of(ready.pid):
            with contextlib.suppress(OSError):  # it has ended meanwhile
                threads.append((task / "comm").read_text().strip())
        if len(threads) > 1:
            logger.warning(
                "the fork server has %d threads (%s); workers may hang in parallel code",
                *(len(threads), ", ".join(threads)),
            )

    def _state(self, error: Exception) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            if self._process is not None and not isinstance(error, TimeoutError):
                return f"it {describe_exit(self._process.wait(timeout=1.0))}"
        return str(error)

    def _last_output(self) -> str:
        end = self._output.seek(0, 2)
        self._output.seek(max(0, end - _SHOWN_BYTES))
        text = self._output.read().decode("utf-8", "replace").strip()
        return f"\n{text}" if text else ""

    @property
    def pid(self) -> int:
        """Process of the server."""
        assert self._process is not None
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether it still runs."""
        return self._process is not None and self._process.poll() is None

    def fork(self, *, timeout_s: float) -> tuple[ForkedProcess, Endpoints]:
        """Start a candidate; from any thread.

        Parameters
        ----------
        timeout_s : float
            How long the server may take.

        Returns
        -------
        process : ForkedProcess
            The child.
        ends : Endpoints
            The judge's ends of its connections are open, the leash belongs to `process`.

        Raises
        ------
        RunnerError, OSError
            If the server refuses, or does not answer.
        """
        ends = Endpoints.open(socket.SOCK_SEQPACKET)
        try:
            try:
                fds = (ends.their_channel.fileno(), ends.their_log, ends.their_leash.fileno())
                request = control.pack(control.SpawnRequest(self._device))
                socket.send_fds(self._control, [request], fds)
            finally:
                ends.close_theirs()
            started = _receive(ends.leash, control.Started, Deadline(timeout_s))
        except BaseException:
            ends.close_ours()
            raise
        return ForkedProcess(started.pid, ends.leash), ends

    def close(self) -> None:
        """End the server and everything that it has started; idempotent, never raises."""
        self._control.close()
        if self._process is not None:
            try:
                # As long as it is importing it has no children, and does not look at the socket.
                self._process.wait(timeout=_END_TIMEOUT_S if self._ready else 0)
            except subprocess.TimeoutExpired:
                self.kill()
                self._process.wait()
        remove_folder(self._folder)
        self._output.close()


def _receive(sock: socket.socket, expected: type[RecordT], deadline: Deadline) -> RecordT:
    wait_ready(sock.fileno(), select.POLLIN, deadline)
    data = sock.recv(control.MAX_PACKET_BYTES)
    if not data:
        raise RunnerError("the fork server has ended")
    return control.unpack(data, expected)
