"""Helpers for devices and dtypes, kept under names that existing code imports.

Most of the code is in `flashinfer_bench.tensors`; importing this module does not import torch.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Union

from flashinfer_bench._lazy import old_names
from flashinfer_bench.errors import StorageError
from flashinfer_bench.tensors.devices import env_snapshot as env_snapshot
from flashinfer_bench.tensors.devices import hardware_from_device as hardware_from_device
from flashinfer_bench.tensors.devices import list_cuda_devices as list_cuda_devices
from flashinfer_bench.tensors.dtypes import is_integer, to_python_type, to_torch_dtype

if TYPE_CHECKING:
    import torch

    from flashinfer_bench.data import DType

__getattr__ = old_names(__name__)


def dtype_str_to_torch_dtype(dtype_str: Union[DType, str]) -> torch.dtype:
    """Return torch's dtype of that name.

    Raises
    ------
    DataError
        If the name is unknown (a ValueError).
    """
    return to_torch_dtype(dtype_str)


torch_dtype_from_def = dtype_str_to_torch_dtype
"""Old name of `dtype_str_to_torch_dtype`."""


def dtype_str_to_python_dtype(dtype_str: Union[DType, str]) -> type:
    """Return the Python type of a scalar of that dtype: int, float or bool."""
    return to_python_type(dtype_str)


def is_dtype_integer(dtype: Union[DType, str, torch.dtype]) -> bool:
    """Return whether a dtype, given by name or as torch's, is an integer; bool is not."""
    return is_integer(str(getattr(dtype, "value", dtype)).removeprefix("torch."))


def redirect_stdio_to_file(log_path: Union[str, os.PathLike[str]]) -> None:
    """Redirect stdout and stderr of this process and its children into a file.

    Parameters
    ----------
    log_path : path
        The file; it is created, or appended to.

    Raises
    ------
    StorageError
        If it cannot be opened.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        target = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    except OSError as error:
        raise StorageError(f"{os.fspath(log_path)}: cannot be opened: {error}") from error
    try:
        os.dup2(target, 1)
        os.dup2(target, 2)
    finally:
        os.close(target)
    # A notebook or test runner may have replaced the objects: point them at the descriptors.
    sys.stdout = open(1, "w", buffering=1, encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, encoding="utf-8", closefd=False)  # noqa: SIM115
