"""Candidates forked from a server that has torch loaded: ready in milliseconds. Linux only."""

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
from flashinfer_bench.bench.executors.base import Executor
from flashinfer_bench.bench.executors.handle import Endpoints, ProcessHandle, describe_exit
from flashinfer_bench.bench.executors.process import ProcessCandidate
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


class ForkExecutor(Executor):
    """Forks candidates from one server per executor; the server is restarted if it dies.

    Those that only compile come from a second server, which does without torch and is up sooner; it
    is started when the first of them is asked for.

    Parameters
    ----------
    device : str
        ``cpu``, ``cuda`` or ``cuda:N``.
    start_timeout_s : float
        How long the server may take to import torch and the plugins.
    spawn_timeout_s : float
        How long a candidate may take until it accepts requests.
    """

    ahead = True

    def __init__(
        self, device: str, *, start_timeout_s: float = 300.0, spawn_timeout_s: float = 60.0
    ) -> None:
        super().__init__(device)
        self._spawn_timeout_s = spawn_timeout_s
        self._runs = _Family(device, start_timeout_s)
        self._compiles = _Family(device, start_timeout_s, compiles_only=True)

    def begin(self) -> None:
        """Have the fork server import what it needs; see `Executor.begin`."""
        self._runs.begin()

    def start(self) -> None:
        """Start the fork server; see `Executor.start`."""
        self._runs.running_server()

    def spawn(self) -> ProcessCandidate:
        """Fork one candidate; see `Executor.spawn`."""
        return self._spawn(self._runs)

    def spawn_compiler(self) -> ProcessCandidate:
        """Fork one candidate that has no torch; see `Executor.spawn_compiler`."""
        return self._spawn(self._compiles)

    def _spawn(self, family: _Family) -> ProcessCandidate:
        server = family.running_server()
        try:
            return self._spawn_from(server, family)
        except (RunnerError, OSError) as error:
            family.require_open()
            logger.warning("cannot start a worker, trying again: %s", error)
            # The end of a server is that of all its candidates, the one that is timed included.
            if isinstance(error, TimeoutError) or not family.candidates:
                family.discard(server)
        server = family.running_server()
        try:
            return self._spawn_from(server, family)
        except (RunnerError, OSError) as error:
            family.require_open()
            raise RunnerFatalError(f"cannot start a worker: {error}") from error

    def _spawn_from(self, server: ForkServer, family: _Family) -> ProcessCandidate:
        process, ends = server.fork(timeout_s=self._spawn_timeout_s)
        candidate = ProcessCandidate(process, ends, device=self.device, among=family.candidates)
        candidate.await_ready(timeout_s=self._spawn_timeout_s)
        return candidate

    def close(self) -> None:
        """End every candidate and the servers; see `Executor.close`."""
        for family in (self._compiles, self._runs):
            family.close()


class _Family:
    """A server that is started when it is first needed, and the candidates that it has forked."""

    def __init__(self, device: str, start_timeout_s: float, *, compiles_only: bool = False) -> None:
        self._device, self._start_timeout_s = device, start_timeout_s
        self._compiles_only = compiles_only
        self._turn = threading.Lock()  # of the thread that starts a server
        self._lock = threading.Lock()  # of the attributes: never held for long
        self._closed = False
        self._starting: Optional[ForkServer] = None
        self.server: Optional[ForkServer] = None
        self.candidates: set[ProcessCandidate] = set()

    def running_server(self) -> ForkServer:
        """Return the server; threads that come while it starts wait for it."""
        with self._turn:
            self.require_open()
            with self._lock:
                server = self.server
            if server is not None and not server.alive:
                logger.warning("the fork server has died; starting another one")
                self.discard(server)
                server = None
            return server or self._start()

    def begin(self) -> None:
        """Start the server, but do not wait for it."""
        with self._turn, self._lock:
            if not self._closed and self.server is None and self._starting is None:
                self._starting = self._made()

    def _made(self) -> ForkServer:
        return ForkServer(self._device, compiles_only=self._compiles_only)

    def require_open(self) -> None:
        """Raise `RunnerFatalError` if the executor has been closed."""
        if self._closed:
            raise RunnerFatalError("the executor has been closed")

    def _start(self) -> ForkServer:
        with self._lock:
            server = self._starting or self._made()
            self._starting = server
            if self._closed:  # `close` has not seen it
                server.kill()
        try:
            server.await_ready(self._start_timeout_s)
        except RunnerFatalError:
            self.require_open()
            raise
        finally:
            with self._lock:
                self._starting = None
        with self._lock:
            if not self._closed:
                self.server = server
                return server
        server.close()
        raise RunnerFatalError("the executor has been closed")

    def discard(self, server: ForkServer) -> None:
        """End a server, unless another thread has done so, and have the next one start anew."""
        with self._lock:
            if self.server is server:
                self.server = None
        server.close()

    def close(self) -> None:
        """End everything, for good."""
        with self._lock:
            self._closed = True
            server, self.server = self.server, None
            if self._starting is not None:
                self._starting.kill()
        with self._turn:
            pass  # until the thread that was starting it has removed what it left
        # Closing the server kills them all at once; each of them would take its time otherwise.
        for one in (server, self._starting):
            if one is not None:
                one.close()
        for candidate in list(self.candidates):
            candidate.close()


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
        self._compiles_only = compiles_only
        self._folder = Path(tempfile.mkdtemp(prefix="fib-"))
        # Kept in a file: nobody would read a pipe while the server works.
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - closed in `_clean_up`
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._ready = False
        role = (device, *(("compile",) if compiles_only else ()))
        try:
            with theirs:
                self._process = subprocess.Popen(
                    launch.command(_MODULE, theirs.fileno(), self._folder, *role),
                    stdin=subprocess.DEVNULL,
                    stdout=self._output,
                    stderr=self._output,
                    cwd=self._folder,
                    env=launch.environment(self._folder, device),
                    pass_fds=(theirs.fileno(),),
                    start_new_session=True,
                )
        except OSError as error:
            self._clean_up()
            raise RunnerFatalError(f"the fork server could not be started: {error}") from error
        except BaseException:
            self._clean_up()
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
            _receive(self._control, control.ServerReady, Deadline(timeout_s))
            self._ready = True
        except (RunnerError, OSError) as error:
            raise RunnerFatalError(
                f"the fork server did not start: {self._state(error)}{self._last_output()}",
                hint="executor 'spawn' needs no fork server",
            ) from error
        finally:
            if not self._ready:
                self.close()
        if self._compiles_only:  # its probes may have started the driver's; compilers do not care
            return
        # Forked children can rely on locks and OpenMP only if there is no other thread.
        threads = []
        for task in tasks_of(self.pid):
            with contextlib.suppress(OSError):  # it has ended meanwhile
                threads.append((task / "comm").read_text().strip())
        if len(threads) > 1:
            logger.warning(
                "the fork server has %d threads (%s); workers may hang in parallel code",
                *(len(threads), ", ".join(threads)),
            )

    def _state(self, error: Exception) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            if not isinstance(error, TimeoutError):
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
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether it still runs."""
        return self._process.poll() is None

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
                socket.send_fds(self._control, [control.SPAWN], fds)
            finally:
                ends.close_theirs()
            started = _receive(ends.leash, control.Started, Deadline(timeout_s))
        except BaseException:
            ends.close_ours()
            raise
        return ForkedProcess(started.pid, ends.leash), ends

    def kill(self) -> None:
        """Kill it and what its probes have started, such as compilers that tell their version.

        Another thread may be in `await_ready`, which then fails.
        """
        if self.alive:
            kill_group(self.pid)

    def close(self) -> None:
        """End the server and everything that it has started; idempotent, never raises."""
        self._control.close()
        try:
            # As long as it is importing it has no children, and does not look at the socket.
            self._process.wait(timeout=_END_TIMEOUT_S if self._ready else 0)
        except subprocess.TimeoutExpired:
            self.kill()
            self._process.wait()
        self._clean_up()

    def _clean_up(self) -> None:
        self._control.close()
        remove_folder(self._folder)
        self._output.close()


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


def _receive(sock: socket.socket, expected: type[RecordT], deadline: Deadline) -> RecordT:
    wait_ready(sock.fileno(), select.POLLIN, deadline)
    data = sock.recv(control.MAX_PACKET_BYTES)
    if not data:
        raise RunnerError("the fork server has ended")
    return control.unpack(data, expected)
