"""FlashInfer-Bench plugin: builds solutions written in Python."""

from __future__ import annotations

from flashinfer_bench.plugins import BuilderSpec, hookimpl

__all__ = ["fib_register_builders"]


@hookimpl
def fib_register_builders() -> tuple[BuilderSpec, ...]:
    """Register the builder for the language ``python``."""
    return (
        BuilderSpec(
            name="python",
            # Some datasets set a binding on Python solutions; it is ignored.
            handles=(("python", "*"),),
            factory="fib_builder_python.builder:PythonBuilder",
            probe="fib_builder_python.builder:probe",
            summary="Python functions, in one file or many",
        ),
    )
