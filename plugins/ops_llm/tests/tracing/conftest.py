from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fib_tests import recorded
from flashinfer_bench.tracing import disable_tracing

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    """A dataset with three definitions; whatever records into it is stopped."""
    yield recorded.write_dataset(tmp_path / "dataset")
    disable_tracing()
