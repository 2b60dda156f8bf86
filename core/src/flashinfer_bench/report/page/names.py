"""Short names that still tell things apart."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from flashinfer_bench.report.results import Result


def clip(text: str, width: int) -> str:
    """Cut the middle out of `text` so that at most `width` characters are left."""
    if len(text) <= width:
        return text
    tail = (width - 1) // 2
    return f"{text[: width - 1 - tail]}…{text[-tail:] if tail else ''}"


def short_solution(name: str, definition: str, width: int = 34) -> str:
    """Leave out of a solution's name the name of its definition, which is known where it stands."""
    if definition in name and name != definition:
        name = name.replace(definition, "…", 1).strip("_-. ") or name
    return clip(name, width)


def workload_labels(results: Sequence[Result]) -> dict[str, str]:
    """Name each workload by the axes in which it differs from the others.

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
    labels = {uuid: _label(axes[uuid], varying) for uuid in ordered}
    counts: dict[str, int] = {}
    for uuid, label in labels.items():
        counts[label] = counts.get(label, 0) + 1
        if counts[label] > 1:
            labels[uuid] = f"{label} #{counts[label]}"
    return labels


def _varying(axes: Sequence[Mapping[str, int]]) -> list[str]:
    """Choose as few axes as tell as many workloads apart as all axes together do."""
    chosen: list[str] = []
    apart = 1
    for name in dict.fromkeys(name for values in axes for name in values):
        count = len({tuple(values.get(n) for n in (*chosen, name)) for values in axes})
        if count > apart:
            chosen, apart = [*chosen, name], count
    return chosen or list(axes[0] if axes else ())


def _label(axes: Mapping[str, int], names: Sequence[str]) -> str:
    return " ".join(f"{name}={axes[name]}" for name in names if name in axes) or "fixed size"


def ratio_label(value: float) -> str:
    """Return a ratio as it is read: ``2×``, ``0.52×``, ``1/250×``."""
    if value < 0.01:
        return f"1/{1 / value:,.0f}×"
    return f"{value:,.0f}×" if value >= 100.0 else f"{value:.3g}×"
