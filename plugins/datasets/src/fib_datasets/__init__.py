"""Commands that create, check, repair, convert, clean and describe datasets."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flashinfer_bench.plugins import CheckSpec, CommandSpec, FormatSpec, SourceSpec, hookimpl

if TYPE_CHECKING:
    from collections.abc import Iterable

_COMMANDS = "fib_datasets.commands"


@hookimpl
def fib_register_formats() -> Iterable[FormatSpec]:
    """Register the problem folders of SOL-ExecBench."""
    yield FormatSpec(
        name="sol-execbench",
        factory="fib_datasets.transfer.sol:read_folder",
        summary="Problem folders of SOL-ExecBench",
    )


@hookimpl
def fib_register_sources() -> Iterable[SourceSpec]:
    """Register the Hugging Face hub."""
    yield SourceSpec(
        name="hub",
        factory="fib_datasets.hub:download_dataset",
        summary="Datasets of the Hugging Face hub: ORGANISATION/NAME[@REVISION]",
    )


@hookimpl
def fib_register_checks() -> Iterable[CheckSpec]:
    """Register further checks of ``fib validate``."""
    for priority, name, layer, factory, summary in (
        (986, "definition_fields", "definition", "fields:DEFINITIONS", "All fields are known"),
        (985, "axes", "definition", "records:check_axes", "Axes and outputs make sense"),
        (976, "solution_fields", "solution", "fields:SOLUTIONS", "All fields are known"),
        (975, "entry_points", "solution", "records:ENTRY_POINTS", "Python entry points exist"),
        (966, "workload_fields", "workload", "fields:WORKLOADS", "All fields are known"),
        (965, "inputs", "workload", "records:INPUTS", "Workloads match their definitions"),
        (960, "blobs", "workload", "blobs:BLOBS", "Tensor files exist and match definitions"),
        (946, "trace_fields", "trace", "fields:TRACES", "All fields are known"),
        (945, "figures", "trace", "records:FIGURES", "Traces are complete and plausible"),
        (940, "baseline", "baseline", "contents:check_baselines", "Definitions have a baseline"),
        (930, "benchmark", "benchmark", "contents:check_benchmark", "There is something to run"),
    ):
        yield CheckSpec(
            name=name,
            layer=layer,
            records=layer not in ("definition", "solution"),
            factory=f"fib_datasets.checks.{factory}",
            priority=priority,
            summary=summary,
        )


@hookimpl
def fib_register_commands() -> Iterable[CommandSpec]:
    """Register the commands of this plugin."""
    for priority, name, target, summary in (
        (978, "init", "start:app", "Create a small dataset to start from."),
        (976, "new", "start:new_app", "Create a definition, solution or workload to start from."),
        (970, "build", "build:app", "Build the solutions of a dataset without evaluating them."),
        (950, "export", "transfer:export_app", "Export a dataset, or a part of it, to a file."),
        (940, "import", "transfer:import_app", "Import an archive or a dataset in another format."),
        (930, "solution", "solution:app", "Convert a solution to source files and back."),
        (905, "schema", "start:schema_app", "Print the JSON schemas of the format."),
        (900, "doctor", "doctor:app", "Find and repair damage in a dataset."),
        (890, "trace", "trace:app", "Show the collected workloads."),
        (880, "sanitize", "sanitize:app", "Remove useless workloads from a dataset."),
        (0, "report merge", "transfer:merge_app", "Merge several datasets into one."),
    ):
        yield CommandSpec(
            name=name, factory=f"{_COMMANDS}.{target}", summary=summary, priority=priority
        )
