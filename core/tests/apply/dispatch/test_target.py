"""Targets: built solutions and functions of the user."""

from __future__ import annotations

import contextlib
import gc
import weakref
from types import SimpleNamespace

import pytest
import torch

from flashinfer_bench.apply.dispatch import Stats, Target, dispatcher, guards, target
from flashinfer_bench.apply.dispatch.guards import is_current, on_device, ordinary_keys_on
from flashinfer_bench.apply.keys import AxesOnlyKeyBuilder
from flashinfer_bench.compile import Runnable, RunnableMetadata
from flashinfer_bench.errors import BuildError


def runnable(function, definition, *, destination_passing=False, **options):
    metadata = RunnableMetadata(
        build_type="python",
        definition_name=definition.name,
        solution_name="built",
        destination_passing_style=destination_passing,
        definition=definition,
    )
    return Runnable(function, metadata, **options)


def add(x, y):
    return x + y


def test_it_outlives_the_clean_up_of_its_build(bench, make_definition, xy):
    build = runnable(add, make_definition())
    target = Target.from_runnable(build, make_definition())
    build.cleanup()
    assert torch.equal(bench(target)(*xy), xy[0] + xy[1])
    error = ValueError("x")
    assert target.explained(error) is error


@pytest.mark.parametrize(
    ("explain", "wanted"),
    [
        (lambda error: BuildError("does not compile"), "does not compile"),
        (lambda error: None, "mine"),
        (lambda error: 1 / 0, "mine"),
    ],
)
def test_errors_are_explained_by_the_builder(make_definition, explain, wanted):
    build = runnable(add, make_definition(), explain=explain)
    target = Target.from_runnable(build, make_definition())
    assert str(target.explained(ValueError("mine"))) == wanted


@pytest.mark.parametrize("form", [tuple, list, lambda pair: {"b": pair[1], "a": pair[0]}])
def test_outputs_in_any_form(bench, make_definition, form):
    matrix = {"shape": ["n", "k"], "dtype": "float32"}
    definition = make_definition({"x": matrix}, {"a": matrix, "b": matrix})
    made = bench(lambda x: form([x + 1, x + 2]), definition)
    x = torch.zeros(1, 4)
    first, second = made(x)
    assert (first[0, 0], second[0, 0]) == (1, 2)
    places = torch.zeros(1, 4), torch.zeros(1, 4)
    made(x, *places)
    assert (places[0][0, 0], places[1][0, 0]) == (1, 2)


# ----------------------------------------------------------------------- while a graph is captured


@pytest.fixture
def capturing(monkeypatch):
    """Whether a graph is being captured: what stands for the stream."""
    found = SimpleNamespace(now=False)
    monkeypatch.setattr(dispatcher, "is_capturing", lambda: found.now)
    return found


@pytest.mark.usefixtures("guards")
def test_nothing_is_resolved(bench, xy, capturing):
    made = bench(lambda x, y: x + y)
    capturing.now = True
    for _ in range(3):
        assert made(*xy) == "original"
    assert made.resolver.asked == []
    assert made.stats == Stats(fallbacks=3, misses={"capture": 3})
    capturing.now = False
    assert torch.equal(made(*xy), xy[0] + xy[1])
    capturing.now = True
    for _ in range(3):
        assert torch.equal(made(*xy), xy[0] + xy[1])
    assert len(made.resolver.asked) == 1


@pytest.mark.usefixtures("guards")
def test_nothing_is_compared(bench, xy, capturing):
    made = bench(lambda x, y: x + y, shadow_calls=2, original=lambda x, y: x + y)
    made(*xy)
    capturing.now = True
    for _ in range(3):
        made(*xy)
    assert made.stats == Stats(fallbacks=4, misses={"capture": 3})
    assert made.solution.calls == 1
    capturing.now = False
    made(*xy)
    assert made.state == ["plain"]
    capturing.now = True
    made(*xy)
    assert made.stats.hits == 1


class Reader(AxesOnlyKeyBuilder):
    """Reads data, which waits for the device."""

    reads_data = True

    def features(self, args):
        return (("first", float(args[0][0, 0])),)


@pytest.mark.usefixtures("guards")
def test_no_key_is_made_that_reads_data(bench, xy, capturing):
    made = bench(lambda x, y: x + y, key_builder=Reader)
    made(*xy)
    capturing.now = True
    assert made(*xy) == "original"
    assert made.stats == Stats(1, 1, 0, {"capture": 1})


# ----------------------------------------------------------------------------------------- devices


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
    monkeypatch.setattr(guards, "ordinary_keys", lambda device: frozenset({1}))
    guards._gpu.cache_clear()
    yield found
    guards._gpu.cache_clear()


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
    keys_on = ordinary_keys_on(table)
    for _ in range(2):
        assert (keys_on(torch.device(there)) is not None) is good


def test_which_device_is_current(gpus):
    assert is_current(torch.device("cpu")) is None
    question = is_current(torch.device("cuda:1"))
    assert question() is False
    gpus.current = 1
    assert question() is True


def test_calls_on_another_device(gpus):
    call = on_device(torch.device("cuda:1"), lambda *args: (args, gpus.current))
    assert call(1, 2) == ((1, 2), 1)
    assert gpus.current == 0


def test_torch_without_the_quick_allocator(monkeypatch, bench, xy):
    target._quick_allocator.cache_clear()
    monkeypatch.delattr("torch._C._dynamo.guards._empty_strided_cpu")
    try:
        made = bench(lambda x, y, z: torch.add(x, y, out=z), destination_passing=True)
        assert torch.equal(made(*xy), xy[0] + xy[1])
    finally:
        target._quick_allocator.cache_clear()


def test_a_target_is_kept_with_its_build(make_definition):
    class Owner:
        pass

    def make():
        return Target(
            lambda x, y: x,
            make_definition(),
            solution="s",
            destination_passing=False,
            owner=Owner(),
        )

    kept, other = make(), make()
    target.keep_for_ever(kept)
    target.keep_for_ever(kept)
    gone = [weakref.ref(each) for each in (kept.owner, kept.function, other.owner, other.function)]
    key = id(kept.function)
    del kept, other
    gc.collect()
    assert [each() is not None for each in gone] == [True, True, False, False]
    target.kept.pop(key)
