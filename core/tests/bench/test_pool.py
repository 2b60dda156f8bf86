import pytest

from flashinfer_bench.bench.pool import WorkerPool
from flashinfer_bench.bench.sandbox import Sandbox


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
