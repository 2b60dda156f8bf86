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

    `spawn` and `close` may be called from any thread.

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
        self._start_timeout_s, self._spawn_timeout_s = start_timeout_s, spawn_timeout_s
        self._server: Optional[ForkServer] = None
        self._candidates: set[ProcessCandidate] = set()
        self._lock = threading.Lock()
        self._closed = False

    def start(self) -> None:
        """Start the fork server; see `Executor.start`."""
        self._running_server()

    def _running_server(self) -> ForkServer:
        with self._lock:
            if self._closed:
                raise RunnerFatalError("the executor has been closed")
            if self._server is not None and not self._server.alive:
                logger.warning("the fork server has died; starting another one")
                self._server.close()
                self._server = None
            if self._server is None:
                self._server = ForkServer(timeout_s=self._start_timeout_s)
            return self._server

    def spawn(self) -> ProcessCandidate:
        """Fork one candidate; see `Executor.spawn`."""
        server = self._running_server()
        try:
            return self._spawn_from(server)
        except (RunnerError, OSError) as error:
            logger.warning("no candidate could be started, trying with a new server: %s", error)
        self._discard(server)
        server = self._running_server()
        try:
            return self._spawn_from(server)
        except (RunnerError, OSError) as error:
            raise RunnerFatalError(f"no candidate can be started: {error}") from error

    def _spawn_from(self, server: ForkServer) -> ProcessCandidate:
        process, ends = server.fork(self.device, timeout_s=self._spawn_timeout_s)
        candidate = ProcessCandidate(
            process, ends.channel, ends.log, on_close=self._candidates.discard
        )
        self._candidates.add(candidate)
        candidate.await_ready(timeout_s=self._spawn_timeout_s)
        return candidate

    def _discard(self, server: ForkServer) -> None:
        with self._lock:
            if self._server is server:
                self._server = None
        server.close()

    def close(self) -> None:
        """End every candidate and the server; see `Executor.close`."""
        with self._lock:
            self._closed = True
            server, self._server = self._server, None
        # Closing the server kills them all at once; each of them would take its time otherwise.
        if server is not None:
            server.close()
        for candidate in list(self._candidates):
            candidate.close()
