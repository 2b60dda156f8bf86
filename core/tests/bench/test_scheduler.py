import signal
import subprocess
import sys
import threading
import time
from concurrent import futures
from textwrap import dedent

import pytest

from flashinfer_bench.bench.benchmark import Scheduler
from flashinfer_bench.bench.plan import WorkItem
from flashinfer_bench.bench.pool import RunInterrupted
from flashinfer_bench.errors import RunnerFatalError


class StubRunner:
    """Only what the scheduler asks of a runner."""

    def __init__(self, device):
        self.device = device
        self.stop = threading.Event()
        self.interrupted = False
        self.closed_by = []

    def interrupt(self):
        self.stop.set()

    def close(self):
        self.closed_by.append(threading.current_thread().name)


@pytest.fixture
def items(problems):
    def make(**counts):
        return [
            WorkItem(problems.definition(name), problems.workload(uuid=f"{name}{index}"), ())
            for name, count in counts.items()
            for index in range(count)
        ]

    return make


def ctrl_c():
    ident = threading.main_thread().ident
    assert ident is not None
    signal.pthread_kill(ident, signal.SIGINT)


def schedule(items, work, devices=1):
    runners = [StubRunner(f"cuda:{index}") for index in range(devices)]
    try:
        Scheduler(items, runners, work).run()
    finally:
        for runner in runners:
            assert len(runner.closed_by) == 1


def main_thread_waits():
    """Return whether the main thread has started all others, and waits for them."""
    frame = sys._current_frames()[threading.main_thread().ident or 0]
    while frame is not None and frame.f_code is not futures.wait.__code__:
        frame = frame.f_back
    return frame is not None


class TestScheduler:
    def test_error_ends_the_run_everywhere(self, items):
        def work(runner, item):
            if runner.device == "cuda:0":
                raise LookupError("disk on fire")
            assert runner.stop.wait(30)
            raise RunInterrupted("as the runner would")

        with pytest.raises(LookupError, match="disk on fire"):
            schedule(items(a=2, b=2), work, devices=2)

    def test_a_runner_that_cannot_be_closed_ends_the_run(self, items):
        class Stuck(StubRunner):
            def close(self):
                raise RuntimeError("can't start new thread")

        runners = [Stuck("cuda:0")]
        scheduler = Scheduler(items(a=1), runners, lambda runner, item: None)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            scheduler.run()

    def test_an_idle_device_takes_over_what_a_lost_one_had_begun(self, items, caplog):
        """The queue is empty and the other device at rest when the first one is lost."""
        done = []
        idle = threading.Event()

        def work(runner, item):
            if runner.device == "cuda:0":
                assert idle.wait(30)
                time.sleep(0.2)  # the other thread has found nothing left by now
                scheduler.put_back(item)
                raise RunnerFatalError("fell off the bus")
            done.append(item.workload.uuid)
            idle.set()

        runners = [StubRunner("cuda:0"), StubRunner("cuda:1")]
        scheduler = Scheduler(items(a=1, b=1), runners, work)
        scheduler.run()
        assert sorted(done) == ["a0", "b0"]
        assert [m for m in caplog.messages if "giving up on" in m] == [
            "giving up on cuda:0: fell off the bus"
        ]

    def test_devices_share_a_definition_when_that_is_most_for_each(self, problems):
        """Three with 9, 4 and 2 evaluations: the first one is taken by two of three devices."""
        rows = [("a", 3, 3), ("b", 2, 2), ("c", 2, 1)]
        work_items = [
            WorkItem(problems.definition(name), problems.workload(uuid=name), (None,) * count)
            for name, workloads, count in rows
            for _ in range(workloads)
        ]
        begun, all_begun = [], threading.Barrier(3)

        def work(runner, item):
            begun.append(item.definition.name)
            if len(begun) <= 3:
                all_begun.wait(30)

        schedule(work_items, work, devices=3)
        assert sorted(begun[:3]) == ["a", "a", "b"]
        assert sorted(begun) == ["a"] * 3 + ["b"] * 2 + ["c"] * 2

    def test_ctrl_c_interrupts_and_waits(self, items):
        done = []

        def work(runner, item):
            while not main_thread_waits():
                time.sleep(0.01)
            ctrl_c()
            assert runner.stop.wait(30)
            done.append(item.workload.uuid)
            raise RunInterrupted("as the runner would")

        with pytest.raises(KeyboardInterrupt):
            schedule(items(a=5), work)
        assert done == ["a0"]

    def test_ctrl_c_while_threads_are_being_started(self, items, monkeypatch):
        start = threading.Thread.start

        def interrupted(thread):
            if thread.name == "fib-device-cuda:0":
                start(thread)
            raise KeyboardInterrupt

        done = []

        def work(runner, item):
            assert runner.stop.wait(30)
            time.sleep(0.2)
            done.append(item.workload.uuid)
            raise RunInterrupted("as the runner would")

        monkeypatch.setattr(threading.Thread, "start", interrupted)
        with pytest.raises(KeyboardInterrupt):
            schedule(items(a=5, b=5), work, devices=2)
        assert done == ["a0"]

    def test_the_process_ends_without_a_thread_that_is_stuck(self):
        script = """
            import signal, threading
            from types import SimpleNamespace
            from flashinfer_bench.bench import benchmark, pool
            from flashinfer_bench.bench.builds import BuildAhead
            from flashinfer_bench.bench.plan import Build, WorkItem

            caught = threading.Event()

            def stuck(*arguments):
                # A signal that comes just before the main thread begins to wait goes unnoticed
                # there until the next one.
                while not caught.wait(1):
                    signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
                threading.Event().wait()

            benchmark.LAST_WORDS_S = pool.LAST_WORDS_S = 0.1
            definition = SimpleNamespace(name="d")
            stop = {"interrupted": False, "interrupt": lambda: None}
            runner = SimpleNamespace(device="cuda:0", **stop)
            try:
                benchmark.Scheduler([WorkItem(definition, None, ())], [runner], stuck).run()
            except KeyboardInterrupt:
                caught.set()
                print("run ended")
            caught = threading.Event()
            solution = SimpleNamespace(definition="d", name="s", hash=lambda: "h")
            executor = SimpleNamespace(spawn_compiler=stuck)
            builds = [Build(definition, solution)]
            options = {"jobs": 1, "timeout_s": 1, "overlap": True, "sandbox": None}
            ahead = BuildAhead(builds, executor, **options)
            try:
                ahead.start()
                ahead.outcome(solution)
            except KeyboardInterrupt:
                caught.set()
                ahead.close()
                print("builds ended")
        """
        command = [sys.executable, "-c", dedent(script)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert (done.stdout.split("\n"), done.returncode) == (["run ended", "builds ended", ""], 0)
