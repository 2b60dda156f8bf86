"""Why evaluations failed: the decisive line of each log, and grouping of equal reasons."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

from flashinfer_bench.data import EvaluationStatus

if TYPE_CHECKING:
    from collections.abc import Iterable

    from flashinfer_bench.data import Evaluation, Trace

NO_LOG = "(no log recorded)"

_LONGEST = 400
_COLOUR = re.compile("\x1b\\[[0-9;:]*m")
# The judge's own messages begin with the stage that failed.
_STAGE = re.compile(r"(?:start|compile|load|inputs|call|check|time): (?=\S)")
_BUILD = re.compile(r"\w*BuildError: (?:solution '[^']*': )?")
_RAISED = re.compile(r"^[\w.]*(?:Error|Exception|Interrupt|Exit)\b")
_COMPILED = re.compile(r"\b(?:error|fatal)\b[^:]{0,20}:", re.I)
_NAMED = re.compile(r"\b(?:\w*error|\w*exception|fault|fatal|killed|timed out)\b", re.I)
# A line of a solution's source: in a folder of the worker, or without a folder.
_PLACE = re.compile(
    r'^ *File "(?:[^"\n]*/candidate-[^/"\n]+/[^/"\n]+/)?([\w.-][^"\n]*)", line (\d+)', re.M
)
_HAS_PLACE = re.compile(r"\S[:(]\d+")
_PACKAGE = re.compile(r"\bfib_\w+_[0-9a-f]{16,}\w*\.")
_ADDRESS = re.compile(r"0x[0-9a-fA-F]+")
_NUMBER = re.compile(r"(?<![\w.])-?(?:\d+(?:\.\d+)?(?:e[+-]?\d+)?|nan|inf)(?![\w.])", re.I)


def reason_of(evaluation: Evaluation) -> str:
    """Return the line that says why a solution failed.

    Parameters
    ----------
    evaluation : Evaluation
        A failed evaluation.

    Returns
    -------
    str
        For wrong values, the first element that does not match, the share of such elements and the
        largest errors; else the first error of the compiler, the exception with its place in the
        solution, the signal, or the time limit. At most 400 characters.
    """
    found = evaluation.correctness
    first = (found.extra or {}).get("first_failing") if found is not None else None
    if evaluation.status is EvaluationStatus.INCORRECT_NUMERICAL and isinstance(first, dict):
        return shorten(_wrong_values(evaluation, first))
    line = decisive_line(evaluation.log)
    if evaluation.status is EvaluationStatus.RUNTIME_ERROR and not _HAS_PLACE.search(line):
        places = _PLACE.findall(evaluation.log)
        # Crash reports list the most recent call first, tracebacks last.
        place = places and places[0 if "most recent call first" in evaluation.log else -1]
        line = f"{':'.join(place)}: {line}" if place else line
    return line


def _wrong_values(evaluation: Evaluation, first: dict[str, Any]) -> str:
    assert evaluation.correctness is not None
    extra = evaluation.correctness.extra or {}
    got, expected = (_number(first.get(key)) for key in ("actual", "expected"))
    index = ", ".join(map(str, first.get("index") or ()))
    told = [f"{first.get('output')}{f'[{index}]' if index else ''} is {got}, expected {expected}"]
    share = extra.get("matched_ratio")
    if index and isinstance(share, float):
        # Do not round up to 100 % if some are right.
        percent = 100 * (1 - share) if share in (0.0, 1.0) else min(100 * (1 - share), 99.9)
        told.append(f"{percent:.3g} % of the elements are wrong")
    if extra.get("nonfinite_mismatches"):
        told.append(f"{extra['nonfinite_mismatches']} are NaN or inf on one side only")
    else:
        absolute, relative = (
            _number(getattr(evaluation.correctness, f"max_{kind}_error"))
            for kind in ("absolute", "relative")
        )
        told.append(f"largest error {absolute} absolute, {relative} relative")
    return "; ".join(told)


def _number(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def decisive_line(log: str) -> str:
    """Return the line of a log that says what went wrong.

    Parameters
    ----------
    log : str
        The log of a failed evaluation, by this or another release.

    Returns
    -------
    str
        The first line of the judge's message; in other logs the last exception, else the first
        compiler error, else the last line that mentions an error, else the last line. At most
        400 characters.
    """
    text = without_colours(log)
    own, _, output = text.partition("--- output ---")
    if stage := _STAGE.match(own):
        line = _BUILD.sub("", own[stage.end() :].partition("\n")[0], count=1)
        return shorten(_PACKAGE.sub("", line))
    lines = [one.strip() for one in (own.strip() or output)[-20_000:].splitlines()]
    lines = [line for line in lines if line]
    if not lines:
        return NO_LOG
    from flashinfer_bench.compile.builder import first_error

    heads = [line[:1_000] for line in lines]
    raised, named = (
        next((line for line in reversed(heads) if pattern.search(line)), "")
        for pattern in (_RAISED, _NAMED)
    )
    compiled = any(map(_COMPILED.search, heads)) and first_error("\n".join(heads))
    return shorten(raised or compiled or named or heads[-1])


def shorten(text: str, limit: int = _LONGEST) -> str:
    """Return `text` cut to `limit` characters, with a mark where it was cut."""
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def without_colours(text: str) -> str:
    """Return `text` without the codes that colour it in a terminal."""
    return _COLOUR.sub("", text)


def without_numbers(line: str) -> str:
    """Return a line with addresses and free-standing numbers replaced by ``#``."""
    return _NUMBER.sub("#", _ADDRESS.sub("#", line))


def cause(log: str) -> str:
    """Return `decisive_line` with numbers replaced, so that similar failures compare equal.

    Parameters
    ----------
    log : str
        The log of a failed evaluation.

    Returns
    -------
    str
        At most 160 characters.
    """
    return shorten(without_numbers(decisive_line(log)), 160)


class Failures(NamedTuple):
    """Evaluations that failed for one reason.

    Attributes
    ----------
    status : EvaluationStatus
        How they ended.
    reason : str
        The reason of the first of them.
    total : int
        Number of failed evaluations.
    solutions : tuple of (str, str)
        Definition and solution of each, without duplicates.
    """

    status: EvaluationStatus
    reason: str
    total: int
    solutions: tuple[tuple[str, str], ...]


def group_failures(traces: Iterable[Trace]) -> list[Failures]:
    """Return why some of `traces` failed, the most frequent reason first.

    Reasons that differ only in numbers are grouped. All wrong outputs of a solution are one reason.

    Parameters
    ----------
    traces : iterable of Trace
        Traces of runs; those that passed are left out.
    """
    counts: Counter[Any] = Counter()
    first: dict[Any, str] = {}
    names: dict[Any, dict[tuple[str, str], None]] = {}
    for trace in traces:
        run = trace.evaluation
        if run is None or trace.is_successful():
            continue
        reason, who = reason_of(run), (trace.definition, str(trace.solution))
        is_wrong = run.status.value.startswith("INCORRECT")
        key = run.status, who if is_wrong else without_numbers(reason)
        counts[key] += 1
        first.setdefault(key, reason)
        names.setdefault(key, {})[who] = None
    return [
        Failures(key[0], first[key], count, tuple(names[key]))
        for key, count in counts.most_common()
    ]
