"""A writer of datasets, shared with the tests of the command line."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

_spec = importlib.util.spec_from_file_location(
    "fib_tests_dataset_maker", Path(__file__).parents[1] / "cli" / "dataset_maker.py"
)
assert _spec is not None
assert _spec.loader is not None
_module = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_module)

# A busy machine is no failure.
settings.register_profile("no-deadline", deadline=None)
settings.load_profile("no-deadline")


@pytest.fixture
def maker(tmp_path: Path) -> Any:
    """Writes into an empty dataset."""
    return _module.DatasetMaker(tmp_path / "dataset")
