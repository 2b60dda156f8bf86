"""Loading libraries, by themselves."""

from __future__ import annotations

import pytest

from fib_builder_cuda_torch import loading
from flashinfer_bench.errors import BuildError


def test_what_is_no_library(tmp_path):
    path = tmp_path / "name.so"
    path.write_bytes(b"text")
    with pytest.raises(BuildError, match="file too short"):
        loading.load_library(path, "s")
