"""How far a run has come: a bar with the time left on a terminal, else a line per evaluation."""

from __future__ import annotations

import sys
from collections import Counter
from typing import TYPE_CHECKING, Any, Optional

from flashinfer_bench.bench.observers import RunObserver
from flashinfer_bench.cli.output import console, printable, rounded, talk

if TYPE_CHECKING:
    from flashinfer_bench.bench import Skipped
    from flashinfer_bench.bench.builds import BuildOutcome
    from flashinfer_bench.data import Trace, Workload

_LONGEST_NAME = 48


class PlainProgress(RunObserver):
    """Writes one line for each evaluation to stderr."""

    def __init__(self) -> None:
        self._total = self._done = 0
        self._builds = self._built = 0

    def started(self, total: int) -> None:
        """Note how much there is to do."""
        self._total, self._done = total, 0
        talk(f"{total} evaluations to do")

    def evaluation_finished(self, trace: Trace) -> None:
        """Write the result."""
        self._done += 1
        talk(f"[{self._done}/{self._total}] {printable(_outcome(trace))}")

    def skipped(self, skipped: Skipped) -> None:
        """Tell of evaluations that turn out to be impossible, and count them as done."""
        if self._total:
            self._done += skipped.count
            names = printable(f"{skipped.definition} / {skipped.solution}")
            talk(f"[{self._done}/{self._total}] skipped {names}")

    def builds_started(self, total: int) -> None:
        """Note how much there is to build."""
        self._builds, self._built = total, 0
        talk(f"{total} solutions to build")

    def build_finished(self, outcome: BuildOutcome) -> None:
        """Write what came of it."""
        self._built += 1
        names = printable(f"{outcome.definition} / {outcome.solution}")
        seconds = f" in {outcome.seconds:.1f} s" if outcome.seconds else ""
        talk(f"build {self._built}/{self._builds}: {outcome.state} {names}{seconds}")


class BarProgress(RunObserver):
    """Draws a bar on the terminal, below whatever else is written to stderr meanwhile."""

    def __init__(self) -> None:
        from rich import progress

        self._failed = Counter[str]()
        self._tasks: dict[str, Any] = {}
        screen = console(sys.stderr)
        self._width = min(_LONGEST_NAME, screen.width // 3)
        self._bar = progress.Progress(
            progress.TextColumn("{task.description}"),
            progress.BarColumn(bar_width=None),
            progress.MofNCompleteColumn(),
            progress.TextColumn("{task.fields[failed]} failed"),
            progress.TimeElapsedColumn(),
            progress.TextColumn("left"),
            progress.TimeRemainingColumn(elapsed_when_finished=False),
            console=screen,
            transient=True,
        )

    def started(self, total: int) -> None:
        """Begin to draw."""
        self._begin("evaluations", "starting", total)

    def builds_started(self, total: int) -> None:
        """Begin to draw a second bar."""
        self._begin("builds", "building", total)

    def build_finished(self, outcome: BuildOutcome) -> None:
        """Move the second bar on by one."""
        name = f"built {outcome.solution}"
        self._move("builds", name, advance=1, failed=outcome.error is not None)

    def evaluation_started(self, definition: str, workload: Workload, solution: str) -> None:
        """Show what is being evaluated."""
        self._move("evaluations", solution)

    def evaluation_finished(self, trace: Trace) -> None:
        """Move on by one."""
        self._move("evaluations", advance=1, failed=not trace.is_successful())

    def skipped(self, skipped: Skipped) -> None:
        """Move past evaluations that turn out to be impossible."""
        if "evaluations" in self._tasks:
            self._move("evaluations", advance=skipped.count)

    def finished(self) -> None:
        """Take the bar away."""
        self._bar.stop()

    def _begin(self, what: str, label: str, total: int) -> None:
        self._tasks[what] = self._bar.add_task(label.ljust(self._width), total=total, failed=0)
        self._bar.start()

    def _move(
        self, what: str, name: Optional[str] = None, *, advance: int = 0, failed: bool = False
    ) -> None:
        self._failed[what] += failed
        told = None
        if name is not None:  # of one length, so that the bar beside it does not move
            told, width = printable(name), self._width
            told = told.ljust(width) if len(told) <= width else f"{told[: width - 1]}…"
        self._bar.update(
            self._tasks[what], advance=advance, failed=self._failed[what], description=told
        )


def make_progress(*, quiet: bool) -> list[RunObserver]:
    """Return what shows the progress of a run.

    Parameters
    ----------
    quiet : bool
        Write no line for each evaluation where no bar can be drawn.
    """
    stderr = console(sys.stderr)
    if stderr.is_terminal and not stderr.is_dumb_terminal:
        return [BarProgress()]
    return [] if quiet else [PlainProgress()]


def _outcome(trace: Trace) -> str:
    evaluation = trace.evaluation
    assert evaluation is not None
    text = f"{evaluation.status.value} {trace.definition} / {trace.solution}"
    performance = evaluation.performance
    if performance is None:
        return text
    speedup = f" ({rounded(performance.speedup_factor)}x)" if performance.speedup_factor else ""
    return f"{text}: {rounded(performance.latency_ms)} ms{speedup}"
