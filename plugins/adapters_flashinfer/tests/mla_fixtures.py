"""The fixture of the tests of MLA, to be imported by each."""

from __future__ import annotations

import pytest


@pytest.fixture(name="mla", autouse=True)
def stand_in(cpu, monkeypatch, tmp_path):
    """MLA on the CPU; counts the calls of its kernels."""
    from flashinfer_bench.routing.patch_points import router

    monkeypatch.setenv("FIB_DATASET_PATH", str(tmp_path / "no-dataset"))
    monkeypatch.setenv("FIB_NO_PLUGINS", "1")  # the tests patch by themselves
    with cpu("mla") as patch:
        yield patch
    router.clear()
