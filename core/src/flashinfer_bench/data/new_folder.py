"""Writing a dataset as the files it is made of, in today's layout: as a whole or not at all."""

from __future__ import annotations

import contextlib
import os
import shutil
import uuid
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Union

from flashinfer_bench.data import layout
from flashinfer_bench.data.blob_plan import op_type_of
from flashinfer_bench.data.json_codec import to_json
from flashinfer_bench.data.storage import storage_error, sync_folder
from flashinfer_bench.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from pydantic import BaseModel

    from flashinfer_bench.data.trace import Trace
    from flashinfer_bench.data.trace_set import TraceSet

write_error = storage_error
_NOWHERE = Path()


class Item(NamedTuple):
    """One file.

    Attributes
    ----------
    path : str
        Where it goes, relative to the dataset, with ``/``.
    content : function or Path
        What returns its bytes, or the file to copy.
    """

    path: str
    content: Union[Callable[[], bytes], Path]


def items_of(trace_set: TraceSet, blobs: Mapping[str, Path]) -> list[Item]:
    """Return the files of a dataset: definitions, solutions, workloads, traces, tensor files.

    Parameters
    ----------
    trace_set : TraceSet
        The records.
    blobs : mapping of str to Path
        Tensor files by their path in the dataset.

    Returns
    -------
    list of Item
        In each group by path.
    """
    definitions = [
        Item(str(layout.definition_file(_NOWHERE, one.op_type, one.name)), partial(document, one))
        for one in trace_set.definitions.values()
    ]
    solutions = []
    for name, group in trace_set.solutions.items():
        op_type = op_type_of(trace_set, name)
        for one in group:
            path = layout.solution_file(_NOWHERE, one.author, op_type, name, one.name)
            solutions.append(Item(str(path), partial(document, one)))
    lines = [
        [
            Item(str(file_of(_NOWHERE, op_type_of(trace_set, name), name)), partial(_lines, traces))
            for name, traces in groups.items()
            if traces
        ]
        for file_of, groups in (
            (layout.workloads_file, trace_set.workloads),
            (layout.traces_file, trace_set.traces),
        )
    ]
    tensors = [Item(path, source) for path, source in blobs.items()]
    groups = (definitions, solutions, *lines, tensors)
    return [item for group in groups for item in sorted(group, key=lambda item: item.path)]


def document(record: BaseModel) -> bytes:
    """Return a record as the content of a JSON file."""
    return (to_json(record) + "\n").encode()


def _lines(traces: list[Trace]) -> bytes:
    return "".join(f"{to_json(trace, indent=None)}\n" for trace in traces).encode()


def counts_of(trace_set: TraceSet) -> dict[str, int]:
    """Return the number of records of each kind."""
    return {
        "definitions": len(trace_set.definitions),
        "solutions": sum(map(len, trace_set.solutions.values())),
        "workloads": sum(map(len, trace_set.workloads.values())),
        "traces": sum(map(len, trace_set.traces.values())),
    }


@contextlib.contextmanager
def new_folder(out: Path) -> Iterator[Path]:
    """Give a hidden folder beside `out`, which becomes `out` if the block ends well.

    Parameters
    ----------
    out : Path
        A folder that does not exist, or is empty.

    Yields
    ------
    Path
        The folder to fill.

    Raises
    ------
    StorageError
        If `out` is anything else, or cannot be made. It is then as it was before.
    """
    there = out.is_symlink() or out.exists()
    if there and (not out.is_dir() or any(out.iterdir())):
        raise StorageError(f"{out}: not an empty folder", hint="name a new folder")
    final = out.resolve()
    filling = final.with_name(f".{final.name[:100]}.{uuid.uuid4().hex}.partial")
    try:
        try:
            filling.mkdir(parents=True)
        except OSError as error:
            raise storage_error(final, error) from error
        yield filling
        try:
            _sync_tree(filling)
            filling.rename(final)  # over an empty folder, too
        except OSError as error:
            raise storage_error(out, error) from error
        sync_folder(final.parent)
    finally:
        shutil.rmtree(filling, ignore_errors=True)


def write_items(folder: Path, items: Iterable[Item], *, link: bool = False) -> None:
    """Write files into a folder that nobody reads yet.

    Parameters
    ----------
    folder : Path
        The folder.
    items : iterable of Item
        The files.
    link : bool
        Whether the files to copy are about to be removed, so that a second name is as good.

    Raises
    ------
    StorageError
        If it cannot be done.
    """
    for item in items:
        target = folder / item.path
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            if not isinstance(item.content, Path):
                target.write_bytes(item.content())
                continue
        except OSError as error:
            raise storage_error(target, error) from error
        if link:
            with contextlib.suppress(OSError):  # another file system, or one without links
                os.link(item.content, target)
                continue
        _copy_file(item.content, target)


def place_file(source: Path, target: Path) -> None:
    """Copy a file into a folder that others read: they see all of it, or nothing.

    Raises
    ------
    StorageError
        If it cannot be done; a file that was there is unchanged.
    """
    hidden = target.with_name(f".{target.name[:100]}.{os.getpid()}.part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _copy_file(source, hidden)
        _sync_file(hidden)
        hidden.replace(target)
        sync_folder(target.parent)
    except OSError as error:
        raise storage_error(target, error) from error
    finally:
        hidden.unlink(missing_ok=True)


def _copy_file(source: Path, target: Path) -> None:
    try:
        shutil.copyfile(source, target)
    except OSError as error:
        raise StorageError(f"{target}: cannot copy {source}: {error}") from error


def _sync_tree(folder: Path) -> None:
    """Make all files below a folder durable; at the end, in one go, that costs least."""
    for current, _, names in os.walk(folder, topdown=False):
        for name in names:
            _sync_file(Path(current, name))
        sync_folder(Path(current))


def _sync_file(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())
