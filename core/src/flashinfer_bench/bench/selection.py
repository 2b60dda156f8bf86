"""Which definitions and solutions of a dataset are meant by the names that a user gives."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING, Optional

from flashinfer_bench.errors import UnknownNameError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from flashinfer_bench.data import Definition, Solution, TraceSet
    from flashinfer_bench.plugins import Catalog


def selected_definitions(trace_set: TraceSet, names: Optional[Sequence[str]]) -> list[Definition]:
    """Return the definitions of a dataset, or those that are named.

    Parameters
    ----------
    trace_set : TraceSet
        The dataset.
    names : sequence of str, optional
        None for all.

    Raises
    ------
    UnknownNameError
        If there is no definition of one of the names.
    """
    if names is None:
        return list(trace_set.definitions.values())
    _require_known("definition", names, trace_set.definitions)
    wanted = set(names)
    return [item for name, item in trace_set.definitions.items() if name in wanted]


def selected_solutions(
    trace_set: TraceSet, definitions: Iterable[Definition], names: Optional[Sequence[str]]
) -> dict[str, list[Solution]]:
    """Return the solutions of `definitions`, or those of them that are named.

    Parameters
    ----------
    trace_set : TraceSet
        The dataset.
    definitions : iterable of Definition
        Some of its definitions.
    names : sequence of str, optional
        None for all.

    Returns
    -------
    dict of str to list of Solution
        By the name of the definition; each of `definitions` is a key.

    Raises
    ------
    UnknownNameError
        If there is no solution of one of the names in the whole dataset.
    """
    if names is not None:
        known = {item.name for group in trace_set.solutions.values() for item in group}
        _require_known("solution", names, known)
    wanted = None if names is None else set(names)
    return {
        definition.name: [
            item
            for item in trace_set.solutions.get(definition.name, [])
            if wanted is None or item.name in wanted
        ]
        for definition in definitions
    }


def meant_for_other_device(
    solution: Solution, catalog: Catalog, device: Optional[str]
) -> Optional[str]:
    """Say why a solution has no business on a device, or return None if it may have.

    Compiled code for the CPU would take a GPU's address for one of its own.

    Parameters
    ----------
    solution : Solution
        Names the hardware that it is written for. Only ``cpu`` alone is taken at its word: files
        that name some GPU are also evaluated on machines without one.
    catalog : Catalog
        Knows on which devices the builders' results work.
    device : str, optional
        Where the solution would work; None for anywhere.
    """
    if device is None:
        return None
    spec, kind = solution.spec, device.partition(":")[0]
    wanted = {name.strip().lower() for name in spec.target_hardware}
    if wanted == {"cpu"} and kind != "cpu":
        return f"it is written for the CPU (target_hardware), and this run is on {device}"
    anywhere = catalog.builders_for(spec.language, spec.binding)
    if not anywhere or catalog.builders_for(spec.language, spec.binding, device=device):
        return None
    others = sorted({name for entry in anywhere for name in entry.spec.devices})
    return f"{spec.language} works on {', '.join(others)}, and this run is on {device}"


def _require_known(kind: str, names: Sequence[str], known: Collection[str]) -> None:
    unknown = tuple(name for name in names if name not in known)
    if not unknown:
        return
    near = [match for name in unknown for match in get_close_matches(name, known, n=3)]
    listed = ", ".join(repr(name) for name in unknown)
    hint = f"did you mean {', '.join(dict.fromkeys(near))}?" if near else _some_of(known)
    raise UnknownNameError(f"no {kind} is called {listed}", hint=hint, unknown=unknown)


def _some_of(known: Collection[str]) -> str:
    names = sorted(known)
    return f"there are: {', '.join(names[:10])}{', …' if len(names) > 10 else ''}"
