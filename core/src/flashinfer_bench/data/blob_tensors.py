"""Tensors of workloads in safetensors files: the one place of the data layer that needs torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flashinfer_bench.data.blobs import is_lfs_pointer, present_blob
from flashinfer_bench.data.dtypes import DType
from flashinfer_bench.data.storage import replace_file
from flashinfer_bench.errors import BlobError, CapabilityError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path
    from types import ModuleType

    import torch


def save_tensors(path: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    """Write tensors to a safetensors file, as a whole or not at all.

    Parameters
    ----------
    path : Path
        The file.
    tensors : mapping of str to Tensor
        By key; dense, on any device, in any memory order. They may share memory. Packed 4-bit
        floats are stored as ``uint8``, which every release of safetensors reads.

    Raises
    ------
    CapabilityError
        If torch or safetensors is not installed.
    StorageError
        If writing fails; a file that was there is unchanged.
    """
    replace_file(path, serialize_tensors(tensors))


def serialize_tensors(tensors: Mapping[str, torch.Tensor]) -> bytes:
    """Return the content of a safetensors file; the same tensors always give the same bytes.

    Parameters
    ----------
    tensors : mapping of str to Tensor
        As of `save_tensors`.

    Raises
    ------
    CapabilityError
        If torch or safetensors is not installed.
    """
    library = _safetensors_torch()
    data: bytes = library.save({key: _storable(tensor) for key, tensor in tensors.items()})
    return data


def _storable(tensor: torch.Tensor) -> torch.Tensor:
    import torch

    plain = tensor.detach().to("cpu").contiguous().clone()  # the library refuses shared memory
    packed = str(plain.dtype).removeprefix("torch.") == DType.FLOAT4_E2M1.torch_name
    return plain.view(torch.uint8) if packed else plain


def load_tensors(root: Path, path: str) -> dict[str, torch.Tensor]:
    """Read all tensors of a safetensors file to the CPU.

    Parameters
    ----------
    root : Path
        The dataset.
    path : str
        The file, relative to `root`.

    Raises
    ------
    CapabilityError
        If torch or safetensors is not installed.
    UnsafePathError
        If the path leaves `root`.
    BlobError
        If the file is missing, a Git LFS pointer, or not a safetensors file.
    """
    library = _safetensors_torch()
    from safetensors import SafetensorError

    file = present_blob(root, path)
    try:
        if is_lfs_pointer(file):
            hint = "run 'git lfs pull' in the dataset"
            raise BlobError("this is a Git LFS pointer, not the file itself", path=file, hint=hint)
        loaded: dict[str, torch.Tensor] = library.load_file(file)
    except FileNotFoundError as error:
        raise BlobError("the file does not exist", path=file) from error
    except (OSError, RuntimeError, SafetensorError) as error:
        raise BlobError(f"not a readable safetensors file: {error}", path=file) from error
    return loaded


def _safetensors_torch() -> ModuleType:
    try:
        import safetensors.torch
    except ImportError as error:
        raise CapabilityError(
            f"tensor files need {error.name}, which is not installed",
            hint="pip install 'flashinfer-bench-core[torch]'",
        ) from error
    return safetensors.torch
