"""Functions of earlier releases that have no counterpart of the same parameters."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Optional

from flashinfer_bench.compile.builder import package_name, write_sources
from flashinfer_bench.tensors.devices import list_cuda_devices

if TYPE_CHECKING:
    from collections.abc import Iterable

    from flashinfer_bench.data import Solution, SourceFile


def create_pkg_name(sol: Solution, prefix: str = "") -> str:
    """Return a name for a solution's build that is a valid Python identifier."""
    return package_name(prefix.strip("_"), sol, sol.hash()[:8])


def write_sources_to_dir(dir: str, sources: Iterable[SourceFile]) -> None:
    """Write sources below a folder; see `flashinfer_bench.compile.builder.write_sources`."""
    write_sources(Path(dir), sources)


def write_sources_to_temp(
    base: str, sources: Iterable[SourceFile], pkg: Optional[str] = None
) -> str:
    """Write sources into a new folder below `base`, or into its folder `pkg`; return that."""
    Path(base).mkdir(parents=True, exist_ok=True)
    folder = tempfile.mkdtemp(dir=base)
    root = Path(folder, pkg) if pkg else Path(folder)
    write_sources(root, sources)
    return str(root)


def is_cuda_available() -> bool:
    """Return whether there is a GPU that torch can use."""
    return bool(list_cuda_devices())
