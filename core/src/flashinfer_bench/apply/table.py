"""Tables: for each definition and key the solution to take.

Where a kept table is found nothing of the dataset is read, and neither pydantic nor torch imported.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Optional, Union

from flashinfer_bench import env
from flashinfer_bench.apply.config import as_registry
from flashinfer_bench.apply.hardware import Place, this_hardware
from flashinfer_bench.apply.snapshot import Snapshot
from flashinfer_bench.apply.source import FolderSource
from flashinfer_bench.apply.table_cache import load, purpose_of
from flashinfer_bench.errors import ConfigError, DatasetNotFoundError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from flashinfer_bench.apply.config import ApplyConfig, ApplyConfigRegistry
    from flashinfer_bench.apply.keys import ApplyKey
    from flashinfer_bench.apply.source import Source
    from flashinfer_bench.apply.table_cache import StoredChoice, StoredDefinition
    from flashinfer_bench.data import TraceSet

TableSource = Union["TraceSet", str, Path, None]
"""A dataset in memory, its folder, or None for the folder of ``FIB_DATASET_PATH``."""


@dataclass(frozen=True)
class Choice:
    """The solution to take for one key.

    Attributes
    ----------
    solution : str
        Its name.
    latency_ms : float
        Median of its recorded latencies, in milliseconds.
    workload : str
        uuid of a workload with this key that it was run on.
    key : ApplyKey
        The key.
    """

    solution: str
    latency_ms: float
    workload: str
    key: ApplyKey


@dataclass
class DefinitionTable:
    """What to take for the calls of one definition.

    Attributes
    ----------
    definition, op_type : str
        Its name and family.
    choices : dict of ApplyKey to Choice
        The winner of each recorded key.
    best : Choice or None
        What to take for other keys, if that is wanted: the solution that
        `flashinfer_bench.apply.selection.best_of_all` names, with its record on the first key that
        it has. None if there is no such solution.
    barred : dict of ApplyKey to frozenset of str
        For each key that was recorded, and nobody won, the solutions that were tried: no policy
        for other keys may give it to one of these.
    """

    definition: str
    op_type: str
    choices: dict[ApplyKey, Choice] = field(default_factory=dict)
    best: Optional[Choice] = None
    barred: dict[ApplyKey, frozenset[str]] = field(default_factory=dict)

    def lookup(self, key: ApplyKey) -> Optional[Choice]:
        """Return the winner of a key, None if nobody may have it."""
        return self.choices.get(key)

    def lend(self, key: Optional[ApplyKey], choice: Optional[Choice]) -> Optional[Choice]:
        """Return a choice that was made for another key, None if it has failed for this one."""
        if choice is None or key is None:
            return choice
        return None if choice.solution in self.barred.get(key, ()) else choice


class ApplyTable:
    """For each definition the solutions to take.

    Parameters
    ----------
    definitions : dict of str to DefinitionTable
        By name; also definitions for which there is nothing to take.
    hardware : str
        For which this holds.
    digest : str
        Of all that the table was made from, in hexadecimal.
    source : Source, optional
        Has the definitions and solutions; not read before it is asked.
    problems : iterable of str
        What was left out of the dataset because it cannot be read.
    """

    def __init__(
        self,
        definitions: dict[str, DefinitionTable],
        hardware: str,
        digest: str,
        source: Optional[Source] = None,
        problems: Iterable[str] = (),
    ) -> None:
        self.definitions = definitions
        self.hardware = hardware
        self.digest = digest
        self.problems = list(problems)
        self._source = source

    def __repr__(self) -> str:
        keys = sum(len(one.choices) for one in self.definitions.values())
        return f"ApplyTable({len(self.definitions)} definitions, {keys} keys, {self.hardware!r})"

    @property
    def source(self) -> Source:
        """Gives the definitions and solutions by name.

        Raises
        ------
        ConfigError
            If the table was made by hand, without a source.
        """
        if self._source is None:
            raise ConfigError("this table has no source of definitions and solutions")
        return self._source

    def match_solution(self, def_name: str, key: ApplyKey) -> Optional[str]:
        """Return the name of the solution to take, None if there is none.

        Parameters
        ----------
        def_name : str
            The definition.
        key : ApplyKey
            Of the call.
        """
        table = self.definitions.get(def_name)
        choice = table.lookup(key) if table is not None else None
        return choice.solution if choice is not None else None

    @classmethod
    def load_or_build(
        cls,
        source: TableSource,
        config: Union[ApplyConfig, ApplyConfigRegistry, None] = None,
        *,
        hardware: Optional[str] = None,
    ) -> ApplyTable:
        """Return the table of a dataset.

        That of a folder is kept below ``FIB_CACHE_PATH`` and found again as long as nothing that it
        depends on has changed; then only the times of the dataset's files are looked at. Whatever
        is wrong with a kept table, it is made anew.

        Parameters
        ----------
        source : TraceSet, str, Path or None
            The dataset. What cannot be read in it is left out, see `problems`.
        config : ApplyConfig or ApplyConfigRegistry, optional
            The bounds on errors; by default those of `get_default_registry`.
        hardware : str, optional
            Whose records count, as ``environment.hardware`` names it; by default this machine's.

        Raises
        ------
        DatasetNotFoundError
            If there is no such folder.
        ConfigError
            If `config` or `source` is something else.
        DataError
            If a `TraceSet` that is to raise at what is not valid reads its traces only now.
        """
        configs = as_registry(config)
        place = Place.of(this_hardware() if hardware is None else hardware)
        if source is None or isinstance(source, (str, Path)):
            return _of_folder(dataset_folder(source), configs, place)
        from flashinfer_bench.apply.table_build import table_of_memory

        tables, digest, made, problems = table_of_memory(source, configs, place)
        return cls(_restored(tables), place.hardware, digest, made, problems)


def dataset_folder(source: Union[str, Path, None]) -> Path:
    """Return the absolute path of a dataset's folder.

    Raises
    ------
    DatasetNotFoundError
        If there is none.
    """
    root = env.dataset_path() if source is None else Path(source).expanduser().absolute()
    if not root.is_dir():
        what = "is not a folder" if root.exists() else "does not exist"
        hint = "name a dataset folder, or set FIB_DATASET_PATH"
        raise DatasetNotFoundError(f"no dataset: {root} {what}", hint=hint)
    return root


def _of_folder(root: Path, configs: ApplyConfigRegistry, place: Place) -> ApplyTable:
    snapshot = Snapshot(root)
    table = None
    if not snapshot.is_new:  # else there is no table, and reading can go on meanwhile
        purpose = purpose_of(snapshot, configs, place)
        table = load(purpose)
    if table is not None:
        source = FolderSource(root, table.definition_files, table.solution_files)
    else:
        from flashinfer_bench.apply.table_build import build_table

        source, table, purpose = build_table(snapshot, configs, place)
    tables = _restored(table.definitions)
    return ApplyTable(tables, place.hardware, purpose.hex(), source, table.problems)


def _restored(stored: Iterable[StoredDefinition]) -> dict[str, DefinitionTable]:
    tables = {}
    for one in stored:
        made = [_choice(choice) for choice in one.choices]
        best = None if one.best is None else _choice(one.best)
        choices = {choice.key: choice for choice in made}
        barred = {bar.key(): frozenset(bar.solutions) for bar in one.barred}
        tables[one.name] = DefinitionTable(one.name, one.op_type, choices, best, barred)
    return tables


def _choice(stored: StoredChoice) -> Choice:
    return Choice(stored.solution, stored.latency_ms, stored.workload, stored.key())
