"""What rankings and reports get of runs, from traces in memory or from an index."""

from __future__ import annotations

from types import MappingProxyType, SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from flashinfer_bench.data.trace import EvaluationStatus


class Clock(NamedTuple):
    """How the latency of a run was taken; an empty text is what its trace does not say.

    Attributes
    ----------
    timer : str
        Name of the timer.
    cache : str
        State of the device's caches before each call: ``cold`` or ``warm``.
    stop_rule : str
        What decided how many calls were timed.
    reference : str
        When the reference was timed: ``beside`` the solution, ``before`` it, or ``not``.
    """

    timer: str = ""
    cache: str = ""
    stop_rule: str = ""
    reference: str = ""

    @classmethod
    def of(cls, timer: Any, stop_rule: Any, timing: Any) -> Clock:
        """Return the clock that the provenance of a run names."""
        told = timing if isinstance(timing, dict) else {}
        words = (timer, told.get("cache"), stop_rule, told.get("reference"))
        return cls(*(word if isinstance(word, str) else "" for word in words))


Ends = tuple[float, float]
"""Both ends of an interval."""


class RunRow(msgspec.Struct, frozen=True, gc=False):
    """A run without its log: what tables and rankings show of it.

    Times are in milliseconds. They are None unless the run passed; the errors are None where
    outputs were not compared. ``dropped`` counts the samples that do not count.
    """

    definition: str
    solution: str
    workload: str
    axes: Mapping[str, int]
    hardware: str
    status: EvaluationStatus
    timestamp: str
    latency_ms: Optional[float] = None
    reference_latency_ms: Optional[float] = None
    speedup_factor: Optional[float] = None
    max_absolute_error: Optional[float] = None
    max_relative_error: Optional[float] = None
    interval_ms: Optional[Ends] = None
    speedup_interval: Optional[Ends] = None
    dropped: int = 0
    clock: Clock = Clock()


class RunDetails(NamedTuple):
    """What only the line of a run tells: it is large, and seldom asked for.

    Attributes
    ----------
    log : str
        What was printed and noticed.
    samples_ms : tuple of float
        All samples in milliseconds, in the order taken.
    dropped : tuple of (int, int)
        Samples that do not count: number of the first of each row, and of the one after its last.
    timing : mapping
        How the samples were taken, as ``provenance.timing`` of the trace has it.
    """

    log: str
    samples_ms: tuple[float, ...]
    dropped: tuple[tuple[int, int], ...] = ()
    timing: Mapping[str, Any] = MappingProxyType({})

    @classmethod
    def of(cls, evaluation: Any) -> RunDetails:
        """Return the details of an evaluation: of the model, or of what was decoded of a line."""
        times, origin = evaluation.performance, evaluation.provenance
        timing = (origin.timing if origin is not None else None) or {}
        samples, dropped = (times.samples_ms, times.dropped) if times is not None else ((), ())
        return cls(evaluation.log, tuple(samples or ()), tuple(dropped or ()), timing)


class RunColumns(SimpleNamespace):
    """Many runs, with one sequence for each field of `RunRow`.

    Parameters
    ----------
    fields : sequence of sequence
        In the order of `RunRow`; each becomes an attribute.
    sample_counts : sequence of int
        How many samples there are of each.
    details : callable
        Takes the numbers of some runs, from 0 on and in ascending order, and returns their
        `RunDetails`. It raises a DataError if their file was changed meanwhile.
    """

    def __init__(
        self,
        fields: Sequence[Sequence[Any]],
        sample_counts: Sequence[int],
        details: Callable[[Sequence[int]], list[RunDetails]],
    ) -> None:
        super().__init__(**dict(zip(RunRow.__struct_fields__, fields, strict=True)))
        self.fields, self.sample_counts, self.details = fields, sample_counts, details

    def __len__(self) -> int:
        return len(self.sample_counts)

    def rows(self) -> Iterator[RunRow]:
        """Yield the runs one by one."""
        return map(RunRow, *self.fields)
