"""Compiling in processes of their own, by a plugin that calls the system's C compiler."""

from __future__ import annotations

import os
import shutil
import threading
from pathlib import Path

import pytest
import torch

from flashinfer_bench.bench.executors import fork as fork_module
from flashinfer_bench.bench.executors import server as server_module
from flashinfer_bench.bench.executors.base import (
    CandidateCrashed,
    CandidateFailed,
    CandidateTimeout,
)
from flashinfer_bench.bench.executors.fork import ForkExecutor
from flashinfer_bench.bench.executors.spawn import SpawnExecutor
from flashinfer_bench.data import Solution
from flashinfer_bench.errors import RunnerError, RunnerFatalError

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler 'cc'")

PLUGIN_FOLDER = Path(__file__).parents[1] / "bench" / "plugin"
DOUBLE = """
void run(const float *x, float *y, long n) { for (long i = 0; i < n; i++) y[i] = 2 * x[i]; }
"""
EXECUTORS = {"fork": ForkExecutor, "spawn": SpawnExecutor}


def solution(code: str = DOUBLE, *directives: str, name: str = "in_c", **spec) -> Solution:
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


def thread_count(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/task").iterdir()))


def maps_of(candidate) -> str:
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
    assert again.seconds > 0
    executor.start()
    candidate = executor.spawn()
    assert candidate.compile(definition, made, timeout_s=60).fresh is False
    loaded = candidate.load(definition, made, timeout_s=60)
    assert (loaded.build_type, loaded.destination_passing_style) == ("c", True)
    candidate.put_inputs(0, [torch.arange(8.0)], {"n": 8}, timeout_s=60)
    assert torch.equal(candidate.call(0, timeout_s=60)[0], torch.arange(8.0) * 2)
    candidate.close()
    assert descriptors() <= before + 8  # the servers' own
    assert not executor._runs.candidates if kind == "fork" else not executor._candidates


class TestRefused:
    def test_a_compiler_does_nothing_else(self, compiler, definition):
        with pytest.raises(CandidateFailed, match="to compile, and for nothing else") as caught:
            compiler.load(definition, solution(), timeout_s=30)
        assert caught.value.about == "raised"
        assert compiler.alive

    def test_none_of_the_solution_is_run(self, compiler, definition, tmp_path):
        """Not even what a library does when it is loaded."""
        made = tmp_path / "made"
        code = f"""
            #include <fcntl.h>
            __attribute__((constructor)) static void hello(void) {{ creat("{made}", 0600); }}
            {DOUBLE}
        """
        assert compiler.compile(definition, solution(code), timeout_s=60).fresh
        assert not made.exists()


class TestFailures:
    def failure(self, compiler, definition, *directives, code=DOUBLE, **spec) -> CandidateFailed:
        with pytest.raises(CandidateFailed) as caught:
            compiler.compile(definition, solution(code, *directives, **spec), timeout_s=60)
        assert compiler.alive
        assert caught.value.stage == "compile"
        return caught.value

    def test_a_mistake_in_the_source(self, compiler, definition):
        error = self.failure(compiler, definition, code="void run( { }\n")
        assert (error.about, error.is_no_fault, error.builder) == ("build", False, "testc")
        assert "main.c:1:" in error.message
        assert "error:" in error.traceback

    def test_a_full_disk(self, compiler, definition):
        error = self.failure(compiler, definition, "storage")
        assert (error.about, error.is_no_fault) == ("storage", True)
        assert error.reason == "the cache has no space left\n  hint: make room"

    def test_a_missing_tool(self, compiler, definition):
        error = self.failure(compiler, definition, "capability")
        assert (error.about, error.is_no_fault) == ("capability", True)
        assert "'in_c': the tool 'frob' was not found" in error.reason

    def test_a_builder_that_quits(self, compiler, definition):
        error = self.failure(compiler, definition, "quit")
        assert (error.about, error.is_no_fault) == ("build", False)
        assert "SystemExit" in error.message

    def test_a_solution_that_only_an_absent_builder_takes(self, compiler, definition):
        error = self.failure(compiler, definition, "decline")
        assert (error.about, error.builder) == ("capability", "")
        assert "'testc' handles" in error.reason
        assert "testc_frob (compiling_plugin) would, but cannot be used here" in error.reason
        assert "there is no frob" in error.reason

    def test_a_language_for_another_device(self, compiler, definition):
        error = self.failure(compiler, definition, language="testgpu")
        assert error.about == "capability"
        assert "is for device 'cpu'" in error.reason
        assert "testgpu (compiling_plugin) is for cuda" in error.reason

    def test_a_crash(self, compiler, definition):
        with pytest.raises(CandidateCrashed, match="SIGABRT") as caught:
            compiler.compile(definition, solution(DOUBLE, "crash"), timeout_s=60)
        assert caught.value.stage == "compile"
        assert not compiler.alive


def hanging(tmp_path) -> tuple[Solution, Path]:
    note = tmp_path / "pid"
    return solution(DOUBLE, f"hang {note}"), note


class TestHang:
    @pytest.mark.parametrize("kind", EXECUTORS)
    def test_at_the_time_limit_the_compiler_s_own_processes_end(
        self, executors, kind, definition, tmp_path, exists, group_exists, eventually
    ):
        made, note = hanging(tmp_path)
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

    def test_closing_from_another_thread_ends_them(
        self, compiler, definition, tmp_path, exists, eventually
    ):
        made, note = hanging(tmp_path)

        def close_then() -> None:
            assert eventually(note.exists)
            compiler.close()

        thread = threading.Thread(target=close_then)
        thread.start()
        with pytest.raises(CandidateCrashed):
            compiler.compile(definition, made, timeout_s=60)
        thread.join()
        assert eventually(lambda: not exists(int(note.read_text())))


class TestManyThreads:
    def test_all_of_them_get_processes_of_their_own(self, executor, definition, descriptors):
        executor.spawn_compiler().close()
        executor.start()
        before = descriptors()
        pids, errors = [], []

        def use(number: int) -> None:
            try:
                for round_ in range(6):
                    spawn = executor.spawn if (number + round_) % 2 else executor.spawn_compiler
                    candidate = spawn()
                    pids.append(candidate.pid)
                    made = solution(f"{DOUBLE}// {number % 3}\n", name=f"s{number}")
                    candidate.compile(definition, made, timeout_s=60)
                    candidate.close()
            except BaseException as error:  # noqa: BLE001 - looked at below
                errors.append(error)

        threads = [threading.Thread(target=use, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert errors == []
        assert len(pids) == 48
        assert descriptors() == before
        assert not executor._runs.candidates
        assert not executor._compiles.candidates

    def test_the_first_ones_start_one_server_of_each_kind(self, executors, monkeypatch):
        started = []

        class Counting(server_module.ForkServer):
            def __init__(self, **options):
                started.append(options["compile_for"])
                super().__init__(**options)

        monkeypatch.setattr(fork_module, "ForkServer", Counting)
        executor = ForkExecutor("cpu")
        spawns = [executor.spawn, executor.spawn_compiler] * 3
        threads = [threading.Thread(target=spawn) for spawn in spawns]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        executor.close()
        assert sorted(map(str, started)) == ["None", "cpu"]

    @pytest.mark.parametrize("kind", EXECUTORS)
    def test_closing_while_others_start(self, kind, descriptors, exists, eventually):
        before = descriptors()
        executor = EXECUTORS[kind]("cpu")
        pids, refused = [], []

        def keep_spawning() -> None:
            try:
                while True:
                    pids.append(executor.spawn_compiler().pid)
            except RunnerFatalError as error:
                refused.append(error)

        threads = [threading.Thread(target=keep_spawning) for _ in range(4)]
        for thread in threads:
            thread.start()
        assert eventually(lambda: len(pids) >= 4, timeout_s=60)
        executor.close()
        for thread in threads:
            thread.join(60)
        assert len(refused) == 4
        assert eventually(lambda: not any(exists(pid) for pid in pids))
        assert eventually(lambda: descriptors() <= before)

    def test_one_failed_start_does_not_end_the_others(self, executors, monkeypatch):
        """A candidate that dies at once, for lack of memory say, is not the server's fault."""
        executor = ForkExecutor("cpu")
        first = executor.spawn_compiler()
        server = executor._compiles.server
        attempts = []
        spawn_from = executor._spawn_from

        def dies_once(server, family):
            attempts.append(server)
            if len(attempts) == 1:
                raise RunnerError("the candidate process was killed")
            return spawn_from(server, family)

        monkeypatch.setattr(executor, "_spawn_from", dies_once)
        second = executor.spawn_compiler()
        assert first.alive
        assert second.alive
        assert attempts == [server, server]
        executor.close()


def test_builds_of_two_threads_run_side_by_side(executor, definition, tmp_path):
    """Each compiler waits for what the other one makes: one after the other they would not end."""
    notes = [tmp_path / name for name in "ab"]
    done = []

    def compile_one(mine: Path, other: Path) -> None:
        made = solution(DOUBLE, f"note {mine}", f"wait {other}", name=mine.name)
        compiler = executor.spawn_compiler()
        done.append(compiler.compile(definition, made, timeout_s=60))
        compiler.close()

    threads = [
        threading.Thread(target=compile_one, args=pair) for pair in (notes, list(reversed(notes)))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [one.fresh for one in done] == [True, True]


def test_probes_are_asked_in_the_server_once(executor, tmp_path, monkeypatch):
    """A child finds the answers; it would have to start compilers to ask them anew."""
    folder = tmp_path / "plugin"
    folder.mkdir()
    (folder / "counted_plugin.py").write_text(
        "import os\n"
        "from flashinfer_bench.plugins import Availability, BuilderSpec, hookimpl\n"
        "def probe():\n"
        f"    open({str(tmp_path / 'asked')!r}, 'a').write(f'{{os.getpid()}}\\n')\n"
        "    return Availability(False, 'no such thing')\n"
        "@hookimpl\n"
        "def fib_register_builders():\n"
        "    yield BuilderSpec(name='counted', handles=(('counted', None),), compiles=True,\n"
        "                      factory='counted_plugin:Builder', probe='counted_plugin:probe')\n"
    )
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("FIB_PLUGINS", "counted_plugin")
    own = ForkExecutor("cpu")
    for _ in range(3):
        own.spawn_compiler()
    asked = (tmp_path / "asked").read_text().split()
    assert asked == [str(own._compiles.server.pid)]
    own.close()


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

    def write(*devices: str) -> Path:
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


def test_probes_for_other_devices_are_not_asked(slow_plugin):
    asked = slow_plugin("cuda")
    executor = ForkExecutor("cpu")
    executor.spawn_compiler()
    executor.close()
    assert not asked.exists()


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

    def spawn() -> None:
        try:
            getattr(executor, role)()
        except RunnerFatalError as error:
            errors.append(str(error))

    threads = [threading.Thread(target=spawn) for _ in range(3)]
    for thread in threads:
        thread.start()
    assert eventually(note.exists, timeout_s=60)
    closing = threading.Thread(target=executor.close)
    closing.start()
    for thread in (closing, *threads):
        thread.join(60)
        assert not thread.is_alive()
    assert errors == ["the executor has been closed"] * 3
    assert "once more" not in caplog.text
    assert eventually(lambda: not any(exists(int(pid)) for pid in note.read_text().split()))
    assert eventually(lambda: descriptors() <= before)
