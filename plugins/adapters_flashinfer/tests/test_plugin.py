"""The plugin is found, is light, and its adapters are installed while anything is enabled."""

import json
import subprocess
import sys
import types

import pytest
import torch
from making import enabled, rmsnorm

import fib_adapters_flashinfer
from fib_adapters_flashinfer.templates import read_apis
from fib_testing import AdapterCase, AdapterConformance
from flashinfer_bench.apply import enable_apply
from flashinfer_bench.routing import resolve
from flashinfer_bench.routing.installation import default

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


def everything():
    """Return all that the modules of FlashInfer and of the engine have, by module and name."""
    return {
        (name, attribute): value
        for name, module in list(sys.modules.items())
        if name.partition(".")[0] in ("flashinfer", "engine") and module is not None
        for attribute, value in list(vars(module).items())
    }


@pytest.mark.plugin("flashinfer")
def test_a_generated_adapter_from_enabling_to_disabling(flashinfer, installed, monkeypatch):
    if not read_apis():
        pytest.skip(f"flashinfer {flashinfer.__version__} has no trace templates")
    engine = types.ModuleType("engine")
    engine.silu_and_mul = by_value = flashinfer.silu_and_mul
    monkeypatch.setitem(sys.modules, "engine", engine)

    def silu(input):
        gate, up = input.float().chunk(2, dim=-1)
        return (torch.nn.functional.silu(gate) * up).to(input.dtype)

    def merged(v_a, s_a, v_b, s_b):
        return v_a + v_b, s_a + s_b

    x, v, s = torch.randn(4, 64).bfloat16(), torch.ones(3, 2, 8), torch.ones(3, 2)
    before = everything()
    with enable_apply({"silu_and_mul_h64": silu, "merge_state_h2_d8": merged}):
        ours = {flashinfer.silu_and_mul, flashinfer.activation.silu_and_mul, engine.silu_and_mul}
        (ours,) = ours - {by_value}
        assert torch.equal(ours(x), silu(x))
        out = torch.empty(4, 32).bfloat16()
        assert ours(x, out=out) is out
        assert torch.equal(out, silu(x))
        assert [each.mean() for each in flashinfer.merge_state(v, s, v, s)] == [2.0, 2.0]
        with pytest.raises(Exception):  # noqa: B017, PT011 - the kernel itself: no GPU here
            ours(torch.randn(4, 32).bfloat16())
        states = {each.path: each.state for each in default().statuses()}
    patched = {path for path, state in states.items() if state == "patched"}
    assert patched == {"flashinfer.activation.silu_and_mul", "flashinfer.cascade.merge_state"}
    assert "failed" not in states.values()
    after = everything()
    assert [key for key in before if after.get(key) is not before[key]] == []


# ------------------------------------------------------------------------------ conformance

RECORDS = {record.name: record for record in fib_adapters_flashinfer.fib_register_adapters()}


def _linear():
    return [object(), object()], {"bias": object()}


def _run_return_lse():
    """Of a method that has no signature of its own: `run` with this argument filled in."""
    return [object(), "q", "cache"], {"return_lse": True}


@pytest.mark.plugin("flashinfer")
class TestAdapters(AdapterConformance):
    @pytest.fixture(params=sorted(RECORDS))
    def case(self, request):
        record = RECORDS[request.param]
        sums = [path for path in record.targets if path.endswith(".run_return_lse")]
        arguments = {"torch.nn.functional.linear": _linear, **dict.fromkeys(sums, _run_return_lse)}
        return AdapterCase(record=record, arguments=arguments)
