"""Real solutions in real processes: who is put on one core, and who is not."""

import os

import pytest

from fib_compare.paired import comparer as contests
from fib_compare.paired import launch as cores
from fib_compare.paired.comparer import Comparer, CompareSettings, find_contests
from flashinfer_bench.bench.config import BenchmarkConfig

ALLOWED = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1

pytestmark = [
    pytest.mark.torch,
    pytest.mark.plugin("python"),
    pytest.mark.skipif(ALLOWED < 2, reason="this machine lends one core: nowhere to move"),
]

SPIN = "def spin(n=100_000):\n    while n: n -= 1\n"
ONE = SPIN + "def run(x):\n    spin()\n    return x * 2\n"
SEVERAL = SPIN + (
    "import threading\n"
    "def run(x):\n"
    "    many = [threading.Thread(target=spin) for _ in range(2)]\n"
    "    [one.start() for one in many]\n"
    "    [one.join() for one in many]\n"
    "    return x * 2\n"
)
MOVES = SPIN + (
    "import os\n"
    "def run(x):\n"
    "    os.sched_setaffinity(0, range(os.cpu_count()))\n"
    "    spin()\n"
    "    return x * 2\n"
)


@pytest.fixture
def seen(problems, monkeypatch):
    """Compares real solutions for a few launches; returns on which cores each ended them.

    They are trusted, so that no launch is set aside on a busy machine; and no core is left to the
    judge, as there may be two only.
    """
    monkeypatch.setenv("FIB_CPU_THREADS", str(ALLOWED))

    def run(baseline, candidate):
        found = []
        end = cores.Settled.end

        def note(self):
            found.append(tuple(one.cores() for one in self._candidates))
            end(self)

        monkeypatch.setattr(cores.Settled, "end", note)
        monkeypatch.setattr(contests, "enough", lambda taken, *rest, **more: len(taken) >= 3)
        dataset = problems.dataset(
            problems.solution(baseline, "old"), problems.solution(candidate, "new"), workloads=1
        )
        config = BenchmarkConfig.default(device="cpu", num_trials=1, trust="off")
        with Comparer(dataset, config, CompareSettings(max_seconds=120.0)) as comparer:
            (result,) = comparer.run(find_contests(dataset, "old", "new"))
        assert result.obstacle is None, result.obstacle
        return found

    return run


def test_two_that_work_with_one_thread_share_a_core(seen):
    assert any(first == second and len(first) == 1 for first, second in seen(ONE, ONE))


@pytest.mark.parametrize(("baseline", "candidate"), [(SEVERAL, ONE), (ONE, SEVERAL)])
def test_if_one_works_with_several_neither_is_moved(seen, baseline, candidate):
    assert all(len(one) == ALLOWED for pair in seen(baseline, candidate) for one in pair)


def test_whoever_moves_itself_has_nobody_moved_in_the_next_launch(seen):
    on = seen(ONE, MOVES)
    moved = [first for first, second in on if len(second) > 1]
    assert sum(len(one) == 1 for one in moved) <= 1, "the one in which it is noticed"
    assert all(len(second) > 1 for _, second in on)
    assert len(on[-1][0]) == ALLOWED
