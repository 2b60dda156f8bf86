"""Headers of safetensors files, read without a tensor library."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

from flashinfer_bench.data import is_lfs_pointer
from flashinfer_bench.errors import BlobError

if TYPE_CHECKING:
    from pathlib import Path

MAX_HEADER_BYTES = 100_000_000
"""Largest header that the safetensors library itself accepts."""

_ITEM_BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8,
    "F8_E5M2FNUZ": 8, "U16": 16, "I16": 16, "F16": 16, "BF16": 16, "U32": 32, "I32": 32, "F32": 32,
    "U64": 64, "I64": 64, "F64": 64, "C64": 64, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
}  # fmt: skip

SAFETENSORS_TO_DTYPE = {
    "F32": "float32", "F16": "float16", "BF16": "bfloat16", "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2", "F4": "float4_e2m1", "I64": "int64", "I32": "int32", "I16": "int16",
    "I8": "int8", "BOOL": "bool",
}  # fmt: skip
"""Dtypes of the format by their names in safetensors."""

_MOST_AXES = 1000  # computing the product of more would take long
Header = dict[str, tuple[str, tuple[int, ...]]]


def read_safetensors_header(path: Path) -> Header:
    """Read the header of a safetensors file, without the tensors.

    Parameters
    ----------
    path : Path
        The file.

    Returns
    -------
    dict of str to (str, tuple of int)
        Dtype in the notation of safetensors (``"BF16"``) and shape of each tensor, by key.

    Raises
    ------
    BlobError
        If the file is missing, a Git LFS pointer, or not a well-formed safetensors file.
    """
    return {key: place[:2] for key, place in tensor_places(path).items()}


def tensor_places(path: Path) -> dict[str, tuple[str, tuple[int, ...], int, int]]:
    """Return dtype and shape like `read_safetensors_header`, and the byte offsets of each tensor.

    Raises
    ------
    BlobError
        As for `read_safetensors_header`.
    """
    try:
        if is_lfs_pointer(path):
            hint = "run 'git lfs pull' in the dataset"
            raise BlobError("this is a Git LFS pointer, not the file itself", path=path, hint=hint)
        size = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if size < 8:
                raise BlobError("not a safetensors file: shorter than 8 bytes", path=path)
            if length > min(MAX_HEADER_BYTES, size - 8):
                problem = f"header of {length} bytes in a file of {size}"
                raise BlobError(f"not a safetensors file: {problem}", path=path)
            header = json.loads(file.read(length))
    except FileNotFoundError as error:
        raise BlobError("the file does not exist", path=path) from error
    except OSError as error:
        raise BlobError(f"cannot be read: {error.strerror or error}", path=path) from error
    except BlobError:
        raise
    except (ValueError, RecursionError) as error:
        problem = f"the header is not JSON ({error})"
        raise BlobError(f"not a safetensors file: {problem}", path=path) from error
    if not isinstance(header, dict):
        raise BlobError("not a safetensors file: the header is not an object", path=path)
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(one, str) for one in metadata.values()):
        raise BlobError("must map names to strings", path=path, field="__metadata__")
    first = 8 + length
    entries = {key: _parse_entry(key, entry, size - first, path) for key, entry in header.items()}
    reached = 0
    spans = sorted((begin, end) for _, _, begin, end in entries.values())
    for begin, end in [*spans, (size - first, size - first)]:
        if begin != reached:  # the safetensors library rejects it as well
            what = "gap or overlap between tensors: one begins at byte"
            raise BlobError(
                f"not a safetensors file: {what} {begin}, the previous one ends at {reached}",
                path=path,
            )
        reached = end
    return {
        key: (dtype, shape, first + begin, first + end)
        for key, (dtype, shape, begin, end) in entries.items()
    }


def _parse_entry(
    key: str, entry: Any, data_bytes: int, path: Path
) -> tuple[str, tuple[int, ...], int, int]:
    try:
        dtype, shape, (begin, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
    except (KeyError, TypeError, ValueError) as error:
        raise BlobError("needs dtype, shape and two data_offsets", path=path, field=key) from error
    if not isinstance(dtype, str) or dtype not in _ITEM_BITS:
        raise BlobError(f"unknown dtype {dtype!r}", path=path, field=key)
    if not isinstance(shape, list) or not all(
        type(one) is int and 0 <= one < 2**63 for one in (*shape, begin, end)
    ):
        problem = "shape and offsets must be integers from 0 to 2**63 - 1"
        raise BlobError(problem, path=path, field=key)
    fits = begin <= end <= data_bytes and len(shape) <= _MOST_AXES
    if not fits or (end - begin) * 8 != math.prod(shape) * _ITEM_BITS[dtype]:
        problem = f"{dtype} of shape {shape} does not match bytes {begin} to {end} of {data_bytes}"
        raise BlobError(problem, path=path, field=key)
    return dtype, tuple(shape), begin, end
