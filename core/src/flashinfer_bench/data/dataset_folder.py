"""The folder of a dataset, its parts and their backup."""

from __future__ import annotations

import shutil
import time
from typing import TYPE_CHECKING, Optional

from flashinfer_bench.data import layout
from flashinfer_bench.errors import ConfigError, StorageError

if TYPE_CHECKING:
    from pathlib import Path


class DatasetFolder:
    """Paths of a dataset.

    Attributes
    ----------
    root : Path or None
        The folder; None for a dataset in memory, which has no paths.
    """

    root: Optional[Path]

    def _require_root(self) -> Path:
        if self.root is None:
            raise ConfigError(
                "this TraceSet lives in memory; it has no folder", hint="give it a root"
            )
        return self.root

    @property
    def definitions_path(self) -> Path:
        """Folder of the definitions."""
        return self._require_root() / layout.DEFINITIONS

    @property
    def solutions_path(self) -> Path:
        """Folder of the solutions."""
        return self._require_root() / layout.SOLUTIONS

    @property
    def workloads_path(self) -> Path:
        """Folder of the workloads."""
        return self._require_root() / layout.WORKLOADS

    @property
    def traces_path(self) -> Path:
        """Folder of the traces."""
        return self._require_root() / layout.TRACES

    @property
    def blob_path(self) -> Path:
        """Folder of the tensors."""
        return self._require_root() / layout.BLOB

    @property
    def blob_workloads_path(self) -> Path:
        """Folder of the tensors of workloads."""
        return self.blob_path / layout.WORKLOADS

    def backup_traces(self) -> None:
        """Copy the folder of traces to ``traces_backup_<time>`` beside it.

        Raises
        ------
        ConfigError
            If the set has no folder.
        StorageError
            If the copy fails; the traces are untouched.
        """
        source = self.traces_path
        if not source.is_dir():
            return
        target = _new_folder(source.with_name(f"traces_backup_{time.strftime('%Y%m%d_%H%M%S')}"))
        ignored = shutil.ignore_patterns(".*.lock")
        try:
            shutil.copytree(source, target, ignore=ignored, dirs_exist_ok=True)
        except OSError as error:  # shutil.Error is one
            shutil.rmtree(target, ignore_errors=True)
            raise StorageError(f"{target}: cannot back up {source}: {error}") from error


def _new_folder(wanted: Path) -> Path:
    """Make a folder that nobody has made before, with a number behind its name if need be."""
    target, number = wanted, 1
    while True:
        try:
            target.mkdir()
        except FileExistsError:
            number += 1
            target = wanted.with_name(f"{wanted.name}_{number}")
        except OSError as error:
            raise StorageError(f"{target}: cannot be made: {error}") from error
        else:
            return target
