"""The data of a page, as plain columns that its script unpacks.

Names are stored once and referred to by index, and numbers have five digits; with compression, an
evaluation takes about 30 bytes.
"""

from __future__ import annotations

import base64
import json
import math
import re
import zlib
from collections import Counter
from typing import TYPE_CHECKING, Any, Optional

from fib_report.causes import cause, shorten, without_colours
from fib_report.ratings import fastp_curves, rate_authors
from fib_report.regressions import quartiles
from fib_report.results import collect_results, grouped, label_of, split_by_setting, with_intervals
from fib_report.roofline import SOME, Rooflines
from fib_report.scores import best_solutions, natural_order, score_solutions
from flashinfer_bench.data import TraceSet
from flashinfer_bench.data.run_source import RunDetails, read_traces
from flashinfer_bench.stats.samples import quantile

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from fib_report.coverage import DefinitionCoverage
    from fib_report.ratings import Curve
    from fib_report.results import Conditions, Result
    from fib_report.scores import SolutionScore


def clip(text: str, width: int) -> str:
    """Cut the middle out of `text` so that at most `width` characters are left."""
    if len(text) <= width:
        return text
    tail = (width - 1) // 2
    return f"{text[: width - 1 - tail]}…{text[-tail:] if tail else ''}"


def short_solution(name: str, definition: str, width: int = 34) -> str:
    """Return a solution's name without that of its definition, which is shown next to it."""
    if definition in name and name != definition:
        name = name.replace(definition, "…", 1).strip("_-. ") or name
    return clip(name, width)


def workload_labels(results: Sequence[Result]) -> dict[str, str]:
    """Label each workload by the axes in which it differs from the others.

    Parameters
    ----------
    results : sequence of Result
        Results of one definition.

    Returns
    -------
    dict of str to str
        Label by uuid, in order of size: smaller problems first.
    """
    axes = {result.workload: result.axes for result in results}
    ordered = sorted(axes, key=lambda uuid: (tuple(axes[uuid].values()), uuid))
    varying = _varying([axes[uuid] for uuid in ordered])
    labels = {uuid: _axes_label(axes[uuid], varying) for uuid in ordered}
    counts: dict[str, int] = {}
    for uuid, label in labels.items():
        counts[label] = counts.get(label, 0) + 1
        if counts[label] > 1:
            labels[uuid] = f"{label} #{counts[label]}"
    return labels


def _varying(axes: Sequence[Mapping[str, int]]) -> list[str]:
    """Return few axes that distinguish as many workloads as all axes do."""
    chosen: list[str] = []
    apart = 1
    for name in dict.fromkeys(name for values in axes for name in values):
        count = len({tuple(values.get(n) for n in (*chosen, name)) for values in axes})
        if count > apart:
            chosen, apart = [*chosen, name], count
    return chosen or list(axes[0] if axes else ())


def _axes_label(axes: Mapping[str, int], names: Sequence[str]) -> str:
    return " ".join(f"{name}={axes[name]}" for name in names if name in axes) or "fixed size"


def ratio_label(value: float) -> str:
    """Return a ratio as text: ``2×``, ``0.52×``, ``1/250×``."""
    if value < 0.01:
        return f"1/{1 / value:,.0f}×"
    return f"{value:,.0f}×" if value >= 100.0 else f"{value:.3g}×"


_LONGEST = 900
_UNITS = {"mhz": "MHz", "w": "W", "c": "°C", "percent": "%", "ms": "ms", "s": "s"}
_NAMES = {"sm": "SM clock", "idle sm": "SM clock when idle", "memory": "memory clock"}


def timing_lines(timing: Mapping[str, Any]) -> str:
    """Return how the stopping rule ended, and a line for each watcher; empty if not recorded.

    Parameters
    ----------
    timing : mapping
        ``provenance.timing`` of a trace; unexpected content is tolerated.
    """
    ends = {name: timing.get(name) for name in ("ended_by", "outcome")}
    lines = [
        f"{_label(name)}: {told}" for name, told in ends.items() if isinstance(told, str) and told
    ]
    watched = timing.get("watched")
    for name, facts in (watched if isinstance(watched, dict) else {}).items():
        if isinstance(facts, dict):
            told = "; ".join(_fact(*item) for item in facts.items() if item[0] != "readings")
            lines.append(f"{name}: {told}")
        else:
            lines.append(_fact(name, facts))
    return shorten("\n".join(lines), _LONGEST)


def _fact(key: object, value: Any) -> str:
    head, _, tail = str(key).rpartition("_")
    unit = _UNITS.get(tail, "") if head else ""
    name = _label(head if unit else key)
    if isinstance(value, dict):
        states = [f"{_label(state)} {_share(part)}" for state, part in value.items()]
        return f"{name}: {', '.join(states)}"
    if isinstance(value, (list, tuple)) and len(value) == 3:  # smallest, median, greatest
        low, middle, high = map(str, value)
        value = middle if low == high else f"{middle} ({low} to {high})"
    return f"{name} {value} {unit}".rstrip()


def _label(key: object) -> str:
    words = str(key).replace("_", " ")
    return _NAMES.get(words, words)


def _share(value: Any) -> str:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return f"{value:.0%}" if is_number and 0 <= value <= 1 else str(value)


POINTS = 32
"""Maximum number of points of a shape."""

TOP = 255
"""The highest level; the lowest is 0."""

_MOST = 1e300
_ZERO = 48  # code of a step of 0, so that small steps are printable and take one byte


def shape_of(samples: Sequence[float]) -> str:
    """Return the distribution of some samples as text; empty if there are none.

    Up to 32 samples are kept as they are; more are reduced to the quantiles at 0, 1/31, … 1.

    Parameters
    ----------
    samples : sequence of float
        Finite and not negative, in any order.

    Returns
    -------
    str
        Three words. The first has a character for each point, in ascending order: its code is 48
        plus the number of levels above the previous point, or above 0 for the first. The others
        are the smallest and the largest sample, in milliseconds.
    """
    if not samples:
        return ""
    ordered = sorted(samples)
    points = ordered
    if len(ordered) > POINTS:
        points = [quantile(ordered, number / (POINTS - 1)) for number in range(POINTS)]
    low, high = ordered[0], ordered[-1]
    levels = [_level(point, low, high) for point in points]
    steps = [after - before for before, after in zip([0, *levels], levels, strict=False)]
    return f"{''.join(chr(_ZERO + step) for step in steps)} {_rounded(low)} {_rounded(high)}"


def _level(value: float, low: float, high: float) -> int:
    if not low < high:
        return 0
    share = (value - low) / (high - low)
    if _is_logarithmic(low, high):
        share = math.log(value / low) / math.log(high / low)
    return round(TOP * min(max(share, 0.0), 1.0))


def _is_logarithmic(low: float, high: float) -> bool:
    """Return whether levels are logarithmic: the ratio of both ends is a finite number."""
    return low > 0 and high / low < _MOST


WHOLE = 4_000
"""Longest text that is kept as it is, in characters; of longer ones both ends are kept."""

_TAIL = 200
_ROW = 400
_MEASURED = 8_000  # characters after which the compressed size is measured again


class Book:
    """Collects texts without duplicates until the page would get too large.

    Parameters
    ----------
    most_bytes : int
        Compressed size of all texts beyond which no more are added.
    full_bytes : int, optional
        Compressed size beyond which only the last lines of texts are added.
    whole : int
        See `WHOLE`.
    """

    def __init__(
        self, most_bytes: int, full_bytes: Optional[int] = None, whole: int = WHOLE
    ) -> None:
        self.texts: list[str] = []
        self._places: dict[str, int] = {}
        self._most, self._full, self._whole = most_bytes, full_bytes or most_bytes, whole
        # A running compressor measures what a text adds; most texts are similar to others.
        self._compressor = zlib.compressobj(6)
        self._used = self._unmeasured = 0

    def add(self, text: str) -> int:
        """Add a text; the most important ones should come first.

        Returns
        -------
        int
            Its index in `texts`; -1 if it is empty or there is no room.
        """
        text = text.strip()
        if not text:
            return -1
        if text not in self._places:
            self._places[text] = self._keep(text)
        return self._places[text]

    def _keep(self, text: str) -> int:
        if self._used >= self._most:
            return -1
        text = excerpt(text, self._whole if self._used < self._full else _TAIL)
        self._used += len(self._compressor.compress(text.encode("utf-8", "replace")))
        self._unmeasured += len(text)
        if self._unmeasured > _MEASURED:  # not each time, because a flush makes the data larger
            self._used += len(self._compressor.flush(zlib.Z_SYNC_FLUSH))
            self._unmeasured = 0
        self.texts.append(text)
        return len(self.texts) - 1


def excerpt(log: str, length: int = WHOLE) -> str:
    """Shorten a log to its two ends: the beginning says what ran, the end what went wrong.

    Parameters
    ----------
    log : str
        A log; its colour codes are dropped.
    length : int
        Characters to keep.

    Returns
    -------
    str
        The log, with a note where characters were left out; very long lines are shortened in the
        same way.
    """
    log = without_colours(log)
    if len(log) > length:
        head = 0 if length <= _TAIL else length // 4
        left_out = len(log) - length
        notice = f"… {left_out:,} characters left out …"
        log = f"{log[:head]}\n{notice}\n{log[-(length - head) :]}".lstrip("\n")
    return "\n".join(map(_shorter, log.split("\n")))


def _shorter(row: str) -> str:
    if len(row) <= _ROW:
        return row
    half = _ROW // 2
    return f"{row[:half]} … {len(row) - 2 * half:,} characters left out … {row[-half:]}"


_CORNERS = 240  # of a curve; screens show no more
_SURROGATES = re.compile("[\ud800-\udfff]")


# Compressed sizes beyond which no more is added, or of logs only the last lines.
_LOGS_BYTES, _FULL_LOGS_BYTES = 1_050_000, 950_000
_SHAPES_BYTES = 400_000
_TIMINGS_BYTES = 150_000
_SETTINGS_BYTES = 60_000
_SOURCES_BYTES = 220_000
_LONGEST_SOURCE = 60_000
_MOST_ROWS = 12_000  # evaluations, including earlier ones
_LEAST_OLD = 2_000


class _Places(dict["tuple[str, ...]", int]):
    """Assigns the next index to each new key."""

    def __missing__(self, key: tuple[str, ...]) -> int:
        self[key] = len(self)
        return self[key]


def page_parts(
    results: Sequence[Result],
    coverage: Sequence[DefinitionCoverage] = (),
    trace_set: Optional[TraceSet] = None,
) -> dict[str, Any]:
    """Return the data of a page, in the parts that its script unpacks.

    Parameters
    ----------
    results : sequence of Result
        At most one for each solution, workload and device, as `latest_results` returns them.
    coverage : sequence of DefinitionCoverage
        What is missing, for the page's coverage view.
    trace_set : TraceSet, optional
        The dataset: for sources, earlier evaluations, bytes and operations.

    Returns
    -------
    dict
        Plain values; ``"inf"`` and ``"nan"`` stand for numbers that JSON lacks. ``data`` is
        unpacked at once. The others are unpacked when needed, and have what there is room for:
        ``logs``, those of failures first; ``shapes``, the distributions of samples, those of the
        best solutions first; ``timings`` and ``settings``, how samples were taken and with which
        versions; ``sources``, texts and, by index of a solution, paths and indices of its texts.
    """
    if trace_set is None:
        trace_set = TraceSet()
    logs, shapes = Book(_LOGS_BYTES, _FULL_LOGS_BYTES), Book(_SHAPES_BYTES)
    timings, settings = Book(_TIMINGS_BYTES), Book(_SETTINGS_BYTES)
    sources = Book(_SOURCES_BYTES, whole=_LONGEST_SOURCE)
    names = {name: natural_order(name) for name in {result.definition for result in results}}
    latest = sorted(
        results, key=lambda r: (names[r.definition], r.hardware, r.solution, r.workload)
    )
    ordered = latest + _older(latest, trace_set)
    told = {
        id(row): (RunDetails.of(trace), setting_facts(trace, row.origin.libs))
        for row, trace in read_traces(ordered)
    }
    details = [told[id(row)][0] for row in ordered]
    facts = [told[id(row)][1] for row in ordered]
    scores = score_solutions(latest)
    definitions, devices, workloads, solutions, causes, clocks = (_Places() for _ in range(6))
    for result in ordered:
        definitions[result.definition, result.op_type]
        devices[result.hardware,]
        workloads[result.definition, result.workload]
        solutions[result.definition, result.solution, result.author, result.language]
    rooflines = Rooflines(trace_set.definitions, trace_set.root)
    runs = {
        "solution": [solutions[r.definition, r.solution, r.author, r.language] for r in ordered],
        "workload": [workloads[r.definition, r.workload] for r in ordered],
        "device": [devices[r.hardware,] for r in ordered],
        "cause": [
            -1 if result.passed else causes[cause(one.log),]
            for result, one in zip(ordered, details, strict=True)
        ],
        **_columns(ordered, details),
        **_limits(ordered, rooflines),
        "clock": [clocks[tuple(r.clock)] for r in ordered],
        **_logs(ordered, details, logs),
        **_samples(latest, details, scores, shapes, timings),
        "setting": [settings.add("\n".join(map(": ".join, one))) for one in facts],
    }
    for name in ("shape", "gone", "timing"):
        runs[name] += [-1] * (len(ordered) - len(latest))
    place = {name: index for index, (name, _) in enumerate(definitions)}
    data = {
        "definitions": list(definitions),
        "devices": [name for (name,) in devices],
        "solutions": [[place[d], s, short_solution(s, d), *rest] for d, s, *rest in solutions],
        "workloads": _workloads(ordered, workloads, place, rooflines),
        "causes": [line for (line,) in causes],
        "runs": runs,
        "latest": len(latest),
        "clocks": list(clocks),
        "facts": _facts(latest, facts[: len(latest)]),
        "scores": _scores(scores, place),
        **_overview(latest),
        "coverage": [vars(one) for one in coverage],
    }
    files = _files(trace_set, solutions, sources)
    return {
        "data": data,
        "logs": logs.texts,
        "shapes": shapes.texts,
        "timings": timings.texts,
        "settings": settings.texts,
        "sources": {"texts": sources.texts, "files": files},
    }


def _older(latest: Sequence[Result], trace_set: TraceSet) -> list[Result]:
    """Return the most recent earlier evaluations of the same solutions."""
    known = {_moment(one) for one in latest}
    solutions, devices = {_moment(one)[:2] for one in latest}, {one.hardware for one in latest}
    found = [
        one
        for one in collect_results(trace_set)
        if _moment(one)[:2] in solutions and one.hardware in devices and _moment(one) not in known
    ]
    room = max(_LEAST_OLD, _MOST_ROWS - len(latest))
    return with_intervals(sorted(found, key=lambda one: one.timestamp, reverse=True)[:room])


def _moment(one: Result) -> tuple[str, ...]:
    return (one.definition, one.solution, one.workload, one.hardware, one.timestamp, *one.clock[:2])


_VARYING = {"wall_s", "build_s", "inputs_crc32", "timing", "extra", "transient"}
_VARYING_EXTRA = {"rotation_seed", "reference_calls", "timed_checks"}


def setting_facts(trace: Any, libs: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return names and values of a run's settings, seed, versions and clocks."""
    how = trace.evaluation.provenance
    told = how.model_dump(exclude_none=True, exclude=_VARYING) if how is not None else {}
    extra = how.extra if how is not None else {}
    told.update((name, extra[name]) for name in extra if name not in _VARYING_EXTRA)
    versions = " · ".join(f"{name} {version}" for name, version in libs.items())
    return [("versions", versions)] * bool(versions) + [
        (str(name).replace("_", " "), clip(_inline(value).replace("\n", " "), 300))
        for name, value in told.items()
        if value not in ("", {}, [])
    ]


def _inline(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_inline(one)}" for name, one in value.items())
    return str(value)


_HEAD = {"versions": "Versions", "driver": "Driver", "seed": "Seed"}
_MOST_NAMED = 3


def _facts(
    results: Sequence[Result], settings: Sequence[list[tuple[str, str]]]
) -> list[tuple[str, str]]:
    """Return the facts in the page's header: dates, devices, versions, drivers and seeds."""
    found: dict[str, Counter[str]] = {"device": Counter(one.hardware for one in results)}
    for one in settings:
        for name, value in one:
            if name in _HEAD:
                found.setdefault(name, Counter())[value] += 1
    days = sorted(one.timestamp[:10] for one in results)
    facts = [("Evaluated", days[0] if days[0] == days[-1] else f"{days[0]} to {days[-1]}")]
    for name, title in {"device": "Device", **_HEAD}.items():
        values = [value for value, _ in found.get(name, Counter()).most_common()]
        if values:
            more = len(values) - _MOST_NAMED
            facts.append((title, "; ".join(values[:_MOST_NAMED]) + (f"; {more} more" * (more > 0))))
    return facts


def _limits(results: Sequence[Result], rooflines: Rooflines) -> dict[str, list[Any]]:
    """Return the limit of each result in milliseconds, and what it is limited by."""
    found = [rooflines.of(one) for one in results]
    return {
        "limit": [(one and one.work.basis != SOME and one.limit_ms) or None for one in found],
        "bound": [one.limited_by if one is not None else "" for one in found],
    }


def _files(
    trace_set: TraceSet, solutions: Iterable[tuple[str, ...]], sources: Book
) -> dict[int, list[tuple[str, int]]]:
    """Return paths and indices in `sources` of each solution's files, by index of the solution."""
    known = {(d, one.name): one for d, some in trace_set.solutions.items() for one in some}
    return {
        index: [(str(one.path), sources.add(one.content)) for one in known[key[0], key[1]].sources]
        for index, key in enumerate(solutions)
        if (key[0], key[1]) in known
    }


def _columns(results: Sequence[Result], details: Sequence[RunDetails]) -> dict[str, list[Any]]:
    counted = [one.counted_ms for one in details]
    middle = [quartiles(samples) if samples else (None, None) for samples in counted]
    return {
        "status": [result.status.value for result in results],
        "time": [result.timestamp[:19] for result in results],
        "latency": [result.latency_ms for result in results],
        "reference": [result.reference_latency_ms or None for result in results],
        "low": [low for low, _ in middle],
        "high": [high for _, high in middle],
        "samples": [result.sample_total for result in results],
        "dropped": [result.dropped for result in results],
        "disputed": [result.disputed for result in results],
        "replayable": [result.replayable for result in results],
        "loose": [result.loose for result in results],
        "interval": [result.interval_ms for result in results],
        "speedup": [result.speedup_interval for result in results],
        "absolute": [result.max_absolute_error for result in results],
        "relative": [result.max_relative_error for result in results],
    }


def _logs(
    results: Sequence[Result], details: Sequence[RunDetails], logs: Book
) -> dict[str, list[int]]:
    places = [-1] * len(results)
    for index in sorted(range(len(results)), key=lambda i: results[i].passed):
        places[index] = logs.add(details[index].log)
    return {"log": places, "length": [len(one.log.strip()) for one in details]}


def _workloads(
    results: Sequence[Result],
    workloads: Iterable[tuple[str, ...]],
    place: Mapping[str, int],
    rooflines: Rooflines,
) -> list[list[Any]]:
    groups = grouped(results, "definition")
    labels = {name: workload_labels(group) for name, group in groups.items()}
    order = {name: {uuid: n for n, uuid in enumerate(one)} for name, one in labels.items()}
    axes = {(r.definition, r.workload): dict(r.axes) for r in results}
    work = {(r.definition, r.workload): rooflines.work_of(r) for r in results}
    return [
        [place[d], uuid, labels[d][uuid], order[d][uuid], axes[d, uuid], work[d, uuid]]
        for d, uuid in workloads
    ]


def _samples(
    results: Sequence[Result],
    details: Sequence[RunDetails],
    scores: Sequence[SolutionScore],
    shapes: Book,
    timings: Book,
) -> dict[str, list[int]]:
    """Return the indices of each result's distribution, dropped samples and timing facts."""
    places: dict[tuple[str, ...], int] = {}
    taken: Counter[tuple[str, ...]] = Counter()
    for score in scores:  # the best of each ranking come first
        places[score.key] = taken[score.key[:-1]]
        taken[score.key[:-1]] += 1
    columns = {name: [-1] * len(results) for name in ("shape", "gone", "timing")}
    order = [(places[one.key], index) for index, one in enumerate(results) if one.passed]
    for _, index in sorted(order):
        told = details[index]
        columns["shape"][index] = shapes.add(shape_of(told.counted_ms))
        columns["gone"][index] = shapes.add(shape_of(told.dropped_ms))
        columns["timing"][index] = timings.add(timing_lines(told.timing))
    return columns


def _overview(results: Sequence[Result]) -> dict[str, Any]:
    """Return ratings and curves of authors, separately for each timer and cache mode."""
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
    best = {item.score.key for item in best_solutions(scores)}
    rows = []
    for score in scores:
        fields = {**vars(score), "best": score.key in best}
        fields["definition"] = place[score.definition]
        rows.append({name: fields[name] for name in fields if name != "op_type"})
    return rows


def _thinned(curve: Curve) -> Curve:
    """Drop corners of a curve, but never the first, those next to 1, or the last."""
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
    """Return `data` as deflated JSON in base64, which contains no markup.

    Parameters
    ----------
    data : Any
        Plain values; floats are rounded to five digits, infinities and NaN become strings.
    """
    text = json.dumps(_plain(data), separators=(",", ":"), allow_nan=False)
    return base64.b64encode(zlib.compress(text.encode("ascii"), 9)).decode("ascii")


def _plain(value: Any) -> Any:
    if value is None or type(value) is int:  # most values
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
    return shorter if math.isfinite(shorter) else value  # the largest floats round to infinity
