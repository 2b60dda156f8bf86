"""The supervisor: a worker for each device, again and again."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from fib_serve.records import TaskStatus
from fib_serve.store import Store, database_of
from fib_serve.supervisor import Supervisor
from fib_tests.scaled_add import DEFINITION
from fib_tests.serving import solution
from flashinfer_bench.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

    from fib_serve.records import Task

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")

NAME = DEFINITION["name"]
RIGHT = "def run(x, y, scale):\n    return (x + y) * scale\n"
HANGS = "import time\n\ndef run(x, y, scale):\n    time.sleep(3600)\n"


@dataclass
class Settings:
    """What the supervisor reads of the settings of a server."""

    dataset: Path
    devices: tuple[str, ...] = ("cpu",)
    log_level: str = "INFO"
    benchmark: dict[str, Any] = field(
        default_factory=lambda: {
            "warmup_runs": 0,
            "iterations": 2,
            "num_trials": 1,
            "sandbox": "off",
        }
    )


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A dataset with a definition and a workload."""
    inputs = {"x": {"type": "random"}, "y": {"type": "random"}}
    inputs["scale"] = {"type": "scalar", "value": 0.5}
    workload = {"uuid": "w0", "axes": {"tokens": 2}, "inputs": inputs}
    for path, record in (
        (f"definitions/op/{NAME}.json", DEFINITION),
        (f"workloads/op/{NAME}.jsonl", {"definition": NAME, "workload": workload}),
    ):
        (tmp_path / path).parent.mkdir(parents=True)
        (tmp_path / path).write_text(json.dumps(record) + "\n", encoding="utf-8")
    return tmp_path


@pytest.fixture
def store(root: Path) -> Store:
    """The database beside it."""
    return Store(database_of(root))


def submit(store: Store, name: str, code: str) -> Task:
    content = solution(name, code)
    content["spec"]["destination_passing_style"] = False
    return store.submit(
        owner="me",
        definition=NAME,
        solution=content,
        solution_name=name,
        workloads=["w0"],
        key=name,
    )


async def until(found: Callable[[], Any]) -> Any:
    async def wait() -> Any:
        while not (value := found()):
            await asyncio.sleep(0.02)
        return value

    return await asyncio.wait_for(wait(), 120)


def workers_of(store: Store) -> list[int]:
    """Return the ids of the worker processes that have this database."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (folder / "cmdline").read_bytes().split(b"\0")
            if b"fib_serve.worker" in words and str(store.path).encode() in words:
                found.append(int(folder.name))
    return found


def parent_of(process: int) -> int:
    try:
        return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
    except FileNotFoundError:
        return 0


@contextlib.asynccontextmanager
async def running(store: Store, settings: Settings) -> Any:
    told: list[None] = []
    supervisor = Supervisor(store, settings, lambda: told.append(None))  # type: ignore[arg-type]
    await supervisor.start()
    try:
        yield supervisor
    finally:
        await supervisor.stop()
    assert told
    assert not workers_of(store)


def status(store: Store, task: Task) -> TaskStatus:
    found = store.task(task.id)
    assert found is not None
    return found.status


def test_a_killed_worker_is_replaced_and_its_task_begun_again(store, root):
    async def scenario() -> None:
        first = submit(store, "hangs", HANGS)
        async with running(store, Settings(root)) as supervisor:
            await until(lambda: supervisor.workers[0].task == first.id)
            assert supervisor.workers[0].healthy
            assert supervisor.workers[0].hardware
            # Processes that it is just starting have its command line for a moment.
            (process,) = (one for one in workers_of(store) if parent_of(one) == os.getpid())
            os.kill(process, signal.SIGKILL)
            await until(lambda: supervisor.workers[0].restarts == 1)
            await until(lambda: supervisor.workers[0].task == first.id)
            store.cancel(first.id)
            supervisor.wake()
            await until(lambda: status(store, first) is TaskStatus.CANCELLED)
            second = submit(store, "right", RIGHT)
            supervisor.wake()
            await until(lambda: status(store, second) is TaskStatus.COMPLETED)
            tried = store.task(first.id)
            assert tried is not None
            assert tried.tries == 1

    asyncio.run(scenario())


def test_a_worker_that_stands_still_is_replaced(store, root, monkeypatch):
    monkeypatch.setattr("fib_serve.supervisor.SILENT_S", 3.0)

    async def scenario() -> None:
        async with running(store, Settings(root)) as supervisor:
            await until(lambda: supervisor.workers[0].healthy)
            (process,) = (one for one in workers_of(store) if parent_of(one) == os.getpid())
            os.kill(process, signal.SIGSTOP)
            await until(lambda: not supervisor.workers[0].healthy)
            await until(lambda: supervisor.workers[0].restarts and supervisor.workers[0].healthy)
            assert process not in workers_of(store)

    asyncio.run(scenario())


def test_a_task_in_hand_waits_for_the_next_start(store, root):
    async def scenario() -> None:
        task = submit(store, "hangs", HANGS)
        async with running(store, Settings(root)) as supervisor:
            await until(lambda: supervisor.workers[0].task == task.id)
        left = store.task(task.id)
        assert left is not None
        assert (left.status, left.tries) == (TaskStatus.PENDING, 0)

    asyncio.run(scenario())


def test_a_device_may_have_two_workers_but_a_database_only_one_server(store, root):
    async def scenario() -> None:
        async with running(store, Settings(root, ("cpu", "cpu"))) as supervisor:
            assert [one.name for one in supervisor.workers] == ["cpu", "cpu#2"]
            other = Supervisor(store, Settings(root), lambda: None)  # type: ignore[arg-type]
            with pytest.raises(ConfigError, match="another server uses the database"):
                await other.start()
            await other.stop()
            await until(lambda: all(one.healthy for one in supervisor.workers))

    asyncio.run(scenario())


def test_a_worker_that_cannot_start_is_tried_again(store, root, monkeypatch):
    monkeypatch.setattr(sys, "executable", shutil.which("false"))

    async def scenario() -> None:
        async with running(store, Settings(root)) as supervisor:
            await until(lambda: supervisor.workers[0].restarts >= 2)
            assert not supervisor.workers[0].healthy

    asyncio.run(scenario())
