"""Running all checks over a dataset."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Union

from flashinfer_bench.data import layout
from flashinfer_bench.data.loader import paused_gc
from flashinfer_bench.errors import DatasetNotFoundError, SelectionError
from flashinfer_bench.validate.checks.blobs import BlobCheck
from flashinfer_bench.validate.checks.definitions import check_definitions
from flashinfer_bench.validate.checks.layout import check_layout
from flashinfer_bench.validate.checks.solutions import check_solutions
from flashinfer_bench.validate.checks.traces import TraceCheck
from flashinfer_bench.validate.checks.workloads import WorkloadCheck
from flashinfer_bench.validate.findings import Finding, ValidationReport
from flashinfer_bench.validate.records import Contents, read_all_records

if TYPE_CHECKING:
    from collections.abc import Callable

CHECKS = ("layout", "definitions", "solutions", "workloads", "blobs", "traces")
"""Names of the checks, in the order in which their findings are told."""

_FILE_CHECKS = (check_layout, check_definitions, check_solutions)
_RECORD_CHECKS: tuple[Callable[[Contents], Union[WorkloadCheck, BlobCheck, TraceCheck]], ...] = (
    WorkloadCheck,
    BlobCheck,
    TraceCheck,
)
_FOLDERS = (layout.DEFINITIONS, layout.SOLUTIONS, layout.WORKLOADS, layout.TRACES)


def validate_dataset(root: Union[str, Path]) -> ValidationReport:
    """Check a dataset without changing it and without running anything of it.

    Broken records are findings, not exceptions. Neither torch nor a device is needed; traces are
    read one by one, so that memory does not grow with their number.

    Parameters
    ----------
    root : str or Path
        The dataset.

    Returns
    -------
    ValidationReport
        All findings.

    Raises
    ------
    DatasetNotFoundError
        If there is no such folder.
    SelectionError
        If there is nothing in it to check.
    """
    base = Path(root)
    _require_dataset(base)
    findings: list[Finding] = []
    with paused_gc():
        contents = Contents.read(base, findings)
        findings += [found for check in _FILE_CHECKS for found in check(contents)]
        counts = _check_records(contents, findings)
    order = {name: index for index, name in enumerate(CHECKS)}
    findings.sort(key=lambda f: (order[f.check], f.path, f.line or 0))
    return ValidationReport(base, tuple(findings), {**_count_files(contents), **counts})


def _require_dataset(base: Path) -> None:
    if not base.is_dir():
        what = "is not a folder" if base.exists() else "does not exist"
        hint = "name a dataset folder, or set FIB_DATASET_PATH"
        raise DatasetNotFoundError(f"no dataset: {base} {what}", hint=hint)
    if not any((base / folder).exists() for folder in _FOLDERS):
        hint = f"a dataset has the folders {', '.join(_FOLDERS)}"
        raise SelectionError(f"there is nothing in the dataset {base}", hint=hint)


def _check_records(contents: Contents, findings: list[Finding]) -> dict[str, int]:
    checks = [make(contents) for make in _RECORD_CHECKS]
    counts = Counter(workloads=0, traces=0)
    for record in read_all_records(contents.root, findings):
        counts["workloads" if record.trace.is_workload_trace() else "traces"] += 1
        for check in checks:
            findings += check.visit(record)
    for check in checks:
        findings += check.finish()
    return dict(counts)


def _count_files(contents: Contents) -> dict[str, int]:
    return {
        "definitions": len(contents.definition_files),
        "solutions": len(contents.solution_files),
    }
