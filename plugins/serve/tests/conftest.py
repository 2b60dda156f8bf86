"""A small dataset, and services of it."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from fastapi.testclient import TestClient

from fib_serve.app import ServeSettings, create_app
from fib_serve.store import Store
from fib_tests.browser import *  # noqa: F403
from fib_tests.serving import make_dataset

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

_START_S = 60.0


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    """One definition, three workloads and one solution, without traces."""
    return make_dataset(tmp_path / "dataset")


@pytest.fixture
def settings(dataset: Path) -> ServeSettings:
    """Short evaluations on the CPU; the third workload is hidden."""
    quick = {"warmup_runs": 1, "iterations": 3, "num_trials": 1, "timeout_seconds": 60}
    return ServeSettings(dataset, benchmark=quick, hidden=frozenset({"secret"}))


@pytest.fixture
def make_client(settings: ServeSettings) -> Iterator[Callable[..., TestClient]]:
    """Return a function that makes a client of a service without workers; it takes settings.

    The service is that of ``client.app``, its store ``client.app.state.service.store``.
    """
    with contextlib.ExitStack() as opened, pytest.MonkeyPatch.context() as patch:
        patch.setattr("fib_serve.notifier._POLL_S", 0.05)  # tests do the work of workers

        def make(**changes: Any) -> TestClient:
            app = create_app(replace(settings, **changes), workers=False)
            opened.callback(app.state.service.store.close)
            client = TestClient(app, base_url="http://127.0.0.1", follow_redirects=False)
            return opened.enter_context(client)

        yield make


@pytest.fixture
def client(make_client: Callable[..., TestClient]) -> TestClient:
    """A client of a service without workers."""
    return make_client()


@pytest.fixture
def store(client: TestClient) -> Store:
    """Its database."""
    found: Store = client.app.state.service.store  # type: ignore[attr-defined]
    return found


@dataclass(frozen=True)
class RunningServer:
    """A service in a process of its own."""

    url: str
    settings: ServeSettings
    process: subprocess.Popen[bytes]
    store: Store

    def wait_for_worker(self) -> None:
        """Wait until the service has a worker that is ready."""
        _wait(lambda: httpx.get(f"{self.url}/health").json()["status"] == "ok", self.process)


def _wait(is_so: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + _START_S
    while process.poll() is None:
        with contextlib.suppress(httpx.TransportError):
            if is_so():
                return
        assert time.monotonic() < until, "the service did not start in time"
        time.sleep(0.05)
    pytest.fail(f"the service ended with status {process.returncode}")


_RUN = """
import json, sys
from pathlib import Path
from fib_serve.app import ServeSettings, run_server

given = json.loads(sys.argv[1])
paths = {name: Path(given[name]) for name in ("dataset", "database")}
run_server(ServeSettings(**{**given, **paths, "hidden": frozenset(given["hidden"])}))
"""


@pytest.fixture
def start_server(settings: ServeSettings) -> Iterator[Callable[..., RunningServer]]:
    """Return a function that starts a service on a free port; it takes settings."""
    with contextlib.ExitStack() as opened:

        def start(**changes: Any) -> RunningServer:
            with socket.create_server(("127.0.0.1", 0)) as free:
                port = free.getsockname()[1]
            mine = replace(settings, **{"port": port, **changes})
            store = Store(mine.database_file)
            opened.callback(store.close)
            told = {
                **asdict(mine),
                "dataset": str(mine.dataset),
                "database": str(mine.database_file),
                "hidden": sorted(mine.hidden),
            }
            command = [sys.executable, "-c", _RUN, json.dumps(told)]
            process = subprocess.Popen(command, env=os.environ.copy())
            opened.callback(_end, process)
            found = RunningServer(f"http://127.0.0.1:{mine.port}", mine, process, store)
            _wait(lambda: httpx.get(f"{found.url}/health").status_code == 200, process)
            return found

        yield start


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
