"""Why apply uses one solution and not the others, as plain data."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, Any, Optional

from flashinfer_bench.apply.config import ApplyConfig, as_registry
from flashinfer_bench.apply.table import ApplyTable, limits_for
from flashinfer_bench.errors import SelectionError, UnknownNameError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from flashinfer_bench.apply.keys import ApplyKey
    from flashinfer_bench.apply.table import Config, Dataset


def explain(
    source: Optional[Dataset],
    name: str,
    config: Config = None,
    *,
    hardware: Optional[str] = None,
    axes: Optional[Mapping[str, int]] = None,
) -> dict[str, Any]:
    """Explain which solutions apply uses for the calls of one definition.

    Parameters
    ----------
    source : TraceSet, str, Path or None
        The dataset, as for `ApplyTable.load_or_build`. It is always read again.
    name : str
        The definition.
    config : ApplyConfig or ApplyConfigRegistry, optional
        The largest errors allowed.
    hardware : str, optional
        Use the traces of this hardware; by default those of this machine.
    axes : mapping of str to int, optional
        Show only keys with these sizes; axes that are not named may have any size.

    Returns
    -------
    dict
        ``definition``, ``op_type``, ``hardware``. ``atol``, ``rtol``: the largest errors;
        ``both``: whether a result must keep both or just one. ``best``: the solution for sizes
        without traces, if the config asks for one. ``keys``: the keys recorded on this
        hardware, each with its ``axes``, ``feats`` and ``contenders``, the winner first.
        ``solutions``: the solutions of the definition and of its traces, most keys won first,
        with the ``refusals`` of their runs. ``problems``: parts of the dataset that are unreadable.

    Raises
    ------
    UnknownNameError
        If the dataset has no such definition, or the definition has no such variable axis.
    SelectionError
        If no key has these sizes.
    DatasetNotFoundError
        If there is no dataset.
    """
    found = ApplyTable.load_or_build(source, config, hardware=hardware)
    definition, one = found.source.definition(name), found.definitions[name]
    limits = limits_for(definition, as_registry(config).get(name) or ApplyConfig())
    for axis in axes or ():
        if axis not in definition.var_axes:
            raise UnknownNameError.of("variable axis", [axis], definition.var_axes)
    keys = [
        {
            "axes": dict(key.axes),
            "feats": dict(key.feats),
            "contenders": [
                {**each._asdict(), "slower": each.latency_ms / ranking[0].latency_ms}
                for each in ranking
            ],
        }
        for key in one.keys
        if not axes or axes.items() <= dict(key.axes).items()
        for ranking in [one.rankings.get(key, [])]
    ]
    if axes and not keys:
        raise _not_recorded(name, one.keys, axes, found.hardware)
    return {
        "definition": name,
        "op_type": definition.op_type,
        "hardware": found.hardware,
        "atol": limits.atol,
        "rtol": limits.rtol,
        "both": limits.both,
        "best": one.best,
        "keys": keys,
        "solutions": _solutions(name, found),
        "problems": found.problems,
    }


def explain_all(
    source: Optional[Dataset], config: Config = None, *, hardware: Optional[str] = None
) -> dict[str, Any]:
    """Return an overview of each definition of a dataset; see `explain` for the details of one.

    Returns
    -------
    dict
        ``hardware``, ``problems``, and ``definitions``: in the order of the dataset, followed by
        definitions that only traces name. Each has the number of ``solutions``, ``runs``, ``keys``
        and ``open_keys`` (keys without a winner), the number of keys of each winner
        (``winners``), and the number of runs that do not count for each reason (``refused``).
    """
    found = ApplyTable.load_or_build(source, config, hardware=hardware)
    source_of = found.source
    overviews = []
    for name, one in found.definitions.items():
        known = name in source_of.definitions
        refused: Counter[str] = Counter()
        for reasons in one.refusals.values():
            for reason, runs in reasons.items():
                refused[reason.kind] += runs
        overviews.append(
            {
                "definition": name,
                "op_type": source_of.definition(name).op_type if known else "",
                "known": known,
                "solutions": sum(e.definition == name for e in source_of.solutions.values()),
                "runs": one.runs.total(),
                "keys": len(one.rankings) + len(one.barred),
                "open_keys": len(one.barred),
                "winners": one.winners,
                "best": one.best,
                "refused": dict(sorted(refused.items(), key=lambda item: (-item[1], item[0]))),
            }
        )
    return {"hardware": found.hardware, "definitions": overviews, "problems": found.problems}


def _not_recorded(
    name: str, keys: list[ApplyKey], axes: Mapping[str, int], hardware: str
) -> SelectionError:
    """Return the error for sizes without traces; its hint names the nearest recorded sizes."""

    def distance(key: ApplyKey) -> float:
        known = dict(key.axes)
        pairs = ((known.get(axis, 0) + 1, size + 1) for axis, size in axes.items())
        return sum(abs(math.log(here) - math.log(there)) for here, there in pairs)

    def sizes(pairs: Iterable[tuple[str, int]]) -> str:
        return ", ".join(f"{axis}={size}" for axis, size in pairs)

    near = "; ".join(sizes(key.axes) for key in sorted(keys, key=distance)[:5])
    more = " …" if len(keys) > 5 else ""
    return SelectionError(
        f"no trace of {name!r} with {sizes(axes.items())} on {hardware}",
        hint=f"recorded sizes: {near}{more}" if near else "leave out --axes to see all sizes",
    )


def _solutions(name: str, table: ApplyTable) -> list[dict[str, Any]]:
    one, known = table.definitions[name], table.source.solutions
    keys: Counter[str] = Counter()
    counted: Counter[str] = Counter()
    for ranking in one.rankings.values():
        for each in ranking:
            keys[each.solution] += 1
            counted[each.solution] += each.runs
    own = {solution for solution, entry in known.items() if entry.definition == name}
    found = []
    for solution in {*own, *one.runs}:
        by_kind: dict[str, dict[str, Any]] = {}
        for reason, runs in one.refusals.get(solution, {}).items():
            told = {"kind": reason.kind, "text": reason.text, "runs": 0}
            by_kind.setdefault(reason.kind, told)["runs"] += runs
        if not one.runs[solution]:
            by_kind["no runs"] = {"kind": "no runs", "text": "it has no runs", "runs": 0}
        found.append(
            {
                "name": solution,
                "known": solution in known,
                "runs": one.runs[solution],
                "counted": counted[solution],
                "keys": keys[solution],
                "won": one.winners.get(solution, 0),
                "refusals": sorted(by_kind.values(), key=lambda reason: -reason["runs"]),
            }
        )
    return sorted(found, key=lambda each: (-each["won"], -each["keys"], each["name"]))
