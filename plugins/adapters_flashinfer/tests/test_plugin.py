"""The plugin is found, is light, and its adapters are installed while anything is enabled."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch
from making import enabled, rmsnorm

import fib_adapters_flashinfer
from flashinfer_bench.routing import resolve

HAND_WRITTEN = [
    path
    for record in fib_adapters_flashinfer.fib_register_adapters()
    if record.name != "flashinfer.templates"
    for path in record.targets
]
H = 32


def test_making_and_listing_the_adapters_by_hand_imports_neither_torch_nor_flashinfer():
    code = """
import importlib, json, sys
import fib_adapters_flashinfer
for record in fib_adapters_flashinfer.fib_register_adapters():
    if record.name in ("flashinfer.norm", "torch.linear"):
        module, _, name = record.factory.partition(":")
        assert getattr(importlib.import_module(module), name)().targets()
print(json.dumps([name for name in ("torch", "flashinfer", "numpy") if name in sys.modules]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == []


def stored(path):
    return resolve(path).found


@pytest.mark.plugin("flashinfer")
def test_enabling_installs_what_is_wanted_and_nothing_else(
    flashinfer, cpu_norm, installed, tmp_path
):
    before = {path: stored(path) for path in HAND_WRITTEN}
    x, w = torch.ones(3, H).bfloat16(), torch.ones(H).bfloat16()
    by_value = flashinfer.rmsnorm
    with enabled(tmp_path, rmsnorm(H)) as solution:
        changed = [path for path in before if stored(path) is not before[path]]
        flashinfer.norm.rmsnorm(x, w)
        flashinfer.rmsnorm(x, w)
    assert changed == ["flashinfer.norm.rmsnorm"]
    assert len(solution.calls) == 2
    assert not cpu_norm.calls
    assert [path for path in before if stored(path) is not before[path]] == []
    assert flashinfer.rmsnorm is by_value
