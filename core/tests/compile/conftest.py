"""Definitions, solutions and a builder of our own: these tests need no plugin."""

from fib_tests.builds import (
    builder,
    cache_folder,
    definition,
    make_definition,
    make_solution,
)
