"""FlashInfer-Bench plugin: builds solutions written in plain C."""

from __future__ import annotations

from flashinfer_bench.plugins import BuilderSpec, hookimpl

__all__ = ["fib_register_builders"]


@hookimpl
def fib_register_builders() -> tuple[BuilderSpec, ...]:
    """Register the builder for the language ``c``."""
    return (
        BuilderSpec(
            name="example",
            # Language and binding, as a solution's spec names them. C has one way of being called
            # here, so there is no binding to name.
            handles=(("c", None),),
            # Tensors are handed over as pointers that the CPU reads.
            devices=("cpu",),
            # What the compiler makes stays on disk, so it can be made ahead, in other processes.
            compiles=True,
            # Strings: nothing is imported before somebody needs it.
            factory="fib_builder_example.builder:ExampleBuilder",
            probe="fib_builder_example.probe:probe",
            summary="C functions, compiled with the system's C compiler",
        ),
    )
