"""A small dataset that is recorded into, and calls of its definitions."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import torch

from fib_tests.definitions import definition, tensor
from flashinfer_bench.data.layout import DEFINITIONS
from flashinfer_bench.tracing.store import Added

if TYPE_CHECKING:
    from pathlib import Path


class Sink:
    """Stands in for the store: keeps what it is given, or fails."""

    def __init__(self, error: Exception | None = None) -> None:
        self.entries: list[Any] = []
        self.error = error

    def add(self, entries: list[Any]) -> Added:
        if self.error is not None:
            raise self.error
        self.entries += entries
        return Added(len(entries))

    def axes(self, name: str | None = None) -> list[dict[str, int]]:
        return [e.axes for e in self.entries if name is None or e.def_name == name]


SCALE = {"shape": None, "dtype": "float32"}

GEMM = definition(
    "gemm_n8_k4", {"A": tensor("M", "K"), "B": tensor("N", "K")}, {"C": tensor("M", "N")}, N=8, K=4
)
DECODE = definition(
    "gqa_paged_decode_h2_kv1_d4_ps1",
    {
        "q": tensor("batch_size", "heads", "dim"),
        "k_cache": tensor("num_pages", "page_size", "kv_heads", "dim"),
        "v_cache": tensor("num_pages", "page_size", "kv_heads", "dim"),
        "kv_indptr": tensor("len_indptr", dtype="int32"),
        "kv_indices": tensor("num_kv_indices", dtype="int32"),
        "sm_scale": SCALE,
    },
    {"output": tensor("batch_size", "heads", "dim"), "lse": tensor("batch_size", "heads")},
    ("len_indptr == batch_size + 1", "num_kv_indices == kv_indptr[-1].item()"),
    heads=2,
    dim=4,
    kv_heads=1,
    page_size=1,
)
UNTOLD = definition(
    "ragged_untold",
    {"x": tensor("total", "dim"), "kv_indptr": tensor("len_indptr", dtype="int32")},
    {"y": tensor("total", "dim")},
    dim=4,
)
ALL = (GEMM, DECODE, UNTOLD)


def write_dataset(root: Path) -> Path:
    folder = root / DEFINITIONS / "op"
    folder.mkdir(parents=True)
    for each in ALL:
        (folder / f"{each.name}.json").write_text(each.model_dump_json())
    return root


def gemm_inputs(m: int = 3, dtype: torch.dtype = torch.float16) -> tuple[Any, ...]:
    return torch.zeros(m, 4, dtype=dtype), torch.zeros(8, 4, dtype=dtype)


def decode_inputs(lengths: list[int], pages: int = 64, scale: Any = 0.5) -> tuple[Any, ...]:
    total = sum(lengths)
    indptr = torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0, dtype=torch.int32)
    cache = torch.zeros(pages, 1, 1, 4, dtype=torch.float16)
    return (
        torch.zeros(len(lengths), 2, 4, dtype=torch.float16),
        cache,
        cache.clone(),
        indptr,
        torch.arange(total, dtype=torch.int32) % pages,
        scale,
    )


def written(root: Path) -> list[dict[str, Any]]:
    """Return the workloads in the files of a dataset."""
    files = sorted((root / "workloads").rglob("*.jsonl"))
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]
