"""Inputs that are not contiguous: taken after one comparison, where the original can be asked."""

from __future__ import annotations

import logging

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from flashinfer_bench.apply.dispatch import Stats
from flashinfer_bench.apply.dispatch import dispatcher as dispatcher_module

pytestmark = pytest.mark.usefixtures("guards")


class Library:
    """An original that can be asked for its outputs, as the one of a routed call."""

    def __init__(self, outputs=None):
        self.calls = 0
        self.asked = []
        self._outputs = outputs or (lambda x, y: x + y)

    def __call__(self, *args, **kwargs):
        self.calls += 1
        return "original"

    def outputs(self, *inputs):
        self.asked.append(inputs)
        return self._outputs(*inputs)


@pytest.fixture
def made(bench):
    """Make a bench with such an original."""

    def make(solution, *args, library=None, **options):
        found = bench(solution, *args, **options)
        found.original = library or Library()
        return found

    return make


def add(x, y):
    return x + y


def flat_add(x, y):
    """Add as a kernel does that takes rows to follow one another."""
    first = torch.as_strided(x, x.shape, (x.shape[1], 1), x.storage_offset())
    return first + y


def views(seed=0, rows=3):
    """Return two inputs, of which the first is a half of something."""
    whole = torch.arange(float(rows * 2 * 4)).view(rows, 2, 4) + seed
    return whole[:, 0], torch.ones(rows, 4)


def test_one_comparison_then_hits(made):
    bench = made(add)
    x, y = views()
    results = [bench(x, y) for _ in range(4)]
    assert results[0] == "original"
    assert all(torch.equal(each, x + y) for each in results[1:])
    assert bench.original.calls == 1
    # Compared on the very inputs: copies would be contiguous, and of a cache there is no room for.
    ((seen, other),) = bench.original.asked
    assert seen is x
    assert other is y
    assert bench.stats == Stats(hits=3, fallbacks=1, misses={"layout": 1})


def test_a_solution_that_takes_rows_to_follow_one_another(made, caplog):
    bench = made(flat_add)
    x, y = views()
    with caplog.at_level(logging.WARNING):
        assert [bench(x, y) for _ in range(4)] == ["original"] * 4
    assert bench.stats == Stats(fallbacks=4, misses={"layout": 4})
    assert len(bench.original.asked) == 1
    assert caplog.text.count("does not take inputs with such strides") == 1
    dense = x.contiguous()
    assert torch.equal(bench(dense, y), x + y)  # it still serves what it was judged on
    assert bench.state == ["plain"]


@pytest.mark.parametrize("failing", ["solution", "outputs"])
def test_what_raises_costs_only_the_layout(made, failing):
    def fail(*_):
        raise RuntimeError("out of memory")

    library = Library(fail) if failing == "outputs" else None
    bench = made(fail if failing == "solution" else add, library=library)
    x, y = views()
    assert [bench(x, y) for _ in range(3)] == ["original"] * 3
    assert bench.stats.misses == {"layout": 3}
    assert bench.state == ["plain"]


def test_a_solution_that_fails_later(made):
    bench = made(lambda x, y: x + y if bench.solution.calls == 1 else 1 / 0)
    x, y = views()
    assert [bench(x, y) for _ in range(5)] == ["original"] * 5
    assert bench.state == ["out"]


def test_an_original_that_cannot_be_asked(bench):
    found = bench(add)
    x, y = views()
    assert [found(x, y) for _ in range(3)] == ["original"] * 3
    assert found.stats.misses == {"layout": 3}


def test_expanded_tensors_are_refused(made):
    bench = made(add)
    x, y = torch.ones(1, 4).expand(3, 4), torch.ones(3, 4)
    assert [bench(x, y) for _ in range(3)] == ["original"] * 3
    assert not bench.original.asked


def test_definitions_that_write_to_their_inputs(made, make_definition):
    matrix = {"shape": ["n", "k"], "dtype": "float32"}
    definition = make_definition(None, {"z": {**matrix, "param": "x"}})
    bench = made(lambda x, y: x.add_(y), definition)
    x, y = views()
    assert [bench(x, y) for _ in range(2)] == ["original"] * 2
    assert not bench.original.asked


def test_nothing_is_compared_while_a_graph_is_captured(made, monkeypatch):
    bench = made(add)
    x, y = views()
    bench(x.contiguous(), y)  # the size is known
    monkeypatch.setattr(dispatcher_module, "is_capturing", lambda: True)
    assert [bench(x, y) for _ in range(2)] == ["original"] * 2
    assert not bench.original.asked
    monkeypatch.undo()


def test_entries_under_comparison_take_none(made):
    bench = made(add, shadow_calls=100)
    x, y = views()
    assert [bench(x, y) for _ in range(2)] == ["original"] * 2
    assert bench.stats.hits == 0


@given(data=st.data())
def test_whatever_the_strides_a_hit_is_right(made, data):
    """With a solution that is right for some strides and wrong for others."""
    bench = made(flat_add)
    for _ in range(data.draw(st.integers(1, 6))):
        rows = data.draw(st.integers(1, 4))
        gap, start = data.draw(st.integers(0, 3)), data.draw(st.integers(0, 2))
        storage = torch.randn(start + rows * (4 + gap) + 16)
        strides = data.draw(st.sampled_from([(4 + gap, 1), (1, rows), (4, 1), (8, 2)]))
        largest = start + (rows - 1) * strides[0] + 3 * strides[1]
        if largest >= storage.numel():
            continue
        x, y = torch.as_strided(storage, (rows, 4), strides, start), torch.ones(rows, 4)
        for _ in range(2):
            found = bench(x, y)
            assert isinstance(found, str) or torch.equal(found, x + y)
