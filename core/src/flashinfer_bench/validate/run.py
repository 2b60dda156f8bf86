"""Running the checks of all layers over a dataset."""

from __future__ import annotations

from collections import Counter
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional, Union, cast

from flashinfer_bench.data import layout
from flashinfer_bench.errors import DatasetNotFoundError, SelectionError
from flashinfer_bench.validate.checks.definitions import check_definitions
from flashinfer_bench.validate.checks.layout import check_layout
from flashinfer_bench.validate.checks.solutions import check_solutions
from flashinfer_bench.validate.findings import Finding, ValidationReport
from flashinfer_bench.validate.layers import LAYERS, chosen_checks, needs_records
from flashinfer_bench.validate.parallel import Workers
from flashinfer_bench.validate.records import Contents, SolutionHead, list_files
from flashinfer_bench.validate.scan import RECORD_CHECKS, scan_files, scan_records

if TYPE_CHECKING:
    from collections.abc import Iterable

    from flashinfer_bench.data import Definition
    from flashinfer_bench.validate.findings import Place
    from flashinfer_bench.validate.scan import RecordScan

CHECKS = (
    *("layout", "definitions", "solutions", "workloads", "blobs", "traces"),
    *("baseline", "benchmark"),
)
"""Names of the checks, in the order in which their findings are told."""

_FILE_CHECKS = {
    "layout": check_layout,
    "definitions": check_definitions,
    "solutions": check_solutions,
}
_FOLDERS = (layout.DEFINITIONS, layout.SOLUTIONS, layout.WORKLOADS, layout.TRACES)


def validate_dataset(
    root: Union[str, Path],
    layers: Optional[Iterable[str]] = None,
    *,
    jobs: Optional[int] = 1,
) -> ValidationReport:
    """Check a dataset without changing it and without running anything of it.

    Broken records are findings, not exceptions. Neither torch nor a device is needed; traces are
    read one by one, so that memory does not grow with their number.

    Parameters
    ----------
    root : str or Path
        The dataset.
    layers : iterable of str, optional
        Restricts the findings to these of `LAYERS`; by default all.
    jobs : int, optional
        The most processes that share the work; None for as many as there are cores, where it is
        worth it. A script that asks for several must be guarded by ``if __name__ == "__main__"``.

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
    UnknownNameError
        If there is no such layer.
    CapabilityError
        If a process that shares the work is killed.
    """
    base = Path(root)
    chosen = chosen_checks(layers)
    _require_dataset(base)
    findings: list[Finding] = []
    with Workers(jobs) as workers:
        contents = _read_contents(base, workers, findings)
        for name, check in _FILE_CHECKS.items():
            findings += check(contents) if name in chosen else ()
        counts = _count_files(contents)
        if needs_records(chosen):
            counts |= _check_records(contents, chosen, workers, findings)
    kept = [one for one in findings if one.check in chosen]
    order = {name: index for index, name in enumerate(CHECKS)}
    kept.sort(key=lambda one: (order[one.check], one.path, one.line or 0))
    return ValidationReport(base, tuple(kept), counts, tuple(layers or LAYERS))


def _require_dataset(base: Path) -> None:
    if not base.is_dir():
        what = "is not a folder" if base.exists() else "does not exist"
        hint = "name a dataset folder, or set FIB_DATASET_PATH"
        raise DatasetNotFoundError(f"no dataset: {base} {what}", hint=hint)
    if not any((base / folder).exists() for folder in _FOLDERS):
        hint = f"a dataset has the folders {', '.join(_FOLDERS)}"
        raise SelectionError(f"there is nothing in the dataset {base}", hint=hint)


def _read_contents(root: Path, workers: Workers, findings: list[Finding]) -> Contents:
    found: dict[str, list[tuple[Any, Place]]] = {}
    for folder in (layout.DEFINITIONS, layout.SOLUTIONS):
        paths = list_files(root, folder, (".json",), findings)
        scans = workers.map_files(partial(scan_files, root), paths)
        findings += (one for scan in scans for one in scan.findings)
        found[folder] = [(scan.found, scan.place) for scan in scans if scan.found is not None]
    return Contents(
        root,
        cast("tuple[tuple[Definition, Place], ...]", tuple(found[layout.DEFINITIONS])),
        cast("tuple[tuple[SolutionHead, Place], ...]", tuple(found[layout.SOLUTIONS])),
    )


def _check_records(
    contents: Contents, chosen: frozenset[str], workers: Workers, findings: list[Finding]
) -> dict[str, int]:
    names = tuple(name for name in RECORD_CHECKS if name in chosen)
    paths = [
        path
        for folder in (layout.WORKLOADS, layout.TRACES)
        for path in list_files(contents.root, folder, (".jsonl", ".json"), findings)
    ]
    scans = workers.map_files(partial(scan_records, contents, names), paths)
    for name in names:
        findings += _combine(name, scans, contents)
    findings += (one for scan in scans for one in scan.findings)
    counts = Counter(workloads=0, traces=0)
    for scan in scans:
        counts.update(scan.counts)
    return dict(counts)


def _combine(name: str, scans: list[RecordScan], contents: Contents) -> Iterable[Finding]:
    check = cast("Any", RECORD_CHECKS[name])
    found: Iterable[Finding] = check.combine([scan.facts[name] for scan in scans], contents)
    return found


def _count_files(contents: Contents) -> dict[str, int]:
    return {
        "definitions": len(contents.definition_files),
        "solutions": len(contents.solution_files),
    }
