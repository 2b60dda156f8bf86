"""Checks that the tensor files of workloads exist and match their definitions."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Union

from fib_datasets.tensor_headers import SAFETENSORS_TO_DTYPE
from flashinfer_bench.data import (
    SafetensorsInput,
    is_lfs_pointer,
    read_safetensors_header,
    resolve_blob,
)
from flashinfer_bench.errors import BlobError, DataError, FibError, UnsafePathError
from flashinfer_bench.validate.records import Place, RecordCheck

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from flashinfer_bench.data import TensorSpec
    from flashinfer_bench.validate.records import Contents, Finding, Record

_Shape = tuple[int, ...]


def _visit(record: Record, contents: Contents) -> Iterator[Finding]:
    """Compare the header of each tensor file with the definition; the tensors are not read."""
    trace, at = record
    definition = contents.definitions.get(trace.definition)
    if definition is None or not trace.is_workload_trace():
        return
    place = at._replace(check="blobs")
    try:
        shapes = definition.get_input_shapes(trace.workload.axes)
    except DataError:  # an axis is missing, which the check of workloads reports
        shapes = [None] * len(definition.inputs)
    for (name, declared), shape in zip(definition.inputs.items(), shapes, strict=True):
        spec = trace.workload.inputs.get(name)
        if isinstance(spec, SafetensorsInput):
            field = f"workload.inputs.{name}"
            yield from _check_file(contents.root, spec, declared, shape, place, field)


BLOBS = RecordCheck(_visit)


def _check_file(
    root: Path,
    spec: SafetensorsInput,
    declared: TensorSpec,
    shape: Union[_Shape, None],
    place: Place,
    field: str,
) -> Iterator[Finding]:
    try:
        path = resolve_blob(root, spec.path)
        if path.exists() and is_lfs_pointer(path):
            message = f"{spec.path} has not been downloaded: it is a Git LFS pointer"
            yield place.warning(message, f"{field}.path", "run 'git lfs pull' in the dataset")
            return
        header = read_safetensors_header(path)
    except (UnsafePathError, BlobError, OSError) as error:
        said = error.message if isinstance(error, FibError) else f"cannot be read: {error.strerror}"
        at = "" if isinstance(error, UnsafePathError) else f"{spec.path}: "  # it names the path
        yield place.error(at + said, f"{field}.path")
        return
    if spec.tensor_key not in header:
        keys = ", ".join(sorted(header)) or "none"
        message = f"{spec.path} has no tensor {spec.tensor_key!r}; it has {keys}"
        yield place.error(message, f"{field}.tensor_key")
        return
    stored, found = header[spec.tensor_key]
    dtype = SAFETENSORS_TO_DTYPE.get(stored, stored)
    # Packed 4-bit floats may be stored as bytes, which all releases of safetensors can read.
    packed = declared.dtype == "float4_e2m1" and stored == "U8"
    if dtype != declared.dtype and not packed:
        message = f"{spec.path} has dtype {dtype}, but {declared.dtype} is declared"
        yield place.error(message, f"{field}.dtype")
    wanted = "a scalar" if declared.shape is None else list(shape or ())
    if declared.shape is None:
        fits = math.prod(found) == 1
    else:
        fits = shape is None or found == shape or _is_packed(stored, found, shape)
    if not fits:
        message = f"{spec.path} has shape {list(found)}, but {wanted} is declared"
        yield place.error(message, f"{field}.shape")


def _is_packed(stored: str, found: _Shape, declared: _Shape) -> bool:
    """Return whether packing two 4-bit floats per element explains the difference."""
    if stored != "F4" or not found or not declared:
        return False
    return found[:-1] == declared[:-1] and found[-1] == 2 * declared[-1]
