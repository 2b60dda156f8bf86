from __future__ import annotations

import threading
from typing import Any

import pytest

from flashinfer_bench.bench.executors.base import CandidateCrashed
from flashinfer_bench.bench.pool import Worker, WorkerPool
from flashinfer_bench.errors import RunnerFatalError


def pids(pool: WorkerPool, *keys: str) -> list[int]:
    found = []
    for key in keys:
        with pool.worker((key,)) as worker:
            found.append(worker.candidate.pid)
    return found


class TestReuse:
    def test_none_are_kept(self, executor: Any) -> None:
        assert pids(WorkerPool(executor, keep=0), "a", "a") == [1000, 1001]
        assert executor.of("close") == [(1000,), (1001,)]

    def test_same_key_same_process(self, executor: Any) -> None:
        assert pids(WorkerPool(executor, keep=2), "a", "b", "a", "b") == [1000, 1001, 1000, 1001]
        assert executor.of("close") == []

    def test_never_under_another_key(self, executor: Any) -> None:
        assert len(set(pids(WorkerPool(executor, keep=9), "a", "b", "c"))) == 3

    def test_first_come_first_kept(self, executor: Any) -> None:
        pool = WorkerPool(executor, keep=1)
        assert pids(pool, "a", "b", "a", "b", "a") == [1000, 1001, 1000, 1002, 1000]
        assert executor.of("close") == [(1001,), (1002,)]

    def test_clear(self, executor: Any) -> None:
        pool = WorkerPool(executor, keep=3)
        pids(pool, "a", "b")
        pool.clear()
        assert sorted(executor.of("close")) == [(1000,), (1001,)]
        assert pids(pool, "a") == [1002]

    def test_dead_one_is_replaced(self, executor: Any) -> None:
        pool = WorkerPool(executor, keep=3)
        with pool.worker(("a",)) as worker:
            candidate = worker.candidate
        candidate.close()
        assert pids(pool, "a") == [1001]

    def test_one_that_died_is_not_kept(self, executor: Any) -> None:
        pool = WorkerPool(executor, keep=3)
        with pool.worker(("a",)) as worker:
            worker.candidate.close()
        assert pids(pool, "a") == [1001]

    def test_large_one_is_not_kept(self, executor: Any) -> None:
        pool = WorkerPool(executor, keep=3)
        with pool.worker(("a",)) as worker:
            worker.reusable = False
        assert executor.of("close") == [(1000,)]

    @pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
    def test_anything_raised_ends_the_process(
        self, executor: Any, error: type[BaseException]
    ) -> None:
        pool = WorkerPool(executor, keep=3)
        with pytest.raises(error), pool.worker(("a",)):
            raise error
        assert executor.of("close") == [(1000,)]
        assert pids(pool, "a") == [1001]

    def test_executor_is_started_first(self, executor: Any) -> None:
        pids(WorkerPool(executor, keep=0), "a")
        assert executor.started == 1

    def test_no_process_at_all(self, executor: Any) -> None:
        executor.broken = True
        with pytest.raises(RunnerFatalError), WorkerPool(executor, keep=0).worker(("a",)):
            pass


class TestWorker:
    def test_loads_once(self, executor: Any, problems: Any) -> None:
        worker = Worker(executor.spawn())
        first = worker.load(problems.definition(), problems.good(), timeout_s=1.0)
        assert worker.load(problems.definition(), problems.good(), timeout_s=1.0) is first
        assert len(executor.of("load")) == 1

    def test_output_is_given_once(self, executor: Any) -> None:
        worker = Worker(executor.spawn())
        candidate: Any = worker.candidate
        candidate._print("one")
        assert worker.new_output() == "one\n"
        assert worker.new_output() == ""
        candidate._print("two")
        assert worker.new_output() == "two\n"

    def test_output_that_was_cut(self, executor: Any) -> None:
        worker = Worker(executor.spawn())
        candidate: Any = worker.candidate
        candidate._print("one")
        worker.new_output()
        candidate._printed = "o … two"
        assert worker.new_output() == "o … two"


class TestInterrupt:
    def test_ends_the_busy_ones(self, executor: Any, problems: Any) -> None:
        pool = WorkerPool(executor, keep=3)
        with pool.worker(("a",)) as worker:
            assert not pool.interrupted
            other = threading.Thread(target=pool.interrupt)
            other.start()
            other.join()
            with pytest.raises(CandidateCrashed):
                worker.load(problems.definition(), problems.good(), timeout_s=1.0)
        assert pool.interrupted

    def test_later_ones_are_ended_at_once(self, executor: Any, problems: Any) -> None:
        pool = WorkerPool(executor, keep=3)
        pool.interrupt()
        with pytest.raises(CandidateCrashed), pool.worker(("a",)) as worker:
            worker.load(problems.definition(), problems.good(), timeout_s=1.0)

    def test_idle_ones_are_left_to_clear(self, executor: Any) -> None:
        pool = WorkerPool(executor, keep=3)
        pids(pool, "a")
        pool.interrupt()
        assert executor.of("close") == []
        pool.clear()
        assert executor.of("close") == [(1000,)]


class TestOverlap:
    @pytest.fixture
    def slow(self, executor: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
        """Processes that end only when they are let go."""
        gate = threading.Event()
        spawn = executor.spawn

        def spawn_slow() -> Any:
            candidate = spawn()
            close = candidate.close

            def close_slowly() -> None:
                assert gate.wait(30)
                close()

            candidate.close = close_slowly
            return candidate

        monkeypatch.setattr(executor, "spawn", spawn_slow)
        return gate

    def test_next_one_starts_while_the_last_one_ends(self, executor: Any, slow: Any) -> None:
        pool = WorkerPool(executor, keep=0, overlap=True)
        assert pids(pool, "a", "b") == [1000, 1001]
        assert executor.of("close") == []
        slow.set()
        pool.settle()
        assert sorted(executor.of("close")) == [(1000,), (1001,)]

    def test_clear_waits(self, executor: Any, slow: Any) -> None:
        pool = WorkerPool(executor, keep=1, overlap=True)
        pids(pool, "a", "b")
        threading.Timer(0.05, slow.set).start()
        pool.clear()
        assert len(executor.of("close")) == 2

    def test_without_it_the_end_is_waited_for(self, executor: Any, slow: Any) -> None:
        slow.set()
        pool = WorkerPool(executor, keep=0)
        assert pids(pool, "a") == [1000]
        assert executor.of("close") == [(1000,)]
        pool.settle()
