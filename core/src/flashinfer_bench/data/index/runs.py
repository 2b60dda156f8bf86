"""From the columns of files to the runs of a definition, as reports want them."""

from __future__ import annotations

from bisect import bisect_left
from itertools import chain
from typing import TYPE_CHECKING, Any, Optional

from flashinfer_bench.data.index.columns import CLOCK, DROPPED, INTERVALS, SAMPLES, STATUSES
from flashinfer_bench.data.run_source import RunColumns, RunRow

if TYPE_CHECKING:
    from array import array
    from collections.abc import Callable, Iterator, Sequence

    from flashinfer_bench.data.index.columns import Columns
    from flashinfer_bench.data.run_source import RunDetails

_COMPARED = tuple(one.value in ("PASSED", "INCORRECT_NUMERICAL") for one in STATUSES)
"""Whether there are errors with a status."""


def run_columns(
    definition: str,
    files: Sequence[Columns],
    details: Callable[[int, Sequence[int]], list[RunDetails]],
) -> RunColumns:
    """Return the runs of a definition.

    Parameters
    ----------
    definition : str
        Its name.
    files : sequence of Columns
        The files that have runs of it, in their order.
    details : callable
        Reads some lines of a file: takes the number of the file and those of the lines.
    """
    lines = [lines_of(columns, definition) for columns in files]
    pieces = [_fields(columns, some) for columns, some in zip(files, lines, strict=True)]
    if len(pieces) == 1:
        fields = pieces[0]
    else:
        fields = [[*chain.from_iterable(piece[n] for piece in pieces)] for n in range(_WIDTH)]
    *fields, samples = fields

    def read(numbers: Sequence[int]) -> list[RunDetails]:
        found: list[RunDetails] = []
        for place, some in by_file(lines, numbers):
            found += details(place, some)
        return found

    return RunColumns(*fields, sample_counts=samples, details=read)


_WIDTH = len(RunRow._fields) + 1


def by_file(
    lines: Sequence[Sequence[int]], numbers: Sequence[int]
) -> Iterator[tuple[int, list[int]]]:
    """Yield which lines of each file some runs are.

    Parameters
    ----------
    lines : sequence of sequence of int
        The numbers of the lines in each file that are runs of the definition.
    numbers : sequence of int
        Numbers of runs, counted through all files, in ascending order.

    Yields
    ------
    file : int
        Number of the file.
    lines : list of int
        Numbers of its lines.
    """
    begin = 0
    for place, some in enumerate(lines):
        end = begin + len(some)
        here = numbers[bisect_left(numbers, begin) : bisect_left(numbers, end)]
        yield place, [some[number - begin] for number in here]
        begin = end


def lines_of(columns: Columns, definition: str) -> Sequence[int]:
    """Return the numbers of the lines that are runs of a definition."""
    wanted = [one.definition == definition and one.solution is not None for one in columns.heads]
    if all(wanted):
        return range(len(columns))
    return [number for number, head in enumerate(columns.arrays[0]) if wanted[head]]


def _fields(columns: Columns, lines: Sequence[int]) -> list[Sequence[Any]]:
    """Return a sequence for each field of `RunRow`, and one with the numbers of samples."""

    def pick(column: Sequence[Any]) -> Sequence[Any]:
        return column if len(lines) == len(column) else [column[number] for number in lines]

    heads, devices, codes, *times, absolute, relative = map(pick, columns.arrays[:8])
    compared = [_COMPARED[code] for code in codes]
    fields: list[Sequence[Any]] = [
        _look_up([head[field] for head in columns.heads], heads) for field in range(4)
    ]
    fields += [_look_up(columns.hardware, devices), _look_up(STATUSES, codes)]
    fields.append(pick(columns.timestamps()))
    fields += map(_without_nan, times)
    for column in (absolute, relative):
        fields.append([one if known else None for one, known in zip(column, compared, strict=True)])
    ends = [pick(column) for column in columns.arrays[INTERVALS : INTERVALS + 4]]
    fields += [_pairs(*ends[:2]), _pairs(*ends[2:]), pick(columns.arrays[DROPPED])]
    fields.append(_look_up(columns.clocks, pick(columns.arrays[CLOCK])))
    fields.append(pick(columns.arrays[SAMPLES]))
    return fields


def _pairs(lows: Sequence[float], highs: Sequence[float]) -> list[Optional[tuple[float, float]]]:
    pairs = zip(lows, highs, strict=True)
    return [pair if pair[0] == pair[0] else None for pair in pairs]  # NaN: there is none


def _look_up(values: Sequence[Any], places: Sequence[int]) -> list[Any]:
    return list(map(values.__getitem__, places))


def _without_nan(column: Sequence[float]) -> list[Optional[float]]:
    return [one if one == one else None for one in column]


def workload_uuids(files: Sequence[Columns]) -> dict[str, list[str]]:
    """Return the uuid of each workload trace by definition, in the order of the lines."""
    found: dict[str, list[str]] = {}
    for columns in files:
        alone = [one.solution is None for one in columns.heads]
        if any(alone):
            for head in _only(columns.arrays[0], alone):
                one = columns.heads[head]
                found.setdefault(one.definition, []).append(one.workload)
    return found


def _only(heads: array[int], wanted: Sequence[bool]) -> list[int]:
    return [head for head in heads if wanted[head]]
