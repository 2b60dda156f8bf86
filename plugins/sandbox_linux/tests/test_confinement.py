"""Solutions that try what they must not, and those that do what they may, in confined processes."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest
import torch

from fib_sandbox_linux import limits
from fib_tests.plugins import PLUGIN_FOLDER
from flashinfer_bench.bench.candidate.processes import freezer_of
from flashinfer_bench.bench.executors.base import CandidateError, CandidateFailed
from flashinfer_bench.bench.executors.fork import ForkExecutor
from flashinfer_bench.bench.executors.frozen import FrozenTree
from flashinfer_bench.bench.executors.spawn import SpawnExecutor
from flashinfer_bench.bench.sandbox import Sandbox
from flashinfer_bench.compile.cache import lock_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has these measures")

X, Y = torch.arange(8.0), torch.ones(8)
SMALL = {"MEMORY_MB": "3000", "FILE_MB": "100", "PROCESSES": "100"}


def body(text):
    return "def run(x, y):\n" + textwrap.indent(textwrap.dedent(text), "    ")


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def locks(tmp_path_factory):
    return tmp_path_factory.mktemp("locks")


@pytest.fixture(scope="module")
def environment(cache, locks):
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(PLUGIN_FOLDER)
        patch.setenv("FIB_PLUGINS", "candidate_test_plugin")
        patch.setenv("FIB_CACHE_PATH", str(cache))
        patch.setenv("FIB_LOCK_PATH", str(locks))
        for name, value in SMALL.items():
            patch.setenv(f"FIB_SANDBOX_{name}", value)
        yield


@pytest.fixture(scope="module")
def executor(environment):
    made = ForkExecutor("cpu")
    made.start()
    yield made
    made.close()


@pytest.fixture
def own(tmp_path):
    folder = tmp_path / "own"
    folder.mkdir()
    return folder


@pytest.fixture
def load(executor, own, definition_of, solution_of):
    """``load(code)``: a confined process that has loaded it, and has its inputs."""
    started = []

    def load(code):
        candidate = executor.spawn()
        started.append(candidate)
        candidate.confinement = candidate.confine([str(own)], timeout_s=30)
        candidate.load(definition_of(), solution_of(code), timeout_s=30)
        candidate.put_inputs(0, [X, Y], {"n": 8}, timeout_s=30)
        return candidate

    yield load
    for candidate in started:
        candidate.close()


@pytest.fixture
def attempt(load):
    """``attempt(text, *measures)``: how a call of a solution with this body ends.

    The test is skipped if none of the measures that forbid it holds on this machine.
    """

    def attempt(text, *measures):
        candidate = load(body(textwrap.dedent(text) + "\nreturn x + y"))
        held = candidate.confinement
        if measures and not set(measures).intersection(held.applied):
            pytest.skip(f"this machine does not offer it: {held.missing}")
        try:
            (got,) = candidate.call(0, timeout_s=60)
        except CandidateFailed as error:
            return error.kind
        except CandidateError as error:
            return type(error).__name__
        assert torch.equal(got, X + Y)
        return "done"

    return attempt


def test_every_measure_is_told(load):
    held = load("def run(x, y):\n    return x + y\n").confinement
    names = [
        *("resource-limits", "process-limit", "freezer", "network-namespace", "mount-namespace"),
        *("capabilities", "no-new-privileges", "landlock-files", "landlock-network"),
        *("landlock-signals", "memory-limit", "system-calls"),
    ]
    assert sorted([*held.applied, *held.missing]) == sorted(names)
    assert not set(held.applied).intersection(held.missing)
    assert all(held.missing.values())


def test_a_process_that_is_not_forked_is_confined_as_well(
    environment, load, own, tmp_path, definition_of, solution_of
):
    forked = load("def run(x, y):\n    return x + y\n").confinement
    spawned = SpawnExecutor("cpu")
    try:
        candidate = spawned.spawn()
        held = candidate.confine([str(own)], timeout_s=60)
        assert held.applied == forked.applied
        code = body(f"open({str(tmp_path / 'new')!r}, 'w')")
        candidate.load(definition_of(), solution_of(code), timeout_s=60)
        candidate.put_inputs(0, [X, Y], {"n": 8}, timeout_s=60)
        if {"landlock-files", "mount-namespace"}.intersection(held.applied):
            with pytest.raises(CandidateFailed, match=r"Permission denied|Read-only file system"):
                candidate.call(0, timeout_s=60)
            assert not (tmp_path / "new").exists()
    finally:
        spawned.close()


class TestFiles:
    FORBIDS = ("landlock-files", "mount-namespace")

    @pytest.mark.parametrize(
        "act",
        [
            "open(path + '/new', 'w')",
            "open(path + '/kept', 'w')",
            "open(path + '/kept', 'a')",
            "os.remove(path + '/kept')",
            "os.rename(path + '/kept', path + '/moved')",
            "os.mkdir(path + '/folder')",
            "os.symlink('/', path + '/link')",
            "os.mkfifo(path + '/pipe')",
            "os.truncate(path + '/kept', 0)",
            "os.link(path + '/kept', 'here')",
            "os.replace(__file__, path + '/kept')",
            "open('/proc/sys/kernel/core_pattern', 'a')",
        ],
    )
    def test_others_stay_as_they_are(self, attempt, tmp_path, act):
        (tmp_path / "kept").write_text("kept")
        before = sorted(tmp_path.iterdir())
        got = attempt(f"import os\npath = {str(tmp_path)!r}\n{act}", *self.FORBIDS)
        assert got in ("PermissionError", "OSError")
        assert sorted(tmp_path.iterdir()) == before
        assert (tmp_path / "kept").read_text() == "kept"

    def test_own_folders_are_writable(self, attempt, own):
        code = f"""
            import os, pathlib, tempfile
            with tempfile.TemporaryFile() as stream:
                stream.write(b"x")
            pathlib.Path("here").write_text("x")
            pathlib.Path({str(own)!r}, "there").write_text("x")
            os.rename("here", {str(own / "moved")!r})
            pathlib.Path("/dev/null").write_text("x")
            assert os.environ["TRITON_CACHE_DIR"].startswith({str(own)!r})
        """
        got = attempt(code)
        # Two mounts are two file systems to a rename.
        assert got in ("done", "OSError")
        assert (own / "there").read_text() == "x"

    def test_what_is_known_of_this_machine(self, attempt, cache):
        """A solution could have itself measured against a floor that is too low."""
        ceilings = cache / "calibration" / "here.json"
        ceilings.parent.mkdir(exist_ok=True)
        ceilings.write_text("{}")
        for act in (f"open({str(ceilings)!r}, 'w')", f"os.remove({str(ceilings)!r})"):
            assert attempt(f"import os\n{act}", *self.FORBIDS) in ("PermissionError", "OSError")
        new = cache / "calibration" / "new.json"
        assert attempt(f"open({str(new)!r}, 'w')", *self.FORBIDS) in ("PermissionError", "OSError")
        assert ceilings.read_text() == "{}"
        assert not new.exists()

    def test_a_dataset(self, executor, own, tmp_path, definition_of, solution_of):
        """Its lock would be held for as long as a solution likes, and no trace be stored."""
        lock = tmp_path / "dataset" / "traces" / "op" / ".d.jsonl.lock"
        lock.parent.mkdir(parents=True)
        lock.touch()
        candidate = executor.spawn()
        try:
            sandbox = Sandbox(dataset=tmp_path / "dataset")
            what = definition_of(), solution_of(body(f"open({str(lock)!r})"))
            if "mount-namespace" not in sandbox.confine(candidate, *what).applied:
                pytest.skip("this machine does not offer it")
            candidate.load(*what, timeout_s=30)
            candidate.put_inputs(0, [X, Y], {"n": 8}, timeout_s=30)
            with pytest.raises(CandidateFailed, match="No such file"):
                candidate.call(0, timeout_s=30)
        finally:
            candidate.close()

    @pytest.mark.parametrize("of", ["device", "build"])
    def test_locks(self, attempt, locks, cache, of):
        """Whoever can open a lock can hold it, and nobody would measure, or build, any more."""
        lock = locks / "device-cpu.lock" if of == "device" else lock_of(cache / "a" / "b")
        lock.parent.mkdir(parents=True, exist_ok=True)
        lock.touch()
        code = f"""
            import fcntl
            with open({str(lock)!r}) as stream:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        """
        assert attempt(code, "mount-namespace") == "FileNotFoundError"
        # … not even one that is there only later.
        later = lock.with_name("device-later.lock")
        code = f"open({str(later)!r}, 'w')"
        refusals = ("PermissionError", "FileNotFoundError", "OSError")
        assert attempt(code, *self.FORBIDS) in refusals
        assert not later.exists()


class TestProcesses:
    @pytest.mark.parametrize(
        ("act", "measure"),
        [
            ("open(f'/proc/{JUDGE}/mem', 'rb').read(1)", "landlock-files"),
            ("open(f'/proc/{os.getppid()}/mem', 'rb').read(1)", "landlock-files"),
            ("open(f'/proc/{os.getppid()}/environ', 'rb').read(1)", "landlock-files"),
            ("open(f'/proc/{os.getppid()}/maps', 'rb').read(1)", "landlock-files"),
            ("open(f'/proc/{os.getppid()}/fd/0', 'rb').read(1)", "landlock-files"),
            ("os.kill(JUDGE, 9)", "landlock-signals"),
            ("os.kill(os.getppid(), 9)", "landlock-signals"),
            ("os.kill(-1, 9)", "system-calls"),
            ("system.call('ptrace', 16, os.getppid(), 0, 0, 0, 0)", "system-calls"),
            ("system.call('process_vm_readv', 16, os.getppid(), 0, 0, 0, 0)", "system-calls"),
        ],
    )
    def test_others_are_out_of_reach(self, attempt, act, measure):
        imports = "import os\nfrom fib_sandbox_linux import system\n"
        got = attempt(f"{imports}JUDGE = {os.getpid()}\n{act}", measure)
        assert got == "PermissionError"
        assert attempt("pass") == "done"

    def test_no_daemon_gets_away(self, load, eventually, group_exists):
        candidate = load(
            body("""
            import os, subprocess, time
            pid = os.fork()
            if pid == 0:
                os.setsid()
                if os.fork():
                    os._exit(0)
                time.sleep(600)
            os.waitpid(pid, 0)
            subprocess.Popen(["sleep", "600"], start_new_session=True)
            return x + y
            """)
        )
        candidate.call(0, timeout_s=30)
        leader = candidate.pid
        assert group_exists(leader)
        os.killpg(leader, signal.SIGKILL)
        assert eventually(lambda: not group_exists(leader))

    def test_it_dies_with_its_fork_server(
        self, definition_of, solution_of, own, plugin_in_reach, exists, eventually, group_exists
    ):
        executor = ForkExecutor("cpu")
        try:
            executor.start()
            candidate = executor.spawn()
            candidate.confine([str(own)], timeout_s=30)
            code = "import ctypes, os\nctypes.CDLL(None).prctl(1, 0, 0, 0, 0)\n"
            run = "def run(x, y):\n    if os.fork() == 0:\n        os.setsid(); os.pause()\n"
            candidate.load(definition_of(), solution_of(code + run), timeout_s=30)
            os.kill(executor._runs.server.pid, signal.SIGKILL)
            assert eventually(lambda: not exists(candidate.pid))
            candidate.close()
            assert eventually(lambda: not group_exists(candidate.pid))
        finally:
            executor.close()


def test_forks(attempt):
    code = """
        import os, time
        for _ in range(300):
            if os.fork() == 0:
                time.sleep(600)
    """
    assert attempt(code, "process-limit") == "BlockingIOError"
    assert attempt("pass") == "done"


STAYS = {
    "fork pool": """
        import multiprocessing, operator
        with multiprocessing.get_context("fork").Pool(2) as pool:
            assert pool.map(abs, [-1, -2, 3]) == [1, 2, 3]
    """,
    "spawn pool": """
        import multiprocessing, operator
        with multiprocessing.get_context("spawn").Pool(2) as pool:
            assert pool.map(abs, [-1, -2, 3]) == [1, 2, 3]
    """,
    "tensors in shared memory": "import torch; torch.ones(1000).share_memory_()",
    "parallel torch": """
        import torch
        a = torch.randn(600, 600)
        assert torch.isfinite(a @ a).all()
    """,
    "programs": """
        import subprocess
        assert subprocess.check_output(["echo", "hello"], start_new_session=True) == b"hello\\n"
        assert subprocess.run("cat /proc/self/comm | grep cat", shell=True).returncode == 0
    """,
    "temporary folders": """
        import tempfile, pathlib
        with tempfile.TemporaryDirectory() as folder:
            pathlib.Path(folder, "a").write_text("x")
    """,
    "threads": """
        import concurrent.futures
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            assert list(pool.map(abs, [-1, 2])) == [1, 2]
    """,
}


class TestWhatStays:
    @pytest.mark.parametrize("what", STAYS)
    def test_it_works(self, attempt, what):
        assert attempt(STAYS[what]) == "done"

    def test_its_memory_can_be_read_by_the_judge(self, load):
        frozen = pytest.importorskip("flashinfer_bench.bench.executors.frozen")
        if frozen.why_not():
            pytest.skip(frozen.why_not())
        code = """
            import ctypes
            libc = ctypes.CDLL(None)
            SECRET = ctypes.create_string_buffer(b"read me")
            assert libc.prctl(4, 0, 0, 0, 0) == -1  # to be dumpable no longer
            print(ctypes.addressof(SECRET), flush=True)
            def run(x, y):
                return x + y
        """
        candidate = load(textwrap.dedent(code))
        tree = frozen.FrozenTree(candidate.pid, freezer_of(candidate.pid), timeout_s=10)
        try:
            assert bytes(tree.read(int(candidate.log().split()[-1]), 7)) == b"read me"
        finally:
            tree.thaw()
        (got,) = candidate.call(0, timeout_s=30)
        assert torch.equal(got, X + Y)


def test_nothing_goes_on_while_its_judge_reads(load):
    """Neither what a signal of a child or of a timer wakes, nor a parent that waits in vfork."""
    code = """
        import ctypes, mmap, os, signal, threading, time
        memory = mmap.mmap(-1, 4096)
        number = ctypes.c_uint64.from_buffer(memory)
        def count():
            while True:
                number.value += 1
        threading.Thread(target=count, daemon=True).start()
        parent = os.getpid()
        if os.fork() == 0:
            while True:
                os.kill(parent, signal.SIGCONT)
        signal.signal(signal.SIGCONT, lambda *ignored: None)
        libc = ctypes.CDLL(None)
        event = (ctypes.c_uint64 * 8)(0, signal.SIGCONT)  # signals the process
        timer, often = ctypes.c_void_p(), (ctypes.c_long * 4)(0, 1_000_000, 0, 1_000_000)
        assert libc.timer_create(1, event, ctypes.byref(timer)) == 0
        assert libc.timer_settime(timer, 0, often, None) == 0
        print(ctypes.addressof(number), flush=True)
        def run(x, y):
            return x + y
    """
    candidate = load(textwrap.dedent(code))
    if "freezer" in candidate.confinement.missing:
        pytest.skip(candidate.confinement.missing["freezer"])
    address = int(candidate.log().split()[-1])
    for _ in range(5):
        tree = FrozenTree(candidate.pid, freezer_of(candidate.pid), timeout_s=10)
        first = bytes(tree.read(address, 8))
        time.sleep(0.02)
        assert bytes(tree.read(address, 8)) == first
        tree.require_still()
        tree.thaw()
    (got,) = candidate.call(0, timeout_s=30)
    assert torch.equal(got, X + Y)


def test_what_is_frozen_when_its_judge_is_killed_ends(tmp_path, eventually, exists):
    script = """
        import os, signal, sys
        from flashinfer_bench.bench.candidate.processes import freezer_of
        from flashinfer_bench.bench.executors.fork import ForkExecutor
        from flashinfer_bench.bench.executors.frozen import FrozenTree
        executor = ForkExecutor("cpu")
        executor.start()
        candidate = executor.spawn()
        print(candidate.confine([sys.argv[1]], timeout_s=60).applied, flush=True)
        FrozenTree(candidate.pid, freezer_of(candidate.pid), timeout_s=10)
        print(candidate.pid, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    command = [sys.executable, "-c", textwrap.dedent(script), str(tmp_path)]
    alone = {**os.environ, "FIB_PLUGINS": ""}
    done = subprocess.run(
        command, env=alone, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    pid = int(done.stdout.split()[-1])
    assert eventually(lambda: not exists(pid))
    limits.remove_empty_groups()
    assert not list(Path("/sys/fs/cgroup").glob(f"**/fib-candidate-{pid}"))


def test_it_is_too_late_once_something_is_loaded(load, own):
    candidate = load("def run(x, y):\n    return x + y\n")
    with pytest.raises(CandidateFailed, match="too late"):
        candidate.confine([str(own)], timeout_s=30)


def test_many_at_once(executor, own):
    """Control groups of candidates that have ended are removed while others are made."""
    held = []

    def start():
        candidate = executor.spawn()
        held.append(candidate.confine([str(own)], timeout_s=60).applied)
        candidate.close()

    threads = [threading.Thread(target=start) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(held)) == 1
    assert len(held) == 6
