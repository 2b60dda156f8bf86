"""The made-up timers, for tests of how often an interval holds the truth."""

import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from types import ModuleType


@pytest.fixture(scope="session")
def coverage_benchmark():
    """``benchmarks/interval_coverage.py``, which loads ``synthetic.py`` itself."""
    path = Path(__file__).parents[3] / "benchmarks" / "interval_coverage.py"
    if not path.is_file():
        pytest.skip(f"{path} is not there: the tests are not run from a checkout")
    spec = importlib.util.spec_from_file_location("fib_interval_coverage", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
