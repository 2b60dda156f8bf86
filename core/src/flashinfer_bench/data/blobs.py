"""Tensor files: safe paths, Git LFS pointers, reading and writing tensors (with torch).

Headers are read by `fib_datasets.tensor_headers`, of the distribution ``fib-datasets``.
"""

from __future__ import annotations

import errno
import logging
import shutil
import stat
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Optional

from flashinfer_bench._lazy import moved
from flashinfer_bench.data.definition import DType
from flashinfer_bench.data.storage import replace_file
from flashinfer_bench.errors import BlobError, BlobNotFoundError, CapabilityError, UnsafePathError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import ModuleType

    import torch

_logger = logging.getLogger(__name__)

PULL_TIMEOUT_S = 600.0
"""Timeout of a git-lfs pull, in seconds."""

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


def load_tensors(path: Path, key: Optional[str] = None) -> dict[str, torch.Tensor]:
    """Read the tensors of a safetensors file to the CPU.

    Parameters
    ----------
    path : Path
        The file. A Git-LFS pointer is first replaced by its content if git-lfs is installed.
    key : str, optional
        Name of the only tensor to read; by default all are read.

    Returns
    -------
    dict of str to torch.Tensor
        Tensors that own their memory, by name.

    Raises
    ------
    CapabilityError
        If torch or safetensors is not installed.
    BlobError
        If the file or tensor is missing, or it is not a safetensors file.
    """
    _safetensors_torch()
    from safetensors import SafetensorError, safe_open

    try:
        if not path.is_file():
            raise BlobNotFoundError("the tensor file does not exist", path=path)
        fetch_if_pointer(path)
        with safe_open(path, framework="pt") as opened:
            present = sorted(opened.keys())
            if key is None or key in present:
                wanted = present if key is None else [key]
                return {name: opened.get_tensor(name).clone() for name in wanted}
    except BlobError:
        raise
    except (SafetensorError, OSError, RuntimeError, KeyError, ValueError) as error:
        raise BlobError(f"not a readable safetensors file: {error}", path=path) from error
    there = ", ".join(present) or "nothing"
    raise BlobError(f"there is no tensor {key!r} in the file; it has {there}", path=path)


def fetch_if_pointer(path: Path) -> None:
    """Replace a Git-LFS pointer by its content; leave any other file unchanged.

    Parameters
    ----------
    path : Path
        The file.

    Raises
    ------
    BlobError
        If the file is a pointer and git-lfs is missing or fails.
    """
    if not is_lfs_pointer(path):
        return
    why = "git-lfs is not installed"
    if shutil.which("git") is not None and shutil.which("git-lfs") is not None:
        _logger.info("pulling %s with git-lfs", path)
        why = _pull(path)
        if not is_lfs_pointer(path):
            return
    raise BlobError(
        f"the file is a Git-LFS pointer, not the tensors themselves, and {why}",
        path=path,
        hint=f"Install git-lfs and run: git lfs pull --include '**/{path.name}'",
    )


def _pull(path: Path) -> str:
    """Run git-lfs for this file; return why it may still be a pointer."""
    # git-lfs would interpret "*" and similar characters in a file name as a pattern.
    pattern = "".join(f"\\{char}" if char in "*?[]\\" else char for char in path.name)
    command = ["git", "lfs", "pull", "--include", f"**/{pattern}", "--exclude", ""]
    try:
        subprocess.run(
            command,
            cwd=path.parent,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=PULL_TIMEOUT_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError) as error:
        lines = str(getattr(error, "stderr", None) or error).strip().splitlines()
        return f"git-lfs could not fetch it: {lines[-1]}"
    return "git-lfs did not replace it"


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
