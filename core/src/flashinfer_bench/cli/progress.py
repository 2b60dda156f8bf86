"""Progress of a run: a bar with the remaining time on a terminal, else a line per evaluation."""

from __future__ import annotations

import sys
from collections import Counter
from typing import TYPE_CHECKING, Any

from flashinfer_bench.bench.observers import RunObserver
from flashinfer_bench.cli.output import console, printable, rounded, talk, with_interval

if TYPE_CHECKING:
    from flashinfer_bench.bench import BuildOutcome, Skipped
    from flashinfer_bench.data import Trace, Workload

_LONGEST_NAME = 48


class PlainProgress(RunObserver):
    """Writes one line for each evaluation, and for each build, to stderr."""

    def __init__(self) -> None:
        self._totals: dict[str, int] = {}
        self._done = Counter[str]()

    def started(self, total: int) -> None:
        """Show the number of evaluations."""
        self._begin("evaluations", total)

    def builds_started(self, total: int) -> None:
        """Show the number of builds."""
        self._begin("builds", total)

    def evaluation_finished(self, trace: Trace) -> None:
        """Show the result."""
        self._move("evaluations", _outcome(trace), failed=not trace.is_successful())

    def skipped(self, skipped: Skipped) -> None:
        """Show evaluations that are not possible, and count them as done."""
        if "evaluations" in self._totals:
            names = f"{skipped.definition} / {skipped.solution}"
            self._move("evaluations", f"skipped {names}", skipped.count)

    def build_finished(self, outcome: BuildOutcome) -> None:
        """Show the outcome of a build."""
        seconds = f" in {outcome.seconds:.1f} s" if outcome.seconds else ""
        names = f"{outcome.definition} / {outcome.solution}"
        failed = outcome.error is not None
        self._move("builds", f"{outcome.state} {names}{seconds}", failed=failed)

    def _begin(self, what: str, total: int) -> None:
        self._totals[what] = total
        noun = "solution" if what == "builds" else "evaluation"
        work = "to build" if what == "builds" else "to do"
        talk(f"{total} {noun}{'s' if total != 1 else ''} {work}")

    def _move(self, what: str, told: str, count: int = 1, *, failed: bool = False) -> None:
        self._done[what] += count
        done = f"{self._done[what]}/{self._totals[what]}"
        talk(f"{f'build {done}:' if what == 'builds' else f'[{done}]'} {printable(told)}")


class BarProgress(PlainProgress):
    """Draws bars on the terminal, below other output on stderr."""

    def __init__(self) -> None:
        super().__init__()
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

    def build_finished(self, outcome: BuildOutcome) -> None:
        """Advance the bar of builds."""
        self._show("builds", f"built {outcome.solution}")
        super().build_finished(outcome)

    def evaluation_started(self, definition: str, workload: Workload, solution: str) -> None:
        """Show what is being evaluated."""
        self._show("evaluations", solution)

    def finished(self) -> None:
        """Remove the bars."""
        self._bar.stop()

    def _begin(self, what: str, total: int) -> None:
        self._totals[what] = total
        label = "building" if what == "builds" else "starting"
        self._tasks[what] = self._bar.add_task(label.ljust(self._width), total=total, failed=0)
        self._bar.start()

    def _move(self, what: str, told: str, count: int = 1, *, failed: bool = False) -> None:
        self._failed[what] += failed
        self._bar.update(self._tasks[what], advance=count, failed=self._failed[what])

    def _show(self, what: str, name: str) -> None:
        # Of constant length, so that the bar next to it does not move.
        told, width = printable(name), self._width
        told = told.ljust(width) if len(told) <= width else f"{told[: width - 1]}…"
        self._bar.update(self._tasks[what], description=told)


def make_progress(*, quiet: bool) -> list[RunObserver]:
    """Return the observers that show the progress of a run.

    Parameters
    ----------
    quiet : bool
        Whether to show nothing where no bar can be drawn, instead of a line per evaluation.
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
    told = evaluation.provenance
    doubt = ", disputed" if told is not None and told.transient else ""
    latency = with_interval(performance.latency_ms, performance.interval_ms, " ms")
    return f"{text}: {latency}{speedup}{doubt}"
