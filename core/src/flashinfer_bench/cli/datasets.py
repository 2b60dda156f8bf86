"""Opening the datasets that a command line names."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

from flashinfer_bench import env
from flashinfer_bench._providers import install_hint
from flashinfer_bench.cli.exit_codes import ExitCode
from flashinfer_bench.cli.output import table, talk
from flashinfer_bench.errors import CapabilityError, ConfigError, StorageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from flashinfer_bench.data import TraceSet
    from flashinfer_bench.errors import DataError

_SHOWN = 10


class OpenedDataset(NamedTuple):
    """A dataset, and the errors of its files and lines that could not be read."""

    trace_set: TraceSet
    roots: tuple[Path, ...]
    errors: tuple[DataError, ...]

    @property
    def name(self) -> str:
        """The folders, as the user named them."""
        return ", ".join(str(root) for root in self.roots)

    def exit_code(self) -> ExitCode:
        """Return the exit code of a command that worked on the readable part."""
        return ExitCode.FINDINGS if self.errors else ExitCode.OK


def dataset_roots(local: Optional[Sequence[Path]], hub: Optional[str] = None) -> tuple[Path, ...]:
    """Return the folders of the datasets that a command line names.

    Parameters
    ----------
    local : sequence of Path, optional
        Values of ``--local``.
    hub : str, optional
        Value of ``--hub``: a name on the hub, or ``SOURCE://…`` for another registered source. The
        dataset is downloaded, and comes after the local ones.

    Raises
    ------
    ConfigError
        If `hub` is not the name of a dataset.
    CapabilityError
        If the plugin that reads the hub is not installed.
    DatasetNotFoundError
        If the dataset does not exist, none is named or found, or the hub cannot be reached.
    """
    if hub:
        return (*(local or ()), _fetch(hub))
    if not local and not (root := default_dataset()).exists():
        from flashinfer_bench.data.layout import no_dataset

        raise no_dataset(f"none is named, and the default {root} does not exist")
    return tuple(local) if local else (root,)


def default_dataset() -> Path:
    """Return the dataset of a command line that names none.

    This is ``FIB_DATASET_PATH`` if set; else the current folder or its nearest parent with a folder
    ``definitions``; else the default of ``FIB_DATASET_PATH``.
    """
    if not env.set_variables().get("FIB_DATASET_PATH"):
        here = Path.cwd()
        for folder in (here, *here.parents):
            if (folder / "definitions").is_dir():
                return folder
    return env.dataset_path()


def require_writable(folder: Path, hint: str) -> None:
    """Check that a folder can be written to, before a long run fails at its end.

    Raises
    ------
    ConfigError
        With `hint`, if it is not a folder.
    StorageError
        With `hint`, if this user may not write to it.
    """
    there = next(one for one in (folder, *folder.parents) if os.path.lexists(one))
    if not there.is_dir():
        raise ConfigError(f"{there} is not a folder", hint=hint)
    if not os.access(there, os.W_OK | os.X_OK):
        raise StorageError(f"no permission to write to the folder {there}", hint=hint)


def _fetch(text: str) -> Path:
    """Download a dataset from the source named before ``://``; by default from the hub."""
    from flashinfer_bench.plugins import default_catalog

    name, mark, rest = text.partition("://")
    sources = default_catalog().sources
    if mark and name not in (known := sources.names):
        raise ConfigError(
            f"no source {name!r}; available sources: {', '.join(known)}",
            hint="--hub takes REPO, REPO@REVISION or SOURCE://NAME",
        )
    source = sources.find(name if mark else "hub")
    folder: Path = source.load()(rest if mark else text)
    return folder


def open_datasets(local: Optional[Sequence[Path]], hub: Optional[str] = None) -> OpenedDataset:
    """Read the datasets of a command line as one.

    Invalid files and lines are skipped and reported on stderr, so that the rest stays usable; the
    command then ends with `ExitCode.FINDINGS`.

    Parameters
    ----------
    local : sequence of Path, optional
        Values of ``--local``.
    hub : str, optional
        Value of ``--hub``.

    Raises
    ------
    DatasetNotFoundError
        If a folder, or a dataset of the hub, does not exist.
    ConflictError
        If two datasets have different records with the same name.
    SelectionError
        If they are empty.
    CapabilityError
        If the plugin that reads the hub, or merges datasets, is not installed.
    """
    from flashinfer_bench.data import TraceSet, layout

    roots = dataset_roots(local, hub)
    sets = [TraceSet.from_path(root, on_error="collect") for root in roots]
    errors = tuple(error for one in sets for error in one.load_errors)
    tell_broken([f"{error.where}: {error.message}" for error in errors])
    trace_set = sets[0] if len(sets) == 1 else _merged(sets)
    opened = OpenedDataset(trace_set, roots, errors)
    if not (trace_set.definitions or trace_set.run_source.names()):
        raise layout.empty_dataset(opened.name)
    return opened


def _merged(sets: list[TraceSet]) -> TraceSet:
    try:
        from flashinfer_bench.data import merge_trace_sets
    except ImportError as error:
        hint = install_hint("fib-datasets")
        raise CapabilityError(f"cannot merge several datasets: {error}", hint=hint) from error
    merged: TraceSet = merge_trace_sets(sets)
    return merged


def tell_broken(lines: Sequence[str]) -> None:
    """Print which files and lines of a dataset could not be read."""
    tell_some("error", lines)
    if lines:
        talk("hint: invalid files and lines were left out; 'fib validate' lists all of them")


def tell_some(what: str, lines: Sequence[str]) -> None:
    """Print the first of some lines, and how many more there are."""
    for line in lines[:_SHOWN]:
        talk(f"{what}: {line}")
    if len(lines) > _SHOWN:
        talk(f"{what}: … and {len(lines) - _SHOWN} more")


def error_documents(errors: Sequence[DataError]) -> list[dict[str, Any]]:
    """Return errors as ``--json`` writes them."""
    return [
        {"path": e.path, "line": e.line, "field": e.field, "message": e.message} for e in errors
    ]


def show_findings(datasets: Sequence[Mapping[str, Any]], *, listed: bool = True) -> None:
    """Print the findings of ``fib validate``: tables to stdout if `listed`, totals to stderr."""
    for one in datasets:
        folder = f"{one['root']}/" if len(datasets) > 1 else ""
        rows = [
            (
                *(found.severity.value, found.check, f"{folder}{found.where}"),
                f"{found.message} ({found.hint})" if found.hint else found.message,
            )
            for found in one["findings"]
        ]
        if rows and listed:
            columns = ("severity", "check", "place", "message")
            table(f"Findings in {one['root']}", columns, rows)
        seen = ", ".join(f"{count:,} {noun}" for noun, count in one["counts"].items())
        told = f"{one['errors']} errors, {one['warnings']} warnings"
        told += f", {one['notes']} notes" if one["notes"] else ""
        talk(f"{one['root']}: {told} in {seen}")
