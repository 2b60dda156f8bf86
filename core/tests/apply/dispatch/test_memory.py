"""Nothing grows with the number of calls, whatever their sizes."""

from __future__ import annotations

import gc
import linecache
import tracemalloc
import weakref

import pytest
import torch

from flashinfer_bench.apply.dispatch import dispatcher, hot_path

pytestmark = pytest.mark.usefixtures("guards")


@pytest.fixture
def small(monkeypatch):
    """Small tables, so that they are full soon."""
    monkeypatch.setattr(hot_path, "_MOST_SIZES", 16)
    monkeypatch.setattr(dispatcher, "_MOST_ENTRIES", 32)


def grown(work, rounds=3):
    """Return bytes of Python that a round of `work` leaves behind, after two to warm up."""
    tracemalloc.start()
    try:
        work()
        work()
        gc.collect()
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(rounds):
            work()
        gc.collect()
        return (tracemalloc.get_traced_memory()[0] - before) / rounds
    finally:
        tracemalloc.stop()


CASES = ("hits", "misses", "failures", "shadow", "wrong types", "by name", "into")


@pytest.mark.parametrize("case", CASES)
def test_ever_new_sizes(bench, small, case):
    def fails(x, y):
        raise ValueError("no")

    options = {"shadow_calls": 1, "shadow_share": 0.5} if case == "shadow" else {}
    solution = None if case == "misses" else fails if case == "failures" else lambda x, y: x + y
    made = bench(solution, original=lambda x, y, z=None: torch.add(x, y, out=z), **options)
    sizes = iter(range(1, 10**9))

    def work():
        made.resolver.asked.clear()
        for _ in range(150):
            x = torch.zeros(next(sizes), 4)
            if case == "wrong types":
                made.dispatcher.call((x, None), None, lambda *args: None)
            elif case == "by name":
                made.dispatcher.call((), {"x": x, "y": x.clone()}, None)
            elif case == "into":
                made.dispatcher.call((x, x.clone(), x.clone()), None, None)
            else:
                made.dispatcher.call((x, x.clone()), None, made.original.function)

    assert grown(work) < 4096
    assert len(made.dispatcher._entries) <= 32
    assert all(len(routes.known) <= 16 for routes in made.dispatcher._routes)


def test_entries_that_are_out_are_not_forgotten(bench, small):
    def odd_fail(x, y):
        if x.shape[0] % 2:
            raise ValueError("no")
        return x + y

    made = bench(odd_fail, original=lambda x, y: x + y, max_failures=1)
    for n in [*range(1, 21), *range(1000, 1100, 2)]:
        made(torch.zeros(n, 4), torch.zeros(n, 4))
    calls = made.solution.calls
    for n in range(1, 20, 2):
        made(torch.zeros(n, 4), torch.zeros(n, 4))
    assert made.solution.calls == calls
    # Too many to remember: nothing new is tried.
    for n in range(1, 200, 2):
        made(torch.zeros(n, 4), torch.zeros(n, 4))
    assert all(state == "out" for state in made.state)
    calls = made.solution.calls
    for n in (2, 1001):
        assert torch.equal(made(torch.zeros(n, 4), torch.zeros(n, 4)), torch.zeros(n, 4))
    assert made.solution.calls == calls


def test_no_tensor_is_kept_alive(bench):
    made = bench(lambda x, y: x + y, original=lambda x, y: x + y, shadow_calls=1)
    gone = []
    for _ in range(4):
        x, y = torch.zeros(3, 4), torch.zeros(3, 4)
        result = made.dispatcher.call((x, y), None, made.original.function)
        gone += [weakref.ref(each) for each in (x, y, result)]
        z = torch.zeros(3, 4)
        made.dispatcher.call((x, y, z), None, made.original.function)
        gone.append(weakref.ref(z))
        del x, y, z, result
    gc.collect()
    assert [each() for each in gone] == [None] * len(gone)


def test_a_dispatcher_is_let_go(bench):
    made = bench(lambda x, y: x + y)
    made(torch.zeros(3, 4), torch.zeros(3, 4))
    gone = weakref.ref(made.dispatcher)
    del made
    gc.collect()
    assert gone() is None


def test_rebuilding_leaves_no_source_behind(bench):
    def build():
        made = bench(lambda x, y, z: z.copy_(x + y), destination_passing=True)
        for n in (1, 2, 3):
            made(torch.zeros(n, 4), torch.zeros(n, 4))

    build()
    before = len(linecache.cache)
    for _ in range(10):
        build()
    assert len(linecache.cache) == before
