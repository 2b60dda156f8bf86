import pytest

from flashinfer_bench.bench.pool import WorkerPool
from flashinfer_bench.bench.sandbox import Sandbox
from flashinfer_bench.errors import RunnerFatalError


@pytest.mark.parametrize("end", ["dies later", "is large", ValueError, KeyboardInterrupt])
def test_who_is_not_kept_is_ended_and_replaced(executor, end):
    pool = WorkerPool(executor, keep=3, sandbox=Sandbox("off"))
    if isinstance(end, type):
        with pytest.raises(end), pool.worker(("a",)):
            raise end
    else:
        with pool.worker(("a",)) as worker:
            worker.reusable = end != "is large"
    if end == "dies later":
        worker.candidate.close()
    pool.settle()
    assert executor.of("close") == [(1000,)]
    with pool.worker(("a",)) as worker:
        assert worker.candidate.pid == 1001


def test_the_reference_s_process_stays_where_solutions_get_fresh_ones(executor):
    pool = WorkerPool(executor, keep=0, sandbox=Sandbox("off"))
    pids = []
    for key in [("solution", "a"), ("reference", "d")] * 2:
        with pool.worker(key) as worker:
            pids.append(worker.candidate.pid)
    assert pids == [1000, 1001, 1002, 1001]
    pool.clear()
    pool.settle()
    assert {pid for (pid,) in executor.of("close")} == {1000, 1001, 1002}


class TestAhead:
    """A process is started while another loads, by executors for which that takes milliseconds."""

    @pytest.fixture
    def started(self, executor, monkeypatch):
        """All candidates, by pid."""
        found, spawn = {}, executor.spawn

        def noted():
            candidate = spawn()
            return found.setdefault(candidate.pid, candidate)

        monkeypatch.setattr(executor, "ahead", True)
        monkeypatch.setattr(executor, "spawn", noted)
        return found

    def test_it_is_the_next_worker_and_ends_with_the_others(self, executor, started):
        pool = WorkerPool(executor, keep=3, sandbox=Sandbox("off"))
        with pool.worker(("a",)) as first:
            pool.settle()
            assert set(started) == {1000, 1001}
        with pool.worker(("b",)) as second:
            pool.settle()
            assert {first.candidate.pid, second.candidate.pid} == {1000, 1001}
            assert set(started) == {1000, 1001, 1002}
        with pool.worker(("a",)) as again:
            assert again is first
        assert len(started) == 3
        pool.clear()
        pool.settle()
        assert sorted(executor.of("close")) == [(1000,), (1001,), (1002,)]

    def test_one_that_has_died_or_could_not_be_started_is_replaced(self, executor, started):
        pool = WorkerPool(executor, keep=0, sandbox=Sandbox("off"))
        with pool.worker(("a",)) as first:
            pool.settle()
            (waiting,) = set(started) - {first.candidate.pid}
            started[waiting].close()
            executor.broken = True
        with pytest.raises(RunnerFatalError), pool.worker(("b",)):
            pass
        pool.settle()
        executor.broken = False
        with pool.worker(("c",)) as third:
            assert third.candidate.alive
        pool.clear()
        pool.settle()

    def test_a_sandbox_may_prepare_it(self, executor, started):
        class Prepared(Sandbox):
            def adopt(self, candidate, device):
                adopted.append((candidate.pid, device))

        adopted = []
        pool = WorkerPool(executor, keep=0, sandbox=Prepared("off"))
        with pool.worker(("a",)) as first:
            pass
        with pool.worker(("b",)) as second:
            assert adopted[0] == (second.candidate.pid, "cpu")
        pool.clear()
        pool.settle()
        assert first.candidate.pid not in {pid for pid, _ in adopted}
