"""Running the checks of all layers over a dataset, in one process or in several."""

from __future__ import annotations

import multiprocessing
import os
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional, TypeVar, Union

from flashinfer_bench._providers import provider_of
from flashinfer_bench.data import Solution, layout
from flashinfer_bench.data.json_codec import decode
from flashinfer_bench.data.jsonl import read_records
from flashinfer_bench.data.loader import load_definition, paused_gc
from flashinfer_bench.errors import (
    CapabilityError,
    DataError,
    DatasetNotFoundError,
    SelectionError,
    UnknownNameError,
)
from flashinfer_bench.plugins import default_catalog
from flashinfer_bench.validate.checks import SUFFIXES, check_python
from flashinfer_bench.validate.findings import Finding, Place, ValidationReport
from flashinfer_bench.validate.records import Contents, Record, RecordCheck, SolutionHead

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from flashinfer_bench.data import Definition
    from flashinfer_bench.plugins import CheckSpec, Registered

T = TypeVar("T")

_LAYERS = ("layout", "definition", "workload", "solution", "trace")
_MOST_JOBS = 8
_WORTH = 128 << 20  # below so many bytes, starting processes takes longer than they save


def known_checks() -> dict[str, Registered[CheckSpec]]:
    """Return the registered checks by name, in the order in which their findings are told."""
    return {entry.name: entry for entry in default_catalog().checks}


def known_layers() -> dict[str, tuple[str, ...]]:
    """Return the names of the checks of each layer; layers of plugins come last."""
    found: dict[str, tuple[str, ...]] = dict.fromkeys(_LAYERS, ())
    for name, entry in known_checks().items():
        found[entry.spec.layer] = (*found.get(entry.spec.layer, ()), name)
    return found


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
        Restricts the findings to these layers; by default all.
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
        If a layer is one of a distribution that is not installed, or a process that shares the work
        is killed.
    """
    base = Path(root)
    chosen_layers = tuple(known_layers() if layers is None else layers)
    checks = _chosen_checks(chosen_layers)
    if not base.is_dir():
        what = "is not a folder" if base.exists() else "does not exist"
        hint = "name a dataset folder, or set FIB_DATASET_PATH"
        raise DatasetNotFoundError(f"no dataset: {base} {what}", hint=hint)
    if not any((base / folder).exists() for folder in SUFFIXES):
        hint = f"a dataset has the folders {', '.join(SUFFIXES)}"
        raise SelectionError(f"there is nothing in the dataset {base}", hint=hint)
    findings: list[Finding] = []
    of_records = [name for name, entry in checks.items() if entry.spec.records]
    files = {
        folder: _list_files(base, folder, findings)
        for folder in SUFFIXES
        if of_records or folder in (layout.DEFINITIONS, layout.SOLUTIONS)
    }
    with _sharing(jobs, [path for paths in files.values() for path in paths]) as share:
        contents = _read_contents(base, files, share, findings)
        counts = {
            "definitions": len(contents.definition_files),
            "solutions": len(contents.solution_files),
        }
        for name, entry in checks.items():
            if not entry.spec.records:
                with _guarded(name, findings):
                    findings += list(entry.load()(contents))
        if of_records:
            paths = [*files[layout.WORKLOADS], *files[layout.TRACES]]
            counts |= _check_records(contents, of_records, paths, share, findings)
    order = {name: index for index, name in enumerate(checks)}
    kept = [one for one in findings if one.check in checks]
    kept.sort(key=lambda one: (order[one.check], one.path, one.line or 0))
    return ValidationReport(base, tuple(kept), counts, chosen_layers)


def _chosen_checks(layers: Sequence[str]) -> dict[str, Registered[CheckSpec]]:
    known = known_layers()
    for name in layers:
        if name in known:
            continue
        if provider := provider_of("layer", name):
            raise CapabilityError(
                f"layer {name!r} is provided by {provider}, which is not installed",
                hint=f"pip install {provider}",
            )
        raise UnknownNameError(
            f"there is no layer {name!r}", hint=f"available layers: {', '.join(known)}"
        )
    return {name: entry for name, entry in known_checks().items() if entry.spec.layer in layers}


@contextmanager
def _guarded(check: str, findings: list[Finding]) -> Iterator[None]:
    """Make a finding of what a check raises; the others go on."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - it may be a plugin's
        findings.append(_raised(check, error))


def _raised(check: str, error: Exception) -> Finding:
    message = f"the check raised {type(error).__name__}: {error}"
    return Place(check, Path()).error(message, hint="run `fib plugins doctor` to see whose it is")


def _list_files(root: Path, folder: str, findings: list[Finding]) -> list[Path]:
    def tell(error: OSError) -> None:
        at = Path(error.filename) if error.filename else root / folder
        place = Place(folder, at.relative_to(root) if at.is_relative_to(root) else Path(folder))
        findings.append(place.error(f"cannot be listed: {error.strerror or error}"))

    return layout.files(root / folder, *SUFFIXES[folder], on_error=tell)


@contextmanager
def _sharing(jobs: Optional[int], paths: Sequence[Path]) -> Iterator[Any]:
    """Yield a function like `map` over files: decoding JSON is all CPU, so threads do not help."""
    if jobs is None:
        jobs = _usable_cores() if sum(map(_size, paths)) >= _WORTH else 1
    if jobs == 1:
        with paused_gc():
            yield lambda function, some: list(map(function, some))
        return
    # A fork of a process with threads may hang; a fresh one costs half a second.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=context) as pool:

        def share(function: Callable[[Path], T], some: Sequence[Path]) -> list[T]:
            # What the function holds is sent once for each chunk.
            return list(pool.map(function, some, chunksize=max(1, len(some) // (4 * jobs))))

        try:
            yield share
        except BrokenProcessPool as error:
            raise CapabilityError(
                "a process of the validation was killed", hint="try again with --jobs 1"
            ) from error


def _usable_cores() -> int:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return min(cores or 1, _MOST_JOBS)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:  # the reader will say what is wrong with it
        return 0


# --------------------------------------------------------------------- definitions and solutions


_FileScan = tuple[Place, "Union[Definition, SolutionHead, None]", list[Finding]]
"""What came of one file of a definition or solution."""


def _read_contents(
    root: Path, files: dict[str, list[Path]], share: Any, findings: list[Finding]
) -> Contents:
    found: list[Any] = []
    for folder in (layout.DEFINITIONS, layout.SOLUTIONS):
        scans: list[_FileScan] = share(partial(_scan_file, root, folder), files[folder])
        findings += (one for *_, told in scans for one in told)
        found.append(tuple((one, place) for place, one, _ in scans if one is not None))
    return Contents(root, *found)


def _scan_file(root: Path, folder: str, path: Path) -> _FileScan:
    place = Place(folder, path.relative_to(root))
    try:
        if folder == layout.DEFINITIONS:
            return place, load_definition(path, root), []
        solution = decode(Solution, path.read_bytes(), path=path)
        head = SolutionHead(solution.name, solution.definition, solution.author)
        return place, head, list(check_python(solution, place))
    except DataError as error:
        return place, None, [place.refused(error)]
    except OSError as error:
        return place, None, [place.error(f"cannot be read: {error.strerror or error}")]


# -------------------------------------------------------------------------- workloads and traces


_RecordScan = tuple["Counter[str]", dict[str, Any], list[Finding]]
"""What came of one file of workloads and traces: counts, facts by the name of a check, findings."""


def _check_records(
    contents: Contents,
    names: Sequence[str],
    paths: Sequence[Path],
    share: Any,
    findings: list[Finding],
) -> dict[str, int]:
    scans: list[_RecordScan] = share(partial(_scan_records, contents, names), paths)
    counts = Counter(workloads=0, traces=0)
    for count, *_ in scans:
        counts.update(count)
    for name in names:
        facts = [found[name] for _, found, _ in scans if name in found]
        if len(facts) == len(scans):  # else it raised for one of the files, which has been told
            with _guarded(name, findings):
                findings += list(known_checks()[name].load().combine(facts, contents))
    findings += (one for *_, told in scans for one in told)
    return dict(counts)


def _scan_records(contents: Contents, names: Sequence[str], path: Path) -> _RecordScan:
    """Read a file record by record: never are all of its traces in memory."""
    relative = path.relative_to(contents.root)
    place = Place(relative.parts[0], relative)
    counts, facts, findings = Counter[str](), dict[str, Any](), list[Finding]()
    known = known_checks()
    checks: dict[str, RecordCheck] = {}
    for name in names:
        with _guarded(name, findings):
            checks[name] = known[name].load()(contents)
    try:
        for record in _read(path, place, findings):
            counts["workloads" if record.trace.is_workload_trace() else "traces"] += 1
            for name, check in list(checks.items()):
                try:
                    findings += check.visit(record)
                except Exception as error:  # noqa: BLE001 - it may be a plugin's
                    findings.append(_raised(name, error))
                    del checks[name]  # it is asked no more
    except OSError as error:
        findings.append(place.error(f"cannot be read: {error.strerror or error}"))
    for name, check in checks.items():
        with _guarded(name, findings):
            facts[name] = check.facts()
    return counts, facts, findings


def _read(path: Path, place: Place, findings: list[Finding]) -> Iterator[Record]:
    from flashinfer_bench.data.trace_reader import TraceReader

    def tell(_path: Path, _size: int) -> None:
        hint = "the next run that appends to this file moves the rest aside"
        findings.append(place.warning("its last line was never finished", hint=hint))

    reader = TraceReader()
    for line, text in read_records(path, tell):
        at = Place(place.check, place.path, line)
        try:
            yield Record(reader.read(text, path=path, line=line), at)
        except DataError as error:
            findings.append(at.refused(error))
