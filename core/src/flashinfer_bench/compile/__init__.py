"""From solutions to functions: builders, the registry that chooses among them, runnables.

``BuilderRegistry.get_instance().build(definition, solution)`` gives a `Runnable`, whatever language
the solution is in. `flashinfer_bench.compile.toolkit` is for those who write builders.
"""

from flashinfer_bench.compile.builder import Builder
from flashinfer_bench.compile.outputs import list_outputs
from flashinfer_bench.compile.registry import (
    BuilderRegistry,
    default_registry,
    get_registry,
    reference_solution,
    reset_default_registry,
)
from flashinfer_bench.compile.runnable import Runnable, RunnableMetadata
from flashinfer_bench.errors import BuildError

__all__ = [
    "BuildError",
    "Builder",
    "BuilderRegistry",
    "Runnable",
    "RunnableMetadata",
    "default_registry",
    "get_registry",
    "list_outputs",
    "reference_solution",
    "reset_default_registry",
]
