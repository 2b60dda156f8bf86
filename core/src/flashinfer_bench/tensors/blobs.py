"""Reading the tensor files of a dataset; a git clone may hold only pointers to them."""

from __future__ import annotations

import logging
import shutil
import subprocess
from typing import TYPE_CHECKING, Optional

from flashinfer_bench.data.blobs import is_lfs_pointer
from flashinfer_bench.errors import BlobError
from flashinfer_bench.tensors.dtypes import FLOAT4, dtype_name, to_torch_dtype

if TYPE_CHECKING:
    from pathlib import Path

    import torch

PULL_TIMEOUT_S = 600.0
"""Seconds after which a pull is given up."""

logger = logging.getLogger(__name__)


def load_checked(
    path: Path, key: str, *, shape: Optional[tuple[int, ...]], dtype: str, field: str
) -> torch.Tensor:
    """Read one tensor and check that it is what a workload says.

    Parameters
    ----------
    path : Path
        The file. A Git-LFS pointer is replaced by its content first, where git-lfs is installed.
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
    tensor = _load(path, key)
    found = dtype_name(tensor.dtype)
    if dtype == FLOAT4 and found == "uint8":
        tensor, found = tensor.view(to_torch_dtype(dtype)), dtype
    fits = tensor.numel() == 1 if shape is None else tuple(tensor.shape) == tuple(shape)
    if fits and found == dtype:
        return tensor
    expected = "a scalar" if shape is None else f"shape {list(shape)}"
    raise BlobError(
        f"tensor {key!r} must be {expected} of {dtype}, "
        f"but the file has shape {list(tensor.shape)} of {found}",
        path=path,
        field=field,
    )


def _load(path: Path, key: str) -> torch.Tensor:
    """Return a tensor that owns its memory."""
    from safetensors import SafetensorError, safe_open

    try:
        if not path.is_file():
            raise BlobError("there is no such tensor file", path=path)
        fetch_if_pointer(path)
        with safe_open(path, framework="pt") as opened:
            present = sorted(opened.keys())
            if key in present:
                tensor: torch.Tensor = opened.get_tensor(key).clone()
                return tensor
    except BlobError:
        raise
    except (SafetensorError, OSError, KeyError, ValueError) as error:
        raise BlobError(f"not a readable safetensors file: {error}", path=path) from error
    there = ", ".join(present) or "nothing"
    raise BlobError(f"there is no tensor {key!r} in the file; it has {there}", path=path)


def fetch_if_pointer(path: Path) -> None:
    """Replace a Git-LFS pointer by the file that it stands for; leave any other file alone.

    Parameters
    ----------
    path : Path
        The file.

    Raises
    ------
    BlobError
        If it is a pointer and git-lfs is not installed or cannot fetch it.
    """
    if not is_lfs_pointer(path):
        return
    if shutil.which("git") is None or shutil.which("git-lfs") is None:
        raise _pointer_error(path, "and git-lfs is not installed")
    logger.info("pulling %s with git-lfs", path)
    problem = _pull(path)
    if problem:
        raise _pointer_error(path, f"and git-lfs could not fetch it: {problem}")
    if is_lfs_pointer(path):
        raise _pointer_error(path, "and git-lfs left it as it is")


def _pull(path: Path) -> str:
    """Run git-lfs for this one file; return what went wrong, or an empty string."""
    # "*" and the like in a file name would be a pattern to git-lfs.
    pattern = "".join(f"\\{char}" if char in "*?[]\\" else char for char in path.name)
    command = ["git", "lfs", "pull", "--include", f"**/{pattern}", "--exclude", ""]
    try:
        done = subprocess.run(
            command,
            cwd=path.parent,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=PULL_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"no answer within {PULL_TIMEOUT_S:g} s"
    except OSError as error:
        return str(error)
    if done.returncode == 0:
        return ""
    lines = (done.stderr or done.stdout).strip().splitlines()
    return lines[-1] if lines else f"exit code {done.returncode}"


def _pointer_error(path: Path, why: str) -> BlobError:
    return BlobError(
        f"the file is a Git-LFS pointer, not the tensors themselves, {why}",
        path=path,
        hint=f"Install git-lfs and run: git lfs pull --include '**/{path.name}'",
    )
