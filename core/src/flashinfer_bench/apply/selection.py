"""Which recorded runs count, and how solutions are ranked by them. Pure functions.

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

import math
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Optional, Union

from flashinfer_bench.bench.dtype_tolerances import (
    default_tolerances,
    precision_of,
    tolerance_values,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from flashinfer_bench.apply.config import ApplyConfig
    from flashinfer_bench.apply.hardware import DeviceType
    from flashinfer_bench.apply.records import Passed
    from flashinfer_bench.apply.source import SolutionHead
    from flashinfer_bench.data import Definition, Solution, Workload

ReasonKind = Literal[
    "definition",
    "solution",
    "hardware",
    "target",
    "toolchain",
    "key",
    "stale",
    "status",
    "incorrect",
    "integrity",
    "error",
    "latency",
]
"""What keeps a run from counting."""


class Reason(NamedTuple):
    """Why a run does not count.

    Attributes
    ----------
    kind : str
        Which rule.
    text : str
        A few words, with the figures.
    """

    kind: ReasonKind
    text: str

    def __str__(self) -> str:
        return self.text


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
    values = [
        tolerance_values(layers, default, output)
        for output, default in default_tolerances(definition).items()
    ]
    floats = [name for name, spec in definition.outputs.items() if spec.dtype.is_floating]
    return Limits(
        atol=max((each["atol"] for each in values), default=0.0),
        rtol=max((each["rtol"] for each in values), default=0.0),
        coarse=bool(floats) and all(precision_of(definition, name) in _COARSE for name in floats),
        matched_ratio=min(
            (each.get("required_matched_ratio", 1.0) for each in values), default=1.0
        ),
    )


def error_problem(run: Passed, limits: Limits) -> Optional[Reason]:
    """Say why the recorded errors are too large, or return None; see the top of this module."""
    absolute = float(run.correctness.max_absolute_error)
    relative = float(run.correctness.max_relative_error)
    fits = absolute <= limits.atol, relative <= limits.rtol  # NaN fits nowhere
    if all(fits):
        return None
    enough = any(fits) or (absolute < math.inf and _matched(run, limits, absolute))
    if enough and not limits.both and not math.isnan(absolute) and not math.isnan(relative):
        return None
    parts = [
        f"{name} error {value:.4g} > {allowed:.4g}"
        for name, value, allowed, fit in (
            ("absolute", absolute, limits.atol, fits[0]),
            ("relative", relative, limits.rtol, fits[1]),
        )
        if not fit
    ]
    return Reason("error", " and ".join(parts))


def _matched(run: Passed, limits: Limits, absolute: float) -> bool:
    """Return whether there is reason to believe that each element was within the tolerance."""
    if run.provenance is not None and run.provenance.evaluator:
        return True
    if not limits.coarse:
        return False
    extra = run.correctness.extra
    if extra is not None and extra.matched_ratio is not None:
        return extra.matched_ratio >= limits.matched_ratio
    return absolute <= _HEADROOM * limits.atol


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
    return _figures_problem(note, latency_ms)


def _figures_problem(note: Mapping[str, Any], latency_ms: float) -> Optional[Reason]:
    hidden, allowed, floor = (
        _number(note.get(name)) for name in ("hidden_ms", "allowed_ms", "floor_ms")
    )
    # The figures are rounded. What was hidden and then added to the latency does no harm.
    unseen = None not in (hidden, allowed) and not note.get("added_ms")
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


# --------------------------------------------------------------------------------------- the run


def run_problem(run: Passed, limits: Limits) -> Optional[Reason]:
    """Say why a run that passed does not count, or return None if it does."""
    latency = run.performance.latency_ms
    if not 0.0 < latency < math.inf:
        return Reason("latency", f"a latency of {latency:g} ms is no measurement")
    extra = run.correctness.extra
    if extra is not None and (found := integrity_problem(extra.integrity, latency)) is not None:
        return found
    return error_problem(run, limits)


def target_problem(solution: Union[Solution, SolutionHead], on: DeviceType) -> Optional[Reason]:
    """Say why a solution has no business on a kind of device, or return None if it may have.

    Only ``cpu`` alone is taken at its word: compiled code for the CPU would take a GPU's address
    for one of its own. Solutions that name some other GPU model are often run, and recorded, on
    this one; that record is better evidence than their author's intention.
    """
    wanted = {name.strip().lower() for name in solution.spec.target_hardware}
    if wanted == {"cpu"} and on != "cpu":
        return Reason("target", "written for the CPU alone (target_hardware)")
    return None


# --------------------------------------------------------------------------------------- ranking


class Standing(NamedTuple):
    """A solution's place for one key.

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


def standing(solution: str, latencies: Mapping[str, list[float]]) -> Standing:
    """Return a solution's standing from its latencies in milliseconds by uuid of the workload."""
    every = [value for group in latencies.values() for value in group]
    return Standing(median(every), solution, len(every), min(latencies))


def ranked(standings: Iterable[Standing]) -> list[Standing]:
    """Return standings for one key, best first; equals by name."""
    return sorted(standings)


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
        For each key its ranking, see `ranked`.
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
