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

    def __init__(
        self, device: str, *, start_timeout_s: float = 300.0, spawn_timeout_s: float = 60.0
    ) -> None:
        super().__init__(device)
        self._spawn_timeout_s = spawn_timeout_s
        self._runs = _Family(start_timeout_s, compiles_only=False)
        self._compiles = _Family(start_timeout_s, compiles_only=True)

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
            logger.warning("no candidate could be started, trying once more: %s", error)
            # The end of a server is that of all its candidates, the one that is timed included.
            if isinstance(error, TimeoutError) or not family.candidates:
                family.discard(server)
        server = family.running_server()
        try:
            return self._spawn_from(server, family)
        except (RunnerError, OSError) as error:
            raise RunnerFatalError(f"no candidate can be started: {error}") from error

    def _spawn_from(self, server: ForkServer, family: _Family) -> ProcessCandidate:
        process, ends = server.fork(self.device, timeout_s=self._spawn_timeout_s)
        candidate = ProcessCandidate(
            process, ends.channel, ends.log, on_close=family.candidates.discard
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

    def __init__(self, start_timeout_s: float, *, compiles_only: bool) -> None:
        self._start_timeout_s = start_timeout_s
        self._compiles_only = compiles_only
        self._lock = threading.Lock()
        self._closed = False
        self.server: Optional[ForkServer] = None
        self.candidates: set[ProcessCandidate] = set()

    def running_server(self) -> ForkServer:
        """Return the server; threads that come while it starts wait for it."""
        with self._lock:
            if self._closed:
                raise RunnerFatalError("the executor has been closed")
            if self.server is not None and not self.server.alive:
                logger.warning("the fork server has died; starting another one")
                self.server.close()
                self.server = None
            if self.server is None:
                self.server = ForkServer(
                    timeout_s=self._start_timeout_s, compiles_only=self._compiles_only
                )
            return self.server

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
        # Closing the server kills them all at once; each of them would take its time otherwise.
        if server is not None:
            server.close()
        for candidate in list(self.candidates):
            candidate.close()
