"""Tables: for each definition and key the solution to take.

A table is made from the index of the dataset's traces, which is kept on disk and brought up to
date by what was appended; see `flashinfer_bench.data.index`.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Optional, Union

from flashinfer_bench.apply.config import as_registry
from flashinfer_bench.apply.hardware import Place, this_hardware
from flashinfer_bench.errors import ConfigError, UnknownNameError

if TYPE_CHECKING:
    from collections.abc import Collection

    from flashinfer_bench.apply.config import ApplyConfig, ApplyConfigRegistry
    from flashinfer_bench.apply.keys import ApplyKey
    from flashinfer_bench.apply.selection import Candidates
    from flashinfer_bench.data import Definition, Solution, TraceSet

    Config = Union[ApplyConfig, ApplyConfigRegistry, None]
    Dataset = Union[TraceSet, str, Path]


@dataclass(repr=False, eq=False)
class ApplyTable:
    """For each definition the solutions to take.

    Parameters
    ----------
    definitions : dict of str to Candidates
        By name; also definitions for which there is nothing to take, and at the end those that the
        dataset has runs of, but lacks.
    hardware : str
        For which this holds.
    digest : str
        Of the hardware, the choices and the solutions that are chosen, in hexadecimal.
    source : Source
        The definitions and solutions.
    problems : list of str
        What was left out of the dataset because it cannot be read.
    """

    definitions: dict[str, Candidates]
    hardware: str
    digest: str
    source: Source
    problems: list[str]

    def __repr__(self) -> str:
        keys = sum(len(one.choices) for one in self.definitions.values())
        return f"ApplyTable({len(self.definitions)} definitions, {keys} keys, {self.hardware!r})"

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
        return None if table is None else table.choices.get(key)

    @classmethod
    def load_or_build(
        cls, source: Optional[Dataset], config: Config = None, *, hardware: Optional[str] = None
    ) -> ApplyTable:
        """Return the table of a dataset.

        Parameters
        ----------
        source : TraceSet, str, Path or None
            The dataset; None for the folder of ``FIB_DATASET_PATH``. What cannot be read in it is
            left out, see `problems`.
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
        from flashinfer_bench.apply.selection import Candidates, Collector
        from flashinfer_bench.data.loader import paused_gc
        from flashinfer_bench.data.trace_set import TraceSet

        configs = as_registry(config)
        place = Place.of(this_hardware() if hardware is None else hardware)
        with paused_gc():
            if source is None or isinstance(source, (str, Path)):
                folder = None if source is None else Path(source).expanduser()
                source = TraceSet.from_path(folder, on_error="collect")
            if not isinstance(source, TraceSet):
                raise ConfigError(f"give a TraceSet or a path, not {type(source).__name__}")
            solutions = {one.name: one for group in source.solutions.values() for one in group}
            parts = Source(source.root, dict(source.definitions), solutions)
            collector = Collector(configs, place, parts)
            collector.add(source.run_rows())
            problems = [str(each) for each in (*source.load_errors, *source.torn_lines)]
        found = collector.outcome()
        names = [*parts.definitions, *sorted(found.keys() - parts.definitions.keys())]
        definitions = {name: found.get(name) or Candidates() for name in names}
        choices = [(name, one.choices, one.best) for name, one in definitions.items()]
        taken = {name for _, won, best in choices for name in (*won.values(), best) if name}
        hashes = [(name, parts.solution(name).hash()) for name in sorted(taken)]
        whole = repr((place.hardware, choices, hashes)).encode()
        digest = hashlib.sha256(whole).hexdigest()
        return cls(definitions, place.hardware, digest, parts, problems)


class Source(NamedTuple):
    """The definitions and solutions of a dataset, as they were when it was read.

    Attributes
    ----------
    root : Path or None
        Folder of the dataset; None for one in memory.
    definitions : dict of str to Definition
        By name.
    solutions : dict of str to Solution
        By name.
    """

    root: Optional[Path]
    definitions: dict[str, Definition]
    solutions: dict[str, Solution]

    def definition(self, name: str) -> Definition:
        """Return a definition.

        Raises
        ------
        UnknownNameError
            If there is none of that name.
        """
        if name not in self.definitions:
            raise unknown("definition", name, self.definitions)
        return self.definitions[name]

    def solution(self, name: str) -> Solution:
        """Return a solution; raises what `definition` does."""
        if name not in self.solutions:
            raise unknown("solution", name, self.solutions)
        return self.solutions[name]


def unknown(kind: str, name: str, known: Collection[str]) -> UnknownNameError:
    """Make the error for a name that does not exist, with names that are like it."""
    near = get_close_matches(name, known, n=3)
    some = ", ".join(sorted(known)[:10]) + (", …" if len(known) > 10 else "")
    hint = f"did you mean {', '.join(near)}?" if near else f"there are: {some or 'none at all'}"
    return UnknownNameError(f"no {kind} is called {name!r}", hint=hint, unknown=(name,))
