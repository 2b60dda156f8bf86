"""Devices, the memory of outputs, counts, and odd arguments."""

from __future__ import annotations

import contextlib

import pytest
import torch

from flashinfer_bench.apply.dispatch import guards, target
from flashinfer_bench.apply.dispatch.guards import is_current, on_device, ordinary_keys_on


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


@pytest.mark.parametrize("quick", [True, False])
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 3), (2, 0, 3), (1, 5, 1)])
def test_outputs_are_allocated_as_torch_does(shape, quick):
    device = torch.device("cpu")
    allocate = target._quick_allocator("cpu") if quick else target._public_allocator(device)
    for dtype in (torch.float32, torch.bfloat16, torch.int8, torch.bool, torch.float8_e4m3fn):
        made = allocate(shape, target._strides(shape), dtype)
        wanted = torch.empty(shape, dtype=dtype)
        assert (made.shape, made.stride(), made.dtype) == (shape, wanted.stride(), dtype)
        assert made.is_contiguous()
        assert not made.requires_grad


def test_torch_without_the_quick_allocator(monkeypatch, bench, xy):
    target._quick_allocator.cache_clear()
    monkeypatch.delattr("torch._C._dynamo.guards._empty_strided_cpu")
    try:
        made = bench(lambda x, y, z: torch.add(x, y, out=z), destination_passing=True)
        assert torch.equal(made(*xy), xy[0] + xy[1])
    finally:
        target._quick_allocator.cache_clear()
