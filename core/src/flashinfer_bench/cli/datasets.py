"""Opening the datasets that a command line names."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Optional

from flashinfer_bench import env
from flashinfer_bench.cli.exit_codes import ExitCode
from flashinfer_bench.cli.output import talk
from flashinfer_bench.errors import SelectionError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from flashinfer_bench.data import TraceSet
    from flashinfer_bench.errors import DataError

_SHOWN = 10


class OpenedDataset(NamedTuple):
    """A dataset, and what of it could not be read."""

    trace_set: TraceSet
    roots: tuple[Path, ...]
    errors: tuple[DataError, ...]

    @property
    def name(self) -> str:
        """The folders, as the user named them."""
        return ", ".join(str(root) for root in self.roots)

    def exit_code(self) -> ExitCode:
        """Return the code of a command that did what it could with the readable part."""
        return ExitCode.FINDINGS if self.errors else ExitCode.OK


def dataset_roots(local: Optional[Sequence[Path]], hub: Optional[str] = None) -> tuple[Path, ...]:
    """Return the folders to read.

    Parameters
    ----------
    local : sequence of Path, optional
        Values of ``--local``.
    hub : str, optional
        Value of ``--hub``: this dataset is fetched, and comes after the local ones.

    Raises
    ------
    ConfigError
        If `hub` is no name of a dataset.
    CapabilityError
        If what reads the hub is not installed.
    DatasetNotFoundError
        If there is no such dataset, or the hub cannot be reached.
    """
    if hub:
        from flashinfer_bench.data.hub import HubDataset, download_dataset

        return (*(local or ()), download_dataset(HubDataset.parse(hub)))
    return tuple(local) if local else (env.dataset_path(),)


def open_datasets(local: Optional[Sequence[Path]], hub: Optional[str] = None) -> OpenedDataset:
    """Read the datasets of a command line as one.

    Broken files and lines are left out and told on stderr, so that one of them does not take the
    rest of a dataset away; the command then ends with `ExitCode.FINDINGS`.

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
        If two datasets hold different things under one name.
    SelectionError
        If there is nothing in them.
    CapabilityError
        If what reads the hub is not installed.
    """
    from flashinfer_bench.data import TraceSet, merge_trace_sets

    roots = dataset_roots(local, hub)
    sets = [TraceSet.from_path(root, on_error="collect") for root in roots]
    errors = tuple(error for one in sets for error in one.load_errors)
    _tell_errors(errors)
    trace_set = sets[0] if len(sets) == 1 else merge_trace_sets(sets)
    opened = OpenedDataset(trace_set, roots, errors)
    _require_content(opened)
    return opened


def _require_content(opened: OpenedDataset) -> None:
    if opened.trace_set.definitions or opened.trace_set.run_columns():
        return
    raise SelectionError(
        f"there is nothing in the dataset {opened.name}",
        hint="a dataset has the folders definitions, solutions, workloads and traces",
    )


def _tell_errors(errors: Sequence[DataError]) -> None:
    for error in errors[:_SHOWN]:
        talk(f"error: {error.where}: {error.message}")
    if len(errors) > _SHOWN:
        talk(f"error: … and {len(errors) - _SHOWN} more like these")
    if errors:
        talk("hint: what is broken was left out; 'fib validate' lists all of it")
