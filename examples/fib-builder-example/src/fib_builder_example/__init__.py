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
            # Language and binding, as in a solution's spec. C functions are called in only one way
            # here, so there is no binding.
            handles=(("c", None),),
            # Tensors are passed as pointers that the CPU reads.
            devices=("cpu",),
            # Compiled libraries stay on disk, so they can be built in advance, in other processes.
            compiles=True,
            # Strings: nothing is imported before it is needed.
            factory="fib_builder_example.builder:ExampleBuilder",
            probe="fib_builder_example.probe:probe",
            summary="C functions, compiled with the system's C compiler",
        ),
    )
