"""Watching a run, for example to draw a progress bar."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flashinfer_bench.bench.builds import BuildOutcome
    from flashinfer_bench.bench.plan import Skipped
    from flashinfer_bench.data import Trace, Workload


class RunObserver:
    """Is notified of what happens in a run; override the methods you need.

    Calls come one at a time, from whichever thread the event happened in. What a method raises
    ends the run.
    """

    def started(self, total: int) -> None:
        """Take note that a run of `total` evaluations begins."""

    def builds_started(self, total: int) -> None:
        """Take note that `total` solutions are compiled ahead of, or during, the evaluations."""

    def build_finished(self, outcome: BuildOutcome) -> None:
        """Take note that a solution has been compiled, or could not be."""

    def evaluation_started(self, definition: str, workload: Workload, solution: str) -> None:
        """Take note that the evaluation of `solution` begins."""

    def evaluation_finished(self, trace: Trace) -> None:
        """Take note that an evaluation has ended and its trace is stored."""

    def skipped(self, skipped: Skipped) -> None:
        """Take note of evaluations that cannot take place.

        Those that are known before the run are told before `started` and are no part of its total;
        those told later are.
        """

    def finished(self) -> None:
        """Take note of the end, however it came."""
