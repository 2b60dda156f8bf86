"""How far a run has come: a bar with the time left on a terminal, else a line per evaluation."""

from __future__ import annotations

import sys
import time
from collections import Counter
from typing import TYPE_CHECKING, Any, Optional

from flashinfer_bench.bench.observers import RunObserver
from flashinfer_bench.cli.output import console, printable, rounded, talk

if TYPE_CHECKING:
    from flashinfer_bench.bench import Skipped
    from flashinfer_bench.bench.builds import BuildOutcome
    from flashinfer_bench.data import Trace, Workload

_LONGEST_NAME = 48
_FEW = 3  # evaluations that say nothing yet about how long the others will take


class RunCollector(RunObserver):
    """Keeps what a run has produced, so that it can be shown even if the run is broken off."""

    def __init__(self) -> None:
        self.total: Optional[int] = None  # not known before the run has begun
        self.traces: list[Trace] = []
        self.skips: list[Skipped] = []

    def started(self, total: int) -> None:
        """Note how much there is to do."""
        self.total = total

    def evaluation_finished(self, trace: Trace) -> None:
        """Keep the trace."""
        self.traces.append(trace)

    def skipped(self, skipped: Skipped) -> None:
        """Keep the reason."""
        self.skips.append(skipped)

    def statuses(self) -> Counter[str]:
        """Count the evaluations by status."""
        return Counter(t.evaluation.status.value for t in self.traces if t.evaluation is not None)


class PlainProgress(RunObserver):
    """Writes one line for each evaluation to stderr."""

    def __init__(self) -> None:
        self._begin = time.monotonic()
        self._total = self._done = 0
        self._builds = self._built = 0
        self._evaluating = False

    def started(self, total: int) -> None:
        """Note how much there is to do."""
        self._total, self._done = total, 0
        self._begin, self._evaluating = time.monotonic(), False
        talk(f"{total} evaluations to do")

    def evaluation_started(self, definition: str, workload: Workload, solution: str) -> None:
        """Reckon the time left from here on: what was compiled before says nothing about it."""
        if not self._evaluating:
            self._begin, self._evaluating = time.monotonic(), True

    def evaluation_finished(self, trace: Trace) -> None:
        """Write the result and the time left."""
        self._done += 1
        talk(f"[{self._done}/{self._total}] {printable(_outcome(trace))}{self._left()}")

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

    def _left(self) -> str:
        to_do = self._total - self._done
        if not to_do or self._done < _FEW:
            return ""
        seconds = (time.monotonic() - self._begin) / self._done * to_do
        return f"; {_duration(seconds)} left"


class BarProgress(RunObserver):
    """Draws a bar on the terminal, below whatever else is written to stderr meanwhile."""

    def __init__(self) -> None:
        from rich import progress

        self._failed = 0
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
        self._task: Any = None
        self._builds: Any = None
        self._unbuilt = 0

    def started(self, total: int) -> None:
        """Begin to draw."""
        self._task = self._bar.add_task(self._fit("starting"), total=total, failed=0)
        self._bar.start()

    def builds_started(self, total: int) -> None:
        """Begin to draw a second bar."""
        self._builds = self._bar.add_task(self._fit("building"), total=total, failed=0)
        self._bar.start()

    def build_finished(self, outcome: BuildOutcome) -> None:
        """Move the second bar on by one."""
        self._unbuilt += outcome.error is not None
        name = self._fit(printable(f"built {outcome.solution}"))
        self._bar.update(self._builds, advance=1, failed=self._unbuilt, description=name)

    def evaluation_started(self, definition: str, workload: Workload, solution: str) -> None:
        """Show what is being evaluated."""
        self._bar.update(self._task, description=self._fit(printable(solution)))

    def evaluation_finished(self, trace: Trace) -> None:
        """Move on by one."""
        self._failed += not trace.is_successful()
        self._bar.update(self._task, advance=1, failed=self._failed)

    def skipped(self, skipped: Skipped) -> None:
        """Move past evaluations that turn out to be impossible."""
        if self._task is not None:
            self._bar.update(self._task, advance=skipped.count)

    def finished(self) -> None:
        """Take the bar away."""
        self._bar.stop()

    def _fit(self, name: str) -> str:
        """Cut or pad a name, so that the bar beside it does not move."""
        width = self._width
        return name.ljust(width) if len(name) <= width else f"{name[: width - 1]}…"


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


def _duration(seconds: float) -> str:
    """Return a duration in whole units: ``42 s``, ``3 min``, ``2 h 05 min``."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02d} min"
