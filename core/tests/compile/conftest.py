"""Definitions, solutions and a builder of our own: these tests need no plugin."""

import pytest

from fib_tests.builds import (
    builder,
    cache_folder,
    definition,
    make_definition,
    make_solution,
)
from fib_tests.records import python
from flashinfer_bench.compile import Runnable, RunnableMetadata


@pytest.fixture
def make(definition):
    """Return a function that makes a runnable for `definition`, or another one."""

    def make(function, *, dps=False, of=definition, explain=None):
        metadata = RunnableMetadata(
            build_type="test",
            definition_name=of.name,
            solution_name="my_kernel",
            destination_passing_style=dps,
            definition=of,
        )
        return Runnable(function, metadata, explain=explain)

    return make
