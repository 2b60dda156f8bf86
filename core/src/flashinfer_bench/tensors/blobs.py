"""Reading and writing the tensor files of a dataset."""

from __future__ import annotations

from typing import TYPE_CHECKING, Optional

from flashinfer_bench.data.blob_tensors import save_tensors
from flashinfer_bench.errors import BlobError
from flashinfer_bench.tensors.dtypes import dtype_name
from flashinfer_bench.tensors.lfs import fetch_if_pointer

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    import torch


def load_blob(path: Path, keys: Optional[Iterable[str]] = None) -> dict[str, torch.Tensor]:
    """Read tensors from a safetensors file.

    Parameters
    ----------
    path : Path
        The file. A Git-LFS pointer is replaced by its content first, where git-lfs is installed.
    keys : iterable of str, optional
        Which tensors to read; default: all.

    Returns
    -------
    dict of str to torch.Tensor
        CPU tensors that own their memory.

    Raises
    ------
    BlobError
        If the file is missing or not readable, or has no tensor of such a name.
    """
    from safetensors import SafetensorError, safe_open

    try:
        if not path.is_file():
            raise BlobError("there is no such tensor file", path=path)
        fetch_if_pointer(path)
        with safe_open(path, framework="pt") as opened:
            present = list(opened.keys())
            wanted = present if keys is None else list(keys)
            _require(path, wanted, present)
            return {key: opened.get_tensor(key).clone() for key in wanted}
    except BlobError:
        raise
    except (SafetensorError, OSError, KeyError, ValueError) as error:
        raise BlobError(f"not a readable safetensors file: {error}", path=path) from error


def load_checked(
    path: Path, key: str, *, shape: Optional[tuple[int, ...]], dtype: str, field: str
) -> torch.Tensor:
    """Read one tensor and check that it is what a workload says.

    Parameters
    ----------
    path : Path
        The file.
    key : str
        Name of the tensor in it.
    shape : tuple of int or None
        Expected shape; None for a scalar, which any tensor of one element satisfies.
    dtype : str
        Expected element type. Packed 4-bit floats may be stored as ``uint8``.
    field : str
        The input's place in the workload, for the message.

    Returns
    -------
    torch.Tensor
        On the CPU.

    Raises
    ------
    BlobError
        If the file or key is missing, or shape or dtype differ.
    """
    tensor = load_blob(path, [key])[key]
    found = dtype_name(tensor.dtype)
    if dtype == "float4_e2m1" and found == "uint8":
        from flashinfer_bench.tensors.dtypes import to_torch_dtype

        tensor, found = tensor.view(to_torch_dtype(dtype)), dtype
    fits = tensor.numel() == 1 if shape is None else tuple(tensor.shape) == tuple(shape)
    if fits and found == dtype:
        return tensor
    expected = "a scalar" if shape is None else f"shape {_shape(shape)}"
    raise BlobError(
        f"tensor {key!r} must be {expected} of {dtype}, "
        f"but the file has shape {_shape(tensor.shape)} of {found}",
        path=path,
        field=field,
    )


def save_blob(path: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    """Write tensors into a safetensors file, all or nothing.

    Parameters
    ----------
    path : Path
        The file. Missing folders are made; a file that is there is replaced.
    tensors : mapping of str to torch.Tensor
        What it shall hold. Tensors may share memory or be on a device; packed 4-bit floats are
        stored as ``uint8``, which every release of safetensors reads.

    Raises
    ------
    StorageError
        If it cannot be written; a file that was there is unchanged.
    """
    save_tensors(path, tensors)


def _require(path: Path, wanted: list[str], present: list[str]) -> None:
    missing = [key for key in wanted if key not in present]
    if missing:
        there = ", ".join(sorted(present)) or "nothing"
        raise BlobError(f"there is no tensor {missing[0]!r} in the file; it has {there}", path=path)


def _shape(shape: Iterable[int]) -> str:
    return str(list(shape))
