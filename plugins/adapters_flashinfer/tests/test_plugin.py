"""The plugin is found, is light, and its adapters are installed while anything is enabled."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import torch
from making import Solution, dataset, gemm, rmsnorm

import fib_adapters_flashinfer
from fib_adapters_flashinfer import probe, targets
from flashinfer_bench.apply import enable_apply
from flashinfer_bench.integration import resolve

NAMES = {
    "flashinfer.norm",
    "torch.linear",
    "flashinfer.decode",
    "flashinfer.prefill",
    "flashinfer.ragged",
    "flashinfer.mla",
    "flashinfer.templates",
}
HAND_WRITTEN = [
    *(targets.NORM + targets.LINEAR + targets.DECODE),
    *(targets.PREFILL + targets.RAGGED + targets.MLA),
]
H = 32


def test_the_records():
    records = fib_adapters_flashinfer.fib_register_adapters()
    assert {record.name for record in records} == NAMES
    assert len(records) == len(NAMES)
    paths = [path for record in records for path in record.targets]
    assert len(paths) == len(set(paths))
    assert all(record.summary and record.probe for record in records)


@pytest.mark.plugin("flashinfer")
def test_the_installed_plugin_is_listed():
    done = subprocess.run(
        [sys.executable, "-m", "flashinfer_bench", "plugins", "list", "--json"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert all(name in done.stdout for name in NAMES)


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


# ------------------------------------------------------------------------------------------ probes


def test_probes_say_what_they_found(flashinfer):
    assert probe.probe().reason.startswith("flashinfer ")
    assert probe.probe_torch().reason.startswith("torch ")


@pytest.mark.parametrize(
    ("hidden", "function", "reason"),
    [
        (("flashinfer",), probe.probe, "flashinfer is not installed"),
        (("torch",), probe.probe, "torch is not installed"),
        (("torch",), probe.probe_torch, "torch is not installed"),
    ],
)
def test_probes_say_what_is_missing(monkeypatch, hidden, function, reason):
    monkeypatch.setattr(probe, "find_spec", lambda name: None if name in hidden else object())
    found = function()
    assert not found
    assert found.reason == reason
    assert "pip install" in found.remedy


def test_a_folder_on_the_path_has_no_version(monkeypatch):
    def none(name):
        raise probe.PackageNotFoundError(name)

    monkeypatch.setattr(probe, "version", none)
    monkeypatch.setattr(probe, "find_spec", lambda name: object())
    assert probe.find_flashinfer() == "flashinfer of unknown version"


# ------------------------------------------------------------------------------------- installing


def stored(path):
    return resolve(path).found


@pytest.mark.plugin("flashinfer")
def test_enabling_installs_what_is_wanted_and_nothing_else(
    flashinfer, cpu_norm, installed, tmp_path
):
    before = {path: stored(path) for path in HAND_WRITTEN}
    definition = rmsnorm(H)
    solution = Solution(definition)
    x, w = torch.ones(3, H).bfloat16(), torch.ones(H).bfloat16()
    by_value = flashinfer.rmsnorm
    with enable_apply({f"rmsnorm_h{H}": solution}, dataset=dataset(tmp_path, definition)):
        changed = [path for path in before if stored(path) is not before[path]]
        flashinfer.norm.rmsnorm(x, w)
        flashinfer.rmsnorm(x, w)
    assert changed == ["flashinfer.norm.rmsnorm"]
    assert len(solution.calls) == 2
    assert not cpu_norm.calls
    assert [path for path in before if stored(path) is not before[path]] == []
    assert flashinfer.rmsnorm is by_value


@pytest.mark.plugin("flashinfer")
def test_linear_is_patched_only_where_a_matrix_product_is_wanted(flashinfer, installed, tmp_path):
    before = torch.nn.functional.linear
    for definition, patched in ((rmsnorm(H), False), (gemm(12, 8), True)):
        folder = dataset(tmp_path / definition["name"], definition)
        with enable_apply({definition["name"]: Solution(definition)}, dataset=folder):
            assert (torch.nn.functional.linear is not before) == patched
    assert torch.nn.functional.linear is before


@pytest.mark.slow
@pytest.mark.plugin("flashinfer")
def test_a_program_that_imports_flashinfer_after_enabling_is_routed(tmp_path):
    """And one that took the function by value before."""
    definition = rmsnorm(H)
    folder = dataset(tmp_path, definition)
    code = f"""
import sys, warnings
warnings.simplefilter("ignore")
from flashinfer_bench.apply import enable_apply
calls = []
def solution(hidden_states, weight):
    calls.append(1)
    return hidden_states
with enable_apply({{"rmsnorm_h{H}": solution}}, dataset={folder!r}):
    assert "flashinfer" not in sys.modules
    import torch
    from flashinfer.norm import rmsnorm
    import flashinfer
    for function in (rmsnorm, flashinfer.rmsnorm, flashinfer.norm.rmsnorm):
        function(torch.ones(3, {H}).bfloat16(), torch.ones({H}).bfloat16())
now = flashinfer.norm.rmsnorm
print(len(calls), now is flashinfer.rmsnorm, hasattr(now, "__apply_slot__"))
"""
    env = {key: value for key, value in os.environ.items() if key != "FIB_ADAPTERS"}
    if env.get("FIB_TEST_FLASHINFER"):
        env["PYTHONPATH"] = os.pathsep.join([env["FIB_TEST_FLASHINFER"], env.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=env, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["3", "True", "False"]
