"""An index that is kept however small the dataset is."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from flashinfer_bench.data.index import index_file

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def kept(dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of the index of `dataset`; all files of that are old enough to be trusted."""
    monkeypatch.setenv("FIB_CACHE_PATH", str(tmp_path / "cache"))
    monkeypatch.setattr("flashinfer_bench.data.index.trace_index.SMALLEST", 0)
    monkeypatch.setattr("flashinfer_bench.data.index.part.SETTLE_NS", -1)
    return index_file(dataset)


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Name of each file that is decoded from now on, and from which byte on."""
    from flashinfer_bench.data.index import scan

    seen: list[tuple[str, int]] = []
    original = scan._Scan.__init__

    def spy(self, path, reader, after):
        seen.append((os.path.basename(path), after.end))  # noqa: PTH119 - short
        original(self, path, reader, after)

    monkeypatch.setattr(scan._Scan, "__init__", spy)
    return seen
