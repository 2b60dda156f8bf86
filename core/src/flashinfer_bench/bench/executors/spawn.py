"""Candidates that start on their own: slower, but on every Unix system."""

from __future__ import annotations

import os
import socket
import subprocess
import tempfile
import threading
from pathlib import Path

from flashinfer_bench.bench.candidate.folders import remove_folder
from flashinfer_bench.bench.candidate.processes import kill, kill_group, tree_of
from flashinfer_bench.bench.executors import launch
from flashinfer_bench.bench.executors.base import Executor
from flashinfer_bench.bench.executors.handle import Endpoints, ProcessHandle
from flashinfer_bench.bench.executors.process import ProcessCandidate
from flashinfer_bench.errors import RunnerError, RunnerFatalError

_MODULE = "flashinfer_bench.bench.candidate.main"


class SpawnedProcess(ProcessHandle):
    """A child of this process.

    A descendant that has left the process group is found only as long as the candidate itself
    lives; the fork server finds it later, too.

    Parameters
    ----------
    process : subprocess.Popen
        The running process.
    leash : socket.socket
        The judge's end; closing it kills the process.
    folder : Path
        Its folder, removed when it has ended.
    """

    def __init__(
        self, process: subprocess.Popen[bytes], leash: socket.socket, folder: Path
    ) -> None:
        self.pid = process.pid
        self._process, self._leash, self._folder = process, leash, folder
        self._lock = threading.Lock()
        self._pidfd = os.pidfd_open(process.pid) if hasattr(os, "pidfd_open") else -1

    def fileno(self) -> int:
        """Return a descriptor of the process itself, where the system has that."""
        return self._pidfd

    def ended(self) -> bool:
        """Return whether it has ended; if so, nothing of its group is left."""
        with self._lock:
            if self.exit_code is None and self._is_zombie():
                kill_group(self.pid)  # as long as nobody else can have that number
                self.exit_code = self._process.wait()
            return self.exit_code is not None

    def _is_zombie(self) -> bool:
        if not hasattr(os, "waitid"):
            return self._process.poll() is not None
        flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
        return os.waitid(os.P_PID, self.pid, flags) is not None

    def kill(self) -> None:
        """Kill the group, and the descendants that have left it."""
        with self._lock:
            if self.exit_code is None:
                tree = list(tree_of(self.pid))
                kill_group(self.pid)
                for one in tree:
                    kill(one)

    def close(self) -> None:
        """Let go of the process and remove its folder."""
        self._leash.close()
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1
        remove_folder(self._folder)


class SpawnExecutor(Executor):
    """Starts a new interpreter for each candidate; nothing is shared between them.

    Parameters
    ----------
    device : str
        ``cpu``, ``cuda`` or ``cuda:N``.
    spawn_timeout_s : float
        How long a candidate may take to import torch and the plugins.
    """

    def __init__(self, device: str, *, spawn_timeout_s: float = 300.0) -> None:
        super().__init__(device)
        self._spawn_timeout_s = spawn_timeout_s
        self._candidates: set[ProcessCandidate] = set()
        self._closed = False

    def start(self) -> None:
        """Do nothing: each candidate pays for itself."""

    def spawn(self) -> ProcessCandidate:
        """Start one candidate; see `Executor.spawn`."""
        return self._spawn()

    def spawn_compiler(self) -> ProcessCandidate:
        """Start one that does without torch; see `Executor.spawn_compiler`."""
        return self._spawn("compile")

    def _spawn(self, *role: str) -> ProcessCandidate:
        try:
            return self._start(role)
        except (RunnerError, OSError) as error:
            raise RunnerFatalError(f"cannot start a worker: {error}") from error

    def _start(self, role: tuple[str, ...]) -> ProcessCandidate:
        self._require_open()
        ends = Endpoints.open(socket.SOCK_STREAM)
        fds = ends.their_channel.fileno(), ends.their_leash.fileno()
        folder = Path(tempfile.mkdtemp(prefix="fib-candidate-"))
        try:
            process = subprocess.Popen(
                launch.command(_MODULE, *fds, self.device, *role),
                stdin=subprocess.DEVNULL,
                stdout=ends.their_log,
                stderr=ends.their_log,
                cwd=folder,
                env=launch.environment(folder, self.device),
                pass_fds=fds,
                start_new_session=True,
            )
        except BaseException:
            ends.close_ours()
            remove_folder(folder)
            raise
        finally:
            ends.close_theirs()
        handle = SpawnedProcess(process, ends.leash, folder)
        candidate = ProcessCandidate(handle, ends, device=self.device, among=self._candidates)
        if self._closed:  # `close` may not have seen it
            candidate.close()
        self._require_open()
        candidate.await_ready(timeout_s=self._spawn_timeout_s)
        return candidate

    def _require_open(self) -> None:
        if self._closed:
            raise RunnerError("the executor has been closed")

    def close(self) -> None:
        """End every candidate; see `Executor.close`."""
        self._closed = True
        for candidate in list(self._candidates):
            candidate.close()
