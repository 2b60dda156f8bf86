"""Flushing caches: how much is written, where, and when; the effect is measured on a GPU."""

from __future__ import annotations

import types
from statistics import median

import pytest
import torch

from flashinfer_bench.bench.candidate import caches
from flashinfer_bench.bench.candidate.tending import Tending, keep_freed_memory


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("2048K\n", 2 << 20),
        ("1M", 1 << 20),
        ("", 2 << 20),
        ("many", 2 << 20),
        ("0K", 2 << 20),
        ("-1K", 2 << 20),
        ("12", 2 << 20),
    ],
)
def test_the_size_of_a_cpu_s_cache(monkeypatch, tmp_path, text, size):
    place = tmp_path / "size"
    place.write_text(text)
    monkeypatch.setattr(caches, "_L2_OF_CPU", place)
    assert caches.l2_bytes() == size


def test_no_file_tells_the_size(monkeypatch, tmp_path):
    monkeypatch.setattr(caches, "_L2_OF_CPU", tmp_path / "nowhere")
    assert caches.l2_bytes() == 2 << 20


def test_twice_the_private_caches_of_a_cpu_are_written(monkeypatch):
    monkeypatch.setattr(caches, "l2_bytes", lambda: 1 << 16)
    flushed = caches.caches_of("cpu")
    flushed.flush()
    flushed.flush()
    assert flushed._buffer.raw == b"\1" * (2 << 16)


def test_a_gpu_s_lines_are_reset_before_twice_its_cache_is_written(monkeypatch):
    done = []
    properties = types.SimpleNamespace(L2_cache_size=1000)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    monkeypatch.setattr(caches, "_reset_of_persisting_lines", lambda: lambda: done.append("reset"))
    found = caches.caches_of("cuda:3")
    monkeypatch.setattr(found, "_empty", lambda size, **more: done.append((size, more)) or "buffer")
    monkeypatch.setattr(found, "_fill", lambda buffer, value: done.append(("write", buffer)))
    found.flush()
    found.flush()
    allocated = (2000, {"dtype": torch.uint8, "device": "cuda:3"})
    assert done == [allocated, "reset", ("write", "buffer"), "reset", ("write", "buffer")]


def test_a_driver_without_that_function(monkeypatch):
    def missing(name):
        raise OSError(name)

    monkeypatch.setattr(caches.ctypes, "CDLL", missing)
    assert caches._reset_of_persisting_lines()() is None
    monkeypatch.setattr(caches.ctypes, "CDLL", lambda name: types.SimpleNamespace())
    assert caches._reset_of_persisting_lines()() is None


class TestTending:
    def test_functions_are_those_from_before(self, monkeypatch):
        waited = []
        monkeypatch.setattr(torch.cuda, "synchronize", waited.append)
        tending = Tending("cuda:1")
        monkeypatch.setattr(torch.cuda, "synchronize", None)
        tending.synchronize()
        assert waited == ["cuda:1"]

    def test_a_flush_is_waited_for(self, monkeypatch):
        done = []
        monkeypatch.setattr(torch.cuda, "synchronize", lambda device: done.append("wait"))
        tending = Tending("cuda:1")
        monkeypatch.setattr(tending._caches, "flush", lambda: done.append("flush"))
        tending.flush_caches()
        assert done == ["flush", "wait"]

    def test_the_device_becomes_the_current_one(self, monkeypatch):
        selected = []
        monkeypatch.setattr(torch.cuda, "set_device", selected.append)
        Tending("cuda:1").select()
        Tending("cpu").select()
        assert selected == ["cuda:1"]

    def test_one_that_only_compiles_has_nothing_to_do(self):
        tending = Tending("cuda:0", computes=False)
        tending.select()
        tending.flush_caches()
        tending.synchronize()

    def test_any_c_library_will_do(self, monkeypatch):
        monkeypatch.setattr(
            "flashinfer_bench.bench.candidate.tending.libc", lambda: types.SimpleNamespace()
        )
        keep_freed_memory()


def test_freed_memory_is_had_again_without_new_pages(bench):
    """Else the latency of a solution that allocates depends on what happens between two calls."""
    code = """
import resource, torch
def run(x, y):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.full((4 << 20,), 1.0)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
"""
    candidate = bench.load(code)
    faults = [candidate.call(0, timeout_s=30)[0] for _ in range(40)]
    # At first, and now and then later, a block does not quite fit where the last one was.
    assert median(faults[-20:]) < 4096 / 4
