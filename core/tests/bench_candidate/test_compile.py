"""Compiling in processes of their own, by a plugin that calls the system's C compiler."""

import os
import shutil
import threading
from contextlib import closing, suppress
from pathlib import Path

import pytest
import torch

from fib_tests.plugins import PLUGIN_FOLDER
from flashinfer_bench.bench.executors.base import (
    CandidateFailed,
    CandidateTimeout,
)
from flashinfer_bench.bench.executors.fork import ForkExecutor
from flashinfer_bench.bench.executors.spawn import SpawnExecutor
from flashinfer_bench.data import Solution
from flashinfer_bench.errors import RunnerFatalError

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler 'cc'")

DOUBLE = """
void run(const float *x, float *y, long n) { for (long i = 0; i < n; i++) y[i] = 2 * x[i]; }
"""
EXECUTORS = {"fork": ForkExecutor, "spawn": SpawnExecutor}


def solution(code=DOUBLE, *directives, name="in_c", **spec):
    source = "\n".join([*(f"//! {line}" for line in directives), code])
    return Solution.model_validate(
        {
            "name": name,
            "definition": "double",
            "author": "tester",
            "spec": {
                "language": "testc",
                "target_hardware": ["cpu"],
                "entry_point": "main.c::run",
                **spec,
            },
            "sources": [{"path": "main.c", "content": source}],
        }
    )


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def executors(cache):
    """One executor of each kind; their processes find the plugin and share a cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(PLUGIN_FOLDER)
        patch.setenv("FIB_PLUGINS", "compiling_plugin")
        patch.setenv("FIB_CACHE_PATH", str(cache))
        made = {kind: factory("cpu") for kind, factory in EXECUTORS.items()}
        yield made
        for executor in made.values():
            executor.close()


@pytest.fixture
def executor(executors):
    """The fork executor: quick enough to start a process for each test."""
    return executors["fork"]


@pytest.fixture
def definition(definition_of):
    return definition_of(
        name="double",
        inputs={"x": {"shape": ["n"], "dtype": "float32"}},
        outputs={"y": {"shape": ["n"], "dtype": "float32"}},
        reference="def run(x):\n    return x * 2\n",
    )


@pytest.fixture
def compiler(executor):
    """A process that only compiles."""
    candidate = executor.spawn_compiler()
    yield candidate
    candidate.close()


def thread_count(pid):
    return len(list(Path(f"/proc/{pid}/task").iterdir()))


def maps_of(candidate):
    return Path(f"/proc/{candidate.pid}/maps").read_text()


@pytest.mark.parametrize("kind", EXECUTORS)
def test_compiled_in_one_process_loaded_in_another(executors, kind, definition, cache, descriptors):
    executor = executors[kind]
    before = descriptors()
    made = solution(DOUBLE, f"a comment for {kind}")
    compiler = executor.spawn_compiler()
    assert "libtorch" not in maps_of(compiler)  # that is why it is up sooner
    assert os.getpgid(compiler.pid) == compiler.pid
    first = compiler.compile(definition, made, timeout_s=60)
    again = compiler.compile(definition, made, timeout_s=60)
    compiler.close()
    assert (first.builder, first.fresh, again.fresh) == ("testc", True, False)
    executor.start()
    candidate = executor.spawn()
    assert candidate.compile(definition, made, timeout_s=60).fresh is False
    loaded = candidate.load(definition, made, timeout_s=60)
    assert loaded.destination_passing_style
    candidate.put_inputs(0, [torch.arange(8.0)], {"n": 8}, timeout_s=60)
    assert torch.equal(candidate.call(0, timeout_s=60)[0], torch.arange(8.0) * 2)
    candidate.close()
    assert descriptors() <= before + 8  # the servers' own
    assert not executor._runs.candidates if kind == "fork" else not executor._candidates


@pytest.mark.parametrize(("device", "lower"), [("cpu", False), ("cuda:0", True)])
def test_compilers_have_a_lower_priority_where_others_are_timed_meanwhile(
    executors, definition, device, lower
):
    with closing(ForkExecutor(device)) as executor:
        compiler = executor.spawn_compiler()
        with suppress(CandidateFailed):  # the builder is for the CPU
            compiler.compile(definition, solution(), timeout_s=60)
        own, its = (os.getpriority(os.PRIO_PROCESS, pid) for pid in (0, compiler.pid))
        assert (its > own) is lower
        compiler.close()


def test_a_builder_that_quits(compiler, definition):
    with pytest.raises(CandidateFailed, match="SystemExit") as caught:
        compiler.compile(definition, solution(DOUBLE, "quit"), timeout_s=60)
    assert compiler.alive
    error = caught.value
    assert (error.stage, error.about, error.is_no_fault) == ("compile", "build", False)


@pytest.mark.parametrize("kind", EXECUTORS)
def test_at_the_time_limit_the_compiler_s_own_processes_end(
    executors, kind, definition, tmp_path, exists, group_exists, eventually
):
    note = tmp_path / "pid"
    made = solution(DOUBLE, f"hang {note}")
    compiler = executors[kind].spawn_compiler()
    with pytest.raises(CandidateTimeout):
        compiler.compile(definition, made, timeout_s=5)
    assert eventually(lambda: not exists(int(note.read_text())))
    assert eventually(lambda: not group_exists(compiler.pid))
    compiler.close()
    # … and its lock is free: the next one does not wait for it.
    other = executors[kind].spawn_compiler()
    with pytest.raises(CandidateTimeout):
        other.compile(definition, made, timeout_s=1)
    other.close()


@pytest.mark.parametrize("kind", EXECUTORS)
def test_closing_while_others_start(kind, descriptors, exists, eventually):
    before = descriptors()
    executor = EXECUTORS[kind]("cpu")
    pids, refused = [], []

    def keep_spawning():
        try:
            while True:
                pids.append(executor.spawn_compiler().pid)
        except RunnerFatalError as error:
            refused.append(error)

    threads = [threading.Thread(target=keep_spawning) for _ in range(4)]
    for thread in threads:
        thread.start()
    assert eventually(lambda: len(pids) >= 4, seconds=60)
    executor.close()
    for thread in threads:
        thread.join(60)
    assert len(refused) == 4
    assert eventually(lambda: not any(exists(pid) for pid in pids))
    assert eventually(lambda: descriptors() <= before)


SLOW_PLUGIN = """
import threading, time
from pathlib import Path
from flashinfer_bench.plugins import Availability, BuilderSpec, hookimpl
from compiling_plugin import InlineBuilder

lock = threading.Lock()

class Builder(InlineBuilder):
    def compile(self, definition, solution):
        with lock:
            pass

def probe():
    with Path(__file__).with_name("asked").open("a") as notes:
        notes.write("asked\\n")
    with lock:
        time.sleep(3000)

def ready():
    return Availability(True)

@hookimpl
def fib_register_builders():
    me = "slow_plugin"
    yield BuilderSpec(name="never", handles=(("never", None),), compiles=True, devices=DEVICES,
                      factory=f"{me}:Builder", probe=f"{me}:probe")
    yield BuilderSpec(name="quick", handles=(("quick", None),), compiles=True,
                      factory=f"{me}:Builder", probe=f"{me}:ready")
"""


@pytest.fixture
def slow_plugin(tmp_path, monkeypatch):
    """``slow_plugin(*devices)`` is a plugin for them with a probe that never answers."""

    def write(*devices):
        (tmp_path / "slow_plugin.py").write_text(SLOW_PLUGIN.replace("DEVICES", repr(devices)))
        return tmp_path / "asked"

    monkeypatch.syspath_prepend(PLUGIN_FOLDER)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("FIB_PLUGINS", "slow_plugin")
    monkeypatch.setenv("FIB_PROBE_TIMEOUT_S", "0.5")
    return write


def test_a_probe_that_never_answers_does_not_leave_a_thread_in_the_server(
    slow_plugin, definition, caplog
):
    """A child that is forked while the thread holds a lock would wait for it for ever."""
    slow_plugin("cpu")
    executor = ForkExecutor("cpu")
    compiler = executor.spawn_compiler()
    assert thread_count(executor._compiles.server.pid) == 1
    assert "threads" not in caplog.text
    made = solution(DOUBLE, language="quick")
    assert compiler.compile(definition, made, timeout_s=60).builder == "quick"
    executor.close()


@pytest.mark.parametrize("role", ["spawn", "spawn_compiler"])
def test_closing_while_the_server_starts(
    role, tmp_path, monkeypatch, caplog, exists, eventually, descriptors
):
    """It would take for ever; what it has started to find out about compilers ends with it."""
    note = tmp_path / "pids"
    (tmp_path / "endless_plugin.py").write_text(
        "import os, pathlib, subprocess\n"
        "child = subprocess.Popen(['sleep', '3000'])\n"
        f"new = pathlib.Path({str(note)!r} + '.new')\n"
        "new.write_text(f'{os.getpid()} {child.pid}')\n"
        f"new.rename({str(note)!r})\n"
        "child.wait()\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("FIB_PLUGINS", "endless_plugin")
    before, errors, executor = descriptors(), [], ForkExecutor("cpu")

    def spawn():
        try:
            getattr(executor, role)()
        except RunnerFatalError as error:
            errors.append(str(error))

    threads = [threading.Thread(target=spawn) for _ in range(3)]
    for thread in threads:
        thread.start()
    assert eventually(note.exists, seconds=60)
    closing = threading.Thread(target=executor.close)
    closing.start()
    for thread in (closing, *threads):
        thread.join(60)
        assert not thread.is_alive()
    assert errors == ["the executor has been closed"] * 3
    assert "once more" not in caplog.text
    assert eventually(lambda: not any(exists(int(pid)) for pid in note.read_text().split()))
    assert eventually(lambda: descriptors() <= before)
