"""``fib replay``: repeat recorded evaluations, and report whether the results still hold."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from flashinfer_bench.cli import options
from flashinfer_bench.cli.datasets import dataset_roots
from flashinfer_bench.cli.exit_codes import ExitCode
from flashinfer_bench.cli.output import emit_document, printable, set_up_logging, table, talk
from flashinfer_bench.errors import CapabilityError, ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from fib_compare.replayer import Replay
    from fib_compare.targets import Target
    from flashinfer_bench.data import Evaluation, TraceSet

COLUMNS = ("verdict", "definition", "solution", "workload", "recorded_ms", "latency_ms", "why")

_NUMBER = re.compile(r"(\d*\.?\d+(?:e-?\d+)?)\s*(%?)", re.ASCII | re.IGNORECASE)

app = typer.Typer(add_completion=False, rich_markup_mode=None)


def parse_share(text: str) -> float:
    """Parse a share such as ``1%`` or ``0.01``."""
    found = _NUMBER.fullmatch(str(text).strip())
    if found is None:
        raise typer.BadParameter(f"{text!r} is not a share; write it as 10% or 0.1")
    return float(found[1]) / (100 if found[2] else 1)


Traces = Annotated[
    Optional[list[str]],
    typer.Argument(
        metavar="TRACE", show_default=False, help="A trace file, or FILE:LINE for one of its lines."
    ),
]
Dataset = Annotated[
    Optional[Path],
    options.option(
        "--local",
        metavar="DIR",
        help="Dataset folder. Default: that of the files, or $FIB_DATASET_PATH.",
    ),
]
Workloads = Annotated[
    Optional[list[str]],
    options.option(
        "--workload",
        "--workloads",
        metavar="UUID...",
        help="Only these workloads; the beginning of a uuid is enough.",
    ),
]
Last = Annotated[
    Optional[int], options.option("--last", min=1, metavar="N", help="Only the latest N.")
]
Device = Annotated[
    Optional[str],
    options.option(
        "--device",
        metavar="DEVICE",
        help="cpu, cuda or cuda:N. Default: the device of each trace.",
    ),
]
Tolerance = Annotated[
    float,
    typer.Option(
        "--latency-tolerance",
        parser=parse_share,
        metavar="X",
        help="Largest relative difference of latencies: 10% or 0.1.",
    ),
]
Save = Annotated[bool, typer.Option("--save", help="Save the new traces, with fresh seeds.")]


@app.command("replay", cls=options.GreedyCommand)
def replay(
    traces: Traces = None,
    local: Dataset = None,
    definitions: options.Definitions = None,
    solutions: options.Solutions = None,
    workloads: Workloads = None,
    last: Last = None,
    device: Device = None,
    latency_tolerance: Tolerance = "10%",  # type: ignore[assignment] # typer parses it
    save: Save = False,
    as_json: options.AsJson = False,
    log_level: options.LogLevel = None,
) -> None:
    """Repeat recorded evaluations: reproduced, drifted or not reproducible, and why.

    Inputs are generated from the recorded seeds, and the recorded settings and device are used
    (unless --device is given). Solution and definition must be unchanged.

    Exits with 1 if a result drifted, otherwise with 4 if one is not reproducible here, otherwise
    with 0. Nothing is written to the dataset without --save.
    """
    set_up_logging(log_level)
    filters = (definitions or (), solutions or (), workloads or ())
    done: list[Replay] = []
    try:
        for root, targets in _chosen(traces or (), local, filters, last):
            for one in _replay_all(root, targets, device, latency_tolerance, save=save):
                done.append(one)  # one by one, so that an interrupted replay shows them
    finally:
        if done:
            _show(done, as_json=as_json)
    raise typer.Exit(_exit_code(done))


_Filters = tuple["Sequence[str]", "Sequence[str]", "Sequence[str]"]


def _chosen(
    traces: Sequence[str], local: Optional[Path], filters: _Filters, last: Optional[int]
) -> Iterator[tuple[TraceSet, list[Target]]]:
    """Yield each dataset with the runs to replay."""
    from fib_compare.targets import (
        Target,
        dataset_of,
        latest,
        matching,
        read_targets,
        split_place,
    )
    from flashinfer_bench.data import TraceSet

    found: dict[Path, list[Target]] = {}
    for path, line in [split_place(text) for text in traces]:
        found.setdefault(local or dataset_of(path), []).extend(read_targets(path, line))
    if last is not None and len(found) > 1:
        raise ConfigError("--last requires a single dataset", hint="give files of one dataset only")
    for root in found or dataset_roots([local] if local else None):
        trace_set = TraceSet.from_path(root, on_error="collect")
        every = [trace for group in trace_set.traces.values() for trace in group]
        targets = found[root] if found else latest([*map(Target, every)])
        kept = matching(targets, *filters)
        yield trace_set, kept if last is None else latest(kept, last)


def _replay_all(
    trace_set: TraceSet,
    targets: Sequence[Target],
    device: Optional[str],
    tolerance: float,
    *,
    save: bool,
) -> Iterator[Replay]:
    try:
        from fib_compare.replayer import Replayer, as_trace

        made = Replayer(
            trace_set, device=device, latency_tolerance=tolerance, fresh_variations=save
        )
        with made as replayer:
            for number, target in enumerate(targets, 1):
                result = replayer.replay(target)
                talk(f"[{number}/{len(targets)}] {_label(result)}: {result.verdict}")
                trace = as_trace(result) if save else None
                if trace is not None:
                    trace_set.add_traces([trace])
                yield result
    except ModuleNotFoundError as error:
        raise without_torch(error, "replaying requires torch") from error


def without_torch(error: ModuleNotFoundError, message: str) -> Exception:
    """Return the error for a command that needs torch; any other missing module as it is."""
    if error.name != "torch":
        return error
    return CapabilityError(message, hint="pip install torch numpy safetensors")


def _exit_code(done: Sequence[Replay]) -> ExitCode:
    verdicts = {str(one.verdict) for one in done}
    if "drifted" in verdicts:
        return ExitCode.FINDINGS
    return ExitCode.CAPABILITY if "not reproducible" in verdicts else ExitCode.OK


def _label(one: Replay) -> str:
    trace = one.target.trace
    if trace is None:
        return one.target.place
    return f"{trace.definition} / {trace.solution} / {trace.workload.uuid}"


def _show(done: Sequence[Replay], *, as_json: bool) -> None:
    counts = Counter(str(one.verdict) for one in done)
    if as_json:
        emit_document(verdicts=dict(counts), replays=[_document(one) for one in done])
    else:
        table("Replays", COLUMNS, map(_row, done))
        for one in done:
            _tell_differences(one)
    talk(", ".join(f"{count:,} {verdict}" for verdict, count in counts.items()))


def _tell_differences(one: Replay) -> None:
    lines = list(one.differences)
    if one.inputs == "same":
        lines.insert(0, "the inputs are identical to the recorded ones, bit for bit")
    elif one.inputs == "not recorded":
        lines.insert(0, "not recorded: digest of the inputs, so they may differ")
    if lines:
        talk(f"{_label(one)}:")
        for line in lines:
            talk(f"  {printable(line)}")


def _row(one: Replay) -> list[Any]:
    why = "; ".join(one.reasons) or None
    shown = {
        **_document(one),
        "why": why if one.target.trace is not None else f"{one.target.place}: {why}",
        "recorded_ms": _latency(one.recorded),
        "latency_ms": _latency(one.evaluation),
    }
    return [shown[column] for column in COLUMNS]


def _latency(evaluation: Optional[Evaluation]) -> Optional[float]:
    performance = evaluation.performance if evaluation is not None else None
    return performance.latency_ms if performance is not None else None


def _document(one: Replay) -> dict[str, Any]:
    trace = one.target.trace
    return {
        "verdict": str(one.verdict),
        "reasons": one.reasons,
        "differences": one.differences,
        "inputs": one.inputs or None,
        "path": one.target.path,
        "line": one.target.line,
        "definition": trace.definition if trace else None,
        "solution": trace.solution if trace else None,
        "workload": trace.workload.uuid if trace else None,
        "recorded": _summary(one.recorded),
        "replayed": _summary(one.evaluation),
    }


def _summary(evaluation: Optional[Evaluation]) -> Optional[dict[str, Any]]:
    if evaluation is None:
        return None
    return {
        "status": evaluation.status,
        "timestamp": evaluation.timestamp,
        "hardware": evaluation.environment.hardware,
        "latency_ms": _latency(evaluation),
        "max_absolute_error": getattr(evaluation.correctness, "max_absolute_error", None),
        "max_relative_error": getattr(evaluation.correctness, "max_relative_error", None),
        "log": evaluation.log,
    }
