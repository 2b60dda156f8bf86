"""FlashInfer-Bench plugin: builds C++ and CUDA solutions as torch extensions."""

from __future__ import annotations

from flashinfer_bench.plugins import BuilderSpec, hookimpl

__all__ = ["fib_register_builders"]

_FACTORY = "fib_builder_cuda_torch.builder:TorchBuilder"
# Solutions without a binding go to tvm-ffi first; those that use torch's macros come here.
_PRIORITY = 40


@hookimpl
def fib_register_builders() -> tuple[BuilderSpec, ...]:
    """Register the builder for the languages ``cpp`` and ``cuda`` with the binding ``torch``."""
    return (
        BuilderSpec(
            name="torch",
            handles=(("cpp", "torch"), ("cpp", None)),
            factory=_FACTORY,
            probe="fib_builder_cuda_torch.probe:probe_cpp",
            priority=_PRIORITY,
            compiles=True,
            summary="C++ extensions of torch: pybind11, TORCH_LIBRARY, the stable ABI",
        ),
        BuilderSpec(
            name="torch_cuda",
            handles=(("cuda", "torch"), ("cuda", None)),
            devices=("cuda",),
            factory=_FACTORY,
            probe="fib_builder_cuda_torch.probe:probe_cuda",
            priority=_PRIORITY,
            compiles=True,
            summary="CUDA extensions of torch: pybind11, TORCH_LIBRARY, the stable ABI",
        ),
    )
