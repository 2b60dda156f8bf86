"""Why which solution is taken, and why the others are not."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Optional, Union

from flashinfer_bench.apply.config import as_registry
from flashinfer_bench.apply.explanation import (
    Contender,
    DefinitionOverview,
    Explanation,
    KeyExplanation,
    Overview,
    Refusal,
    SolutionExplanation,
)
from flashinfer_bench.apply.hardware import Place, this_hardware
from flashinfer_bench.apply.source import unknown
from flashinfer_bench.errors import SelectionError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from flashinfer_bench.apply.candidates import Candidates, Refusals
    from flashinfer_bench.apply.config import ApplyConfig, ApplyConfigRegistry
    from flashinfer_bench.apply.keys import ApplyKey
    from flashinfer_bench.apply.selection import Limits
    from flashinfer_bench.apply.source import Source
    from flashinfer_bench.apply.table import TableSource
    from flashinfer_bench.apply.table_build import Collected
    from flashinfer_bench.data import Definition

__all__ = [
    "Contender",
    "DefinitionOverview",
    "Explanation",
    "KeyExplanation",
    "Overview",
    "Refusal",
    "SolutionExplanation",
    "explain",
    "explain_all",
]

Configs = Union["ApplyConfig", "ApplyConfigRegistry", None]


def explain(
    source: TableSource,
    name: str,
    config: Configs = None,
    *,
    hardware: Optional[str] = None,
    axes: Optional[Mapping[str, int]] = None,
) -> Explanation:
    """Explain what is taken for the calls of one definition.

    Parameters
    ----------
    source : TraceSet, str, Path or None
        The dataset, as for `ApplyTable.load_or_build`. It is read anew.
    name : str
        The definition.
    config : ApplyConfig or ApplyConfigRegistry, optional
        The bounds on errors.
    hardware : str, optional
        Whose records count; by default this machine's.
    axes : mapping of str to int, optional
        Look at keys of these sizes only; axes that are not named may have any.

    Raises
    ------
    UnknownNameError
        If the dataset has no such definition, or the definition no such variable axis.
    SelectionError
        If no key has these sizes.
    DatasetNotFoundError
        If there is no dataset.
    """
    from flashinfer_bench.apply.candidates import Candidates
    from flashinfer_bench.apply.selection import limits_for

    configs = as_registry(config)
    place = _place(hardware)
    found = _collect(source, configs, place, name)
    if name not in found.source.definition_names:
        raise unknown("definition", name, found.source.definition_names)
    definition = found.source.definition(name)
    one = found.candidates.get(name) or Candidates()
    chosen = _keys_with(definition, one, axes, place.hardware)
    limits = limits_for(definition, configs.get(name))
    return _explanation(definition, place, limits, one, found, chosen)


def explain_all(
    source: TableSource, config: Configs = None, *, hardware: Optional[str] = None
) -> Overview:
    """Return what there is for each definition of a dataset; see `explain`."""
    from flashinfer_bench.apply.candidates import Candidates

    place = _place(hardware)
    found = _collect(source, as_registry(config), place, None)
    names = [*found.source.definition_names]
    others = sorted(found.candidates.keys() - set(names))
    return Overview(
        place.hardware,
        tuple(
            _overview(name, found.source, found.candidates.get(name) or Candidates())
            for name in (*names, *others)
        ),
        tuple(map(str, found.problems)),
    )


def _place(hardware: Optional[str]) -> Place:
    return Place.of(this_hardware() if hardware is None else hardware)


def _collect(
    source: TableSource, configs: ApplyConfigRegistry, place: Place, only: Optional[str]
) -> Collected:
    from pathlib import Path

    from flashinfer_bench.apply.snapshot import Snapshot
    from flashinfer_bench.apply.table import dataset_folder
    from flashinfer_bench.apply.table_build import collect_folder, collect_memory

    if source is None or isinstance(source, (str, Path)):
        return collect_folder(Snapshot(dataset_folder(source)), configs, place, only)
    return collect_memory(source, configs, place, only)


def _keys_with(
    definition: Definition, one: Candidates, axes: Optional[Mapping[str, int]], hardware: str
) -> list[ApplyKey]:
    if not axes:
        return one.keys
    for axis in axes:
        if axis not in definition.var_axes:
            raise unknown("variable axis", axis, definition.var_axes)
    found = [key for key in one.keys if axes.items() <= dict(key.axes).items()]
    if not found:
        near = sorted(one.keys, key=lambda key: _distance(key, axes))
        shown = "; ".join(_sizes(key.axes) for key in near[:5])
        more = " …" if len(near) > 5 else ""
        raise SelectionError(
            f"nobody has recorded {definition.name!r} with {_sizes(axes.items())} on {hardware}",
            hint=f"recorded are {shown}{more}" if near else "ask for all sizes to see where it was",
        )
    return found


def _distance(key: ApplyKey, axes: Mapping[str, int]) -> float:
    """Return how far a key is from the sizes that are asked for: the logarithm of all factors."""
    known = dict(key.axes)
    pairs = ((known.get(axis, 0) + 1, size + 1) for axis, size in axes.items())
    return sum(abs(math.log(here) - math.log(there)) for here, there in pairs)


def _sizes(axes: Iterable[tuple[str, int]]) -> str:
    return ", ".join(f"{axis}={size}" for axis, size in axes)


def _explanation(
    definition: Definition,
    place: Place,
    limits: Limits,
    one: Candidates,
    found: Collected,
    keys: list[ApplyKey],
) -> Explanation:
    return Explanation(
        definition=definition.name,
        op_type=definition.op_type,
        hardware=place.hardware,
        atol=limits.atol,
        rtol=limits.rtol,
        both=limits.both,
        best=one.best,
        keys=tuple(_key(key, one) for key in keys),
        solutions=_solutions(definition.name, one, found.source),
        problems=tuple(map(str, found.problems)),
    )


def _key(key: ApplyKey, one: Candidates) -> KeyExplanation:
    ranking = one.rankings.get(key, [])
    contenders = (
        Contender(
            each.solution,
            each.latency_ms,
            each.latency_ms / ranking[0].latency_ms,
            each.runs,
            each.workload,
        )
        for each in ranking
    )
    return KeyExplanation(dict(key.axes), dict(key.feats), tuple(contenders))


def _solutions(name: str, one: Candidates, source: Source) -> tuple[SolutionExplanation, ...]:
    keys: dict[str, int] = {}
    counted: dict[str, int] = {}
    for ranking in one.rankings.values():
        for each in ranking:
            keys[each.solution] = keys.get(each.solution, 0) + 1
            counted[each.solution] = counted.get(each.solution, 0) + each.runs
    won = _winners(one)
    known = set(source.solution_names())
    made = [
        SolutionExplanation(
            solution,
            solution in known,
            one.runs[solution],
            counted.get(solution, 0),
            keys.get(solution, 0),
            won.get(solution, 0),
            _refusals(one.refusals.get(solution)) or _never_run(one.runs[solution]),
        )
        for solution in {*source.solution_names(name), *one.runs}
    ]
    return tuple(sorted(made, key=lambda each: (-each.won, -each.keys, each.name)))


def _never_run(runs: int) -> tuple[Refusal, ...]:
    return () if runs else (Refusal("no runs", "there is no run of it", 0),)


def _refusals(refusals: Optional[Refusals]) -> tuple[Refusal, ...]:
    if refusals is None:
        return ()
    return tuple(
        Refusal(kind, refusals.examples[kind], runs) for kind, runs in refusals.counts.most_common()
    )


def _winners(one: Candidates) -> dict[str, int]:
    counts: dict[str, int] = {}
    for ranking in one.rankings.values():
        counts[ranking[0].solution] = counts.get(ranking[0].solution, 0) + 1
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def _overview(name: str, source: Source, one: Candidates) -> DefinitionOverview:
    known = name in source.definition_names
    refused: dict[str, int] = {}
    for refusals in one.refusals.values():
        for kind, runs in refusals.counts.items():
            refused[kind] = refused.get(kind, 0) + runs
    return DefinitionOverview(
        definition=name,
        op_type=source.definition(name).op_type if known else "",
        known=known,
        solutions=len(source.solution_names(name)),
        runs=one.runs.total(),
        keys=len(one.keys),
        open_keys=len(one.keys) - len(one.rankings),
        winners=_winners(one),
        best=one.best,
        refused=dict(sorted(refused.items(), key=lambda item: (-item[1], item[0]))),
    )
