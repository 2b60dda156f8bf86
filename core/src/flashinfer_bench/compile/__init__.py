"""Turn solutions into functions: builders, the registry that chooses among them, and runnables.

``BuilderRegistry.get_instance().build(definition, solution)`` returns a `Runnable` for a solution
in any language. Authors of builders use `flashinfer_bench.compile.toolkit`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flashinfer_bench._lazy import exports

if TYPE_CHECKING:
    from flashinfer_bench.compile.builder import *  # noqa: F403
    from flashinfer_bench.compile.registry import *  # noqa: F403
    from flashinfer_bench.compile.runnable import *  # noqa: F403

# Imported lazily: threads that import two of its modules, as probes do, would block each other.
_NAMES = {
    "builder": "BuildError Builder",
    "registry": (
        "BuilderRegistry default_registry get_registry reference_solution reset_default_registry"
    ),
    "runnable": "Runnable RunnableMetadata list_outputs",
}

__getattr__, __dir__, __all__ = exports(__name__, _NAMES)
