"""Whether a definition is still what it was when recording began."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Optional

from flashinfer_bench.data import layout
from flashinfer_bench.data.loader import Problems, load_definitions
from flashinfer_bench.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from flashinfer_bench.data.definition import Definition

    Stamps = dict[Path, tuple[int, int, int]]


class CurrentDefinitions:
    """The definitions in the files of a dataset, read anew when a file has changed.

    Parameters
    ----------
    root : Path
        The dataset.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._stamps: Optional[Stamps] = None
        self._found: Mapping[str, Definition] = {}

    def refresh(self) -> CurrentDefinitions:
        """Look whether files have changed."""
        stamps = _stamps(self._root / layout.DEFINITIONS)
        if stamps != self._stamps:
            self._found = load_definitions(self._root, Problems("collect"))
            self._stamps = stamps
        return self

    def require_same(self, definition: Definition) -> None:
        """Refuse a definition whose calls would be no workloads of the one in the dataset.

        One that is in no file, or in one that cannot be read, is taken as it is.

        Raises
        ------
        DataError
            If axes, inputs or constraints are others by now.
        """
        found = self._found.get(definition.name)
        if found is not None and _shape(found) != _shape(definition):
            raise DataError(
                f"the definition {definition.name!r} has changed in {self._root} since recording "
                "began: what was recorded does not fit it",
                hint="start tracing again",
            )


def _stamps(folder: Path) -> Stamps:
    stamps: Stamps = {}
    for path in layout.files(folder, ".json"):
        try:
            info = path.stat()
        except OSError:  # it has gone meanwhile
            continue
        stamps[path] = (info.st_ino, info.st_size, info.st_mtime_ns)
    return stamps


def _shape(definition: Definition) -> Any:
    inputs = [(name, spec.shape, spec.dtype) for name, spec in definition.inputs.items()]
    return definition.op_type, definition.axes, inputs, list(definition.constraints)
