"""``fib run --feedback``: what an agent can act on, as JSON lines."""

# ruff: noqa: TC003 - typer reads the annotations at run time

from __future__ import annotations

import logging
import sys
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from flashinfer_bench.cli.exit_codes import ExitCode
from flashinfer_bench.cli.options import option
from flashinfer_bench.cli.output import talk
from flashinfer_bench.cli.run_options import RunAddition
from flashinfer_bench.errors import ConfigError, FibError

if TYPE_CHECKING:
    from collections.abc import Callable

    from fib_agents.diagnosis import Diagnosis
    from flashinfer_bench.data import Trace, TraceSet

logger = logging.getLogger(__name__)

_WORKLOADS = 3  # of each wrong solution are diagnosed
_MOST_SECONDS = 300.0


def add_to_run(
    feedback: Annotated[
        Optional[Path],
        option("--feedback", metavar="FILE", help="Append a feedback record per evaluation."),
    ] = None,
) -> RunAddition:
    """Take the value of the option."""
    if feedback is None:
        return RunAddition()
    if str(feedback) == "-":
        raise ConfigError(
            "--feedback: '-' is not supported, because results go to standard output",
            hint="name a file",
        )
    try:
        feedback.open("ab").close()
    except OSError as error:
        raise ConfigError(f"--feedback: cannot write {feedback}: {error.strerror}") from None
    return FeedbackFile(feedback)


@dataclass(eq=False)
class FeedbackFile(RunAddition):
    """Appends a record for each evaluation to a file.

    Records of wrong outputs follow when all evaluations have ended: their diagnosis would disturb
    what is timed meanwhile. Of a run that is interrupted they come without one.

    Parameters
    ----------
    path : Path
        The file.
    """

    path: Path
    _chosen: Optional[TraceSet] = None
    _known: Optional[TraceSet] = None
    _traces: dict[str, list[Trace]] = field(default_factory=dict)
    _wrong: list[Trace] = field(default_factory=list)
    _problem: str = ""

    def choose(self, trace_set: TraceSet) -> TraceSet:
        """Note which dataset is run."""
        self._chosen, self._known, self._traces = trace_set, None, {}
        return trace_set

    def evaluation_finished(self, trace: Trace) -> None:
        """Write the record, unless the outputs are wrong."""
        from flashinfer_bench.data import EvaluationStatus

        self._traces.setdefault(trace.definition, []).append(trace)
        run = trace.evaluation
        if run is not None and run.status is EvaluationStatus.INCORRECT_NUMERICAL:
            self._wrong.append(trace)
        else:
            self._write(trace)

    def finished(self) -> None:
        """Write the records of wrong outputs, with their diagnosis."""
        wrong, self._wrong = self._wrong, []
        reason = sys.exc_info()[0]
        is_whole = reason is None or issubclass(reason, typer.Exit)  # as by --exitfirst
        if is_whole and wrong:
            talk(f"looking into {len(wrong)} evaluations with wrong outputs …")
        try:
            with ExitStack() as at_the_end:
                diagnoses = _Diagnoses(at_the_end, self._dataset)
                while is_whole and wrong:
                    found, note = diagnoses.of(wrong[0])
                    self._write(wrong.pop(0), found, note)
        finally:
            for trace in wrong:
                self._write(trace, None, "not made: the run was interrupted")

    def sum_up(self) -> None:
        """Report where the records are, or that some could not be written."""
        if self._problem:
            talk(f"error: --feedback: {self._problem}")
            raise typer.Exit(ExitCode.INTERNAL)
        talk(f"feedback appended to {self.path}")

    def _dataset(self) -> TraceSet:
        """Return the whole dataset: what was left out of the run is still to be compared with."""
        from flashinfer_bench.data import TraceSet

        if self._known is None:
            assert self._chosen is not None
            root = self._chosen.root
            self._known = TraceSet.from_path(root, on_error="collect") if root else self._chosen
        return self._known

    def _write(self, trace: Trace, diagnosis: Optional[Diagnosis] = None, note: str = "") -> None:
        from fib_agents.feedback import feedback_among

        more = [one for one in self._traces.get(trace.definition, ()) if one is not trace]
        try:
            record = feedback_among(trace, self._dataset(), [*more, trace], diagnosis, note)
            with self.path.open("ab") as file:
                file.write(record.to_json().encode() + b"\n")
        except (FibError, OSError) as error:  # the evaluation itself is stored
            self._problem = self._problem or f"{trace.solution}: {error}"
            logger.warning("no feedback on %s: %s", trace.solution, error)


class _Diagnoses:
    """Diagnoses one evaluation after the other, with one executor for each device."""

    def __init__(self, at_the_end: ExitStack, dataset: Callable[[], TraceSet]) -> None:
        self._at_the_end, self._dataset = at_the_end, dataset
        self._lent: dict[tuple[str, Any, Any], dict[str, Any]] = {}
        self._made: Counter[Any] = Counter()
        self._end = time.monotonic() + _MOST_SECONDS

    def of(self, trace: Trace) -> tuple[Optional[Diagnosis], str]:
        """Return the diagnosis of an evaluation, or None and why there is none."""
        from fib_agents.evaluations import diagnosed
        from fib_agents.feedback import settings_of

        key = trace.definition, trace.solution
        self._made[key] += 1
        if self._made[key] > _WORKLOADS:
            return None, f"not made: {_WORKLOADS} workloads of this solution have one"
        if time.monotonic() > self._end:
            return None, f"not made: those of others took {_MOST_SECONDS:g} s"
        try:
            trace_set = self._dataset()
            definition = trace_set.definitions.get(trace.definition)
            solution = trace_set.get_solution(trace.solution or "")
            if definition is None or solution is None:
                return None, "not made: the solution is not in the dataset"
            workers = self._workers(trace, trace_set.root)
        except FibError as error:
            return None, f"not made: {error.message}"
        config = settings_of(trace, definition)
        return diagnosed(definition, solution, trace, trace_set.root, config=config, **workers)

    def _workers(self, trace: Trace, root: Optional[Path]) -> dict[str, Any]:
        """Return an executor and a sandbox as the run had them, as far as its trace tells."""
        from fib_agents.diagnosis import provenance_of
        from flashinfer_bench.bench.backends import make_executor
        from flashinfer_bench.bench.sandbox import Sandbox
        from flashinfer_bench.plugins import default_catalog

        told = provenance_of(trace)
        settings, device = told.settings or {}, told.device or "cpu"
        # Strict confines no more than auto where it was possible, as the run has shown.
        level = "off" if settings.get("sandbox") == "off" else "auto"
        key = device, settings.get("executor"), level
        if key not in self._lent:
            catalog = default_catalog()
            executor = make_executor(catalog, device, settings.get("executor"))
            self._at_the_end.callback(executor.close)
            sandbox = Sandbox(level, catalog, dataset=root)  # type: ignore[arg-type]
            self._at_the_end.callback(sandbox.tidy)
            self._lent[key] = {"executor": executor, "sandbox": sandbox}
        return self._lent[key]
