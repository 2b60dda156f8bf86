"""Fixtures for tests of patching and installing."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

_spec = importlib.util.spec_from_file_location(
    "fib_tests_worlds", Path(__file__).with_name("worlds.py")
)
assert _spec is not None
assert _spec.loader is not None
_worlds = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_worlds)


@pytest.fixture
def world(tmp_path, monkeypatch):
    """A folder for libraries and adapters of a test's own."""
    monkeypatch.syspath_prepend(str(tmp_path))
    made = _worlds.World(tmp_path)
    yield made
    made.close()


@pytest.fixture
def spec():
    """Returns the code of a PatchSpec."""
    return _worlds.spec


@pytest.fixture
def runtime():
    """Makes a runtime that is active for some definitions."""
    return _worlds.Runtime
