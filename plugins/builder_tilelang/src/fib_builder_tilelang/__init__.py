"""FlashInfer-Bench plugin: builds solutions written in TileLang."""

from __future__ import annotations

from flashinfer_bench.plugins import BuilderSpec, hookimpl

__all__ = ["fib_register_builders"]


@hookimpl
def fib_register_builders() -> tuple[BuilderSpec, ...]:
    """Register the builder for the language ``tilelang``."""
    return (
        BuilderSpec(
            name="tilelang",
            # Some datasets set a binding on TileLang solutions; it is ignored.
            handles=(("tilelang", "*"),),
            factory="fib_builder_tilelang.builder:TileLangBuilder",
            probe="fib_builder_tilelang.probe:probe",
            summary="TileLang kernels for GPU or CPU, depending on their target",
        ),
    )
