"""Chart of the fast_p curves: the share of tasks that an author solves more than p times faster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Optional

from flashinfer_bench.report.page.frame import (
    COLOURS,
    OTHERS,
    drawing,
    figure,
    horizontal_grid,
    legend,
    line,
    text,
    vertical_grid,
)
from flashinfer_bench.report.page.markup import Markup, element
from flashinfer_bench.report.page.names import clip, counted
from flashinfer_bench.report.page.scale import Scale, doubling_scale, ratio_label
from flashinfer_bench.report.statistics import fast_p

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from flashinfer_bench.report.results import Result

WIDTH, HEIGHT = 560.0, 300.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 52.0, 540.0, 14.0, 250.0

Task = tuple[str, str, str]
Curve = list[tuple[float, float]]


def fastp_curves(results: Sequence[Result]) -> dict[str, Curve]:
    """Return the curve of each author.

    A task is one workload of one definition on one device; where an author has several solutions,
    the fastest that passed counts. The tasks of all authors count for everyone, so that leaving the
    hard ones out does not pay.

    Parameters
    ----------
    results : sequence of Result
        At most one for each solution, workload and device.

    Returns
    -------
    dict
        Corners (p, share) by author; the author with the most and fastest solved tasks first.
    """
    # Without a time of the reference nothing can be said about a pass, for or against it.
    results = [result for result in results if not result.passed or result.speedup is not None]
    tasks = {_task(result) for result in results}
    fastest: dict[str, dict[Task, float]] = {}
    for result in results:
        solved = fastest.setdefault(result.author, {})
        if result.speedup is not None:
            task = _task(result)
            solved[task] = max(result.speedup, solved.get(task, 0.0))
    curves = {
        author: fast_p(list(solved.values()), len(tasks)) for author, solved in fastest.items()
    }
    return dict(sorted(curves.items(), key=lambda item: (-_share_at_one(item[1]), item[0])))


def _task(result: Result) -> Task:
    return result.definition, result.workload, result.hardware


def _share_at_one(curve: Curve) -> float:
    """Return fast_1, and a little of fast_0 to order those who never beat the reference."""
    fast_1 = [share for p, share in curve if p <= 1.0][-1]
    return fast_1 + 1e-3 * curve[0][1]


def fastp_chart(curves: Mapping[str, Curve], classes: Mapping[str, str]) -> Optional[Markup]:
    """Draw the chart.

    Parameters
    ----------
    curves : mapping
        As `fastp_curves` returns them.
    classes : mapping of str to str
        Class of the colour of each author.

    Returns
    -------
    Markup or None
        None if no task was solved by anyone.
    """
    solved = {author: curve for author, curve in curves.items() if curve[0][1] > 0.0}
    if not solved:
        return None
    across = doubling_scale((p for curve in solved.values() for p, _ in curve), _LEFT, _RIGHT)
    up = Scale(0.0, 1.0, _BOTTOM, _TOP, False, (0.0, 0.25, 0.5, 0.75, 1.0))
    parts = [
        horizontal_grid(up, _LEFT, _RIGHT, lambda share: f"{share:.0%}"),
        vertical_grid(across, _TOP, _BOTTOM, ratio_label),
        line(across(1.0), _TOP, across(1.0), _BOTTOM, "reference"),
        *(_curve(a, c, across, up, classes[a]) for a, c in reversed(list(solved.items()))),
        text(
            (_LEFT + _RIGHT) / 2, _BOTTOM + 36, "p: speed-up over the reference", "tick", "middle"
        ),
    ]
    return figure(
        "fast_p",
        "Share of all tasks (a workload of a definition) solved correctly and more than p times "
        "as fast as the reference. Below: the share at p = 1.",
        drawing(WIDTH, HEIGHT, "Share of tasks solved over speed-up, by author", *parts),
        _legend(solved, classes, [author for author in curves if author not in solved]),
    )


def _curve(author: str, curve: Curve, across: Scale, up: Scale, class_: str) -> Markup:
    steps = [f"M{across(across.low):.1f} {up(_share_from(curve, across.low)):.1f}"]
    for p, share in curve:
        if p > across.low:
            steps.append(f"H{across(p):.1f}V{up(share):.1f}")
    steps.append(f"H{across.end:.1f}")
    tip = f"{author}\n{_share_from(curve, 1.0):.0%} faster than the reference"
    return element("path", d="".join(steps), class_=f"curve wide {class_}", data_tip=tip)


def _share_from(curve: Curve, p: float) -> float:
    return [share for corner, share in curve if corner <= p][-1]


def _legend(
    curves: Mapping[str, Curve], classes: Mapping[str, str], without: Sequence[str]
) -> Markup:
    entries = []
    for author, curve in list(curves.items())[:COLOURS]:
        share = f"{_share_from(curve, 1.0):.0%}"
        entries.append(
            (classes[author], f"{clip(author, 24)} · {share}", f"{author}: fast_1 = {share}")
        )
    if len(curves) > COLOURS:
        others = list(curves)[COLOURS:]
        entries.append((OTHERS, f"{len(others)} others", _listed(others)))
    if without:
        entries.append(
            (OTHERS, f"{counted(len(without), 'author')} solved nothing", _listed(without))
        )
    return legend(entries)


def _listed(names: Sequence[str]) -> str:
    return "\n".join(names[:20])
