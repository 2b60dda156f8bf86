"""The bridge to torch: element types, inputs, outputs, tensor files, raw bytes, devices.

Nothing here imports torch before it is called.
"""

from flashinfer_bench.tensors.blobs import load_blob, save_blob
from flashinfer_bench.tensors.devices import (
    cpu_threads,
    default_device,
    env_snapshot,
    hardware_from_device,
    list_cuda_devices,
)
from flashinfer_bench.tensors.dtypes import (
    dtype_name,
    is_bool,
    is_float,
    is_integer,
    is_low_precision,
    to_python_type,
    to_torch_dtype,
)
from flashinfer_bench.tensors.generate import generate_inputs
from flashinfer_bench.tensors.outputs import allocate_outputs, poison
from flashinfer_bench.tensors.rand import derive_seed, random_tensor
from flashinfer_bench.tensors.wire import (
    span_of,
    tensor_from_bytes,
    tensor_from_span,
    tensor_to_bytes,
)

__all__ = [
    "allocate_outputs",
    "cpu_threads",
    "default_device",
    "derive_seed",
    "dtype_name",
    "env_snapshot",
    "generate_inputs",
    "hardware_from_device",
    "is_bool",
    "is_float",
    "is_integer",
    "is_low_precision",
    "list_cuda_devices",
    "load_blob",
    "poison",
    "random_tensor",
    "save_blob",
    "span_of",
    "tensor_from_bytes",
    "tensor_from_span",
    "tensor_to_bytes",
    "to_python_type",
    "to_torch_dtype",
]
