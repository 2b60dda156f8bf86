"""FlashInfer-Bench plugin: builds solutions in C++ and CUDA that are called through TVM FFI."""

from __future__ import annotations

from flashinfer_bench.plugins import BuilderSpec, hookimpl

__all__ = ["fib_register_builders"]

_FACTORY = "fib_builder_tvmffi.builder:TVMFFIBuilder"


@hookimpl
def fib_register_builders() -> tuple[BuilderSpec, ...]:
    """Register the builder for ``cpp`` and ``cuda``.

    There are two records, because a machine may meet the requirements of only one of them.
    """
    return (
        BuilderSpec(
            name="tvm_ffi",
            handles=(("cpp", None), ("cpp", "tvm-ffi")),
            factory=_FACTORY,
            probe="fib_builder_tvmffi.probe:probe",
            summary="C++ that exports its functions through TVM FFI",
            compiles=True,
            preloads=(("cpu", "tvm_ffi"),),  # on a GPU the import opens the device
        ),
        BuilderSpec(
            name="tvm_ffi_cuda",
            handles=(("cuda", None), ("cuda", "tvm-ffi")),
            factory=_FACTORY,
            probe="fib_builder_tvmffi.probe:probe_cuda",
            summary="CUDA that exports its functions through TVM FFI",
            devices=("cuda",),
            compiles=True,
        ),
    )
