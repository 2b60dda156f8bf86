"""Tensor files whose names are digests of their content, so that equal ones are one file."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, NamedTuple

from flashinfer_bench.data import layout
from flashinfer_bench.data.blob_tensors import serialize_tensors
from flashinfer_bench.data.storage import replace_file, storage_error
from flashinfer_bench.errors import StorageError
from flashinfer_bench.tracing.store.identity import blob_digest

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import torch


class Blob(NamedTuple):
    """A tensor file in memory.

    Parameters
    ----------
    path : Path
        Where it belongs.
    data : bytes
        Its content.
    """

    path: Path
    data: bytes

    def write(self) -> None:
        """Make sure that the file is there; one with the same content is used again.

        Raises
        ------
        StorageError
            If it cannot be written; nothing is left behind then.
        """
        if self.is_there():
            # A file that was left over becomes a young one, which no clean-up takes away.
            with contextlib.suppress(OSError):
                os.utime(self.path)
            return
        replace_file(self.path, self.data)

    def is_there(self) -> bool:
        """Return whether the file exists as a whole; its name vouches for the rest."""
        try:
            return self.path.stat().st_size == len(self.data)
        except OSError:
            return False


def make_blob(
    root: Path, op_type: str, definition: str, tensors: Mapping[str, torch.Tensor]
) -> Blob:
    """Return the file that holds some tensors.

    Parameters
    ----------
    root : Path
        The dataset.
    op_type, definition : str
        Where in it.
    tensors : mapping of str to Tensor
        By key; of any shape and dtype.

    Raises
    ------
    CapabilityError
        If torch or safetensors is not installed.
    """
    data = serialize_tensors(tensors)
    return Blob(layout.blob_file(root, op_type, definition, blob_digest(data)), data)


def make_folders(root: Path, folder: Path) -> None:
    """Make a folder of a dataset, but never the dataset: who deletes one wants it to be gone.

    Raises
    ------
    StorageError
        If there is no dataset any more, or the folder cannot be made.
    """
    if not root.is_dir():
        hint = "make the folder again, or stop tracing"
        raise StorageError(f"{root}: there is no such dataset (any more)", hint=hint)
    made = root
    for part in folder.relative_to(root).parts:
        made = made / part
        try:
            made.mkdir(exist_ok=True)
        except OSError as error:
            raise storage_error(made, error) from error
