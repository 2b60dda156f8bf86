"""Whether a CUDA graph is being captured."""

from __future__ import annotations

import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

from flashinfer_bench.routing import patch_points as capture  # noqa: E402


def test_the_capturing_goes_to_torch(monkeypatch):
    asked = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(
        torch.cuda, "is_current_stream_capturing", lambda: asked.append(1) or len(asked) > 1
    )
    capture._capturing.cache_clear()
    try:
        assert [capture.is_capturing(), capture.is_capturing()] == [False, True]
    finally:
        capture._capturing.cache_clear()


def test_torch_is_not_imported_to_find_out():
    code = (
        "import sys; from flashinfer_bench.routing.patch_points import is_capturing\n"
        "assert not is_capturing() and 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
