from __future__ import annotations

from typing import Any

import pytest

from flashinfer_bench.bench.pool import WorkerPool
from flashinfer_bench.bench.sandbox import Sandbox


def pids(pool: WorkerPool, *keys: str) -> list[int]:
    found = []
    for key in keys:
        with pool.worker((key,)) as worker:
            found.append(worker.candidate.pid)
    return found


class TestReuse:
    def test_dead_one_is_replaced(self, executor: Any) -> None:
        pool = WorkerPool(executor, keep=3, sandbox=Sandbox("off"))
        with pool.worker(("a",)) as worker:
            candidate = worker.candidate
        candidate.close()
        assert pids(pool, "a") == [1001]

    def test_large_one_is_not_kept(self, executor: Any) -> None:
        pool = WorkerPool(executor, keep=3, sandbox=Sandbox("off"))
        with pool.worker(("a",)) as worker:
            worker.reusable = False
        pool.settle()
        assert executor.of("close") == [(1000,)]

    @pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
    def test_anything_raised_ends_the_process(
        self, executor: Any, error: type[BaseException]
    ) -> None:
        pool = WorkerPool(executor, keep=3, sandbox=Sandbox("off"))
        with pytest.raises(error), pool.worker(("a",)):
            raise error
        pool.settle()
        assert executor.of("close") == [(1000,)]
        assert pids(pool, "a") == [1001]
