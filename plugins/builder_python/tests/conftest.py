"""The problem that the tests of all builders pose, in Python."""

import pytest

from fib_builder_python.builder import PythonBuilder
from fib_tests.builds import cache_folder
from fib_tests.scaled_add import build, definition, expected, inputs, maker_of

RETURNS = "def run(x, y, scale):\n    return (x + y) * scale\n"


@pytest.fixture
def builder_class():
    return PythonBuilder


@pytest.fixture
def make_solution():
    """Return a function that makes a solution from a source, or from several files."""
    return maker_of(RETURNS, "python", "cpu")
