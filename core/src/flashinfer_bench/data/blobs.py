"""Tensor files: safe paths, Git LFS pointers, reading and writing tensors (with torch).

Headers are read by `fib_datasets.tensor_headers`, of the distribution ``fib-datasets``.
"""

from __future__ import annotations

import errno
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from flashinfer_bench._lazy import moved
from flashinfer_bench.data.definition import DType
from flashinfer_bench.data.storage import replace_file
from flashinfer_bench.errors import (
    BlobError,
    BlobNotFoundError,
    CapabilityError,
    UnsafePathError,
)

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import ModuleType

    import torch

_LFS_FIRST_LINE = b"version https://git-lfs.github.com/spec/"
_LFS_MAX_BYTES = 1024
_HUB_FOLDER = "snapshots"  # has one folder for each revision of a dataset


def resolve_blob(root: Path, path: str) -> Path:
    """Return the tensor file that a workload names.

    Parameters
    ----------
    root : Path
        The dataset.
    path : str
        As in the workload: relative to `root`, optionally with a leading ``./``.

    Returns
    -------
    Path
        The resolved path; the file need not exist.

    Raises
    ------
    UnsafePathError
        If it is absolute or leads out of the dataset, directly or by a symbolic link. Links into
        the ``blobs`` folder of a Hugging Face cache, where a dataset's files are, are allowed.
    """
    if not path or "\0" in path or Path(path).is_absolute():
        raise UnsafePathError(f"the blob path {path!r} must be relative to the dataset")
    base = root.resolve()
    try:
        found = (base / path).resolve()
    except (OSError, RuntimeError) as error:  # a loop of links
        raise UnsafePathError(f"the blob path {path!r} cannot be resolved: {error}") from error
    of_hub = base.parent.parent / "blobs" if base.parent.name == _HUB_FOLDER else base
    if not (found.is_relative_to(base) or found.is_relative_to(of_hub)):
        raise UnsafePathError(f"the blob path {path!r} leads out of the dataset {root}")
    return found


def present_blob(root: Path, path: str) -> Path:
    """Return the tensor file that a workload names, after downloading it if it is on the hub.

    Parameters
    ----------
    root : Path
        Folder of the dataset.
    path : str
        As in the workload: relative to `root`.

    Returns
    -------
    Path
        The resolved path. For a dataset of the hub the file exists; otherwise it need not.

    Raises
    ------
    UnsafePathError
        If it leads out of the dataset.
    BlobError
        If it cannot be downloaded.
    """
    found = resolve_blob(root, path)
    if found.exists() or root.parent.name != _HUB_FOLDER:
        return found
    from flashinfer_bench.data import hub

    try:
        hub.fetch_blob(root, path)
    except ImportError as error:
        raise BlobError(str(error), path=found) from error
    return resolve_blob(root, path)


def is_lfs_pointer(path: Path) -> bool:
    """Return whether a file is a Git LFS pointer, the placeholder of a file that was not pulled.

    Raises
    ------
    OSError
        If it cannot be read.
    """
    mode = path.stat().st_mode
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):  # reading a pipe could block forever
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    with path.open("rb") as file:
        start = file.read(len(_LFS_FIRST_LINE))
    return start == _LFS_FIRST_LINE and path.stat().st_size <= _LFS_MAX_BYTES


def save_tensors(path: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    """Write tensors to a safetensors file atomically.

    Parameters
    ----------
    path : Path
        The file.
    tensors : mapping of str to Tensor
        By key; dense, on any device, with any strides. They may share memory. Packed 4-bit floats
        are stored as ``uint8``, which every release of safetensors reads.

    Raises
    ------
    CapabilityError
        If torch or safetensors is not installed.
    StorageError
        If writing fails; an existing file is unchanged.
    """
    replace_file(path, serialize_tensors(tensors))


def serialize_tensors(tensors: Mapping[str, torch.Tensor]) -> bytes:
    """Return the content of a safetensors file; the same tensors always give the same bytes.

    Parameters
    ----------
    tensors : mapping of str to Tensor
        As for `save_tensors`.

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

    plain = tensor.detach().to("cpu").contiguous().clone()  # safetensors rejects shared memory
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
            raise BlobError("a Git LFS pointer, not the tensor file itself", path=file, hint=hint)
        loaded: dict[str, torch.Tensor] = library.load_file(file)
    except FileNotFoundError as error:
        raise BlobNotFoundError("the file does not exist", path=file) from error
    except (OSError, RuntimeError, SafetensorError) as error:
        raise BlobError(f"not a readable safetensors file: {error}", path=file) from error
    return loaded


def _safetensors_torch() -> ModuleType:
    try:
        import safetensors.torch
    except ImportError as error:
        raise CapabilityError(
            f"tensor files need {error.name}, which is not installed",
            hint="pip install torch numpy safetensors",
        ) from error
    return safetensors.torch


__getattr__, __dir__ = moved(__name__, "fib_datasets.tensor_headers")
