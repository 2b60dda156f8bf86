"""Folders to compare, and archives made by hand."""

from __future__ import annotations

import io
import tarfile
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pathlib import Path


def tree_of(root: Path) -> dict[str, bytes]:
    """Return the content of each file by its path."""
    return {
        path.relative_to(root).as_posix(): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


@pytest.fixture(scope="session")
def tree() -> Any:
    return tree_of


@pytest.fixture(scope="session")
def make_tar() -> Any:
    """Writes an archive of (name or TarInfo, content) pairs."""

    def make(path: Path, *entries: tuple[Any, bytes], mode: str = "w:gz", **options: Any) -> Path:
        with tarfile.open(path, mode, **options) as tar:
            for named, content in entries:
                info = tarfile.TarInfo(named) if isinstance(named, str) else named
                if info.isreg():
                    info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
        return path

    return make


@pytest.fixture
def with_blobs(dataset: Path, writer: Any, make: Any) -> Path:
    """The small dataset, with a workload of a tensor file that a trace has, too."""
    add_blob_workload(writer, make, "w3", "./blob/workloads/gemm/x.safetensors")
    writer.text("blob/workloads/gemm/x.safetensors", b"tensors")
    return dataset


def add_blob_workload(writer: Any, make: Any, uuid: str, path: str) -> None:
    spec = {"type": "safetensors", "path": path, "tensor_key": "a"}
    for name, solution in (("workloads", None), ("traces", "alice_v1")):
        record = make.trace_record(solution, uuid=uuid)
        record["workload"]["inputs"]["a"] = spec
        writer.lines(f"{name}/gemm/{uuid}.jsonl", record)


@pytest.fixture(scope="session")
def add_blob() -> Any:
    return add_blob_workload
