"""Definitions, solutions that count their calls, and adapters put on, for the tests of adapters."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

from flashinfer_bench.integration import PatchManager

RMS = """import torch

def run(hidden_states, weight{parameters}):
    {before}
    x = hidden_states.to(torch.float32)
    inv_rms = torch.rsqrt(x.pow(2).mean(dim=-1, keepdim=True) + {eps})
    y = (x * inv_rms) * weight.to(torch.float32)
    return y.to(hidden_states.dtype)
"""
FUSED = """import torch

def run(hidden_states, residual, weight):
    EPS = {eps}
    x = hidden_states.to(torch.float32) + residual.to(torch.float32)
    inv_rms = torch.rsqrt(x.pow(2).mean(dim=-1, keepdim=True) + EPS)
    y = ((x * inv_rms) * weight.to(torch.float32)).to(hidden_states.dtype)
    return {returned}
"""
GEMM = "import torch\n\ndef run(A, B):\n    return torch.matmul(A, B.T)\n"


def _definition(name, op_type, inputs, outputs, reference, dtype, sizes, tags=()):
    axes = {axis: {"type": "const", "value": value} for axis, value in sizes.items()}
    shapes = {**inputs, **outputs}
    free = {axis for shape in shapes.values() for axis in shape or () if axis not in axes}
    spec = {
        each: {"shape": shape, "dtype": "float32" if shape is None else dtype}
        for each, shape in shapes.items()
    }
    return {
        "name": name,
        "op_type": op_type,
        "tags": list(tags),
        "axes": {**{axis: {"type": "var"} for axis in sorted(free)}, **axes},
        "inputs": {each: spec[each] for each in inputs},
        "outputs": {each: spec[each] for each in outputs},
        "reference": reference,
    }


def rmsnorm(hidden, eps="1e-6", *, takes_eps=False, tags=(), kind="rmsnorm", dtype="bfloat16"):
    """A definition of a norm, as the datasets have them; perhaps with eps as an input."""
    rows = ["batch_size", "hidden_size"]
    inputs = {"hidden_states": rows, "weight": ["hidden_size"]}
    if takes_eps:
        reference = RMS.format(parameters=", eps", before="pass", eps="eps")
        inputs["eps"] = None
    else:
        reference = RMS.format(parameters="", before=f"EPS = {eps}", eps="EPS")
    name = f"{kind}_h{hidden}"
    sizes = {"hidden_size": hidden}
    return _definition(name, "rmsnorm", inputs, {"output": rows}, reference, dtype, sizes, tags)


def fused(hidden, eps="1e-6", *, outputs=("output",), kind="fused_add_rmsnorm", dtype="bfloat16"):
    """A definition of a fused norm; `outputs` in the order that the reference returns them."""
    rows = ["batch_size", "hidden_size"]
    values = {"output": "y", "residual_out": "x.to(hidden_states.dtype)"}
    returned = ", ".join(values[each] for each in outputs)
    return _definition(
        f"{kind}_h{hidden}",
        "rmsnorm",
        {"hidden_states": rows, "residual": rows, "weight": ["hidden_size"]},
        dict.fromkeys(outputs, rows),
        FUSED.format(eps=eps, returned=returned),
        dtype,
        {"hidden_size": hidden},
    )


def gemm(n, k, dtype="float16"):
    """A definition of a matrix product with a transposed weight, as the datasets have them."""
    inputs, outputs = {"A": ["M", "K"], "B": ["N", "K"]}, {"C": ["M", "N"]}
    sizes = {"N": n, "K": k}
    return _definition(f"gemm_n{n}_k{k}", "gemm", inputs, outputs, GEMM, dtype, sizes)


def dataset(folder, *definitions):
    """Write definitions into a dataset; return its folder."""
    for each in definitions:
        file = Path(folder) / "definitions" / each["op_type"] / f"{each['name']}.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(each), encoding="utf-8")
    return str(folder)


class Solution:
    """A callable that does as a definition's reference does, plus `tag`, and counts its calls."""

    def __init__(self, definition, tag=0.0):
        space = {}
        exec(definition["reference"], space)
        self._run = space["run"]
        self.tag = tag
        self.calls = []
        self.__name__ = "run"
        self.__wrapped__ = self._run  # for its signature

    def __call__(self, *args, **kwargs):
        self.calls.append((args, kwargs))
        result = self._run(*args, **kwargs)
        if isinstance(result, tuple):
            return tuple(each + self.tag for each in result)
        return result + self.tag


@contextlib.contextmanager
def patched(*adapters):
    """Put the wrappers of adapters on inside a block."""
    manager = PatchManager()
    try:
        for adapter in adapters:
            for spec in adapter.targets():
                assert manager.patch(spec, adapter.make_wrapper), spec.path
        yield manager
    finally:
        manager.unpatch_all()
