"""Running the checks of all layers on a dataset, in one process or in several."""

from __future__ import annotations

import json
import multiprocessing
import re
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional, Union

from flashinfer_bench._providers import not_installed, provider_of
from flashinfer_bench.data import Solution, layout
from flashinfer_bench.data.json_codec import decode
from flashinfer_bench.data.jsonl import read_records
from flashinfer_bench.data.loader import load_definition, paused_gc
from flashinfer_bench.data.trace_reader import TraceReader
from flashinfer_bench.errors import CapabilityError, DataError, UnknownNameError
from flashinfer_bench.plugins import default_catalog
from flashinfer_bench.tensors.devices import usable_cores
from flashinfer_bench.validate import records
from flashinfer_bench.validate.checks import SUFFIXES
from flashinfer_bench.validate.records import Contents, Finding, Place, RecordCheck, Severity

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from flashinfer_bench.plugins import CheckSpec, Registered

_LAYERS = ("layout", "definition", "workload", "solution", "trace")
_MOST_JOBS = 8
_WORTH = 128 << 20  # bytes; starting processes pays off only above
_key_names = re.compile(rb'"[^"\\]+" *:').findall


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
        Numbers of checked definitions, solutions, workloads and traces.
    layers : tuple of str
        The layers that were checked.
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
    """Return the registered checks by name, in the order of their findings."""
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
    """Check a dataset without changing it and without running its code.

    Invalid records are findings, not exceptions. Neither torch nor a device is needed. Traces are
    read one by one, and only their heads are kept in memory.

    Parameters
    ----------
    root : str or Path
        The dataset.
    layers : iterable of str, optional
        Restricts the findings to these layers; by default all.
    jobs : int, optional
        Maximum number of processes; None for one per core if the dataset is large. A script that
        uses several must be guarded by ``if __name__ == "__main__"``.

    Returns
    -------
    ValidationReport
        All findings.

    Raises
    ------
    DatasetNotFoundError
        If there is no such folder.
    SelectionError
        If it has nothing to check.
    UnknownNameError
        If there is no such layer.
    CapabilityError
        If the distribution of a layer is not installed, or a process is killed.
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
    # By the field of `Contents` that keeps what is read, in reading order.
    folders = {"definition_files": [layout.DEFINITIONS], "solution_files": [layout.SOLUTIONS]}
    folders |= {"traces": [layout.WORKLOADS, layout.TRACES] if of_records else []}
    files = {
        name: [path for folder in some for path in _list_files(base, folder, findings)]
        for name, some in folders.items()
    }
    contents = Contents(base)
    with _sharing(jobs, [path for paths in files.values() for path in paths]) as share:
        for name, paths in files.items():
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
    """Add the unreadable definitions to the contents, and their users to the findings."""
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
            raise not_installed(f"layer {name!r}", provider)
        hint = f"choose from: {', '.join(known)}"
        raise UnknownNameError(f"no check is called {name!r}", hint=hint, unknown=(name,))
    return {name: entry for name, entry in known_checks().items() if entry.spec.layer in layers}


def _ask(checks: dict[str, RecordCheck], what: str, *about: Any) -> Iterator[Finding]:
    """Call a function of every check; one that raises is not called again."""
    for name, check in list(checks.items()):
        try:
            yield from getattr(check, what)(*about)
        except Exception as error:  # noqa: BLE001 - a plugin's check may raise anything
            del checks[name]
            yield _raised(name, error)


def _raised(name: str, error: Exception) -> Finding:
    message = f"the check raised {type(error).__name__}: {error}"
    hint = "this is a bug of the plugin that provides it; run `fib plugins doctor` to find it"
    return Place(name, Path()).error(message, hint=hint)


def _list_files(root: Path, folder: str, findings: list[Finding]) -> list[Path]:
    def tell(error: OSError) -> None:
        at = Path(error.filename) if error.filename else root / folder
        place = Place(folder, at.relative_to(root) if at.is_relative_to(root) else Path(folder))
        findings.append(place.error(f"cannot be listed: {error.strerror or error}"))

    return layout.files(root / folder, *SUFFIXES[folder], on_error=tell)


@contextmanager
def _sharing(jobs: Optional[int], paths: Sequence[Path]) -> Iterator[Any]:
    """Yield a function like `map` over files, in processes: threads do not speed up decoding."""
    if jobs is None:
        size = sum(path.stat().st_size for path in paths if path.exists())
        jobs = min(usable_cores(), _MOST_JOBS) if size >= _WORTH else 1
    if jobs == 1:
        with paused_gc():
            yield lambda function, some: list(map(function, some))
        return
    # Forking a process with threads may hang; spawning one takes half a second.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=context) as pool:
        try:  # arguments bound to the function are sent once for each chunk
            yield lambda function, some: list(
                pool.map(function, some, chunksize=max(1, len(some) // (4 * jobs)))
            )
        except BrokenProcessPool as error:
            raise CapabilityError(
                "a validation process was killed", hint="try again with --jobs 1"
            ) from error


def _scan(contents: Contents, names: Sequence[str], path: Path) -> tuple[list[Any], list[Finding]]:
    """Read a file; return the kept part of each record with its place, and findings.

    Workloads and traces are read one by one, so that they are never all in memory.
    """

    def tell_torn(_path: Path, _size: int) -> None:
        hint = "the next append to this file moves the line to FILE.torn"
        findings.append(place.warning("the last line is unfinished and is ignored", hint=hint))

    relative = path.relative_to(contents.root)
    place = Place(relative.parts[0], relative)
    kept: list[Any] = []
    findings: list[Finding] = []
    seen: set[tuple[bytes, ...]] = set()
    known = known_checks()
    checks = {name: one for name in names if isinstance(one := known[name].load(), RecordCheck)}
    findings += _ask(checks, "file", path, place)
    try:
        if place.check in (layout.DEFINITIONS, layout.SOLUTIONS):
            findings += _repeated_keys(path.read_bytes(), place, seen)
        if place.check == layout.DEFINITIONS:
            return [(load_definition(path, contents.root), place)], findings
        if place.check == layout.SOLUTIONS:
            solution = decode(Solution, path.read_bytes(), path=path)
            head = records.SolutionHead(solution.name, solution.definition, solution.author)
            return [(head, place)], [*findings, *_ask(checks, "solution", solution, place)]
        reader = TraceReader()
        for line, text in read_records(path, tell_torn):
            at = Place(place.check, relative, line)  # faster than _replace
            if line or not seen:  # a file without lines is checked once, as a whole
                findings += _repeated_keys(text if line else path.read_bytes(), at, seen)
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


def _repeated_keys(text: bytes, place: Place, seen: set[tuple[bytes, ...]]) -> Iterator[Finding]:
    """Yield a warning for each key that occurs more than once in an object of a JSON text.

    A text whose sequence of keys is in `seen` is skipped: the lines of a file have few of them.
    """
    if (names := tuple(_key_names(text))) in seen:
        return
    seen.add(names)
    keys: Counter[str] = Counter()
    with suppress(ValueError, RecursionError):  # reported by the reader
        json.loads(text, object_pairs_hook=lambda pairs: keys.update(_repeated(pairs)))
    for key in keys:
        message = f'the key "{key}" occurs more than once in an object; only its last value is read'
        yield place.warning(message, key, "remove all but one")


def _repeated(pairs: Sequence[tuple[str, Any]]) -> set[str]:
    counts = Counter(key for key, _ in pairs)
    return {key for key, count in counts.items() if count > 1}
