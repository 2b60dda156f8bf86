"""What choosing among solutions needs of a trace file: the figures of its runs, grouped.

A file's lines are grouped by what they have in common: definition, workload, solution, environment,
and who has judged which content of the solution. Of each run then mostly three numbers remain. This
depends on the file's content alone, not on the machine, the bounds on errors or the other files.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Optional, TypeVar

import msgspec
from pydantic import BaseModel

from flashinfer_bench.data.trace import Environment
from flashinfer_bench.data.workload import Workload

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flashinfer_bench.apply.records.lean import Provenance, Run

PASSED = "PASSED"
_INF = math.inf
_FIGURES = 3
_Part = TypeVar("_Part", bound=BaseModel)


class Other(msgspec.Struct, array_like=True, gc=False):
    """A run that has not just passed.

    Attributes
    ----------
    status : str
        The verdict. The rest is of runs that passed.
    latency_ms, absolute, relative : float
        Latency in milliseconds, largest absolute and relative error; may be NaN or infinite.
    matched_ratio : float or None
        Share of the elements that match.
    integrity : any
        What a judge has noted.
    """

    status: str
    latency_ms: float = math.nan
    absolute: float = math.nan
    relative: float = math.nan
    matched_ratio: Optional[float] = None
    integrity: Any = None


class Runs(msgspec.Struct, array_like=True, gc=False):
    """The runs of one solution on one workload, in one environment, in one file.

    Attributes
    ----------
    definition, solution : str
        Their names.
    workload, environment : int
        Places in the lists of the `FileRuns`.
    is_judged : bool
        Whether the runs name their evaluator.
    solution_hash : str or None
        Content of the solution that was run, if it is recorded.
    figures : list of float
        Of each plain run latency in milliseconds, largest absolute and relative error, one run
        after the other: those that passed, with nothing noted, and all three finite.
    others : list of Other
        All other runs.
    """

    definition: str
    solution: str
    workload: int
    environment: int
    is_judged: bool
    solution_hash: Optional[str]
    figures: list[float] = msgspec.field(default_factory=list)
    others: list[Other] = msgspec.field(default_factory=list)

    def count(self) -> int:
        """Return the number of runs."""
        return len(self.figures) // _FIGURES + len(self.others)

    def latencies(self) -> list[float]:
        """Return the latencies of the plain runs in milliseconds."""
        return self.figures[::_FIGURES]

    def plain(self) -> Iterator[Other]:
        """Yield the plain runs."""
        figures = iter(self.figures)
        for latency, absolute, relative in zip(figures, figures, figures, strict=True):
            yield Other(PASSED, latency, absolute, relative)

    def worst(self) -> Other:
        """Return a run with the largest errors of all plain runs, of which there is one."""
        absolute, relative = max(self.figures[1::_FIGURES]), max(self.figures[2::_FIGURES])
        return Other(PASSED, self.figures[0], absolute, relative)


class FileRuns(msgspec.Struct, array_like=True, gc=False):
    """The runs in one file.

    Attributes
    ----------
    workloads, environments : list of bytes
        Their JSON, each once.
    groups : list of Runs
        None of them empty, in the order in which they are met.
    """

    workloads: list[bytes]
    environments: list[bytes]
    groups: list[Runs]

    def is_sound(self) -> bool:
        """Return whether all places are in the lists, and all figures are of whole runs."""
        workloads = {group.workload for group in self.groups}
        environments = {group.environment for group in self.groups}
        counts = {len(group.figures) % _FIGURES for group in self.groups}
        return (
            workloads <= set(range(len(self.workloads)))
            and environments <= set(range(len(self.environments)))
            and counts <= {0}
        )

    def take_up(self, texts: Texts) -> tuple[list[Workload], list[Environment]]:
        """Return the workloads and environments.

        Raises
        ------
        ValidationError
            If one of them is none.
        """
        workloads = list(map(texts.workload, self.workloads))
        return workloads, list(map(texts.environment, self.environments))


class Texts:
    """The workloads and environments of a dataset: one object for all that are written the same."""

    def __init__(self) -> None:
        self._workloads: dict[bytes, Workload] = {}
        self._environments: dict[bytes, Environment] = {}

    def workload(self, text: bytes) -> Workload:
        """Return the workload of a JSON text.

        Raises
        ------
        ValidationError
            If it is not one.
        """
        return self._workloads.get(text) or _made(Workload, text, self._workloads)

    def environment(self, text: bytes) -> Environment:
        """Return the environment of a JSON text.

        Raises
        ------
        ValidationError
            If it is not one.
        """
        return self._environments.get(text) or _made(Environment, text, self._environments)

    def add(self, workload: Workload, environment: Environment) -> tuple[bytes, bytes]:
        """Take over objects that have been read otherwise; return their texts."""
        texts = workload.model_dump_json().encode(), environment.model_dump_json().encode()
        self._workloads.setdefault(texts[0], workload)
        self._environments.setdefault(texts[1], environment)
        return texts


def _made(kind: type[_Part], text: bytes, known: dict[bytes, _Part]) -> _Part:
    made: _Part = kind.__pydantic_validator__.validate_json(text)
    known[text] = made
    return made


_Origin = tuple[bool, Optional[str]]
_Key = tuple[str, str, bytes, _Origin]
_NOBODY: _Origin = (False, None)


class Gatherer:
    """Groups the runs of one file.

    Parameters
    ----------
    texts : Texts
        Those of the dataset.
    known : FileRuns, optional
        What has been read of the file before; it is added to.
    """

    def __init__(self, texts: Texts, known: Optional[FileRuns] = None) -> None:
        self._texts = texts
        self._workloads: dict[bytes, tuple[int, dict[_Key, Runs]]] = {}
        self._environments: dict[bytes, int] = {}
        self._groups: list[Runs] = []
        self._last: tuple[Any, dict[_Key, Runs]] = (None, {})
        if known is not None:
            self._take_over(known)

    def _take_over(self, known: FileRuns) -> None:
        for text in known.workloads:
            self._of_workload(text)
        self._environments.update((text, place) for place, text in enumerate(known.environments))
        for group in known.groups:
            by_key = self._workloads[known.workloads[group.workload]][1]
            environment = known.environments[group.environment]
            origin = group.is_judged, group.solution_hash
            by_key[group.definition, group.solution, environment, origin] = group
        self._groups = known.groups

    def outcome(self) -> FileRuns:
        """Return what was gathered."""
        groups = [group for group in self._groups if group.figures or group.others]
        if not groups:  # as of files with nothing but workloads
            return FileRuns([], [], [])
        return FileRuns(list(self._workloads), list(self._environments), groups)

    def add(self, lines: list[Run]) -> None:
        """Take lines into account, all or none of them.

        Raises
        ------
        ValueError
            If one of them has a workload or an environment that is none, or is half a run.
        """
        groups: list[Optional[Runs]] = []
        seen, by_key = self._last  # lines with the same workload mostly follow one another
        for line in lines:
            if line.workload != seen:
                seen = line.workload
                by_key = self._of_workload(bytes(seen))
            evaluation, solution = line.evaluation, line.solution
            if evaluation is None or solution is None:
                if (evaluation is None) is not (solution is None):
                    raise ValueError("half a run")
                groups.append(None)
                continue
            made = evaluation.provenance
            origin = _NOBODY if made is None else _origin(made)
            key = line.definition, solution, bytes(evaluation.environment), origin
            groups.append(by_key.get(key) or self._open(bytes(seen), key))
        self._last = seen, by_key
        for group, line in zip(groups, lines, strict=True):
            if group is not None:
                _note(group, line.evaluation)

    def _of_workload(self, text: bytes) -> dict[_Key, Runs]:
        known = self._workloads.get(text)
        if known is None:
            self._texts.workload(text)
            known = self._workloads[text] = len(self._workloads), {}
        return known[1]

    def _open(self, workload: bytes, key: _Key) -> Runs:
        definition, solution, text, origin = key
        place = self._environments.get(text)
        if place is None:
            self._texts.environment(text)
            place = self._environments[text] = len(self._environments)
        number, by_key = self._workloads[workload]
        group = Runs(definition, solution, number, place, *origin)
        by_key[key] = group
        self._groups.append(group)
        return group


def _origin(provenance: Provenance) -> _Origin:
    return bool(provenance.evaluator), provenance.extra.solution_hash or None


def _note(group: Runs, one: Any) -> None:
    """Add a run to its group."""
    if one.performance is None:
        group.others.append(Other(one.__struct_config__.tag))
        return
    errors, latency = one.correctness, one.performance.latency_ms
    absolute, relative, extra = errors.max_absolute_error, errors.max_relative_error, errors.extra
    if (
        (extra is None or (extra.matched_ratio is None and extra.integrity is None))
        and type(absolute) is type(relative) is float
        and 0.0 < latency < _INF
        and absolute < _INF  # neither is NaN
        and relative < _INF
    ):
        group.figures += (latency, absolute, relative)
        return
    notes = (None, None) if extra is None else (extra.matched_ratio, extra.integrity)
    group.others.append(Other(PASSED, latency, float(absolute), float(relative), *notes))
