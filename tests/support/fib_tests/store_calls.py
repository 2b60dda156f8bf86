"""What tests of the store need, here and in processes of their own."""

from __future__ import annotations

from typing import Any

import torch

from flashinfer_bench.data import Definition
from flashinfer_bench.tracing import WorkloadEntry

DECODE = {
    "name": "decode_h4",
    "op_type": "gqa",
    "axes": {
        "batch": {"type": "var"},
        "len_indptr": {"type": "var"},
        "H": {"type": "const", "value": 4},
    },
    "inputs": {
        "q": {"shape": ["batch", "H"], "dtype": "bfloat16"},
        "indptr": {"shape": ["len_indptr"], "dtype": "int32"},
        "scale": {"shape": None, "dtype": "float32"},
    },
    "outputs": {"o": {"shape": ["batch", "H"], "dtype": "bfloat16"}},
    "reference": "def run(q, indptr, scale):\n    return q * scale\n",
    "constraints": ["len_indptr == batch + 1"],
}
NORM = {
    "name": "norm/h8",  # not a name of a file
    "op_type": "rmsnorm",
    "axes": {"M": {"type": "var"}, "H": {"type": "const", "value": 8}},
    "inputs": {"x": {"shape": ["M", "H"], "dtype": "float32"}},
    "outputs": {"y": {"shape": ["M", "H"], "dtype": "float32"}},
    "reference": "def run(x):\n    return x\n",
}
DEFINITIONS = {one["name"]: Definition.model_validate(one) for one in (DECODE, NORM)}


def entry(name: str, axes: dict[str, int], values: dict[str, Any] | None = None) -> WorkloadEntry:
    return WorkloadEntry(name, axes, values or {}, 0)


def decode(batch: int, scale: Any = 0.5, **changes: Any) -> WorkloadEntry:
    indptr = torch.arange(batch + 1, dtype=torch.int32)
    values = {"indptr": indptr, "scale": scale, **changes}
    return entry("decode_h4", {"batch": batch, "len_indptr": batch + 1}, values)


def norm(m: int) -> WorkloadEntry:
    return entry("norm/h8", {"M": m})
