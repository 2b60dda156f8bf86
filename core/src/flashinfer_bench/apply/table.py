"""Tables of the solution to use for each definition and key.

A table is made from the index of the dataset's traces, which is stored on disk and updated with
appended traces; see `flashinfer_bench.data.index`.

**Errors.** A trace contains the largest absolute and the largest relative error over all elements,
which usually belong to different elements: 0.03 of a 5.0, and 300 % of a 0.0001. If the user sets
no bounds, the following rules apply. They use the tolerance of the definition (of the workload, if
it has one), or else the default for the dtypes (`flashinfer_bench.tensors.dtypes`):

1. If either error is within the tolerance, then so is each element. The trace counts.
2. Otherwise the trace cannot show whether each element is within one of the two bounds. A judge
   that compared element by element could, and reported PASSED:

   * A record of this project's own judge, which names its evaluator, used the same tolerances. It
     counts.
   * Another record of 16-bit and smaller types, whose tolerance of 0.01 all harnesses share, counts
     if it states that all elements matched (``extra.matched_ratio``), or if the absolute error is
     at most four times the tolerance: the effect of rounding on values up to 8.
   * Other records of finer types do not count: harnesses allow ten times the appropriate error.

**Hardware and libraries.** A latency is valid for one model of hardware: records of other models do
not count, not even of the next larger model of the same family. Libraries are different: they
change with each environment, solutions are built anew here, and most releases change little. A
record is therefore rejected only if the library that compiles the solution is of a different
*series*:

=========================  ===========================================================
language                   must be of the same series, if both versions are known
=========================  ===========================================================
``cuda``, ``cpp``          CUDA, on a GPU; nothing on the CPU
``triton``                 triton
``tilelang``               tilelang
``python``                 torch
others                     as specified by a plugin's `LanguageSpec`; otherwise nothing
=========================  ===========================================================

A series is the major version, or ``0.minor`` before the first major version: 12.8 and 12.4 belong
to the same series, 12.8 and 13.0 do not.

**Latency** of a solution for a key: the median over all counted runs of all workloads with that
key. Ties go to the alphabetically first name.

**Incorrect solutions.** A solution that was found incorrect on this hardware is not used for the
affected keys, whatever else was recorded for them, and is never the best of its definition.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections import Counter
from dataclasses import dataclass, field
from functools import cache, cached_property
from itertools import chain
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple, Optional, Union

from flashinfer_bench._lazy import old_parameters
from flashinfer_bench.apply.config import as_registry
from flashinfer_bench.apply.keys import ApplyKey, ApplyKeyFactory
from flashinfer_bench.data.loader import paused_gc
from flashinfer_bench.data.trace_set import TraceSet
from flashinfer_bench.data.workload import Workload
from flashinfer_bench.errors import ConfigError, FibError, UnknownNameError
from flashinfer_bench.plugins import default_catalog
from flashinfer_bench.tensors import devices, dtypes

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from flashinfer_bench.apply.config import ApplyConfig, ApplyConfigRegistry
    from flashinfer_bench.data import Definition, Solution
    from flashinfer_bench.data.run_source import Origin, RunRow, Task

    Config = Union[ApplyConfig, ApplyConfigRegistry, None]
    Dataset = Union[TraceSet, str, Path]


REASONS = (
    "settings definition solution hardware target toolchain key stale status incorrect integrity "
    "error latency"
)
"""The rules by which a run may be excluded."""


class Reason(NamedTuple):
    """Why a run is excluded: the rule in `REASONS`, and a short text with the figures."""

    kind: str
    text: str


# ------------------------------------------------------------------------------- environments

# ``environment.hardware`` of a CPU includes its cores; anything else is a GPU.
_CPU_TEXT = re.compile(r"\(\d+ cores\)|^cpu\b", re.IGNORECASE)
_CORES = re.compile(r" \(\d+ cores\)$")
_SERIES = re.compile(r"(\d+)(?:\.(\d+))?")


class Place(NamedTuple):
    """The hardware and libraries on which solutions will run.

    Attributes
    ----------
    hardware : str
        Name as in traces.
    kind : str
        ``cpu`` or ``cuda``.
    versions : mapping of str to str
        Versions of the installed libraries.
    """

    hardware: str
    kind: str
    versions: Mapping[str, str]

    def toolchain_problem(self, language: str, recorded: Mapping[str, str]) -> Optional[str]:
        """Return why a record is not valid with the libraries here, or None if it is.

        Parameters
        ----------
        language : str
            Language of the solution.
        recorded : mapping of str to str
            ``environment.libs`` of the record.
        """
        known = default_catalog().languages.get(language)
        if known is None:
            return None
        for library in known.spec.libraries:
            if self.kind == "cpu" and library in known.spec.gpu_only:
                continue
            then, now = recorded.get(library, ""), self.versions.get(library, "")
            series = _series_of(then), _series_of(now)
            if None not in series and series[0] != series[1]:
                return f"recorded with {library} {then}; this machine has {now}"
        return None


def _series_of(version: str) -> Optional[str]:
    """Return the part of a version that changes with incompatible releases, or None."""
    found = _SERIES.match(version.strip())
    if found is None:
        return None
    major, minor = int(found[1]), int(found[2] or 0)
    return str(major) if major else f"0.{minor}"


# --------------------------------------------------------------------------------- single runs

_HEADROOM = 4.0
_COARSE = frozenset({"float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "float4_e2m1"})


@dataclass(frozen=True)
class Limits:
    """Bounds on recorded errors.

    Attributes
    ----------
    atol, rtol : float
        Largest absolute and relative error; infinite if unbounded.
    both : bool
        Whether both bounds must hold, as for bounds set by the user, rather than just one.
    coarse : bool
        Whether all floating-point outputs have 16 bits or fewer.
    matched_ratio : float
        Share of the elements that must match.
    """

    atol: float
    rtol: float
    both: bool = False
    coarse: bool = False
    matched_ratio: float = 1.0


def limits_for(
    definition: Definition, config: ApplyConfig, workload: Optional[Workload] = None
) -> Limits:
    """Return the limits for the runs of a definition.

    Parameters
    ----------
    definition : Definition
        Has the dtypes, and possibly a tolerance. With several outputs the widest tolerance is used,
        because a trace does not record which output its errors belong to.
    config : ApplyConfig
        May set bounds, which take precedence over everything else.
    workload : Workload, optional
        May have a tolerance, which takes precedence over the definition's.
    """
    if config.max_atol is not None or config.max_rtol is not None:
        bounds = (config.max_atol, config.max_rtol)
        atol, rtol = (math.inf if bound is None else bound for bound in bounds)
        return Limits(atol, rtol, both=True)
    layers = (definition.tolerance, None if workload is None else workload.tolerance)
    defaults = dtypes.default_tolerances(definition).items()
    values = [dtypes.tolerance_values(layers, default, output) for output, default in defaults]
    floats = [name for name, spec in definition.outputs.items() if spec.dtype.is_floating]
    precisions = {dtypes.precision_of(definition, name) for name in floats}
    ratios = (each.get("required_matched_ratio", 1.0) for each in values)
    return Limits(
        atol=max((each["atol"] for each in values), default=0.0),
        rtol=max((each["rtol"] for each in values), default=0.0),
        coarse=bool(floats) and precisions <= _COARSE,
        matched_ratio=min(ratios, default=1.0),
    )


def run_problem(run: RunRow, limits: Limits) -> Optional[Reason]:
    """Return why a run is excluded, or None; see the module docstring."""
    latency, absolute, relative = run.latency_ms, run.max_absolute_error, run.max_relative_error
    if not run.passed or latency is None or absolute is None or relative is None:
        return Reason("status", run.status.value)
    if not 0.0 < latency < math.inf:
        return Reason("latency", f"a latency of {latency:g} ms is not a measurement")
    matched, integrity = (None, None) if run.note is None else json.loads(run.note)
    problem = integrity_problem(integrity, latency)
    if problem is not None:
        return problem
    checks = (("absolute", absolute, limits.atol), ("relative", relative, limits.rtol))
    wide = [check for check in checks if not check[1] <= check[2]]  # NaN always counts as too large
    if not wide:
        return None
    known = not math.isnan(absolute) and not math.isnan(relative)
    loose = isinstance(integrity, dict) and bool(integrity.get("loose_tolerance"))
    enough = not loose and (len(wide) == 1 or _matched(run, absolute, matched, limits))
    if known and not limits.both and enough:
        return None
    parts = [f"{name} error {value:.4g} > {allowed:.4g}" for name, value, allowed in wide]
    return Reason("error", " and ".join(parts))


def _matched(run: RunRow, absolute: float, ratio: Optional[float], limits: Limits) -> bool:
    """Return whether the record supports that each element was within the tolerance."""
    if not absolute < math.inf:
        return False
    if run.origin.is_judged or not limits.coarse:
        return run.origin.is_judged
    if ratio is not None:
        return ratio >= limits.matched_ratio
    return absolute <= _HEADROOM * limits.atol


_ACCUSING = (
    *("disputed", "violation", "violations", "rule", "problem", "problems", "suspect", "cheat"),
)


def integrity_problem(note: Any, latency_ms: float) -> Optional[Reason]:
    """Return the objection that a judge has recorded against a run, or None.

    Parameters
    ----------
    note : Any
        ``correctness.extra["integrity"]``; None if it was not checked, which is not an objection.
    latency_ms : float
        The claimed latency in milliseconds.
    """
    if note is None or note is True:
        return None
    if not isinstance(note, dict):
        return Reason("integrity", f"integrity note: {str(note)[:80]}")
    for name in _ACCUSING:
        if note.get(name):
            return Reason("integrity", f"integrity: {name}: {str(note[name])[:80]}")
    floor = note.get("floor_ms")
    # The floor is rounded. NaN is not reached by any latency.
    if isinstance(floor, (int, float)) and not latency_ms * 1.01 >= floor:
        text = f"integrity: {latency_ms:g} ms, below the floor of {str(floor)[:20]} ms"
        return Reason("integrity", text)
    return None


# --------------------------------------------------------------------------------------- ranking


class Standing(NamedTuple):
    """A solution's result for one key. Standings sort best first, ties by name.

    Attributes
    ----------
    latency_ms : float
        Median over its runs, in milliseconds.
    solution : str
        Name of the solution.
    runs : int
        Number of runs.
    workload : str
        Smallest uuid of the workloads that were run.
    """

    latency_ms: float
    solution: str
    runs: int
    workload: str


def best_of_all(
    rankings: Iterable[list[Standing]], never: frozenset[str] = frozenset()
) -> Optional[str]:
    """Return the solution for keys that were not recorded, or None if there is none.

    A solution's score for a key is the winner's latency divided by its own: 1 for the winner. Among
    the solutions with results for at least half of all keys, the one with the highest mean score is
    chosen, so that a single lucky run does not decide. If there is none, the solutions with the
    most keys are considered. Ties: more keys, then the alphabetically first name.

    Parameters
    ----------
    rankings : iterable of list of Standing
        The standings of each key, best first.
    never : frozenset of str
        Solutions that must not be chosen.
    """
    scores: dict[str, list[float]] = {}
    keys = 0
    for ranking in rankings:
        keys += bool(ranking)
        for each in ranking:
            if each.solution not in never:
                score = ranking[0].latency_ms / each.latency_ms
                scores.setdefault(each.solution, []).append(score)
    if not scores:
        return None
    enough = min(keys / 2, max(map(len, scores.values())))
    order = [
        (-math.fsum(own) / len(own), -len(own), name)
        for name, own in scores.items()
        if len(own) >= enough
    ]
    return min(order)[2]


# ------------------------------------------------------------------------------------- collection

_INCORRECT = "INCORRECT"  # prefix of the statuses of wrong outputs
_INCORRECT_ELSEWHERE = Reason("incorrect", "incorrect in another run")
_UNWANTED = Reason("settings", "the settings belong to other definitions")
_STALE = Reason("stale", "recorded with a different version of the solution")


@dataclass
class Candidates:
    """The candidate solutions of one definition.

    Attributes
    ----------
    choices : dict of ApplyKey to str
        The winning solution of each recorded key.
    rankings : dict of ApplyKey to list of Standing
        The standings of each recorded key that has a usable solution, best first.
    barred : dict of ApplyKey to tuple of str
        For each recorded key without a usable solution, the solutions that were tried: policies for
        other keys must not choose these.
    best : str or None
        The solution for keys that were not recorded.
    refusals : dict of str to Counter of Reason
        By solution: the reasons for excluded runs, and their number.
    runs : Counter of str
        Number of all runs by solution.
    """

    choices: dict[ApplyKey, str] = field(default_factory=dict)
    rankings: dict[ApplyKey, list[Standing]] = field(default_factory=dict)
    barred: dict[ApplyKey, tuple[str, ...]] = field(default_factory=dict)
    best: Optional[str] = None
    refusals: dict[str, Counter[Reason]] = field(default_factory=dict)
    runs: Counter[str] = field(default_factory=Counter)

    @property
    def keys(self) -> list[ApplyKey]:
        """All recorded keys, sorted."""
        return sorted([*self.rankings, *self.barred], key=_order)

    @property
    def winners(self) -> dict[str, int]:
        """Number of keys that each solution wins, in descending order."""
        counts = Counter(self.choices.values())
        return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def _order(key: ApplyKey) -> tuple[tuple[tuple[str, int], ...], str]:
    return key.axes, repr(key.feats)


class _Slot:
    """The results for one key of one definition."""

    def __init__(self) -> None:
        # Latency in milliseconds and workload uuid of each counted run, by solution.
        self.counted: dict[str, list[tuple[float, str]]] = {}
        self.tried: set[str] = set()
        self.wrong: set[str] = set()


def collect(
    rows: Iterable[RunRow], configs: ApplyConfigRegistry, place: Place, source: Source
) -> dict[str, Candidates]:
    """Evaluate each run, and return the candidates by definition.

    Parameters
    ----------
    rows : iterable of RunRow
        The runs.
    configs : ApplyConfigRegistry
        The bounds on errors.
    place : Place
        The hardware and libraries on which solutions will run.
    source : Source
        Provides definitions and solutions.
    """
    found: dict[str, Candidates] = {}
    slots: dict[str, dict[ApplyKey, _Slot]] = {}
    # Cached values shared by many runs.
    hash_of = cache(lambda name: source.solution(name).hash())
    builder_of = cache(lambda name: ApplyKeyFactory.specialize(source.definition(name)))
    refusal_of = cache(lambda name, solution, of: _refusal(name, solution, of, place, source))

    @cache
    def slot_of(name: str, text: str) -> tuple[str, Union[_Slot, Reason], Limits]:
        """Return a workload's uuid, its slot or the reason for having none, and its limits."""
        workload = Workload.model_validate_json(text)
        config = configs.get(name)
        assert config is not None  # otherwise it was refused
        limits = limits_for(source.definition(name), config, workload)
        try:
            key = builder_of(name).build_from_workload(workload, source.root)
        except FibError as error:
            return workload.uuid, Reason("key", error.message[:200]), limits
        except Exception as error:  # noqa: BLE001 - a plugin's key builder may raise anything
            return workload.uuid, Reason("key", f"{type(error).__name__}: {error}"[:200]), limits
        slot = slots.setdefault(name, {}).setdefault(key, _Slot())
        return workload.uuid, slot, limits

    groups: dict[tuple[Task, Origin], list[RunRow]] = {}
    for row in rows:
        groups.setdefault((row.task, row.origin), []).append(row)
    for (task, origin), some in groups.items():
        definition, solution = task.definition, task.solution
        one = found.setdefault(definition, Candidates())
        one.runs[solution] += len(some)
        refused = one.refusals.setdefault(solution, Counter())
        config = configs.get(definition)
        refusal = refusal_of(definition, solution, origin) if config else _UNWANTED
        if refusal is not None:
            refused[refusal] += len(some)
            continue
        uuid, slot, limits = slot_of(definition, task.text)
        if isinstance(slot, Reason):
            refused[slot] += len(some)
            continue
        slot.tried.add(solution)
        if origin.solution_hash and origin.solution_hash != hash_of(solution):
            refused[_STALE] += len(some)
            continue
        for row in some:
            problem = run_problem(row, limits)
            if problem is None:
                slot.counted.setdefault(solution, []).append((row.latency_ms or 0.0, uuid))
                continue
            refused[problem] += 1
            if problem.kind == "status" and problem.text.startswith(_INCORRECT):
                slot.wrong.add(solution)
    for name, own in slots.items():
        _rank(found[name], own)
    return found


def _refusal(
    definition: str, name: str, origin: Origin, place: Place, source: Source
) -> Optional[Reason]:
    """Return why all runs of a solution in an environment are excluded, or None."""
    if definition not in source.definitions:
        return Reason("definition", f"there is no definition {definition!r}")
    solution = source.solutions.get(name)
    if solution is None:
        return Reason("solution", "no solution has this name")
    if solution.definition != definition:
        return Reason("solution", f"the solution is for definition {solution.definition!r}")
    # Other writers of the format name a CPU without its cores.
    if origin.hardware not in (place.hardware, _CORES.sub("", place.hardware)):
        return Reason("hardware", f"recorded on {origin.hardware}")
    # Only `cpu` alone is taken literally: compiled CPU code would misinterpret a GPU's address.
    # Solutions that name a different GPU model are often run, and recorded, on this one; that
    # record is better evidence than their author's intention.
    targets = {target.strip().lower() for target in solution.spec.target_hardware}
    if targets == {"cpu"} and place.kind != "cpu":
        return Reason("target", "targets only the CPU (target_hardware)")
    text = place.toolchain_problem(str(solution.spec.language), origin.libs)
    return None if text is None else Reason("toolchain", text)


def _rank(one: Candidates, slots: dict[ApplyKey, _Slot]) -> None:
    """Determine the winner of each key of a definition."""
    for key in sorted(slots, key=_order):
        slot, ranking = slots[key], []
        for solution, counted in slot.counted.items():
            if solution in slot.wrong:
                one.refusals[solution][_INCORRECT_ELSEWHERE] += len(counted)
            else:
                latency = median(each[0] for each in counted)
                uuid = min(each[1] for each in counted)
                ranking.append(Standing(latency, solution, len(counted), uuid))
        if ranking:
            one.rankings[key] = sorted(ranking)
            one.choices[key] = one.rankings[key][0].solution
        else:
            one.barred[key] = tuple(sorted(slot.tried))
    never = frozenset().union(*(slot.wrong for slot in slots.values()))
    one.best = best_of_all(one.rankings.values(), never)


# ------------------------------------------------------------------------------------- the table


@dataclass(repr=False, eq=False)
class ApplyTable:
    """The solutions to use, by definition.

    Parameters
    ----------
    definitions : dict of str to Candidates
        By name; includes definitions without a usable solution and, at the end, definitions that
        have runs but are missing from the dataset.
    hardware : str
        The hardware for which the table is valid.
    source : Source
        The definitions and solutions.
    problems : list of str
        Parts of the dataset that were skipped because they cannot be read.
    configs : ApplyConfigRegistry
        The settings used for the choices.
    """

    definitions: dict[str, Candidates]
    hardware: str
    source: Source
    problems: list[str]
    configs: ApplyConfigRegistry

    def __repr__(self) -> str:
        keys = sum(len(one.choices) for one in self.definitions.values())
        return f"ApplyTable({len(self.definitions)} definitions, {keys} keys, {self.hardware!r})"

    @cached_property
    def digest(self) -> str:
        """Hexadecimal digest of the hardware, settings, choices and chosen solutions."""
        choices = [(name, one.choices, one.best) for name, one in self.definitions.items()]
        taken = {name for _, won, best in choices for name in (*won.values(), best) if name}
        hashes = [(name, self.source.solution(name).hash()) for name in sorted(taken)]
        settings = (self.configs.default, sorted(self.configs.per_definition.items()))
        return hashlib.sha256(repr((self.hardware, settings, choices, hashes)).encode()).hexdigest()

    @cached_property
    def index(self) -> dict[str, dict[ApplyKey, str]]:
        """The solution that wins each key, by definition."""
        return {name: dict(one.choices) for name, one in self.definitions.items() if one.choices}

    @cached_property
    def def_best(self) -> dict[str, str]:
        """The solution for keys that were not recorded, by definition."""
        return {name: one.best for name, one in self.definitions.items() if one.best is not None}

    def match_solution(self, def_name: str, key: ApplyKey) -> Optional[str]:
        """Return the name of the solution to use, or None.

        Parameters
        ----------
        def_name : str
            Name of the definition.
        key : ApplyKey
            Key of the call.
        """
        return self.index.get(def_name, {}).get(key)

    @classmethod
    @old_parameters
    def load_or_build(
        cls, source: Optional[Dataset], config: Config = None, *, hardware: Optional[str] = None
    ) -> ApplyTable:
        """Return the table of a dataset.

        Parameters
        ----------
        source : TraceSet, str, Path or None
            The dataset; None for the folder of ``FIB_DATASET_PATH``. Parts that cannot be read are
            skipped, see `problems`.
        config : ApplyConfig or ApplyConfigRegistry, optional
            The bounds on errors; default: `get_default_registry`.
        hardware : str, optional
            Hardware whose records are used, as in ``environment.hardware``; default: this
            machine's.

        Raises
        ------
        DatasetNotFoundError
            If the folder does not exist.
        ConfigError
            If `config` or `source` has the wrong type.
        DataError
            If a `TraceSet` that raises on invalid content has not read its traces before.
        """
        configs = as_registry(config)
        here = devices.this_hardware() if hardware is None else hardware
        kind = "cpu" if _CPU_TEXT.search(here) else "cuda"
        place = Place(here, kind, devices.installed_versions())
        with paused_gc():
            if source is None or isinstance(source, (str, Path)):
                root = None if source is None else Path(source).expanduser()
                source = TraceSet.from_path(root, on_error="collect")
            if not isinstance(source, TraceSet):
                raise ConfigError(f"give a TraceSet or a path, not {type(source).__name__}")
            by_name = {each.name: each for each in chain(*source.solutions.values())}
            parts = Source(source.root, dict(source.definitions), by_name)
            found = collect(source.run_rows(), configs, place, parts)
            problems = [str(each) for each in (*source.load_errors, *source.torn_lines)]
        names = [*parts.definitions, *sorted(found.keys() - parts.definitions.keys())]
        definitions = {name: found.get(name) or Candidates() for name in names}
        return cls(definitions, here, parts, problems, configs)


class Source(NamedTuple):
    """The definitions and solutions of a dataset, at the time it was read.

    Attributes
    ----------
    root : Path or None
        Folder of the dataset; None if it is in memory.
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
            If the definition does not exist.
        """
        if name not in self.definitions:
            raise UnknownNameError.of("definition", [name], self.definitions)
        return self.definitions[name]

    def solution(self, name: str) -> Solution:
        """Return a solution; raises like `definition`."""
        if name not in self.solutions:
            raise UnknownNameError.of("solution", [name], self.solutions)
        return self.solutions[name]
