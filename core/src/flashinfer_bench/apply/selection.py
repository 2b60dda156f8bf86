"""Which recorded runs count, and how solutions are ranked by them.

**Errors.** A trace has the largest absolute and the largest relative error over all elements, which
are mostly those of different elements: 0.03 of a 5.0, and 300 % of a 0.0001. Where the user sets no
bounds, these rules hold, with the tolerance of the definition (of the workload, if it has one), or
else the default for its dtypes (`flashinfer_bench.bench.dtype_tolerances`):

1. One of the two is within the tolerance: then each element is. It counts.
2. Else the trace cannot say whether each element is within one of the two. A judge that compared
   element by element could, and said PASSED:

   * this project's own judge, which names its evaluator, went by the same tolerances. It counts;
   * of other records of 16-bit and smaller types, whose tolerance of 0.01 every harness shares, it
     counts if they tell that all elements matched (``extra.matched_ratio``), or if the absolute
     error is at most four times the tolerance: what rounding makes of values up to 8;
   * other records of finer types do not count: harnesses allow them ten times of what is right.

**Latency** of a solution for a key: the median over all runs that count, of all workloads with that
key. Ties go to the smaller name.

**Wrong is wrong.** A solution that was found incorrect on this hardware does not get the keys for
which that was, whatever else was recorded for them, and is never the best of its definition.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import dataclass, field
from functools import cache
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple, Optional, Union

from flashinfer_bench.apply.keys import ApplyKey, ApplyKeyFactory
from flashinfer_bench.bench.dtype_tolerances import (
    default_tolerances,
    precision_of,
    tolerance_values,
)
from flashinfer_bench.data.workload import Workload
from flashinfer_bench.errors import FibError, UnknownNameError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from flashinfer_bench.apply.config import ApplyConfig, ApplyConfigRegistry
    from flashinfer_bench.apply.hardware import Place
    from flashinfer_bench.apply.table import Source
    from flashinfer_bench.data import Definition
    from flashinfer_bench.data.run_source import Origin, RunRow, Task

REASONS = (
    "definition solution hardware target toolchain key stale status incorrect integrity error "
    "latency"
)
"""What keeps a run from counting."""


class Reason(NamedTuple):
    """Why a run does not count: which rule of `REASONS`, and a few words with the figures."""

    kind: str
    text: str


class Figures(NamedTuple):
    """What a run that passed is judged by.

    Attributes
    ----------
    latency_ms, absolute, relative : float
        Latency in milliseconds, largest absolute and relative error; may be NaN or infinite.
    is_judged : bool
        Whether it names its evaluator.
    matched_ratio : float, optional
        Share of the elements that match.
    integrity : any
        What a judge has noted.
    """

    latency_ms: float
    absolute: float
    relative: float
    is_judged: bool = False
    matched_ratio: Optional[float] = None
    integrity: Any = None


# ------------------------------------------------------------------------------------- tolerance

_HEADROOM = 4.0
_COARSE = frozenset({"float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "float4_e2m1"})


@dataclass(frozen=True)
class Limits:
    """How large recorded errors may be.

    Attributes
    ----------
    atol, rtol : float
        Largest absolute and relative error; infinite where nothing is demanded.
    both : bool
        Whether both must be kept, as bounds that a user has set, and not just one.
    coarse : bool
        Whether all floating-point outputs are of 16 bits or fewer.
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
        Has the dtypes, and maybe a tolerance. Of several outputs the widest one counts: a trace
        does not tell which output its errors are of.
    config : ApplyConfig
        May have bounds, which go before everything else.
    workload : Workload, optional
        May have a tolerance, which goes before the definition's.
    """
    if config.max_atol is not None or config.max_rtol is not None:
        bounds = (config.max_atol, config.max_rtol)
        atol, rtol = (math.inf if bound is None else bound for bound in bounds)
        return Limits(atol, rtol, both=True)
    layers = (definition.tolerance, None if workload is None else workload.tolerance)
    defaults = default_tolerances(definition).items()
    values = [tolerance_values(layers, default, output) for output, default in defaults]
    floats = [name for name, spec in definition.outputs.items() if spec.dtype.is_floating]
    ratios = (each.get("required_matched_ratio", 1.0) for each in values)
    return Limits(
        atol=max((each["atol"] for each in values), default=0.0),
        rtol=max((each["rtol"] for each in values), default=0.0),
        coarse=bool(floats) and all(precision_of(definition, name) in _COARSE for name in floats),
        matched_ratio=min(ratios, default=1.0),
    )


def error_problem(run: Figures, limits: Limits) -> Optional[Reason]:
    """Say why the recorded errors are too large, or return None; see the top of this module."""
    checks = (
        ("absolute", run.absolute, limits.atol),
        ("relative", run.relative, limits.rtol),
    )
    wide = [check for check in checks if not check[1] <= check[2]]  # NaN fits nowhere
    if not wide:
        return None
    known = not math.isnan(run.absolute) and not math.isnan(run.relative)
    if known and not limits.both and (len(wide) == 1 or _matched(run, limits)):
        return None
    parts = [f"{name} error {value:.4g} > {allowed:.4g}" for name, value, allowed in wide]
    return Reason("error", " and ".join(parts))


def _matched(run: Figures, limits: Limits) -> bool:
    """Return whether there is reason to believe that each element was within the tolerance."""
    if not run.absolute < math.inf:
        return False
    if run.is_judged or not limits.coarse:
        return run.is_judged
    if run.matched_ratio is not None:
        return run.matched_ratio >= limits.matched_ratio
    return run.absolute <= _HEADROOM * limits.atol


# ------------------------------------------------------------------------------------- integrity

_ACCUSING = ("violation", "violations", "rule", "problem", "problems", "suspect", "cheat")
_GOOD = frozenset({"clean", "ok", "pass", "passed", "full", "off"})


def integrity_problem(note: Any, latency_ms: float) -> Optional[Reason]:
    """Say what a judge has noted against a run, or return None.

    Parameters
    ----------
    note : Any
        ``correctness.extra["integrity"]``; None where nobody has looked, which says nothing.
    latency_ms : float
        The claimed latency in milliseconds.
    """
    if note is None or note is True:
        return None
    if not isinstance(note, dict):
        good = isinstance(note, str) and note.strip().lower() in _GOOD
        return None if good else Reason("integrity", f"integrity note: {str(note)[:80]}")
    for name in _ACCUSING:
        if note.get(name):
            return Reason("integrity", f"integrity: {name}: {str(note[name])[:80]}")
    verdict = note.get("status", note.get("verdict", "clean"))
    if note.get("clean") is False or str(verdict).strip().lower() not in _GOOD:
        return Reason("integrity", f"integrity: {str(verdict)[:80]}, not clean")
    hidden, allowed, floor = map(_number, map(note.get, ("hidden_ms", "allowed_ms", "floor_ms")))
    # The figures are rounded. What was hidden and then added to the latency does no harm.
    unseen = hidden is not None and allowed is not None and not note.get("added_ms")
    if unseen and not hidden <= allowed * 1.01:  # type: ignore[operator]
        return Reason("integrity", f"integrity: {hidden:g} ms hidden, {allowed:g} ms allowed")
    if floor is not None and not latency_ms >= floor * 0.99:
        return Reason("integrity", f"integrity: {latency_ms:g} ms, below the floor of {floor:g} ms")
    return None


def _number(value: Any) -> Optional[float]:
    if value is True or not isinstance(value, (int, float)):
        return None
    try:
        return float(value)
    except OverflowError:  # JSON has integers of any size
        return math.inf if value > 0 else -math.inf


def run_problem(run: Figures, limits: Limits) -> Optional[Reason]:
    """Say why a run that passed does not count, or return None if it does."""
    latency = run.latency_ms
    if not 0.0 < latency < math.inf:
        return Reason("latency", f"a latency of {latency:g} ms is no measurement")
    return integrity_problem(run.integrity, latency) or error_problem(run, limits)


# --------------------------------------------------------------------------------------- ranking


class Standing(NamedTuple):
    """A solution's place for one key. Standings sort best first, equals by name.

    Attributes
    ----------
    latency_ms : float
        Median over its runs, in milliseconds.
    solution : str
        Its name.
    runs : int
        How many runs that is.
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
    """Return the solution to take for a key that nobody has recorded, None if there is none.

    For each key a solution's score is the winner's latency over its own: 1 for the winner. The
    solution with the highest mean score over its keys is taken, of those that have at least half of
    all keys, so that one lucky run on a single key does not count for everything. If none has, it
    is among those with the most keys. Ties: more keys, then the smaller name.

    Parameters
    ----------
    rankings : iterable of list of Standing
        For each key its standings, best first.
    never : frozenset of str
        Solutions that are not taken.
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


# ------------------------------------------------------------------------------------ all the runs

_INCORRECT = "INCORRECT"  # what the statuses of wrong outputs begin with
_INCORRECT_ELSEWHERE = Reason("incorrect", "incorrect in another run")
_STALE = Reason("stale", "recorded with another content of the solution")


@dataclass
class Candidates:
    """What is known of the solutions of one definition.

    Attributes
    ----------
    choices : dict of ApplyKey to str
        The solution that wins each recorded key.
    rankings : dict of ApplyKey to list of Standing
        For each recorded key that anybody may have the solutions, best first.
    barred : dict of ApplyKey to tuple of str
        For each recorded key that nobody may have the solutions that were tried: no policy for
        other keys may give it to one of these.
    best : str or None
        The solution for keys that nobody has recorded.
    refusals : dict of str to Counter of Reason
        By solution: why runs do not count, and how many.
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
        """All keys that have been recorded here, sorted."""
        return sorted([*self.rankings, *self.barred], key=_order)

    @property
    def winners(self) -> dict[str, int]:
        """How many keys each solution wins, most first."""
        counts = Counter(self.choices.values())
        return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def _order(key: ApplyKey) -> tuple[tuple[tuple[str, int], ...], str]:
    return key.axes, repr(key.feats)


@dataclass
class _Slot:
    """All that is known of one key of one definition."""

    latencies: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    """In milliseconds, of the runs that count, by solution and uuid of the workload."""
    tried: set[str] = field(default_factory=set)
    wrong: set[str] = field(default_factory=set)


class Collector:
    """Takes runs, and decides about each.

    Parameters
    ----------
    configs : ApplyConfigRegistry
        The bounds on errors.
    place : Place
        Where solutions shall work.
    source : Source
        Has the definitions and solutions.
    """

    def __init__(self, configs: ApplyConfigRegistry, place: Place, source: Source) -> None:
        self._configs = configs
        self._place = place
        self._source = source
        self._found: dict[str, Candidates] = {}
        self._slots: dict[str, dict[ApplyKey, _Slot]] = {}
        # What is worked out once for many runs.
        self._refusal_of = cache(self._refusal)
        self._slot_of = cache(self._slot)
        self._builder_of = cache(lambda name: ApplyKeyFactory.specialize(source.definition(name)))
        self._hash_of = cache(lambda name: source.solution(name).hash())

    def add(self, rows: Iterable[RunRow]) -> None:
        """Take runs into account."""
        groups: dict[tuple[Task, Origin], list[RunRow]] = {}
        for row in rows:
            groups.setdefault((row.task, row.origin), []).append(row)
        for (task, origin), some in groups.items():
            definition, solution = task.definition, task.solution
            one = self._found.setdefault(definition, Candidates())
            one.runs[solution] += len(some)
            refused = one.refusals.setdefault(solution, Counter())
            refusal = self._refusal_of(definition, solution, origin.hardware, *origin.libs.items())
            if refusal is not None:
                refused[refusal] += len(some)
                continue
            uuid, slot, limits = self._slot_of(definition, task.text)
            if isinstance(slot, Reason):
                refused[slot] += len(some)
                continue
            slot.tried.add(solution)
            if origin.solution_hash and origin.solution_hash != self._hash_of(solution):
                refused[_STALE] += len(some)
                continue
            counting, reasons = _judged(some, limits, is_judged=origin.is_judged)
            if counting:
                slot.latencies.setdefault(solution, {}).setdefault(uuid, []).extend(counting)
            refused.update(reasons)
            if any(one.kind == "status" and one.text.startswith(_INCORRECT) for one in reasons):
                slot.wrong.add(solution)

    def _refusal(
        self, definition: str, name: str, hardware: str, *libs: tuple[str, str]
    ) -> Optional[Reason]:
        """Return why no run of a solution in an environment counts, None if some may."""
        place = self._place
        try:
            self._source.definition(definition)
        except UnknownNameError:
            return Reason("definition", f"there is no definition {definition!r}")
        try:
            solution = self._source.solution(name)
        except UnknownNameError:
            return Reason("solution", "there is no solution of this name")
        if solution.definition != definition:
            return Reason("solution", f"the solution is for definition {solution.definition!r}")
        if hardware != place.hardware:
            return Reason("hardware", f"recorded on {hardware}")
        # Only `cpu` alone is taken at its word: compiled code for the CPU would take a GPU's
        # address for one of its own. Solutions that name some other GPU model are often run, and
        # recorded, on this one; that record is better evidence than their author's intention.
        targets = {target.strip().lower() for target in solution.spec.target_hardware}
        if targets == {"cpu"} and place.kind != "cpu":
            return Reason("target", "written for the CPU alone (target_hardware)")
        text = place.toolchain_problem(str(solution.spec.language), dict(libs))
        return None if text is None else Reason("toolchain", text)

    def _slot(self, name: str, text: str) -> tuple[str, Union[_Slot, Reason], Limits]:
        """Return the uuid, the slot, or why there is none, and the limits of a workload."""
        workload = Workload.model_validate_json(text)
        limits = limits_for(self._source.definition(name), self._configs.get(name), workload)
        try:
            key = self._builder_of(name).build_from_workload(workload, self._source.root)
        except FibError as error:
            return workload.uuid, Reason("key", error.message[:200]), limits
        except Exception as error:  # noqa: BLE001 - a plugin's key builder may raise anything
            return workload.uuid, Reason("key", f"{type(error).__name__}: {error}"[:200]), limits
        slot = self._slots.setdefault(name, {}).setdefault(key, _Slot())
        return workload.uuid, slot, limits

    def outcome(self) -> dict[str, Candidates]:
        """Return what all runs come to, by definition."""
        for name, slots in self._slots.items():
            one = self._found[name]
            for key in sorted(slots, key=_order):
                slot, ranking = slots[key], []
                for solution, own in slot.latencies.items():
                    every = [latency for group in own.values() for latency in group]
                    if solution in slot.wrong:
                        one.refusals[solution][_INCORRECT_ELSEWHERE] += len(every)
                    else:
                        standing = Standing(median(every), solution, len(every), min(own))
                        ranking.append(standing)
                if ranking:
                    one.rankings[key] = sorted(ranking)
                    one.choices[key] = one.rankings[key][0].solution
                else:
                    one.barred[key] = tuple(sorted(slot.tried))
            never = frozenset().union(*(slot.wrong for slot in slots.values()))
            one.best = best_of_all(one.rankings.values(), never)
        return self._found


def _judged(
    rows: Iterable[RunRow], limits: Limits, *, is_judged: bool
) -> tuple[list[float], list[Reason]]:
    """Return the latencies of those of some runs that count, and why the others do not."""
    atol, rtol = limits.atol, limits.rtol
    counting: list[float] = []
    inaccurate: list[Reason] = []  # told before the others
    reasons: list[Reason] = []
    for row in rows:
        latency, noted = row.latency_ms, row.note
        absolute, relative = row.max_absolute_error, row.max_relative_error
        if not row.passed or latency is None or absolute is None or relative is None:
            reasons.append(Reason("status", row.status.value))
            continue
        # Nearly all runs: what `run_problem` would say is known.
        if noted is None and 0.0 < latency < math.inf and absolute <= atol and relative <= rtol:
            counting.append(latency)
            continue
        matched, integrity = (None, None) if noted is None else json.loads(noted)
        run = Figures(latency, absolute, relative, is_judged, matched, integrity)
        reason = run_problem(run, limits)
        is_plain = noted is None and math.isfinite(absolute) and math.isfinite(relative)
        if reason is None:
            counting.append(latency)
        elif is_plain and reason.kind == "error":
            inaccurate.append(reason)
        else:
            reasons.append(reason)
    return counting, inaccurate + reasons
