"""Layouts, devices, entries, routes, counts and generated source, each by itself."""

from __future__ import annotations

import contextlib
import logging
import threading

import pytest
import torch

from flashinfer_bench.apply.config import ApplyConfig
from flashinfer_bench.apply.dispatch import Counters, Stats, devices, runs
from flashinfer_bench.apply.dispatch.codegen import compile_source
from flashinfer_bench.apply.dispatch.devices import Devices, is_current, on_device
from flashinfer_bench.apply.dispatch.entries import Entry, EntryTable
from flashinfer_bench.apply.dispatch.layout import Layout
from flashinfer_bench.apply.dispatch.ordinary import in_fresh_thread
from flashinfer_bench.apply.dispatch.routes import NOWHERE, Routes, always, never
from flashinfer_bench.data import Definition

MATRIX = {"shape": ["n", "k"], "dtype": "float32"}

# ----------------------------------------------------------------------------------- layouts


def test_layouts(make_definition):
    definition = make_definition(
        {
            "scale": {"shape": None, "dtype": "bfloat16"},
            "x": {"shape": ["m", "3", "n"], "dtype": "float16"},
            "y": {"shape": ["n", "k"], "dtype": "int64"},
            "flag": {"shape": None, "dtype": "bool"},
        },
        {"z": {"shape": ["n", "m"], "dtype": "float32"}},
    )
    layout = Layout.of(definition, ["y", "scale", "unknown"])
    assert layout.tensors == (1, 2)
    assert layout.places == (("m", 1, 0), ("n", 1, 2))
    assert [each.shape for each in layout.inputs] == [None, ("m", 3, "n"), ("n", 4), None]
    assert [each.scalar for each in layout.inputs] == [float, float, int, bool]
    assert layout.mutated == {2}
    assert layout.allocatable
    assert layout.sizes([1.0, torch.zeros(5, 3, 7), torch.zeros(7, 4), True]) == {"m": 5, "n": 7}


def test_outputs_that_cannot_be_allocated(make_definition):
    free = make_definition({"x": MATRIX}, {"z": {"shape": ["q"], "dtype": "float32"}})
    assert not Layout.of(free).allocatable
    scalars = make_definition({"a": {"shape": None, "dtype": "float32"}}, {"z": MATRIX}, n=3)
    assert not Layout.of(scalars).allocatable


def test_inputs_that_outputs_are_written_back_into():
    definition = Definition.model_validate(
        {
            "name": "d",
            "op_type": "op",
            "axes": {"n": {"type": "var"}, "k": {"type": "const", "value": 4}},
            "inputs": {"x": MATRIX, "y": MATRIX},
            "outputs": {"z": {**MATRIX, "param": "y"}},
            "reference": "def run(x, y):\n    return x\n",
        }
    )
    assert Layout.of(definition).mutated == {1}


# ----------------------------------------------------------------------------------- devices


class Gpus:
    """Stands for torch.cuda: two of one name, one of another."""

    names = ("NVIDIA H100", "NVIDIA H100", "NVIDIA A10")

    def __init__(self):
        self.current = 0
        self.entered = []

    def device_count(self):
        return len(self.names)

    def current_device(self):
        return self.current

    def get_device_name(self, index):
        return self.names[index]

    @contextlib.contextmanager
    def device(self, device):
        before, self.current = self.current, device.index
        self.entered.append(device.index)
        yield
        self.current = before


@pytest.fixture
def gpus(monkeypatch):
    found = Gpus()
    for name in ("device_count", "current_device", "get_device_name", "device"):
        monkeypatch.setattr(torch.cuda, name, getattr(found, name))
    monkeypatch.setattr(devices, "ordinary_keys", lambda device: frozenset({1}))
    devices._gpu_name.cache_clear()
    yield found
    devices._gpu_name.cache_clear()


@pytest.mark.parametrize(
    ("table", "there", "good"),
    [
        ("cpu", "cpu", True),
        ("cpu", "meta", False),
        ("cpu", "cuda:0", False),
        ("cuda", "cpu", False),
        ("cuda", "cuda:0", True),
        ("cuda:0", "cuda:1", True),
        ("cuda:0", "cuda:2", False),
        ("cuda:2", "cuda:2", True),
        ("cuda:2", "cuda:0", False),
        ("xpu", "xpu:0", False),
    ],
)
def test_the_same_hardware(gpus, table, there, good):
    found = Devices(table)
    for _ in range(2):
        assert (found.keys_on(torch.device(there)) is not None) is good


def test_which_device_is_current(gpus):
    assert is_current(torch.device("cpu")) is None
    question = is_current(torch.device("cuda:1"))
    assert question() is False
    gpus.current = 1
    assert question() is True


def test_with_one_gpu_nothing_need_be_asked(gpus, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert is_current(torch.device("cuda:0")) is None


def test_calls_on_another_device(gpus):
    call = on_device(torch.device("cuda:1"), lambda *args: (args, gpus.current))
    assert call(1, 2) == ((1, 2), 1)
    assert gpus.current == 0


# ----------------------------------------------------------------------------------- entries


class Named:
    solution = "s"


def entry(**config):
    return Entry(None, Named, ApplyConfig(**config))


def test_an_entry_is_out_after_so_many_failures():
    made = entry(max_failures=2)
    assert [made.failed(str(count)) for count in range(4)] == [False, True, False, False]
    assert (made.state, made.failures, made.problem) == ("out", 4, "1")
    assert not made.take_out("again")
    assert made.view().problem == "1"


def test_an_entry_becomes_plain_after_so_many_comparisons():
    made = entry(shadow_calls=2)
    assert [made.agreed() for _ in range(3)] == [False, True, False]
    assert made.state == "plain"
    made = entry(shadow_calls=2)
    made.take_out("no")
    assert [made.agreed() for _ in range(3)] == [False] * 3
    assert made.state == "out"


def test_an_entry_is_drawn_for_comparison_until_that_is_done():
    made = entry(shadow_share=1.0)
    assert made.sampled
    assert made.draw()
    assert made.due
    made.due = False
    assert not entry().sampled
    assert not any(entry().draw() for _ in range(100))


def test_a_table_forgets_the_oldest_but_not_what_is_out():
    forgotten = []
    table = EntryTable(4, lambda: forgotten.append(len(table)))
    first = entry(max_failures=1)
    first.failed("x")
    table.add(0, first)
    for key in range(1, 10):
        table.add(key, entry() if key % 2 else "no choice")
        assert len(table) <= 4
    assert table.get(0) is first
    assert table.get(9) is not None
    assert table.get(1) is None
    assert forgotten
    assert all(isinstance(each, Entry) for each in table)


def test_a_table_full_of_what_is_out_takes_nothing_more():
    table = EntryTable(2, lambda: None)
    for key in range(2):
        table.add(key, entry())
    for each in table:
        each.take_out("x")
    assert table.add(5, entry()) == "taken out"
    assert table.add(1, entry()).state == "out"
    assert table.get(5) is None


def test_the_first_of_two_that_race_stays():
    table = EntryTable(4, lambda: None)
    first, second = entry(), entry()
    assert table.add(1, first) is first
    assert table.add(1, second) is first


# ------------------------------------------------------------------------------------ routes


def route(to, accepts=always):
    return (accepts, None, None, always, (), to)


def test_routes_are_found_by_what_they_recognise():
    routes, to = Routes(10), entry()
    of_one, of_two = (route(to, lambda x, y=y: x == y) for y in (1, 2))
    routes.add("k", of_one, to)
    routes.add("k", of_two, to)
    assert routes.latest["k"] is of_two
    assert routes.find("k", [1]) is of_one
    assert routes.latest["k"] is of_one
    assert routes.find("k", [3]) is None
    assert routes.find("other", [1]) is None


def test_only_so_many_patterns_of_one_size():
    routes, to = Routes(10), entry()
    made = [route(to) for _ in range(8)]
    for each in made:
        routes.add("k", each, to)
    assert routes.latest["k"] is made[3]


def test_nothing_is_added_for_an_entry_that_is_not_plain():
    routes = Routes(10)
    for state in ({"shadow_calls": 1}, {}):
        to = entry(**state)
        if not state:
            to.take_out("x")
        routes.add("k", route(to), to)
    assert len(routes) == 0
    assert routes.find("k", []) is None


def test_what_is_retired_is_gone():
    routes, to, other = Routes(10), entry(), entry()
    routes.add("k", route(to), to)
    routes.add("l", route(other), other)
    routes.hot = routes.latest["k"]
    routes.retire(to)
    assert routes.hot is NOWHERE
    assert list(routes.latest) == ["l"]
    assert routes.find("k", []) is None


def test_only_so_many_sizes():
    routes, to = Routes(3), entry()
    for key in range(10):
        routes.add(key, route(to), to) if key % 2 else routes.close(key, "no choice")
        assert len(routes) <= 3
        assert key in routes.latest
    routes.clear()
    assert len(routes) == 0


def test_what_is_closed_has_no_route():
    routes, to = Routes(3), entry()
    routes.add("k", route(to), to)
    routes.close("k", "taken out")
    assert routes.latest == {"k": "taken out"}
    assert routes.find("k", []) is None
    assert not never()


# ------------------------------------------------------------------------------- other parts


def test_counts():
    counters = Counters()
    assert counters.snapshot() == Stats()
    counters.hits += 2
    counters.unknown += 1
    counters.miss("no choice")
    counters.miss("dtype")
    counters.fallback()
    counters.error()
    assert counters.snapshot() == Stats(2, 2, 1, {"no choice": 2, "dtype": 1})


def test_counts_of_many_threads_are_exact():
    counters = Counters()

    def count():
        for _ in range(2000):
            counters.hits += 1
            counters.unknown += 1

    threads = [threading.Thread(target=count) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counters.snapshot() == Stats(32000, 32000, 0, {"no choice": 32000})


def test_generated_functions_do_not_share_their_globals():
    first, second = (
        compile_source("def f():\n    return x\n", "f", "test", {"x": x}) for x in (1, 2)
    )
    assert (first(), second()) == (1, 2)
    assert first.__code__ is second.__code__


def test_errors_in_a_fresh_thread_are_raised_here():
    with pytest.raises(ZeroDivisionError):
        in_fresh_thread(lambda: 1 / 0)
    assert in_fresh_thread(threading.get_ident) != threading.get_ident()


@pytest.mark.parametrize("quick", [True, False])
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 3), (2, 0, 3), (1, 5, 1)])
def test_outputs_are_allocated_as_torch_does(shape, quick, monkeypatch):
    if not quick:
        monkeypatch.setattr(runs, "_quick_allocator", lambda kind: None)
    device = torch.device("cpu")
    for dtype in (torch.float32, torch.bfloat16, torch.int8, torch.bool, torch.float8_e4m3fn):
        made = runs._allocator(device)(shape, runs._strides(shape), dtype)
        wanted = torch.empty(shape, dtype=dtype)
        assert (made.shape, made.stride(), made.dtype) == (shape, wanted.stride(), dtype)
        assert made.is_contiguous()
        assert not made.requires_grad


def test_torch_without_the_quick_allocator(monkeypatch):
    runs._quick_allocator.cache_clear()
    monkeypatch.delattr("torch._C._dynamo.guards._empty_strided_cpu")
    try:
        assert runs._quick_allocator("cpu") is None
        assert runs._allocator(torch.device("cpu"))((2,), (1,), torch.int8).shape == (2,)
    finally:
        runs._quick_allocator.cache_clear()


def test_odd_objects_are_examined_without_harm(bench, caplog):
    class Hostile:
        def __getattr__(self, name):
            raise RuntimeError("do not touch")

    made = bench(lambda x, y: x)
    with caplog.at_level(logging.DEBUG):
        assert made(Hostile(), Hostile()) == "original"
    assert made.stats.misses == {"type": 1}
