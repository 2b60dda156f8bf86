"""Definitions, solutions that count their calls, and adapters put on, for the tests of adapters."""

import contextlib
import inspect
import json
from pathlib import Path

from flashinfer_bench.apply import enable_apply
from flashinfer_bench.routing import PatchManager, resolve, route_stats

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


def tensor(*axes, dtype="bfloat16"):
    return {"shape": list(axes), "dtype": dtype}


SCALAR = {"shape": None, "dtype": "float32"}


def define(name, op_type, sizes, inputs, outputs, reference=None, **more):
    """A definition: `sizes` are those of the constant axes, all others are variable."""
    shapes = [spec["shape"] or () for spec in (*inputs.values(), *outputs.values())]
    axes = {axis: {"type": "var"} for shape in shapes for axis in shape}
    return {
        "name": name,
        "op_type": op_type,
        "axes": {**axes, **{axis: {"type": "const", "value": n} for axis, n in sizes.items()}},
        "inputs": inputs,
        "outputs": outputs,
        "reference": reference or f"def run({', '.join(inputs)}):\n    raise NotImplementedError\n",
        **more,
    }


def rmsnorm(hidden, eps="1e-6", *, takes_eps=False, tags=(), kind="rmsnorm", dtype="bfloat16"):
    """A definition of a norm, as the datasets have them; perhaps with eps as an input."""
    rows = tensor("batch_size", "hidden_size", dtype=dtype)
    inputs = {"hidden_states": rows, "weight": tensor("hidden_size", dtype=dtype)}
    if takes_eps:
        reference = RMS.format(parameters=", eps", before="pass", eps="eps")
        inputs["eps"] = SCALAR
    else:
        reference = RMS.format(parameters="", before=f"EPS = {eps}", eps="EPS")
    name, sizes = f"{kind}_h{hidden}", {"hidden_size": hidden}
    return define(name, "rmsnorm", sizes, inputs, {"output": rows}, reference, tags=list(tags))


def fused(hidden, eps="1e-6", *, outputs=("output",), kind="fused_add_rmsnorm", dtype="bfloat16"):
    """A definition of a fused norm; `outputs` in the order that the reference returns them."""
    rows = tensor("batch_size", "hidden_size", dtype=dtype)
    values = {"output": "y", "residual_out": "x.to(hidden_states.dtype)"}
    weight = tensor("hidden_size", dtype=dtype)
    return define(
        f"{kind}_h{hidden}",
        "rmsnorm",
        {"hidden_size": hidden},
        {"hidden_states": rows, "residual": rows, "weight": weight},
        dict.fromkeys(outputs, rows),
        FUSED.format(eps=eps, returned=", ".join(values[each] for each in outputs)),
    )


def gemm(n, k, dtype="float16"):
    """A definition of a matrix product with a transposed weight, as the datasets have them."""
    inputs = {"A": tensor("M", "K", dtype=dtype), "B": tensor("N", "K", dtype=dtype)}
    outputs, sizes = {"C": tensor("M", "N", dtype=dtype)}, {"N": n, "K": k}
    return define(f"gemm_n{n}_k{k}", "gemm", sizes, inputs, outputs, GEMM)


def attention(name, op_type, sizes, tensors, page_size=None):
    """A definition of attention, the queries first in `tensors`; on pages if these have a size."""
    queries, *_ = (each["shape"] for each in tensors.values())
    offsets, more = tensor("len_indptr", dtype="int32"), {}
    inputs = {**tensors, **({} if queries[0] == "batch_size" else {"qo_indptr": offsets})}
    inputs["kv_indptr"] = offsets
    if page_size is not None:
        sizes = {**sizes, "page_size": page_size}
        inputs["kv_indices"] = tensor("num_kv_indices", dtype="int32")
        more = {"constraints": ["num_kv_indices == kv_indptr[-1].item()"]}
    if page_size not in (None, 1):
        inputs["kv_last_page_len"] = tensor("requests", dtype="int32")
    outputs = {"output": tensor(*queries), "lse": tensor(*queries[:2], dtype="float32")}
    return define(name, op_type, sizes, {**inputs, "sm_scale": SCALAR}, outputs, **more)


def dataset(folder, *definitions):
    """Write definitions into a dataset; return its folder."""
    for each in definitions:
        file = Path(folder) / "definitions" / each["op_type"] / f"{each['name']}.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(each), encoding="utf-8")
    return str(folder)


class Solution:
    """A callable that does as a function does, plus `tag`, and keeps the arguments of its calls."""

    def __init__(self, function, tag=0.0):
        self.__wrapped__ = function  # for its signature
        self.__name__ = function.__name__
        self.tag, self.calls = tag, []

    def __call__(self, *args, **kwargs):
        names = inspect.signature(self).parameters
        self.calls.append({**dict(zip(names, args, strict=False)), **kwargs})
        result = self.__wrapped__(*args, **kwargs)
        return result + self.tag if self.tag else result


def reference_of(definition):
    """Return the function that a definition's reference is."""
    space = {}
    exec(definition["reference"], space)
    return space["run"]


@contextlib.contextmanager
def patched(*adapters):
    """Put the wrappers of adapters on inside a block; check afterwards that all of them are off."""
    manager = PatchManager()
    specs = [(adapter, spec) for adapter in adapters for spec in adapter.targets()]
    before = {spec.path: resolve(spec.path).found for _, spec in specs}
    try:
        for adapter, spec in specs:
            assert manager.patch(spec, adapter.make_wrapper), spec.path
            assert resolve(spec.path).found is not before[spec.path], spec.path
        yield manager
    finally:
        manager.unpatch_all()
    for path, found in before.items():
        assert resolve(path).found is found, path


@contextlib.contextmanager
def enabled(folder, definition, solution=None, tag=0.0):
    """Have a definition of a dataset answered inside a block; yields its solution."""
    solution = Solution(solution or reference_of(definition), tag)
    with enable_apply({definition["name"]: solution}, dataset=dataset(folder, definition)):
        yield solution


class Refusals:
    """Reasons for which calls of one label were not routed, since this was made."""

    def __init__(self, label):
        self.label = label
        self._before = self._now()

    def _now(self):
        return dict(route_stats().get(self.label, {"refused": {}})["refused"])

    def new(self):
        now = self._now()
        return {
            reason: count - self._before.get(reason, 0)
            for reason, count in now.items()
            if count != self._before.get(reason, 0)
        }
