"""Running the checks of all layers over a dataset, in one process or in several."""

from __future__ import annotations

import json
import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional, TypeVar, Union

from flashinfer_bench._providers import provider_of
from flashinfer_bench.data import Solution, layout
from flashinfer_bench.data.json_codec import decode
from flashinfer_bench.data.jsonl import read_records
from flashinfer_bench.data.loader import load_definition, paused_gc
from flashinfer_bench.errors import CapabilityError, DataError, UnknownNameError
from flashinfer_bench.plugins import default_catalog
from flashinfer_bench.validate.checks import SUFFIXES, check_python
from flashinfer_bench.validate.records import (
    Contents,
    Finding,
    Place,
    Record,
    RecordCheck,
    Severity,
    SolutionHead,
    TraceHead,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from flashinfer_bench.plugins import CheckSpec, Registered

T = TypeVar("T")

_LAYERS = ("layout", "definition", "workload", "solution", "trace")
_MOST_JOBS = 8
_WORTH = 128 << 20  # below so many bytes, starting processes takes longer than they save


@dataclass(frozen=True)
class ValidationReport:
    """All findings about a dataset.

    Parameters
    ----------
    root : Path
        The dataset.
    findings : tuple of Finding
        In the order of the checks.
    counts : dict of str to int
        How much of what was looked at.
    layers : tuple of str
        What was looked at: the layers whose findings these are.
    """

    root: Path
    findings: tuple[Finding, ...] = ()
    counts: dict[str, int] = field(default_factory=dict)
    layers: tuple[str, ...] = ()

    @property
    def errors(self) -> tuple[Finding, ...]:
        """The findings that are errors."""
        return tuple(one for one in self.findings if one.severity is Severity.ERROR)

    @property
    def warnings(self) -> tuple[Finding, ...]:
        """The findings that are warnings."""
        return tuple(one for one in self.findings if one.severity is Severity.WARNING)

    @property
    def notes(self) -> tuple[Finding, ...]:
        """The findings that are notes."""
        return tuple(one for one in self.findings if one.severity is Severity.NOTE)


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
    root: Union[str, Path], layers: Optional[Iterable[str]] = None, *, jobs: Optional[int] = 1
) -> ValidationReport:
    """Check a dataset without changing it and without running anything of it.

    Broken records are findings, not exceptions. Neither torch nor a device is needed; traces are
    read one by one, and only what they are about is kept.

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
    layout.require_dataset(base)
    findings: list[Finding] = []
    of_records = any(entry.spec.records for entry in checks.values())
    files = {
        folder: _list_files(base, folder, findings)
        for folder in SUFFIXES
        if of_records or folder in (layout.DEFINITIONS, layout.SOLUTIONS)
    }
    combine: dict[str, Callable[[Contents], Iterable[Finding]]] = {}
    visit: list[str] = []
    for name, entry in checks.items():
        try:
            combine[name] = check = entry.load()
        except Exception as error:  # noqa: BLE001 - a plugin's check may raise anything
            findings.append(_raised(name, error))
            continue
        if isinstance(check, RecordCheck):
            combine[name] = check.combine
            visit.append(name)
    with _sharing(jobs, [path for paths in files.values() for path in paths]) as share:
        heads: dict[str, list[Any]] = {layout.DEFINITIONS: [], layout.SOLUTIONS: []}
        for folder, kept in heads.items():
            for found, told in share(partial(_scan_file, base, folder), files[folder]):
                kept += found
                findings += told
        contents = Contents(base, *map(tuple, heads.values()))
        counts = {folder: len(kept) for folder, kept in heads.items()}
        if of_records:
            paths = [*files[layout.WORKLOADS], *files[layout.TRACES]]
            scans = share(partial(_scan_records, contents, visit), paths)
            contents = replace(contents, traces=tuple(one for found, _ in scans for one in found))
            runs = sum(head.solution is not None for head, _ in contents.traces)
            counts |= {"workloads": len(contents.traces) - runs, "traces": runs}
            findings += (one for _, told in scans for one in told)
    for name, check in combine.items():
        try:
            findings += list(check(contents))
        except Exception as error:  # noqa: BLE001 - a plugin's check may raise anything
            findings.append(_raised(name, error))
    order = {name: index for index, name in enumerate(checks)}
    told = [one for one in findings if one.check in checks]
    told.sort(key=lambda one: (order[one.check], one.path, one.line or 0))
    return ValidationReport(base, tuple(told), counts, chosen_layers)


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


def _raised(name: str, error: Exception) -> Finding:
    """Make a finding of what a check raises, which may be a plugin's; the others go on."""
    message = f"the check raised {type(error).__name__}: {error}"
    hint = "run `fib plugins doctor` to see whose it is"
    return Place(name, Path()).error(message, hint=hint)


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
        size = sum(path.stat().st_size for path in paths if path.exists())
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        jobs = min(cores or 1, _MOST_JOBS) if size >= _WORTH else 1
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


_Scan = tuple[list[Any], list[Finding]]
"""What came of one file: what is kept of each record, with its place; and findings."""


def _scan_file(root: Path, folder: str, path: Path) -> _Scan:
    """Read a definition or solution."""
    place = Place(folder, path.relative_to(root))
    try:
        if folder == layout.DEFINITIONS:
            return [(load_definition(path, root), place)], []
        solution = decode(Solution, path.read_bytes(), path=path)
        head = SolutionHead(solution.name, solution.definition, solution.author)
        return [(head, place)], list(check_python(solution, place))
    except DataError as error:
        return [], [place.refused(error)]
    except OSError as error:
        return [], [place.error(f"cannot be read: {error.strerror or error}")]


def _scan_records(contents: Contents, names: Sequence[str], path: Path) -> _Scan:
    """Read workloads and traces one by one: never are all of them in memory."""
    from flashinfer_bench.data.trace_reader import TraceReader

    def tell_torn(_path: Path, _size: int) -> None:
        hint = "the next run that appends to this file moves the rest aside"
        findings.append(place.warning("its last line was never finished", hint=hint))

    relative = path.relative_to(contents.root)
    place = Place(relative.parts[0], relative)
    heads: list[tuple[TraceHead, Place]] = []
    findings: list[Finding] = []
    checks = {name: known_checks()[name].load() for name in names}
    reader = TraceReader()
    try:
        for line, text in read_records(path, tell_torn):
            at = place._replace(line=line)
            try:
                trace = reader.read(text, path=path, line=line)
            except DataError as error:
                findings.append(at.refused(error))
                continue
            run = trace.evaluation
            content = trace.workload.model_dump(mode="json") if run is None else None
            mark = json.dumps(content, sort_keys=True) if run is None else str(run.status)
            head = TraceHead(trace.definition, trace.workload.uuid, trace.solution, mark)
            heads.append((head, at))
            record = Record(trace, at)
            for name, check in list(checks.items()):
                try:
                    findings += check.visit(record, contents)
                except Exception as error:  # noqa: BLE001 - a plugin's check may raise anything
                    findings.append(_raised(name, error))
                    del checks[name]  # is asked no more
    except OSError as error:
        findings.append(place.error(f"cannot be read: {error.strerror or error}"))
    return heads, findings
