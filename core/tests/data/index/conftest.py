"""An index that is kept however small the dataset is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from flashinfer_bench.data import index
from flashinfer_bench.data.trace_reader import TraceReader

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def kept(dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of the index of `dataset`; all files of that are old enough to be trusted."""
    monkeypatch.setenv("FIB_CACHE_PATH", str(tmp_path / "cache"))
    monkeypatch.setattr(index, "SMALLEST", 0)
    monkeypatch.setattr(index, "SETTLE_NS", -1)
    return index.index_file(dataset)


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Each line that is decoded from now on."""
    seen: list[bytes] = []
    original = TraceReader.read_line

    def read_line(self: TraceReader, text: bytes) -> object:
        seen.append(text)
        return original(self, text)

    monkeypatch.setattr(TraceReader, "read_line", read_line)
    return seen
