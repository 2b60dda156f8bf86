"""Worker processes: verdicts reach database and dataset once, whatever happens to the process."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from fib_serve.keys import settings_key, task_key
from fib_serve.records import TaskStatus
from fib_serve.store import Store, database_of
from fib_serve.worker import DatasetWriter
from fib_tests import forked
from fib_tests.scaled_add import DEFINITION
from fib_tests.serving import solution
from flashinfer_bench.data import Definition, Solution, TraceSet

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from fib_serve.records import Task

WORKLOADS = ("w0", "w1", "w2")
QUICK = {
    "warmup_runs": 0,
    "iterations": 2,
    "num_trials": 1,
    "timeout_seconds": 30,
}
RIGHT = "def run(x, y, scale):\n    return (x + y) * scale\n"
SLOWER = "def run(x, y, scale):\n    return x * scale + y * scale\n"
WRONG = "def run(x, y, scale):\n    return x + y * scale\n"
BROKEN = "def run(x, y, scale:\n"
HANGS = "import time\n\ndef run(x, y, scale):\n    time.sleep(3600)\n"


def write(path: Path, *records: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(one) + "\n" for one in records), encoding="utf-8")


def make_dataset(folder: Path) -> Path:
    """Make a dataset with a definition and three workloads."""
    write(folder / "definitions/op/scaled_add_h8.json", DEFINITION)
    random_input = {"type": "random"}
    inputs = {"x": random_input, "y": random_input, "scale": {"type": "scalar", "value": 0.5}}
    workloads = (
        {"uuid": uuid, "axes": {"tokens": number}, "inputs": inputs}
        for number, uuid in enumerate(WORKLOADS, 1)
    )
    lines = ({"definition": DEFINITION["name"], "workload": one} for one in workloads)
    write(folder / "workloads/op/scaled_add_h8.jsonl", *lines)
    return folder


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A dataset."""
    return make_dataset(tmp_path / "dataset")


@pytest.fixture
def store(root: Path) -> Iterator[Store]:
    """The database beside it."""
    with contextlib.closing(Store(database_of(root))) as made:
        yield made


def content_of(name: str, code: str, author: str = "tester") -> dict[str, Any]:
    content = solution(name, code, author=author)
    content["spec"]["destination_passing_style"] = False
    return content


def submit(store: Store, name: str, code: str, **changes: Any) -> Task:
    given = {"owner": "me", "workloads": WORKLOADS, "key": name, **changes}
    return store.submit(
        definition=DEFINITION["name"],
        solution=content_of(name, code),
        solution_name=name,
        **given,
    )


class Process:
    """A worker as a supervisor starts it; one that is not `new` has torch imported already."""

    def __init__(
        self,
        store: Store,
        root: Path,
        name: str = "cpu",
        program: Sequence[str] = ("-m", "fib_serve.worker"),
        new: bool = False,
        **settings: Any,
    ) -> None:
        options = {"database": store.path, "dataset": root, "device": "cpu", "name": name}
        words = [f"--{key}={value}" for key, value in options.items()]
        words.append(f"--benchmark={json.dumps({**QUICK, 'sandbox': 'off', **settings})}")
        self.process = (subprocess if new else forked).Popen(
            [sys.executable, *program, *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def hear(self, kind: str) -> dict[str, Any]:
        """Return the next message of a kind."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if kind in (message := json.loads(line)):
                return message
        pytest.fail(f"the worker ended with {self.process.wait()}")

    def wake(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("wake\n")
        self.process.stdin.flush()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            with contextlib.suppress(BrokenPipeError):  # what was not flushed
                stream.close()


@pytest.fixture
def start(store: Store, root: Path) -> Iterator[Callable[..., Process]]:
    """Return a function that starts a worker; it has ended at the end of the test."""
    with contextlib.ExitStack() as stack:

        def begin(name: str = "cpu", **settings: Any) -> Process:
            made = Process(store, root, name, **settings)
            stack.callback(made.kill)
            return made

        yield begin


@dataclass(frozen=True)
class Place:
    """A dataset with a worker that is ready."""

    root: Path
    store: Store
    worker: Process


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """One for all tests that leave its worker in order."""
    root = make_dataset(tmp_path_factory.mktemp("shared"))
    with contextlib.closing(Store(database_of(root))) as store:
        worker = Process(store, root, timeout_seconds=3600)
        worker.hear("ready")
        yield Place(root, store, worker)
        worker.kill()


def until(found: Callable[[], Any], what: str) -> Any:
    """Wait until something is true."""
    deadline = time.monotonic() + 120
    while not (value := found()):
        assert time.monotonic() < deadline, f"waited in vain until {what}"
        time.sleep(0.02)
    return value


def ended(store: Store, *tasks: Task) -> list[Task]:
    """Wait until tasks have ended."""

    def look() -> list[Task]:
        now = [one for task in tasks if (one := store.task(task.id)) is not None]
        return now if all(one.status.final for one in now) else []

    return until(look, "all tasks have ended")


def verdicts(root: Path, *names: str) -> Counter[tuple[str, str, str]]:
    """Return how often the dataset has which verdict, on these solutions or all."""
    return Counter(
        (str(trace.solution), trace.workload.uuid, trace.evaluation.status.value)
        for trace in TraceSet.from_path(root).traces.get(DEFINITION["name"], [])
        if trace.evaluation is not None and (not names or trace.solution in names)
    )


def once(name: str, status: str) -> dict[tuple[str, str, str], int]:
    return {(name, uuid, status): 1 for uuid in WORKLOADS}


def test_verdicts_reach_the_database_and_the_dataset(store, root, start):
    tasks = [submit(store, name, code) for name, code in (("right", RIGHT), ("wrong", WRONG))]
    tasks.append(submit(store, "broken", BROKEN))
    worker = start(sandbox=None)
    ready = worker.hear("ready")["ready"]
    assert ready["device"] == "cpu"
    assert {one.status for one in ended(store, *tasks)} == {TaskStatus.COMPLETED}
    assert verdicts(root) == {
        **once("right", "PASSED"),
        **once("wrong", "INCORRECT_NUMERICAL"),
        **once("broken", "COMPILE_ERROR"),
    }
    (first, *_) = store.results(tasks[0].id)
    assert first.exported
    assert first.trace is not None
    assert first.trace["evaluation"]["environment"]["hardware"] == ready["hardware"]
    assert TraceSet.from_path(root).get_solution("right").author == "tester"
    told = [event.kind for event in store.events(task=tasks[0].id)]
    assert told == ["submitted", "started", *["stage", "evaluated"] * 3, "completed"]


def test_a_worker_that_waits_takes_the_next_task_when_it_is_woken(shared):
    task = submit(shared.store, "woken", RIGHT)
    shared.worker.wake()
    while shared.worker.hear("task")["task"] != task.id:
        pass  # of earlier tests
    assert shared.worker.hear("task")["task"] is None
    assert ended(shared.store, task)[0].status is TaskStatus.COMPLETED


def test_a_solution_that_hangs_ends_by_its_time_limit(store, root, start):
    task = submit(store, "hangs", HANGS, workloads=WORKLOADS[:1])
    after = submit(store, "right", RIGHT, workloads=WORKLOADS[:1])
    start(timeout_seconds=3)
    ended(store, task, after)
    assert verdicts(root) == {("hangs", "w0", "TIMEOUT"): 1, ("right", "w0", "PASSED"): 1}


@pytest.mark.parametrize("code", [HANGS, "import time\ntime.sleep(3600)\n"], ids=["call", "build"])
def test_a_running_task_can_be_cancelled(shared, code, request):
    name = f"hangs_{request.node.callspec.id}"
    store, task = shared.store, submit(shared.store, name, code)
    shared.worker.wake()

    def stages() -> list[str]:
        return [one.kind for one in store.events(task=task.id) if one.kind == "stage"]

    until(stages, "it is evaluated")
    assert store.cancel(task.id)
    shared.worker.wake()
    assert ended(store, task)[0].status is TaskStatus.CANCELLED
    after = submit(store, f"after_{name}", RIGHT)
    shared.worker.wake()
    assert ended(store, after)[0].status is TaskStatus.COMPLETED
    found = verdicts(shared.root, name, f"after_{name}")
    assert found == once(f"after_{name}", "PASSED")


def test_what_cannot_be_evaluated_fails_and_says_why(shared):
    store = shared.store
    unknown = submit(store, "unknown", RIGHT, workloads=["w0", "nothing"])
    content = content_of("cuda", RIGHT)
    content["spec"] |= {"language": "cuda", "entry_point": "main.py::run"}
    elsewhere = store.submit(
        owner="me",
        definition=DEFINITION["name"],
        solution=content,
        solution_name="cuda",
        workloads=WORKLOADS,
        key="cuda",
    )
    shared.worker.wake()
    first, second = ended(store, unknown, elsewhere)
    assert {first.status, second.status} == {TaskStatus.FAILED}
    assert "nothing" in str(first.error)
    assert "no verdict on 3 of 3 workloads" in str(second.error)
    assert [one.note is not None for one in store.results(second.id)] == [True] * 3
    codes = [store.events(task=one.id)[-1].data.get("code") for one in (first, second)]
    assert codes == [None, "capability"]


def test_a_name_that_another_solution_has_is_refused(shared):
    root, store = shared.root, shared.store
    write(root / "solutions/elsewhere.json", content_of("taken", SLOWER))
    write(root / "solutions/same.json", content_of("same", RIGHT, author="other"))
    refused, kept = submit(store, "taken", RIGHT), submit(store, "same", RIGHT)
    shared.worker.wake()
    refused, kept = ended(store, refused, kept)
    assert refused.status is TaskStatus.FAILED
    assert "another solution named 'taken'" in str(refused.error)
    assert kept.status is TaskStatus.COMPLETED
    assert TraceSet.from_path(root).get_solution("same").author == "other"


STUCK = """
import sys
from fib_serve import worker

worker._STUCK_S, worker._STUCK_TIMEOUTS = 2.0, 0
sys.exit(worker.main())
"""


def test_a_worker_without_progress_ends(store, start):
    submit(store, "hangs", HANGS)
    worker = start(program=("-c", STUCK), timeout_seconds=3600)
    worker.hear("task")
    assert worker.process.wait(120) == 1


def test_killed_workers_lose_and_double_nothing(store, root, start):
    names = [f"solution_{number}" for number in range(4)]
    tasks = [submit(store, name, (RIGHT, SLOWER)[len(name) % 2]) for name in names]
    chance = random.Random(0)
    for _ in range(3):
        worker = start()
        worker.hear("ready")
        for _ in range(chance.randrange(3)):
            worker.hear("event")
        time.sleep(chance.random() * 0.1)
        worker.kill()
        store.requeue("cpu", blame=False)
    start()
    assert {one.status for one in ended(store, *tasks)} == {TaskStatus.COMPLETED}
    expected: dict[tuple[str, str, str], int] = {}
    for name in names:
        expected |= once(name, "PASSED")
    assert verdicts(root) == expected
    assert store.unexported() == []
    assert all(len(store.results(task.id)) == len(WORKLOADS) for task in tasks)


def trace_of(name: str, root: Path) -> dict[str, Any]:
    (workload, *_) = TraceSet.from_path(root).workloads[DEFINITION["name"]]
    evaluation = {"status": "TIMEOUT", "environment": {"hardware": "some device"}}
    return {
        "definition": DEFINITION["name"],
        "workload": workload.workload.model_dump(mode="json"),
        "solution": name,
        "evaluation": {**evaluation, "timestamp": "2026-01-01T00:00:00Z", "log": ""},
    }


@pytest.mark.parametrize("written", ["nothing", "half", "all"])
def test_an_append_that_was_broken_off_is_made_up_for(store, root, written):
    task = submit(store, "right", RIGHT)
    store.claim("cpu")
    record = trace_of("right", root)
    store.record(task.id, "w0", record)
    line = json.dumps(record) + "\n"
    path = root / "traces/op/scaled_add_h8.jsonl"
    path.parent.mkdir(parents=True)
    other = json.dumps(trace_of("other", root)) + "\n"
    path.write_text(other + {"nothing": "", "half": line[: len(line) // 2], "all": line}[written])
    for _ in range(2):
        DatasetWriter(root, store).export(lambda result: True)
        assert store.unexported() == []
        assert verdicts(root) == {("other", "w0", "TIMEOUT"): 1, ("right", "w0", "TIMEOUT"): 1}


def test_a_trace_whose_definition_is_gone_does_not_keep_the_others(store, root, caplog):
    gone = {**trace_of("right", root), "definition": "gone"}
    for name, record in (("lost", gone), ("right", trace_of("right", root))):
        submit(store, name, RIGHT)
        claimed = store.claim("cpu")
        assert claimed is not None
        store.record(claimed.id, "w0", record)
    DatasetWriter(root, store).export(lambda result: True)
    assert verdicts(root) == {("right", "w0", "TIMEOUT"): 1}
    assert "gone" in caplog.text


def test_two_workers_share_the_tasks(store, root, start):
    names = [f"solution_{number}" for number in range(6)]
    workers = [start(name) for name in ("cpu", "cpu#2")]
    for worker in workers:
        worker.hear("ready")
    tasks = [submit(store, name, RIGHT, workloads=WORKLOADS[:1]) for name in names]
    for worker in workers:
        worker.wake()
    done = ended(store, *tasks)
    assert {one.status for one in done} == {TaskStatus.COMPLETED}
    assert {one.worker for one in done} == {"cpu", "cpu#2"}
    assert set(verdicts(root).values()) == {1}
    assert len(verdicts(root)) == len(names)


def processes_with(variable: str) -> list[int]:
    """Return the processes that have inherited an environment variable."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if variable.encode() in (folder / "environ").read_bytes():
                found.append(int(folder.name))
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
@pytest.mark.parametrize("how", ["killed", "left alone"])
def test_nothing_outlives_a_worker(store, root, start, monkeypatch, how):
    mark = f"FIB_SERVE_TEST={os.getpid()}-{how.replace(' ', '-')}"
    monkeypatch.setenv(*mark.split("="))
    task = submit(store, "hangs", HANGS)
    worker = start(new=True, timeout_seconds=3600)  # its environment is to have the mark
    until(lambda: [one for one in store.events() if one.kind == "stage"], "it is evaluated")
    until(lambda: len(processes_with(mark)) > 1, "a solution has a process")
    if how == "killed":
        os.kill(worker.process.pid, signal.SIGKILL)
    else:
        assert worker.process.stdin is not None
        worker.process.stdin.close()
    worker.process.wait()
    until(lambda: not processes_with(mark), "all processes have ended")
    left = store.task(task.id)
    assert left is not None
    assert left.status is TaskStatus.RUNNING
    assert store.requeue("cpu") == 1


def test_equal_keys_stand_for_equal_results():
    one = Solution.model_validate(content_of("one", RIGHT))
    same = Solution.model_validate(content_of("another", RIGHT, author="somebody"))
    settings = settings_key({"iterations": 5}, "some device")
    key = task_key(one, ["w0", "w1"], settings)
    assert key == task_key(same, ["w1", "w0"], settings)
    assert settings == settings_key(
        {"iterations": 5, "rtol": None, "log_level": "DEBUG"}, "some device"
    )
    definition = Definition.model_validate(DEFINITION)
    others = [
        task_key(Solution.model_validate(content_of("one", SLOWER)), ["w0", "w1"], settings),
        task_key(one, ["w0"], settings),
        task_key(one, ["w0", "w1"], settings_key({"iterations": 6}, "some device")),
        task_key(one, ["w0", "w1"], settings_key({"iterations": 5}, "another device")),
        task_key(one, ["w0", "w1"], settings, definition),
        task_key(one, ["w0", "w1"], settings, definition.model_copy(update={"reference": SLOWER})),
    ]
    assert len({key, *others}) == 1 + len(others)
