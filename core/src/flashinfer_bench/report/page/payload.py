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
from typing import TYPE_CHECKING, Any, Optional

from flashinfer_bench.report.causes import cause
from flashinfer_bench.report.page.logs import LogBook
from flashinfer_bench.report.page.names import short_solution, workload_labels
from flashinfer_bench.report.ratings import fastp_curves, rate_authors
from flashinfer_bench.report.results import read_details
from flashinfer_bench.report.scores import best_solutions, natural_order, score_solutions
from flashinfer_bench.report.statistics import spread

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from flashinfer_bench.report.coverage import DefinitionCoverage
    from flashinfer_bench.report.ratings import Curve
    from flashinfer_bench.report.results import Result
    from flashinfer_bench.report.scores import SolutionScore

_CORNERS = 240  # of a curve; a screen shows no more
_SURROGATES = re.compile("[\ud800-\udfff]")


class _Places(dict["tuple[str, ...]", int]):
    """Gives each new key the next place."""

    def __missing__(self, key: tuple[str, ...]) -> int:
        self[key] = len(self)
        return self[key]


def page_data(
    results: Sequence[Result],
    coverage: Sequence[DefinitionCoverage] = (),
    logs: Optional[LogBook] = None,
) -> dict[str, Any]:
    """Return everything but the logs.

    Parameters
    ----------
    results : sequence of Result
        At most one for each solution, workload and device, as `latest_results` gives them.
    coverage : sequence of DefinitionCoverage
        What is missing, if the page is to say so.
    logs : LogBook, optional
        Takes the logs; those of failures come first.

    Returns
    -------
    dict
        Of plain values, without infinities: these are written ``"inf"`` and ``"nan"``.
    """
    logs = logs if logs is not None else LogBook()
    names = {name: natural_order(name) for name in {result.definition for result in results}}
    ordered = sorted(
        results, key=lambda r: (names[r.definition], r.hardware, r.solution, r.workload)
    )
    read_details(ordered)
    definitions, devices, workloads, solutions, causes = (_Places() for _ in range(5))
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
        **_logs(ordered, logs),
    }
    place = {name: index for index, (name, _) in enumerate(definitions)}
    return {
        "definitions": list(definitions),
        "devices": [name for (name,) in devices],
        "solutions": [[place[d], s, short_solution(s, d), *rest] for d, s, *rest in solutions],
        "workloads": _workloads(ordered, workloads, place),
        "causes": [line for (line,) in causes],
        "runs": runs,
        "scores": _scores(ordered, place),
        "authors": [vars(rating) for rating in rate_authors(ordered)],
        "curves": {name: _thinned(curve) for name, curve in fastp_curves(ordered).items()},
        "coverage": [vars(one) for one in coverage],
    }


def _columns(results: Sequence[Result]) -> dict[str, list[Any]]:
    spreads = [spread(result.samples_ms) for result in results]
    return {
        "status": [result.status.value for result in results],
        "time": [result.timestamp[:19] for result in results],
        "latency": [result.latency_ms for result in results],
        "reference": [result.reference_latency_ms for result in results],
        "low": [None if one is None else one.p25 for one in spreads],
        "high": [None if one is None else one.p75 for one in spreads],
        "samples": [len(result.samples_ms) for result in results],
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


def _scores(results: Sequence[Result], place: Mapping[str, int]) -> list[dict[str, Any]]:
    scores = score_solutions(results)
    best = {_key(item.score) for item in best_solutions(scores)}
    rows = []
    for score in scores:
        fields = {**vars(score), "best": _key(score) in best}
        fields["definition"] = place[score.definition]
        rows.append({name: fields[name] for name in fields if name != "op_type"})
    return rows


def _key(score: SolutionScore) -> tuple[str, str, str]:
    return score.definition, score.hardware, score.solution


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
