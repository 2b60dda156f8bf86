"""``fib show``: everything recorded about a definition, a solution, a workload or a trace."""

from __future__ import annotations

import re
import sys
from difflib import get_close_matches
from fnmatch import filter as matching
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, Optional

import typer

from flashinfer_bench.cli import options
from flashinfer_bench.cli.datasets import open_datasets
from flashinfer_bench.cli.output import (
    Column,
    as_line,
    console,
    emit_document,
    set_up_logging,
    table,
    to_plain,
    with_colours,
)
from flashinfer_bench.errors import UnknownNameError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from flashinfer_bench.data import Trace, TraceSet


class Subject(NamedTuple):
    """The names that identify what to show; later ones may be None."""

    definition: str
    solution: Optional[str] = None
    workload: Optional[str] = None


def show(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="A definition, solution or workload, or DEFINITION/SOLUTION/WORKLOAD. "
            "A pattern or the beginning of a name is enough.",
        ),
    ],
    local: options.Local = None,
    as_json: options.AsJson = False,
    log_level: options.LogLevel = None,
) -> None:
    """Show everything recorded about a definition, a solution, a workload or a trace.

    For each workload and device the latest trace counts. Of traces that failed for the same reason,
    one is shown in full: log, environment and settings.
    """
    set_up_logging(log_level)
    opened = open_datasets(local)
    trace_set = opened.trace_set
    subject = find_subject(trace_set, name, opened.name)
    traces = _latest(trace_set, subject)
    definition = trace_set.definitions.get(subject.definition)
    solution = next(
        (s for s in trace_set.solutions.get(subject.definition, ()) if s.name == subject.solution),
        None,
    )
    workloads = [
        trace.workload
        for trace in trace_set.workloads.get(subject.definition, ())
        if subject.workload in (None, trace.workload.uuid)
    ]
    if as_json:
        emit_document(
            subject=subject._asdict(),
            definition=definition,
            solution=solution,
            workloads=workloads,
            traces=traces,
        )
        raise typer.Exit(opened.exit_code())
    if solution is not None:
        _facts(f"Solution {solution.name}", solution, leave_out=("name", "sources"))
    elif subject.workload is None:
        _facts(f"Definition {subject.definition}", definition, leave_out=("name", "reference"))
    if subject.workload is not None:
        for workload in workloads[:1]:
            _facts(f"Workload {workload.uuid}", workload, leave_out=("uuid",))
    table("Results", _RESULT if subject.solution else (_SOLUTION, *_RESULT), traces)
    _line()
    if subject.solution is not None:
        for trace in _telling(traces):
            _show_trace(trace)
    if solution is not None:
        for source in solution.sources:
            _text(f"Source {source.path}", source.content)
    elif definition is not None and subject == (subject.definition, None, None):
        _text("Reference", definition.reference)
    raise typer.Exit(opened.exit_code())


def find_subject(trace_set: TraceSet, name: str, where: str = "the dataset") -> Subject:
    """Return what a name refers to.

    Parameters
    ----------
    trace_set : TraceSet
        A dataset.
    name : str
        A name, the unique beginning of one, or a pattern; or several, separated by ``/``.
    where : str
        The dataset's name in messages.

    Raises
    ------
    UnknownNameError
        If it matches nothing, or several names.
    """
    known: list[tuple[str, Subject]] = []
    for definition in trace_set.definitions:
        known.append((definition, Subject(definition)))
        for one in trace_set.solutions.get(definition, ()):
            known.append((one.name, Subject(definition, one.name)))
        for uuid in trace_set.workload_uuids(definition):
            known.append((uuid, Subject(definition, None, uuid)))
    found = Subject("")
    for part in name.split("/"):
        fits: dict[str, Subject] = {}
        for word, subject in known:
            if found.definition in ("", subject.definition):
                fits.setdefault(word, subject)
        chosen = fits[_only(part, fits, where)]
        found = Subject(
            chosen.definition, chosen.solution or found.solution, chosen.workload or found.workload
        )
    return found


def _only(part: str, known: Mapping[str, Any], where: str) -> str:
    fits = [part] if part in known else matching(known, part)
    fits = fits or [word for word in known if word.startswith(part)]
    if len(fits) == 1:
        return fits[0]
    if fits:
        message = f"{part!r} matches {len(fits)} names"
        hint = f"name one of: {', '.join(fits[:8])}{', …' * (len(fits) > 8)}"
    else:
        message = f"no definition, solution or workload named {part!r} in {where}"
        near = get_close_matches(part, known, n=3) or [word for word in known if part in word][:3]
        hint = f"did you mean {', '.join(near)}?" if near else "see 'fib report summary'"
    raise UnknownNameError(message, hint=hint, unknown=(part,))


def _latest(trace_set: TraceSet, subject: Subject) -> list[Trace]:
    """Return the latest trace of each solution, workload and device, ordered by name."""
    from fib_report.results import collect_results, latest_results
    from flashinfer_bench.data.run_source import read_traces

    rows = [
        row
        for row in latest_results(collect_results(trace_set))
        if row.definition == subject.definition
        and subject.solution in (None, row.solution)
        and subject.workload in (None, row.workload)
    ]
    rows.sort(key=lambda row: (row.solution, sorted(row.axes.items()), row.workload, row.hardware))
    return [trace for _, trace in read_traces(rows)]


def _telling(traces: Iterable[Trace]) -> list[Trace]:
    """Return one trace for each reason of failure, and one that passed."""
    from fib_report.causes import without_numbers

    told: dict[Any, Trace] = {}
    for trace in traces:
        run = trace.evaluation
        assert run is not None
        told.setdefault((run.status, without_numbers(_reason(trace))), trace)
    return list(told.values())


# ------------------------------------------------------------------------------------ sections


def _line(text: str = "") -> None:
    console(sys.stdout).print(with_colours(as_line(text)), soft_wrap=True)


def _text(title: str, text: str) -> None:
    _line(f"--- {title}")
    for line in text.rstrip().split("\n"):
        _line(line)
    _line()


def _facts(title: str, record: Any, leave_out: Iterable[str] = ()) -> None:
    """Print the fields of a record, with dotted names for large nested records."""
    fields = {key: value for key, value in to_plain(record).items() if key not in leave_out}
    _text(title, "\n".join(f"{key}: {value}" for key, value in _flat(fields)))


def _flat(record: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in record.items():
        if isinstance(value, dict) and len(str(value)) > 60:
            yield from _flat(value, f"{before}{key}.")
        elif value not in ("", [], {}) and not key.endswith("samples_ms"):
            yield f"{before}{key}", value


def _reason(trace: Trace) -> str:
    from fib_report.causes import reason_of

    run = trace.evaluation
    return "" if run is None or trace.is_successful() else reason_of(run)


def _axes(trace: Trace, between: str = " ") -> str:
    """Return sizes and scalars of a workload."""
    inputs = trace.workload.inputs.items()
    scalars = {name: one.value for name, one in inputs if one.type == "scalar"}
    return between.join(f"{name}={v}" for name, v in {**trace.workload.axes, **scalars}.items())


def _short(trace: Trace) -> str:
    uuid = trace.workload.uuid
    return uuid[:8] if _UUID.fullmatch(uuid) else uuid  # enough for `fib show`


_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_SOLUTION = Column("solution", "solution")
_RESULT = (
    Column("axes", lambda trace: _axes(trace, ",")),
    Column("workload", "workload.uuid", people=False),
    Column("workload", _short, programs=False),
    Column("hardware", "evaluation.environment.hardware"),
    Column("status", "evaluation.status.value"),
    Column("latency_ms", lambda t: getattr(t.evaluation.performance, "latency_ms", None)),
    Column("speedup", lambda t: getattr(t.evaluation.performance, "speedup_factor", None)),
    Column("reason", _reason),
)


def _show_trace(trace: Trace) -> None:
    run = trace.evaluation
    assert run is not None
    facts = f"{run.status.value} {_reason(trace)}\nrecorded {run.timestamp} for {_axes(trace)}"
    _text(f"Trace {trace.definition}/{trace.solution}/{trace.workload.uuid}", facts)
    if run.log:
        _text("Log", run.log)
    _facts("Environment and settings", run, leave_out=("status", "log", "timestamp"))


app = typer.Typer(add_completion=False, rich_markup_mode=None)
app.command("show", cls=options.GreedyCommand)(show)
