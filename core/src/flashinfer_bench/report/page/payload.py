"""What a page shows, as plain columns that its script unpacks.

Names stand once and are referred to by their place, and numbers have five digits: together with
compression that makes an evaluation cost some 30 bytes.
"""

from __future__ import annotations

import base64
import json
import math
import re
import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Optional

from flashinfer_bench.report.causes import cause
from flashinfer_bench.report.conditions import label_of, split_by_setting
from flashinfer_bench.report.page.logs import LogBook
from flashinfer_bench.report.page.names import short_solution, workload_labels
from flashinfer_bench.report.page.shapes import ShapeBook
from flashinfer_bench.report.page.timing import timing_lines
from flashinfer_bench.report.ratings import fastp_curves, rate_authors
from flashinfer_bench.report.results import read_details
from flashinfer_bench.report.scores import best_solutions, natural_order, score_solutions
from flashinfer_bench.report.statistics import spread

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from flashinfer_bench.report.coverage import DefinitionCoverage
    from flashinfer_bench.report.ratings import Curve
    from flashinfer_bench.report.results import Conditions, Result
    from flashinfer_bench.report.scores import SolutionScore

_CORNERS = 240  # of a curve; a screen shows no more
_SURROGATES = re.compile("[\ud800-\udfff]")


_TIMINGS_BYTES = 200_000
"""Compressed size of what is told of all timings from which on nothing more is."""


@dataclass
class Extras:
    """What a page takes along as far as there is room, and unpacks when it is asked for.

    Attributes
    ----------
    logs : LogBook
        The logs; those of failures come first.
    shapes : ShapeBook
        Distributions of samples; those of the best solutions come first.
    timings : LogBook
        What is told of how samples were taken.
    """

    logs: LogBook = field(default_factory=LogBook)
    shapes: ShapeBook = field(default_factory=ShapeBook)
    timings: LogBook = field(default_factory=lambda: LogBook(_TIMINGS_BYTES, _TIMINGS_BYTES))


class _Places(dict["tuple[str, ...]", int]):
    """Gives each new key the next place."""

    def __missing__(self, key: tuple[str, ...]) -> int:
        self[key] = len(self)
        return self[key]


def page_data(
    results: Sequence[Result],
    coverage: Sequence[DefinitionCoverage] = (),
    extras: Optional[Extras] = None,
) -> dict[str, Any]:
    """Return everything but what is unpacked later.

    Parameters
    ----------
    results : sequence of Result
        At most one for each solution, workload and device, as `latest_results` gives them.
    coverage : sequence of DefinitionCoverage
        What is missing, if the page is to say so.
    extras : Extras, optional
        Takes the rest.

    Returns
    -------
    dict
        Of plain values, without infinities: these are written ``"inf"`` and ``"nan"``.
    """
    extras = extras if extras is not None else Extras()
    names = {name: natural_order(name) for name in {result.definition for result in results}}
    ordered = sorted(
        results, key=lambda r: (names[r.definition], r.hardware, r.solution, r.workload)
    )
    read_details(ordered)
    scores = score_solutions(ordered)
    definitions, devices, workloads, solutions, causes, clocks = (_Places() for _ in range(6))
    for result in ordered:
        definitions[result.definition, result.op_type]
        devices[result.hardware,]
        workloads[result.definition, result.workload]
        solutions[result.definition, result.solution, result.author, result.language]
    runs = {
        "solution": [solutions[r.definition, r.solution, r.author, r.language] for r in ordered],
        "workload": [workloads[r.definition, r.workload] for r in ordered],
        "device": [devices[r.hardware,] for r in ordered],
        "cause": [-1 if r.passed else causes[cause(r.log),] for r in ordered],
        **_columns(ordered),
        "clock": [clocks[tuple(r.clock)] for r in ordered],
        **_logs(ordered, extras.logs),
        **_samples(ordered, scores, extras),
    }
    place = {name: index for index, (name, _) in enumerate(definitions)}
    return {
        "definitions": list(definitions),
        "devices": [name for (name,) in devices],
        "solutions": [[place[d], s, short_solution(s, d), *rest] for d, s, *rest in solutions],
        "workloads": _workloads(ordered, workloads, place),
        "causes": [line for (line,) in causes],
        "runs": runs,
        "clocks": list(clocks),
        "scores": _scores(scores, place),
        **_overview(ordered),
        "coverage": [vars(one) for one in coverage],
    }


def _columns(results: Sequence[Result]) -> dict[str, list[Any]]:
    spreads = [spread(result.counted_ms) for result in results]
    return {
        "status": [result.status.value for result in results],
        "time": [result.timestamp[:19] for result in results],
        "latency": [result.latency_ms for result in results],
        "reference": [result.reference_latency_ms for result in results],
        "low": [None if one is None else one.p25 for one in spreads],
        "high": [None if one is None else one.p75 for one in spreads],
        "samples": [result.sample_total for result in results],
        "dropped": [result.dropped for result in results],
        "interval": [result.interval_ms for result in results],
        "speedup": [result.speedup_interval for result in results],
        "absolute": [result.max_absolute_error for result in results],
        "relative": [result.max_relative_error for result in results],
    }


def _logs(results: Sequence[Result], logs: LogBook) -> dict[str, list[int]]:
    places = [-1] * len(results)
    for index in sorted(range(len(results)), key=lambda i: results[i].passed):
        places[index] = logs.add(results[index].log)
    return {"log": places, "length": [len(result.log.strip()) for result in results]}


def _workloads(
    results: Sequence[Result], workloads: Iterable[tuple[str, ...]], place: Mapping[str, int]
) -> list[list[Any]]:
    groups: dict[str, list[Result]] = {}
    for result in results:
        groups.setdefault(result.definition, []).append(result)
    labels = {name: workload_labels(group) for name, group in groups.items()}
    order = {name: {uuid: n for n, uuid in enumerate(one)} for name, one in labels.items()}
    axes = {(r.definition, r.workload): dict(r.axes) for r in results}
    return [
        [place[d], uuid, labels[d][uuid], order[d][uuid], axes[d, uuid]] for d, uuid in workloads
    ]


def _samples(
    results: Sequence[Result], scores: Sequence[SolutionScore], extras: Extras
) -> dict[str, list[int]]:
    """Return the places of distributions, of dropped samples, and of what is told of timings."""
    keys = [(one.definition, one.hardware, one.timer, one.cache, one.solution) for one in scores]
    places = {key: number for number, key in enumerate(keys)}
    firsts: dict[tuple[str, ...], int] = {}
    for key, number in places.items():
        firsts.setdefault(key[:-1], number)
    columns = {name: [-1] * len(results) for name in ("shape", "gone", "timing")}
    order: list[tuple[int, int]] = []
    for index, one in enumerate(results):
        key = (one.definition, one.hardware, *one.conditions, one.solution)
        if one.passed:  # by the place of its solution in its ranking: the best of each come first
            order.append((places[key] - firsts[key[:-1]], index))
    for _, index in sorted(order):
        one = results[index]
        columns["shape"][index] = extras.shapes.add(one.counted_ms)
        if one.dropped:
            columns["gone"][index] = extras.shapes.add(one.dropped_ms)
        columns["timing"][index] = extras.timings.add(timing_lines(one.timing))
    return columns


def _overview(results: Sequence[Result]) -> dict[str, Any]:
    """Return ratings and curves of authors; apart for each timer and cache mode."""
    groups: dict[Conditions, list[Result]] = {}
    for (_, conditions), group in split_by_setting(results).items():
        groups.setdefault(conditions, []).extend(group)
    authors: list[dict[str, Any]] = []
    curves: dict[str, Curve] = {}
    for conditions, group in groups.items():
        timed = label_of(conditions) if len(groups) > 1 else ""
        authors += [{**vars(one), "timed": timed} for one in rate_authors(group)]
        for name, curve in fastp_curves(group).items():
            curves[f"{name} · {timed}" if timed else name] = _thinned(curve)
    return {"authors": authors, "curves": curves}


def _scores(scores: Sequence[SolutionScore], place: Mapping[str, int]) -> list[dict[str, Any]]:
    best = {_key(item.score) for item in best_solutions(scores)}
    rows = []
    for score in scores:
        fields = {**vars(score), "best": _key(score) in best}
        fields["definition"] = place[score.definition]
        rows.append({name: fields[name] for name in fields if name != "op_type"})
    return rows


def _key(score: SolutionScore) -> tuple[str, ...]:
    return score.definition, score.hardware, score.timer, score.cache, score.solution


def _thinned(curve: Curve) -> Curve:
    """Leave out corners, but never the first, those next to 1, or the last."""
    step = math.ceil(len(curve) / _CORNERS)
    return [
        corner
        for index, corner in enumerate(curve)
        if index % step == 0 or index == len(curve) - 1 or _around_one(curve, index)
    ]


def _around_one(curve: Curve, index: int) -> bool:
    after = curve[index + 1][0] if index + 1 < len(curve) else math.inf
    return curve[index][0] <= 1.0 < after


def pack(data: Any) -> str:
    """Return `data` as JSON, deflated and in base64: letters that no page can mistake for markup.

    Parameters
    ----------
    data : Any
        Plain values; floats are rounded to five digits, infinities and NaN become strings.
    """
    text = json.dumps(_plain(data), separators=(",", ":"), allow_nan=False)
    return base64.b64encode(zlib.compress(text.encode("ascii"), 9)).decode("ascii")


def _plain(value: Any) -> Any:
    if value is None or type(value) is int:  # most of all values
        return value
    if isinstance(value, float):
        return _rounded(value) if math.isfinite(value) else str(value)
    if isinstance(value, str):
        return _SURROGATES.sub("\ufffd", value)
    if isinstance(value, dict):
        return {_plain(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value


def _rounded(value: float) -> float:
    shorter = float(f"{value:.5g}")
    return shorter if math.isfinite(shorter) else value  # the very largest would round to infinity
