"""A cluster of real Ray processes on this machine, and a dataset for it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from doubles import Fleet

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "benchmarks")]  # they use the same cluster


@pytest.fixture(scope="session")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Three nodes, each with a pretended GPU, a cache and locks of its own."""
    from doubles import Fleet

    made = Fleet(tmp_path_factory.mktemp("fleet"))
    yield made
    made.cluster.close()


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    """Two workloads of recorded and four of random values; a right solution and a wrong one."""
    from doubles import make_doubles

    return make_doubles(tmp_path / "dataset")


@pytest.fixture
def traces() -> Callable[[Path], list[dict[str, Any]]]:
    """Return a function that returns the traces of a dataset."""

    def read(root: Path) -> list[dict[str, Any]]:
        paths = sorted(root.glob("traces/**/*.jsonl"))
        return [json.loads(line) for path in paths for line in path.read_text().splitlines()]

    return read
