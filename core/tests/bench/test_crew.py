from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from flashinfer_bench.bench import crew as module
from flashinfer_bench.bench.crew import Crew, default_jobs
from flashinfer_bench.bench.pool import RunInterrupted


@pytest.fixture
def crew_of() -> Any:
    """Make crews, and end them after the test."""
    made: list[Crew[Any]] = []

    def make(work: Any, size: int = 2) -> Crew[Any]:
        made.append(Crew(work, size=size))
        return made[-1]

    yield make
    for crew in made:
        crew.stop()
        crew.join(10)


def threads() -> int:
    return sum(thread.name.startswith("fib-build") for thread in threading.enumerate())


class TestWork:
    def test_everything_is_done_in_order(self, crew_of: Any) -> None:
        done: list[int] = []
        crew = crew_of(done.append, size=1)
        crew.add(range(5))
        crew.add([9])
        crew.wait()
        assert done == [0, 1, 2, 3, 4, 9]

    def test_as_many_at_a_time_as_were_asked_for(self, crew_of: Any) -> None:
        meeting = threading.Barrier(3, timeout=30)
        crew = crew_of(lambda task: meeting.wait(), size=3)
        crew.add(range(6))
        crew.wait()
        assert not meeting.broken

    def test_and_no_more(self, crew_of: Any) -> None:
        running, most, lock = [0], [0], threading.Lock()

        def work(task: int) -> None:
            with lock:
                running[0] += 1
                most[0] = max(most[0], running[0])
            time.sleep(0.002)
            with lock:
                running[0] -= 1

        crew = crew_of(work, size=3)
        crew.add(range(30))
        crew.wait()
        assert most[0] == 3

    def test_threads_start_when_they_are_needed(self, crew_of: Any) -> None:
        before = threads()
        crew = crew_of(lambda task: None, size=8)
        assert threads() == before
        crew.add([1])
        crew.wait()
        assert threads() == before + 1
        crew.add([2])
        crew.wait()
        assert threads() == before + 1

    def test_what_is_urgent_comes_first(self, crew_of: Any) -> None:
        done: list[int] = []
        gate = threading.Event()
        crew = crew_of(lambda task: (gate.wait(30), done.append(task)), size=1)
        crew.add(range(6))
        crew.hurry(lambda task: task in (3, 5))
        gate.set()
        crew.wait()
        assert [task for task in done if task] == [3, 5, 1, 2, 4]  # 0 may have begun before

    def test_waiting_for_one_of_many(self, crew_of: Any) -> None:
        done: list[int] = []
        gate = threading.Event()

        def work(task: int) -> None:
            if task == 1:
                gate.wait(30)
            done.append(task)

        crew = crew_of(work)
        crew.add([1, 2])
        crew.wait(lambda: 2 in done)
        assert done == [2]
        gate.set()
        crew.wait()
        assert done == [2, 1]

    def test_nothing_to_wait_for(self, crew_of: Any) -> None:
        crew_of(print).wait()


class TestEnds:
    def test_an_error_ends_it_and_is_raised_by_whoever_waits(self, crew_of: Any) -> None:
        done: list[int] = []

        def work(task: int) -> None:
            if task == 1:
                raise LookupError("terminal is gone")
            done.append(task)

        crew = crew_of(work, size=1)
        crew.add([0, 1, 2, 3])
        with pytest.raises(LookupError, match="terminal is gone"):
            crew.wait()
        with pytest.raises(LookupError):
            crew.check()
        crew.join(10)
        assert done == [0]

    def test_stopping_wakes_whoever_waits(self, crew_of: Any) -> None:
        gate = threading.Event()
        crew = crew_of(lambda task: gate.wait(30))
        crew.add([1, 2, 3])
        threading.Timer(0.05, crew.stop).start()
        with pytest.raises(RunInterrupted):
            crew.wait(lambda: False)
        gate.set()
        crew.join(10)

    def test_what_was_reached_before_the_stop_counts(self, crew_of: Any) -> None:
        crew = crew_of(lambda task: None)
        crew.stop()
        crew.wait(lambda: True)
        crew.add([1])
        crew.wait()

    def test_threads_end(self, crew_of: Any) -> None:
        before = threads()
        crew = crew_of(lambda task: None, size=4)
        crew.add(range(20))
        crew.wait()
        crew.stop()
        crew.join(10)
        assert threads() == before

    def test_a_thread_that_does_not_end_is_left_behind(self, crew_of: Any) -> None:
        gate = threading.Event()
        crew = crew_of(lambda task: gate.wait(30))
        crew.add([1])
        crew.stop()
        crew.join(0.01)
        gate.set()


class TestJobs:
    @pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="cannot bind to cores here")
    def test_one_core_is_spared(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for cores, jobs in [(1, 1), (2, 1), (5, 4)]:
            monkeypatch.setattr(os, "sched_getaffinity", lambda pid, n=cores: set(range(n)))
            assert default_jobs() == jobs
            assert default_jobs(spare=0) == cores

    def test_no_more_than_memory_allows(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(64)), raising=False)
        for available, jobs in [(0, 1), (5 * 2**30, 2), (1000 * 2**30, 63), (None, 63)]:
            monkeypatch.setattr(module, "_available_memory", lambda found=available: found)
            assert default_jobs() == jobs

    @pytest.mark.skipif(not Path("/proc/meminfo").exists(), reason="needs /proc/meminfo")
    def test_memory_of_this_machine(self) -> None:
        found = module._available_memory()
        assert found is not None
        assert 2**20 < found < 2**50

    def test_a_system_that_does_not_tell(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module, "Path", lambda name: Path("/no/such/file"))
        assert module._available_memory() is None
