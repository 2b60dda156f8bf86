"""Conversion to and from torch: element types, inputs, outputs, tensor files, raw bytes, devices.

torch is imported only when a function needs it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flashinfer_bench._lazy import exports

if TYPE_CHECKING:
    from flashinfer_bench.tensors.devices import *  # noqa: F403
    from flashinfer_bench.tensors.dtypes import *  # noqa: F403
    from flashinfer_bench.tensors.generate import *  # noqa: F403

_NAMES = {
    "devices": (
        "cpu_threads env_snapshot hardware_from_device judge_core list_cuda_devices nvidia_gpus "
        "torch_versions"
    ),
    "dtypes": (
        "dtype_name span_of tensor_from_bytes tensor_from_span tensor_to_bytes to_python_type "
        "to_torch_dtype"
    ),
    "generate": "allocate_outputs derive_seed generate_inputs poison random_tensor",
}

__getattr__, __dir__, __all__ = exports(__name__, _NAMES)
