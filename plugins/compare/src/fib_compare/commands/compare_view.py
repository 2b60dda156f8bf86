"""What ``fib compare`` shows: progress while it runs, then the answer, and its exit code."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Optional

from flashinfer_bench.cli.exit_codes import ExitCode
from flashinfer_bench.cli.output import console, emit_json, printable, rounded, table, talk

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.progress import Progress
    from typing_extensions import Self

    from fib_compare.paired import Answer, CompareSettings, ContestResult
    from fib_compare.paired.result import Contest

SCHEMA_VERSION = 1
COLUMNS = (
    "verdict",
    "definition",
    "workload",
    "baseline_ms",
    "candidate_ms",
    "ratio",
    "low",
    "high",
    "p_value",
    "launches",
    "pairs",
    "seconds",
    "why",
)
_NO_ANSWER = ("too slow", "not recorded")  # nobody's fault: more time or samples would tell


class Watch:
    """Writes one line for each result to stderr; a terminal also gets a bar.

    The bar is the time that the workload may take at most.
    """

    def __init__(self, contests: Sequence[Contest], settings: CompareSettings) -> None:
        self._total, self._done = len(contests), 0
        self._most = settings.max_seconds
        self._bar: Optional[Progress] = None

    def __enter__(self) -> Self:
        stderr = console(sys.stderr)
        if stderr.is_terminal and not stderr.is_dumb_terminal:
            from rich import progress

            self._bar = progress.Progress(
                progress.TextColumn("{task.description}"),
                progress.BarColumn(bar_width=None),
                progress.TextColumn("{task.fields[launches]} launches"),
                progress.TimeElapsedColumn(),
                console=stderr,
                transient=True,
            )
            self._task = self._bar.add_task("starting", total=self._most, launches=0)
            self._bar.start()
        return self

    def started(self, contest: Contest) -> None:
        """Begin at the left again."""
        if self._bar is not None:
            name = printable(f"{contest.definition.name} / {contest.workload.uuid[:8]}")
            label = f"[{self._done + 1}/{self._total}] {name}".replace("[", r"\[")
            self._bar.reset(self._task, description=label, launches=0)

    def launched(self, launches: int, seconds: float) -> None:
        """Move on."""
        if self._bar is not None:
            self._bar.update(self._task, completed=seconds, launches=launches)

    def finished(self, result: ContestResult) -> None:
        """Tell what has come of it."""
        self._done += 1
        text = f"{result.definition} / {result.workload}: {_in_words(result)}"
        talk(f"[{self._done}/{self._total}] {printable(text)}")

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.stop()


def _in_words(result: ContestResult) -> str:
    if result.obstacle is not None:
        return f"not compared: {result.obstacle.role} {result.obstacle.kind}"
    comparison = result.comparison
    assert comparison is not None
    ratio = comparison.ratio
    percent = f"{100 * (ratio.estimate - 1):+.2f} %"
    between = f"{100 * (ratio.low - 1):+.2f} to {100 * (ratio.high - 1):+.2f} %"
    return f"{comparison.verdict.value}: {percent} ({between}) in {result.seconds:.1f} s"


def emit_answer(
    results: Sequence[ContestResult], settings: CompareSettings, *, paired: bool, as_json: bool
) -> Answer:
    """Print the answer, the data to stdout and the talk to stderr, and return it."""
    from fib_compare.paired.result import answer

    found = answer(results, min_effect=settings.min_effect, alpha=settings.alpha)
    if as_json:
        emit_json(_document(found, settings, paired=paired))
    else:
        title = "Comparison" if paired else "Comparison (unpaired)"
        table(title, COLUMNS, map(_row, found.results))
    _tell(found, paired=paired)
    return found


def exit_code_of(found: Answer) -> ExitCode:
    """Return the exit code of an answer: the worst that there is on any workload, or overall."""
    verdicts = {verdict.value for verdict in found.verdicts}
    kinds = {obstacle.kind for obstacle in found.obstacles}
    if "slower" in verdicts or kinds - {*_NO_ANSWER, "unavailable"}:
        return ExitCode.FINDINGS
    if "unavailable" in kinds:
        return ExitCode.CAPABILITY
    return ExitCode.AMBIGUOUS if "ambiguous" in verdicts or kinds else ExitCode.OK


def _row(result: ContestResult) -> tuple[Any, ...]:
    comparison, obstacle = result.comparison, result.obstacle
    ratio = comparison.ratio if comparison is not None else None
    why = "; ".join(result.notes)
    if obstacle is not None:
        why = f"{obstacle.role} {obstacle.kind}: {obstacle.message.splitlines()[0]}"
    return (
        result.verdict.value if result.verdict is not None else "not compared",
        result.definition,
        result.workload,
        result.baseline_ms,
        result.candidate_ms,
        *((ratio.estimate, ratio.low, ratio.high) if ratio is not None else (None, None, None)),
        result.p_adjusted,
        comparison.launches if comparison is not None else None,
        comparison.pairs if comparison is not None else None,
        result.seconds,
        why,
    )


def _tell(found: Answer, *, paired: bool) -> None:
    if not paired:
        talk("unpaired: the samples were taken at different times; 'fib compare --local' is surer")
    for one in found.results:
        if one.obstacle is not None:
            talk(f"{one.definition} / {one.workload}: {one.obstacle.role}: {one.obstacle.message}")
    total = found.overall
    if total is None:
        talk("nothing could be compared")
        return
    ratio = total.ratio
    talk(
        f"overall {total.verdict.value}: ratio {rounded(ratio.estimate)} "
        f"({rounded(ratio.low)} to {rounded(ratio.high)}; above 1 the candidate is slower)"
    )
    if paired and "ambiguous" in {verdict.value for verdict in found.verdicts}:
        talk("ambiguous: a larger --max-seconds or --min-effect, or a quieter machine, may tell")


def _document(found: Answer, settings: CompareSettings, *, paired: bool) -> dict[str, Any]:
    return {
        "schema_version": SCHEMA_VERSION,
        "paired": paired,
        "min_effect": settings.min_effect,
        "alpha": settings.alpha,
        "verdict": found.overall.verdict if found.overall is not None else None,
        "exit_code": int(exit_code_of(found)),
        "overall": _numbers(found.overall),
        "comparisons": [_one(result) for result in found.results],
    }


def _numbers(found: Any) -> Optional[dict[str, Any]]:
    if found is None:
        return None
    ratio = found.ratio
    return {
        "ratio": ratio.estimate,
        "low": ratio.low,
        "high": ratio.high,
        "confidence": ratio.confidence,
        "p_value": found.p_value,
        "verdict": found.verdict,
    }


def _one(result: ContestResult) -> dict[str, Any]:
    numbers = _numbers(result.comparison) or {}
    return {
        "definition": result.definition,
        "workload": result.workload,
        "baseline": result.baseline,
        "candidate": result.candidate,
        "hardware": result.hardware,
        "timer": result.timer,
        "cache": result.cache,
        **numbers,
        "p_adjusted": result.p_adjusted,
        "p_same": result.comparison.p_same if result.comparison is not None else None,
        "verdict": result.verdict,
        "baseline_ms": result.baseline_ms,
        "candidate_ms": result.candidate_ms,
        "stopped": result.stopped,
        "seconds": result.seconds,
        "obstacle": result.obstacle,
        "notes": result.notes,
        "launches": result.launches,
        "recorded_ms": result.recorded,
    }
