"""Reading the runs in trace files, with only what choosing among solutions needs.

Very many lines are read while a program waits, so they are not made into `Trace` objects. A line is
decoded into lean structures. What these accept, `Trace` accepts as well, with the same values;
whatever else there is (old spellings, torn or broken lines, one document over many lines) takes the
ordinary way, through `Trace`, which knows all that and words the problems.
"""

from flashinfer_bench.apply.records.lean import Passed, passed
from flashinfer_bench.apply.records.reader import Reading, RunReader
from flashinfer_bench.apply.records.runs import PASSED, FileRuns, Other, Runs, Texts

__all__ = [
    "PASSED",
    "FileRuns",
    "Other",
    "Passed",
    "Reading",
    "RunReader",
    "Runs",
    "Texts",
    "passed",
]
