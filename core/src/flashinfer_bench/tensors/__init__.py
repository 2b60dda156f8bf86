"""The bridge to torch: element types, inputs, outputs, tensor files, raw bytes, devices.

Nothing here imports torch before it is called.
"""

from flashinfer_bench.tensors.devices import (
    cpu_threads,
    env_snapshot,
    hardware_from_device,
    list_cuda_devices,
    nvidia_gpus,
    torch_versions,
)
from flashinfer_bench.tensors.dtypes import (
    dtype_name,
    span_of,
    tensor_from_bytes,
    tensor_from_span,
    tensor_to_bytes,
    to_python_type,
    to_torch_dtype,
)
from flashinfer_bench.tensors.generate import (
    allocate_outputs,
    derive_seed,
    generate_inputs,
    poison,
    random_tensor,
)

__all__ = [
    "allocate_outputs",
    "cpu_threads",
    "derive_seed",
    "dtype_name",
    "env_snapshot",
    "generate_inputs",
    "hardware_from_device",
    "list_cuda_devices",
    "nvidia_gpus",
    "poison",
    "random_tensor",
    "span_of",
    "tensor_from_bytes",
    "tensor_from_span",
    "tensor_to_bytes",
    "to_python_type",
    "to_torch_dtype",
    "torch_versions",
]
