"""FlashInfer-Bench plugin: builds solutions written in Triton."""

from __future__ import annotations

from flashinfer_bench.plugins import BuilderSpec, hookimpl

__all__ = ["fib_register_builders"]

# Some datasets set a binding on Triton solutions; it is ignored.
_HANDLES = (("triton", "*"),)
_FACTORY = "fib_builder_triton.builder:TritonBuilder"


@hookimpl
def fib_register_builders() -> tuple[BuilderSpec, ...]:
    """Register the builder for the language ``triton``, on GPUs and in Triton's interpreter."""
    return (
        BuilderSpec(
            name="triton",
            handles=_HANDLES,
            devices=("cuda",),
            factory=_FACTORY,
            probe="fib_builder_triton.probe:probe",
            preloads=(
                ("cuda", "triton"),
                ("cuda", "triton.compiler"),
                ("cuda", "fib_builder_triton.preload"),
            ),
            summary="Triton kernels on a GPU, compiled at the first call",
        ),
        BuilderSpec(
            name="triton_interpreter",
            handles=_HANDLES,
            devices=("cpu",),
            factory=_FACTORY,
            probe="fib_builder_triton.probe:probe_interpreter",
            priority=40,
            summary="Triton kernels on the CPU, interpreted: slow, for tests and debugging",
        ),
    )
