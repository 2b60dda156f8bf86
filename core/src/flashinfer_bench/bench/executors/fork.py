"""Candidates forked from a server that has torch loaded: ready in milliseconds. Linux only."""

from __future__ import annotations

import logging
import threading
from typing import Optional

from flashinfer_bench.bench.executors.base import Executor
from flashinfer_bench.bench.executors.process import ProcessCandidate
from flashinfer_bench.bench.executors.server import ForkServer
from flashinfer_bench.errors import RunnerError, RunnerFatalError

logger = logging.getLogger(__name__)


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

    name = "fork"
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
        candidate = ProcessCandidate(
            process,
            ends.channel,
            ends.log,
            device=self.device,
            on_close=family.candidates.discard,
        )
        family.candidates.add(candidate)
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
