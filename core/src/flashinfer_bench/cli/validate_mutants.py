"""``fib validate --mutants``: whether wrong outputs would be noticed."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from flashinfer_bench.cli.exit_codes import ExitCode
from flashinfer_bench.cli.output import console, emit_json, printable, table, talk
from flashinfer_bench.data import TraceSet
from flashinfer_bench.validate.mutation import MutationTest

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from flashinfer_bench.validate.mutation import MutationResult

SCHEMA_VERSION = 1


def feed_mutants(
    roots: Sequence[Path], definitions: Sequence[str], *, strict: bool, as_json: bool
) -> ExitCode:
    """Feed wrong outputs for every workload of some datasets, and show which of them passed.

    Parameters
    ----------
    roots : sequence of Path
        The datasets.
    definitions : sequence of str
        Restricts them to these; empty for all.
    strict : bool
        Whether a workload that cannot be tested counts as a finding.
    as_json : bool
        Write JSON.
    """
    found = {root: _run(root, definitions) for root in roots}
    if as_json:
        emit_json(_document(found))
    else:
        for root, results in found.items():
            _print(root, results)
    everything = [result for results in found.values() for result in results]
    bad = any(one.is_bad or (strict and one.problem is not None) for one in everything)
    return ExitCode.FINDINGS if bad else ExitCode.OK


def _run(root: Path, definitions: Sequence[str]) -> list[MutationResult]:
    trace_set = TraceSet.from_path(root, on_error="collect")
    for error in trace_set.load_errors:
        talk(f"error: {error.where}: {error.message}")
    test = MutationTest(trace_set, tuple(definitions))
    return list(_shown(test.run(), len(test.workloads)))


def _shown(results: Iterable[MutationResult], total: int) -> Iterator[MutationResult]:
    """Show on a terminal how far it has come."""
    if not sys.stderr.isatty():
        yield from results
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()
    with Progress(*columns, console=console(sys.stderr), transient=True) as bar:
        task = bar.add_task("feeding wrong outputs", total=total)
        for result in results:
            bar.update(task, advance=1, description=printable(result.definition))
            yield result


def _print(root: Path, results: Sequence[MutationResult]) -> None:
    rows = [row for result in results for row in _rows(result)]
    if rows:
        columns = ("definition", "workload", "finding", "mutant", "what")
        table(f"Wrong outputs that pass in {root}", columns, rows)
    fed, killed = (sum(getattr(one, name) for one in results) for name in ("fed", "killed"))
    tested = sum(one.problem is None for one in results)
    talk(
        f"{root}: {killed} of {fed} wrong outputs refused on {tested} of {len(results)} workloads; "
        f"{fed - killed} survived"
    )


def _rows(result: MutationResult) -> Iterator[tuple[str, ...]]:
    names = result.definition, result.workload
    if result.problem is not None:
        kind = "broken" if result.is_broken else "not tested"
        yield (*names, kind, "", result.problem)
    for survivor in result.survivors:
        yield (*names, "survived", survivor.mutant, survivor.variant)


def _document(found: dict[Path, list[MutationResult]]) -> dict[str, Any]:
    return {
        "schema_version": SCHEMA_VERSION,
        "datasets": [
            {
                "root": root,
                "fed": sum(one.fed for one in results),
                "killed": sum(one.killed for one in results),
                "survived": sum(len(one.survivors) for one in results),
                "workloads": results,
            }
            for root, results in found.items()
        ],
    }
