"""Running the checks of all layers over a dataset, in one process or in several."""

from __future__ import annotations

import multiprocessing
import os
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional, Union

from flashinfer_bench._providers import install_hint, provider_of
from flashinfer_bench.data import Solution, layout
from flashinfer_bench.data.json_codec import decode
from flashinfer_bench.data.jsonl import read_records
from flashinfer_bench.data.loader import load_definition, paused_gc
from flashinfer_bench.data.trace_reader import TraceReader
from flashinfer_bench.errors import CapabilityError, DataError, UnknownNameError
from flashinfer_bench.plugins import default_catalog
from flashinfer_bench.validate import records
from flashinfer_bench.validate.checks import SUFFIXES
from flashinfer_bench.validate.records import Contents, Finding, Place, RecordCheck, Severity

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from flashinfer_bench.plugins import CheckSpec, Registered

_LAYERS = ("layout", "definition", "workload", "solution", "trace")
_KEPT = ("definition_files", "solution_files", "traces")  # of `Contents`, as they are read
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
    chosen = tuple(dict.fromkeys(known_layers() if layers is None else layers))
    entries = _chosen_checks(chosen)
    layout.require_dataset(base)
    findings: list[Finding] = []
    checks: dict[str, RecordCheck] = {}
    for name, entry in entries.items():
        try:
            check = entry.load()
        except Exception as error:  # noqa: BLE001 - a plugin's check may raise anything
            findings.append(_raised(name, error))
            continue
        checks[name] = check if isinstance(check, RecordCheck) else RecordCheck(combine=check)
    of_records = any(entry.spec.records for entry in entries.values())
    files = {
        folder: _list_files(base, folder, findings)
        for folder in SUFFIXES
        if of_records or folder in (layout.DEFINITIONS, layout.SOLUTIONS)
    }
    runs = [*files.pop(layout.WORKLOADS, ()), *files.pop(layout.TRACES, ())]
    contents = Contents(base)
    with _sharing(jobs, [*runs, *(path for paths in files.values() for path in paths)]) as share:
        for name, paths in zip(_KEPT, (*files.values(), runs), strict=True):
            scans = share(partial(_scan, contents, [*checks]), paths)
            findings += (one for _, told in scans for one in told)
            kept: Any = {name: tuple(one for found, _ in scans for one in found)}
            contents = replace(contents, **kept)
    counts = {
        layout.DEFINITIONS: len(contents.definition_files),
        layout.SOLUTIONS: len(contents.solution_files),
    }
    if of_records:
        of_runs = sum(head.solution is not None for head, _ in contents.traces)
        counts |= {"workloads": len(contents.traces) - of_runs, "traces": of_runs}
    contents = _with_unread(contents, findings)
    findings += _ask(checks, "combine", contents)
    order = {name: index for index, name in enumerate(entries)}
    told = [one for one in findings if one.check in entries]
    told.sort(key=lambda one: (order[one.check], one.path, one.line or 0))
    return ValidationReport(base, tuple(told), counts, chosen)


def _with_unread(contents: Contents, findings: list[Finding]) -> Contents:
    """Note which definitions cannot be read, and add to their errors what depends on them."""
    bad = (Severity.ERROR, layout.DEFINITIONS)
    broken = {
        one.path.stem: number
        for number, one in enumerate(findings)
        if (one.severity, one.check) == bad and one.path.stem not in contents.definitions
    }
    if not broken:
        return contents
    used: dict[str, Counter[str]] = {name: Counter() for name in broken}
    for solution, _ in contents.solution_files:
        used.get(solution.definition, Counter())["solution"] += 1
    for head, _ in contents.traces:
        used.get(head.definition, Counter())["workload" if head.solution is None else "trace"] += 1
    for name, number in broken.items():
        if counts := ", ".join(f"{n} {what}{'s'[: n > 1]}" for what, n in used[name].items()):
            one = findings[number]
            findings[number] = replace(one, message=f"{one.message} (named by {counts})")
    return replace(contents, unread=frozenset(broken))


def _chosen_checks(layers: Sequence[str]) -> dict[str, Registered[CheckSpec]]:
    known = known_layers()
    for name in layers:
        if name in known:
            continue
        if provider := provider_of("layer", name):
            raise CapabilityError(
                f"layer {name!r} is provided by {provider}, which is not installed",
                hint=install_hint(provider),
            )
        hint = f"choose from: {', '.join(known)}"
        raise UnknownNameError(f"no check is called {name!r}", hint=hint, unknown=(name,))
    return {name: entry for name, entry in known_checks().items() if entry.spec.layer in layers}


def _ask(checks: dict[str, RecordCheck], what: str, *about: Any) -> Iterator[Finding]:
    """Ask every check; one that raises is asked no more, and the others go on."""
    for name, check in list(checks.items()):
        try:
            yield from getattr(check, what)(*about)
        except Exception as error:  # noqa: BLE001 - a plugin's check may raise anything
            del checks[name]
            yield _raised(name, error)


def _raised(name: str, error: Exception) -> Finding:
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
        try:  # what the function holds is sent once for each chunk
            yield lambda function, some: list(
                pool.map(function, some, chunksize=max(1, len(some) // (4 * jobs)))
            )
        except BrokenProcessPool as error:
            raise CapabilityError(
                "a process of the validation was killed", hint="try again with --jobs 1"
            ) from error


def _scan(contents: Contents, names: Sequence[str], path: Path) -> tuple[list[Any], list[Finding]]:
    """Read a file; return what is kept of each record, with its place, and findings.

    Workloads and traces are read one by one: never are all of them in memory.
    """

    def tell_torn(_path: Path, _size: int) -> None:
        hint = "the next run that appends to this file moves the rest aside"
        findings.append(place.warning("its last line was never finished", hint=hint))

    relative = path.relative_to(contents.root)
    place = Place(relative.parts[0], relative)
    kept: list[Any] = []
    findings: list[Finding] = []
    known = known_checks()
    checks = {name: one for name in names if isinstance(one := known[name].load(), RecordCheck)}
    findings += _ask(checks, "file", path, place)
    try:
        if place.check == layout.DEFINITIONS:
            return [(load_definition(path, contents.root), place)], findings
        if place.check == layout.SOLUTIONS:
            solution = decode(Solution, path.read_bytes(), path=path)
            head = records.SolutionHead(solution.name, solution.definition, solution.author)
            return [(head, place)], [*findings, *_ask(checks, "solution", solution, place)]
        reader = TraceReader()
        for line, text in read_records(path, tell_torn):
            at = Place(place.check, relative, line)  # quicker than to replace its line
            try:
                trace = reader.read(text, path=path, line=line)
            except DataError as error:
                findings.append(at.refused(error))
                continue
            kept.append((records.TraceHead.of(trace), at))
            findings += _ask(checks, "visit", records.Record(trace, at), contents)
    except DataError as error:
        findings.append(place.refused(error))
    except OSError as error:
        findings.append(place.error(f"cannot be read: {error.strerror or error}"))
    return kept, findings
