"""Many threads at once: while entries fail, tables are swapped, and patterns are learned."""

from __future__ import annotations

import itertools
import sys
import threading

import pytest
import torch

from fib_tests.threads import at_once

pytestmark = pytest.mark.usefixtures("guards")

THREADS = 16


@pytest.fixture(autouse=True)
def _switch_often():
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def run_threads(work, count=THREADS):
    """Run ``work(number)`` in threads that begin together; raise what one raises."""
    numbers = itertools.count()
    at_once(count, lambda: work(next(numbers)))


def inputs(n):
    return torch.full((n, 4), float(n)), torch.ones(n, 4)


def test_every_call_is_answered_rightly_and_counted(bench):
    made = bench(lambda x, y: x + y, original=lambda x, y, z=None: x + y)
    calls = 300

    def work(number):
        for call in range(calls):
            x, y = inputs(1 + (number + call) % 5)
            if call % 7 == 3:
                y = y.double()
            result = made(x, y)
            assert torch.equal(result, x + y)

    run_threads(work)
    stats = made.stats
    assert stats.hits + stats.fallbacks == THREADS * calls
    assert stats.fallbacks == stats.misses["dtype"] == len(made.original.calls)
    assert len(made.dispatcher.entries()) == 5


def test_an_entry_that_is_out_does_not_come_back(bench, monkeypatch):
    """A thread that was about to use a route must not make it hot again for the others."""
    for _ in range(20):
        failing = threading.Event()

        def solution(x, y, failing=failing):
            if failing.is_set():
                return x.double()
            return x + y

        made = bench(solution, original=lambda x, y: x + y, max_failures=1)
        made(*inputs(1))
        made(*inputs(2))

        def work(number, made=made, failing=failing):
            for call in range(60):
                if number == 0 and call == 10:
                    failing.set()
                x, y = inputs(1 + call % 2)
                assert torch.equal(made(x, y), x + y)

        run_threads(work, 4)
        assert made.state == ["out", "out"]
        calls = made.solution.calls
        for size in (1, 2, 1, 1, 2):
            x, y = inputs(size)
            assert torch.equal(made(x, y), x + y)
        assert made.solution.calls == calls


def test_a_nested_call_of_one_thread_is_not_that_of_another(bench):
    inside = threading.Event()
    go_on = threading.Event()

    def solution(x, y):
        if x.shape[0] == 1:
            inside.set()
            go_on.wait(60)
        return x + y

    made = bench(solution)
    slow = threading.Thread(target=lambda: made(*inputs(1)))
    slow.start()
    inside.wait(60)
    x, y = inputs(2)
    assert torch.equal(made(x, y), x + y)
    go_on.set()
    slow.join()
    assert made.stats.hits == 2
