"""Starting, restarting and ending: nothing leaks, nothing is left, whoever dies first."""

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

from flashinfer_bench.bench.candidate.processes import children_of
from flashinfer_bench.bench.executors import fork as fork_module
from flashinfer_bench.bench.executors.base import CandidateCrashed
from flashinfer_bench.bench.executors.fork import ForkExecutor
from flashinfer_bench.bench.executors.threads import staying_on
from flashinfer_bench.errors import RunnerFatalError

ADD = "def run(x, y):\n    return x + y\n"
SLEEP = "import time\ndef run(x, y):\n    time.sleep(1000)\n"


@pytest.fixture(scope="module")
def module_executor():
    executor = ForkExecutor("cpu")
    yield executor
    executor.close()


@pytest.fixture
def executor(module_executor, plugin_in_reach):
    """One with a fork server that may be harmed: it starts another one."""
    module_executor.start()
    return module_executor


def put_and_load(candidate, definition, solution):
    candidate.load(definition, solution, timeout_s=30)
    candidate.put_inputs(0, [torch.ones(8), torch.ones(8)], {"n": 8}, timeout_s=30)


@pytest.mark.parametrize("waits", [True, False])
def test_what_was_begun_is_used_and_ended(plugin_in_reach, waits):
    before = set(children_of(os.getpid()))
    executor = ForkExecutor("cpu")
    executor.begin()
    executor.begin()
    (begun,) = set(children_of(os.getpid())) - before
    if waits:
        executor.spawn().close()
        assert set(children_of(os.getpid())) - before == {begun}
    executor.close()
    assert set(children_of(os.getpid())) == before


def test_a_solution_keeps_off_the_judges_core(executor, definition_of, solution_of):
    allowed = os.sched_getaffinity(0)
    if len(allowed) < 2:
        pytest.skip("this machine lends one core: there is none to leave")
    source = (
        "import os, torch\n"
        "def run(x, y):\n"
        "    out = torch.zeros(8)\n"
        "    out[0] = min(os.sched_getaffinity(0))\n"
        "    out[1] = torch.get_num_threads()\n"
        "    return out\n"
    )
    candidate = executor.spawn()
    put_and_load(candidate, definition_of(), solution_of(source))
    (found,) = candidate.call(0, timeout_s=30)
    assert found[:2].tolist() == [sorted(allowed)[1], len(allowed) - 1]
    assert candidate.cores() == allowed - {min(allowed)}
    candidate.close()


def test_the_judge_stays_on_its_core_and_works_alone_while_it_times():
    before = os.sched_getaffinity(0), torch.get_num_threads()
    with staying_on(min(before[0])):
        assert (os.sched_getaffinity(0), torch.get_num_threads()) == ({min(before[0])}, 1)
    assert (os.sched_getaffinity(0), torch.get_num_threads()) == before


def test_sixty_candidates_leak_nothing(server_executor, descriptors, eventually):
    server_executor.spawn().close()
    server = server_executor._runs.server
    ours, theirs, children = descriptors(), descriptors(server.pid), len(children_of(os.getpid()))
    for number in range(60):
        candidate = server_executor.spawn()
        if number % 3 == 0:
            os.kill(candidate.pid, signal.SIGKILL)
        candidate.close()
    assert descriptors() == ours
    # At most: the server may not have let go of the first one when its descriptors were counted.
    assert eventually(lambda: descriptors(server.pid) <= theirs)
    assert len(children_of(os.getpid())) == children
    their_children = Path(f"/proc/{server.pid}/task/{server.pid}/children")
    assert eventually(lambda: not their_children.read_text().split())
    assert eventually(lambda: not list(server._folder.iterdir()))
    assert not server_executor._runs.candidates


class TestClosing:
    def test_the_executor_ends_everything(
        self, plugin_in_reach, exists, definition_of, solution_of
    ):
        executor = ForkExecutor("cpu")
        candidates = [executor.spawn() for _ in range(3)]
        put_and_load(candidates[0], definition_of(), solution_of(SLEEP))
        errors = []

        def call():
            try:
                candidates[0].call(0, timeout_s=60)
            except CandidateCrashed as error:
                errors.append(error)

        thread = threading.Thread(target=call)
        thread.start()
        time.sleep(0.1)
        server, folder = executor._runs.server.pid, executor._runs.server._folder
        executor.close()
        thread.join()
        executor.close()
        assert len(errors) == 1
        assert not any(exists(candidate.pid) for candidate in candidates)
        assert not exists(server)
        assert not folder.exists()
        with pytest.raises(RunnerFatalError, match="closed"):
            executor.spawn()

    def test_an_interrupt_in_mid_request_leaves_it_unusable(self, bench, monkeypatch):
        """Its answer to that request would be taken for the answer to the next."""
        candidate = bench.load(ADD)

        def interrupt(deadline):
            raise KeyboardInterrupt

        monkeypatch.setattr(candidate._channel, "receive", interrupt)
        with pytest.raises(KeyboardInterrupt):
            candidate.call(0, timeout_s=30)
        monkeypatch.undo()
        assert not candidate.alive
        with pytest.raises(CandidateCrashed, match="cannot be used"):
            candidate.call(0, timeout_s=30)


class TestServerDies:
    def test_the_next_candidate_comes_from_a_new_one(
        self, executor, exists, eventually, definition_of, solution_of, caplog
    ):
        first = executor.spawn()
        put_and_load(first, definition_of(), solution_of(SLEEP))
        old = executor._runs.server.pid
        os.kill(old, signal.SIGKILL)
        with pytest.raises(CandidateCrashed):
            first.call(0, timeout_s=30)
        assert eventually(lambda: not exists(first.pid))
        second = executor.spawn()
        put_and_load(second, definition_of(), solution_of(ADD))
        assert torch.equal(second.call(0, timeout_s=30)[0], torch.full((8,), 2.0))
        assert executor._runs.server.pid != old
        assert "starting another one" in caplog.text

    def test_by_the_hand_of_a_candidate(
        self, executor, exists, eventually, definition_of, solution_of
    ):
        code = (
            "import os, time\ndef run(x, y):\n    os.kill(os.getppid(), 9)\n    time.sleep(100)\n"
        )
        candidate = executor.spawn()
        put_and_load(candidate, definition_of(), solution_of(code))
        with pytest.raises(CandidateCrashed):
            candidate.call(0, timeout_s=30)
        assert eventually(lambda: not exists(candidate.pid))
        assert executor.spawn().alive

    def test_without_answering_it_is_replaced(self, executor, exists, monkeypatch):
        monkeypatch.setattr(fork_module, "_END_TIMEOUT_S", 0.2)
        monkeypatch.setattr(executor, "_spawn_timeout_s", 2.0)
        old = executor._runs.server.pid
        os.kill(old, signal.SIGSTOP)
        assert executor.spawn().alive
        assert not exists(old)


class TestServerDoesNotStart:
    def start(self, timeout_s=60.0):
        executor = ForkExecutor("cpu", start_timeout_s=timeout_s)
        try:
            executor.start()
        finally:
            executor.close()

    def test_nothing_is_left(self, monkeypatch, tmp_path, descriptors):
        before, children = descriptors(), len(children_of(os.getpid()))
        scratch = tmp_path / "scratch"
        scratch.mkdir()
        monkeypatch.setattr(fork_module.tempfile, "tempdir", str(scratch))
        monkeypatch.setattr(sys, "executable", "/no/such/python")
        with pytest.raises(RunnerFatalError):
            self.start()
        assert (descriptors(), len(children_of(os.getpid()))) == (before, children)
        assert not list(scratch.iterdir())


JUDGE = """
    import sys
    from flashinfer_bench.bench.executors.fork import ForkExecutor
    from flashinfer_bench.bench.executors.spawn import SpawnExecutor
    from flashinfer_bench.data import Definition, Solution

    definition, solution = (open(path).read() for path in sys.argv[2:4])
    executor = {"fork": ForkExecutor, "spawn": SpawnExecutor}[sys.argv[1]]("cpu")
    try:
        executor.start()
        candidate = executor.spawn()
        server = executor._runs.server if sys.argv[1] == "fork" else None
        print(candidate.pid, server.pid if server else candidate.pid, flush=True)
        candidate.load(
            Definition.model_validate_json(definition),
            Solution.model_validate_json(solution),
            timeout_s=600,
        )
    except KeyboardInterrupt:
        print("interrupted", flush=True)
    finally:
        executor.close()
"""


@pytest.fixture
def judge(plugin_in_reach, tmp_path, definition_of, solution_of):
    """A process with a solution that never ends; returned with the pids to watch."""
    started = []

    def start(executor, code):
        (tmp_path / "judge.py").write_text(textwrap.dedent(JUDGE))
        (tmp_path / "definition").write_text(definition_of().model_dump_json())
        (tmp_path / "solution").write_text(solution_of(code).model_dump_json())
        (tmp_path / "tmp").mkdir()
        files = [str(tmp_path / name) for name in ("judge.py", "definition", "solution")]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry),
            "TMPDIR": str(tmp_path / "tmp"),
        }
        process = subprocess.Popen(
            [sys.executable, files[0], executor, *files[1:]],
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        started.append(process)
        pids = [int(word) for word in process.stdout.readline().split()]
        assert len(pids) == 2
        return process, pids

    yield start
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()


FORKS_AND_LOOPS = """
    import os
    os.fork()
    while True: pass
"""


@pytest.mark.parametrize("executor", ["fork", "spawn"])
class TestJudgeEnds:
    def test_killed(self, judge, exists, group_exists, eventually, executor, tmp_path):
        process, pids = judge(executor, FORKS_AND_LOOPS)
        time.sleep(0.2)
        process.kill()
        process.wait()
        assert eventually(lambda: not any(exists(pid) for pid in pids))
        assert eventually(lambda: not group_exists(pids[0]))
        if executor == "fork":  # the server outlives the judge for a moment, and clears up
            assert eventually(lambda: not list((tmp_path / "tmp").iterdir()))

    def test_interrupted(self, judge, exists, executor, tmp_path):
        process, pids = judge(executor, FORKS_AND_LOOPS)
        time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=30) == 0
        assert process.stdout.read() == "interrupted\n"
        assert not any(exists(pid) for pid in pids)
        assert not list((tmp_path / "tmp").iterdir())
