import pytest

from fib_tests.browser import *  # noqa: F403
from fib_tests.cli import *  # noqa: F403
from fib_tests.records import *  # noqa: F403
from fib_tests.results import *  # noqa: F403


@pytest.fixture
def two_definitions(maker):
    """A sound dataset, with a second definition that another author has solved, and no runs."""
    maker.sound()
    maker.definition("triple", op_type="gemm")
    maker.solution("bob_triple", definition="triple", author="bob")
    maker.workload("triple", op_type="gemm")
    return maker
