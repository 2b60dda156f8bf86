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


def counted(count: int, noun: str) -> str:
    """Return a number with its noun: ``1 workload``, ``2 workloads``."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


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


def split_labels(labels: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    """Take what all labels have in common out of them.

    Parameters
    ----------
    labels : mapping of str to str
        As `workload_labels` returns them.

    Returns
    -------
    title : str
        Names of the axes, if all labels name the same: ``batch_size · num_pages``; else empty.
    short : dict of str to str
        The values alone, ``8 · 601``, if there is a title; else the labels as they are.
    """
    parts = {
        uuid: [part.partition("=") for part in label.split(" ")] for uuid, label in labels.items()
    }
    axes = {tuple(name for name, _, _ in one) for one in parts.values()}
    if len(axes) != 1 or not all(equals for one in parts.values() for _, equals, _ in one):
        return "", dict(labels)
    values = {uuid: " · ".join(value for _, _, value in one) for uuid, one in parts.items()}
    return " · ".join(axes.pop()), values
