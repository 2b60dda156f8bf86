"""The tensor files that workloads name must be there and hold what is declared."""

from __future__ import annotations

from typing import TYPE_CHECKING, Union

from flashinfer_bench.data import (
    SafetensorsInput,
    is_lfs_pointer,
    read_safetensors_header,
    resolve_blob,
)
from flashinfer_bench.data.blobs import SAFETENSORS_TO_DTYPE
from flashinfer_bench.errors import BlobError, DataError, UnsafePathError
from flashinfer_bench.validate.findings import Place

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from flashinfer_bench.data import Definition, TensorSpec, Workload
    from flashinfer_bench.validate.findings import Finding
    from flashinfer_bench.validate.records import Contents, Record

NAME = "blobs"

_Header = dict[str, tuple[str, tuple[int, ...]]]
_Shape = tuple[int, ...]


class BlobCheck:
    """Compares the header of each tensor file with the definition; the tensors are not read."""

    def __init__(self, contents: Contents) -> None:
        self._root = contents.root
        self._definitions = contents.definitions
        self._headers: dict[Path, Union[_Header, BlobError]] = {}

    def visit(self, record: Record) -> Iterator[Finding]:
        """Check the files of one workload; traces of runs are not looked at."""
        trace, at = record
        definition = self._definitions.get(trace.definition)
        if definition is None or not trace.is_workload_trace():
            return
        place = Place(NAME, at.path, at.line)
        for name, spec in trace.workload.inputs.items():
            declared = definition.inputs.get(name)
            if isinstance(spec, SafetensorsInput) and declared is not None:
                field = f"workload.inputs.{name}"
                shape = _expected_shape(definition, name, trace.workload)
                yield from self._check_file(spec, declared, shape, place, field)

    def facts(self) -> None:
        """Keep nothing: each file of tensors is judged where it is named."""

    @classmethod
    def combine(cls, facts: list[None], contents: Contents) -> Iterator[Finding]:
        """Add nothing."""
        yield from ()

    def _check_file(
        self,
        spec: SafetensorsInput,
        declared: TensorSpec,
        shape: Union[_Shape, None],
        place: Place,
        field: str,
    ) -> Iterator[Finding]:
        try:
            path = resolve_blob(self._root, spec.path)
        except UnsafePathError as error:
            yield place.error(error.message, f"{field}.path")
            return
        if _is_pointer(path):
            message = f"{spec.path} has not been downloaded: it is a Git LFS pointer"
            yield place.warning(message, f"{field}.path", "run 'git lfs pull' in the dataset")
            return
        header = self._header(path)
        if isinstance(header, BlobError):
            yield place.error(f"{spec.path}: {header.message}", f"{field}.path")
        elif spec.tensor_key not in header:
            keys = ", ".join(sorted(header)) or "none"
            message = f"{spec.path} has no tensor {spec.tensor_key!r}; it has {keys}"
            yield place.error(message, f"{field}.tensor_key")
        else:
            found = header[spec.tensor_key]
            yield from _compare(found, declared, shape, spec.path, place, field)

    def _header(self, path: Path) -> Union[_Header, BlobError]:
        if path not in self._headers:
            try:
                self._headers[path] = read_safetensors_header(path)
            except BlobError as error:
                self._headers[path] = error
        return self._headers[path]


def _is_pointer(path: Path) -> bool:
    try:
        return is_lfs_pointer(path)
    except OSError:
        return False  # reading the header will say what is wrong


def _expected_shape(definition: Definition, name: str, workload: Workload) -> Union[_Shape, None]:
    """Return the declared shape, or None where it is a scalar or cannot be known."""
    try:
        shapes = definition.get_input_shapes(workload.axes)
    except DataError:
        return None  # an axis is missing, of which the check of workloads tells
    return shapes[list(definition.inputs).index(name)]


def _compare(
    found: tuple[str, _Shape],
    declared: TensorSpec,
    shape: Union[_Shape, None],
    path: str,
    place: Place,
    field: str,
) -> Iterator[Finding]:
    stored, stored_shape = found
    dtype = SAFETENSORS_TO_DTYPE.get(stored, stored)
    # Packed 4-bit floats may be stored as bytes, which every release of safetensors can read.
    packed = declared.dtype == "float4_e2m1" and stored == "U8"
    if dtype != declared.dtype and not packed:
        message = f"{path} holds {dtype}, but {declared.dtype} is declared"
        yield place.error(message, f"{field}.dtype")
    if declared.shape is None:
        if _elements(stored_shape) != 1:
            message = f"{path} holds a tensor of shape {list(stored_shape)} for a scalar"
            yield place.error(message, f"{field}.shape")
    elif (
        shape is not None and stored_shape != shape and not _is_packed(stored, stored_shape, shape)
    ):
        message = f"{path} holds shape {list(stored_shape)}, but {list(shape)} is declared"
        yield place.error(message, f"{field}.shape")


def _is_packed(stored: str, found: _Shape, declared: _Shape) -> bool:
    """Return whether two 4-bit floats to an element explain the difference."""
    if stored != "F4" or not found or not declared:
        return False
    return found[:-1] == declared[:-1] and found[-1] == 2 * declared[-1]


def _elements(shape: _Shape) -> int:
    product = 1
    for extent in shape:
        product *= extent
    return product
