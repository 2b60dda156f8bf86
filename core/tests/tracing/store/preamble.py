"""What tests of the store need, here and in processes of their own."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from flashinfer_bench.data import Definition

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


@dataclass
class Call:
    """A recorded call, with what the store asks of one and nothing else."""

    def_name: str
    axes: dict[str, int]
    held: dict[str, Any] = field(default_factory=dict)

    def values(self) -> dict[str, Any]:
        return self.held


def decode(batch: int, scale: Any = 0.5, **changes: Any) -> Call:
    indptr = torch.arange(batch + 1, dtype=torch.int32)
    held = {"indptr": indptr, "scale": scale, **changes}
    return Call("decode_h4", {"batch": batch, "len_indptr": batch + 1}, held)


def norm(m: int) -> Call:
    return Call("norm/h8", {"M": m})
