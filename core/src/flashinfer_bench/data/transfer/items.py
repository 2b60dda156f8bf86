"""A dataset as the files it is made of, in today's layout and a fixed order."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Union

from flashinfer_bench.data import layout
from flashinfer_bench.data.json_codec import to_json
from flashinfer_bench.data.transfer.blob_plan import op_type_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from pydantic import BaseModel

    from flashinfer_bench.data.trace import Trace
    from flashinfer_bench.data.trace_set import TraceSet

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
    groups = (
        _definitions(trace_set),
        _solutions(trace_set),
        _lines(trace_set, trace_set.workloads, layout.workloads_file),
        _lines(trace_set, trace_set.traces, layout.traces_file),
        blob_items(blobs),
    )
    return [item for group in groups for item in sorted(group, key=lambda item: item.path)]


def blob_items(blobs: Mapping[str, Path]) -> list[Item]:
    """Return tensor files, given by their path in the dataset, in the order of these paths."""
    return [Item(path, source) for path, source in sorted(blobs.items())]


def lines_of(
    trace_set: TraceSet, names: Iterable[str], text_of: Callable[[str], bytes]
) -> list[Item]:
    """Return the files of runs that are made when they are written.

    Parameters
    ----------
    trace_set : TraceSet
        Has the definitions.
    names : iterable of str
        Definitions that have runs.
    text_of : callable
        Returns the lines of a definition.
    """
    items = []
    for name in names:
        path = layout.traces_file(_NOWHERE, op_type_of(trace_set, name), name)
        items.append(Item(path.as_posix(), partial(text_of, name)))
    return sorted(items, key=lambda item: item.path)


def document(record: BaseModel) -> bytes:
    """Return a record as the content of a JSON file."""
    return (to_json(record) + "\n").encode()


def _document(path: Path, record: BaseModel) -> Item:
    return Item(path.as_posix(), lambda: document(record))


def _definitions(trace_set: TraceSet) -> Iterator[Item]:
    for one in trace_set.definitions.values():
        yield _document(layout.definition_file(_NOWHERE, one.op_type, one.name), one)


def _solutions(trace_set: TraceSet) -> Iterator[Item]:
    for definition, solutions in trace_set.solutions.items():
        op_type = op_type_of(trace_set, definition)
        for one in solutions:
            path = layout.solution_file(_NOWHERE, one.author, op_type, definition, one.name)
            yield _document(path, one)


def _lines(
    trace_set: TraceSet,
    groups: Mapping[str, list[Trace]],
    file_of: Callable[[Path, str, str], Path],
) -> Iterator[Item]:
    for definition, traces in groups.items():
        if traces:
            path = file_of(_NOWHERE, op_type_of(trace_set, definition), definition)
            yield Item(path.as_posix(), _joined(traces))


def _joined(traces: list[Trace]) -> Callable[[], bytes]:
    return lambda: "".join(f"{to_json(trace, indent=None)}\n" for trace in traces).encode()
