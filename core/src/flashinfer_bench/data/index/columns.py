"""What the index knows of each line, column by column.

Columns are arrays of the standard library: as compact as those of numpy, written and read as they
are, and quick enough because every question is narrowed down to a few rows first.
"""

from __future__ import annotations

from array import array
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

import msgspec

from flashinfer_bench.data.run_source import Clock
from flashinfer_bench.data.trace import EvaluationStatus

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

STATUSES = tuple(EvaluationStatus)
PASSED = STATUSES.index(EvaluationStatus.PASSED)
NO_RUN = -1
"""Status, hardware and clock of a workload trace."""

TYPES = "iibdddddqqiiddddi"
"""Type codes of the columns, as of `array`."""


class Head(NamedTuple):
    """What many lines have in common: a solution (None for a workload trace) on a workload."""

    definition: str
    solution: Optional[str]
    workload: str
    axes: dict[str, int]

    @property
    def identity(self) -> tuple[object, ...]:
        """What makes two heads equal, in a form that can be hashed."""
        return (*self[:3], *sorted(self.axes.items()))


class Row(NamedTuple):
    """One line. Numbers that it does not have are NaN; times are in milliseconds.

    `samples` is how many samples there are: whether it is worth while to read the line for them.
    `clock` is how they were taken. Then both ends of the interval of the latency (in milliseconds)
    and of that of the speed-up, and how many samples were dropped.
    """

    head: int
    hardware: int
    status: int
    latency_ms: float
    reference_ms: float
    speedup: float
    absolute: float
    relative: float
    offset: int
    length: int
    samples: int
    clock: int
    low_ms: float
    high_ms: float
    speedup_low: float
    speedup_high: float
    dropped: int


SAMPLES, CLOCK, INTERVALS, DROPPED = (
    Row._fields.index(name) for name in ("samples", "clock", "low_ms", "dropped")
)
"""Where these columns are; those of the intervals are four."""


class _Packed(msgspec.Struct, array_like=True, gc=False):
    heads: list[tuple[str, Optional[str], str, dict[str, int]]]
    hardware: list[str]
    timestamps: bytes
    arrays: list[bytes]
    clocks: list[tuple[str, str, str, str]]


_decode_packed = msgspec.msgpack.Decoder(_Packed).decode
_decode_timestamps = msgspec.msgpack.Decoder(list[str]).decode


class Columns:
    """The lines of one file, in their order.

    Parameters
    ----------
    heads : sequence of Head
        What the column `head` points to.
    hardware : sequence of str
        What the column `hardware` points to.
    arrays : sequence of array
        One for each field of `Row`.
    timestamps : bytes
        The time stamps of the runs (empty for workload traces), as MessagePack.
    clocks : sequence of Clock
        What the column `clock` points to.
    """

    def __init__(
        self,
        heads: Sequence[Head],
        hardware: Sequence[str],
        arrays: Sequence[array[Any]],
        timestamps: bytes,
        clocks: Sequence[Clock],
    ) -> None:
        self.heads = list(heads)
        self.hardware = list(hardware)
        self.arrays = list(arrays)
        self.clocks = list(clocks)
        self.packed_timestamps = timestamps
        self._rows_of_heads: Optional[list[array[int]]] = None
        self._asked = False

    def __len__(self) -> int:
        return len(self.arrays[0])

    def row(self, number: int) -> Row:
        """Return one line."""
        return Row(*(column[number] for column in self.arrays))

    def rows(self) -> Iterator[Row]:
        """Yield all lines."""
        return map(Row._make, zip(*self.arrays, strict=True))

    def timestamps(self) -> list[str]:
        """Return the time stamps of all lines."""
        return _decode_timestamps(self.packed_timestamps)

    def rows_of(self, heads: set[int]) -> Sequence[int]:
        """Return the numbers of the lines with one of these heads, in their order."""
        if len(heads) == len(self.heads):
            return range(len(self))
        if self._rows_of_heads is None and not self._asked:
            self._asked = True  # to sort all lines by head pays from the second question on
            return [number for number, one in enumerate(self.arrays[0]) if one in heads]
        if self._rows_of_heads is None:
            found = [array("q") for _ in self.heads]
            for number, one in enumerate(self.arrays[0]):
                found[one].append(number)
            self._rows_of_heads = found
        return sorted(chain.from_iterable(map(self._rows_of_heads.__getitem__, heads)))

    def joined(self, more: Columns) -> Columns:
        """Return these lines and then those of `more`."""
        heads, head_map = _union(self.heads, more.heads, [one.identity for one in self.heads])
        hardware, hardware_map = _union(self.hardware, more.hardware, self.hardware)
        clocks, clock_map = _union(self.clocks, more.clocks, self.clocks)
        added = list(more.arrays)
        added[0] = array("i", [head_map[one] for one in more.arrays[0]])
        for place, moved in ((1, hardware_map), (CLOCK, clock_map)):
            kept = [one if one == NO_RUN else moved[one] for one in more.arrays[place]]
            added[place] = array("i", kept)
        arrays = [first + second for first, second in zip(self.arrays, added, strict=True)]
        stamps = msgspec.msgpack.encode(self.timestamps() + more.timestamps())
        return Columns(heads, hardware, arrays, stamps, clocks)

    def to_bytes(self) -> bytes:
        """Return the columns in the form in which they are kept."""
        arrays = [column.tobytes() for column in self.arrays]
        heads = [tuple(head) for head in self.heads]
        fields = [heads, self.hardware, self.packed_timestamps, arrays]
        return msgspec.msgpack.encode([*fields, [tuple(one) for one in self.clocks]])

    @classmethod
    def from_bytes(cls, data: bytes) -> Columns:
        """Make columns of what `to_bytes` returned."""
        packed = _decode_packed(data)
        arrays = [array(code) for code in TYPES]
        for column, content in zip(arrays, packed.arrays, strict=True):
            column.frombytes(content)
        heads = list(map(Head._make, packed.heads))
        clocks = [Clock(*one) for one in packed.clocks]
        return cls(heads, packed.hardware, arrays, packed.timestamps, clocks)


def _union(first: list, second: list, keys: Sequence[object]) -> tuple[list, list[int]]:  # type: ignore[type-arg]
    """Return the elements of both, each once, and where those of `second` are then."""
    union = list(first)
    places = {key: place for place, key in enumerate(keys)}
    moved = []
    for one in second:
        key = one.identity if isinstance(one, Head) else one
        place = places.setdefault(key, len(union))
        if place == len(union):
            union.append(one)
        moved.append(place)
    return union, moved
