"""Checks of what belongs together: definitions, their workloads, solutions and baselines.

A missing baseline is not an error, because datasets grow and are merged with others. Two baselines
are an error, because it is ambiguous which one counts.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from typing import TYPE_CHECKING

from flashinfer_bench.data.constraints import parse_python
from flashinfer_bench.errors import DataError
from flashinfer_bench.validate.records import Place

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flashinfer_bench.data import Definition
    from flashinfer_bench.validate.records import Contents, Finding

AUTHOR = "baseline"


def check_baselines(contents: Contents) -> Iterator[Finding]:
    """Find definitions with no baseline or several, and workloads that the baseline fails.

    A dataset without any solution by the author ``baseline`` has no scores, and no findings here.
    """
    baselines: dict[str, list[Place]] = defaultdict(list)
    solved: set[str] = set()
    for head, place in contents.solution_files:
        solved.add(head.definition)
        if head.author == AUTHOR:
            baselines[head.definition].append(place)
    if not baselines:
        return
    passed: set[tuple[str, str]] = set()
    run: dict[str, set[str]] = defaultdict(set)
    for (name, uuid, solution, status), _ in contents.traces:
        known = contents.solutions.get(solution) if solution is not None else None
        if known is not None and known.author != AUTHOR:
            run[name].add(uuid)
        elif known is not None and status == "PASSED":
            passed.add((name, uuid))
    for definition, at in contents.definition_files:
        name = definition.name
        places, here = baselines.get(name, []), Place("baseline", at.path)
        if len(places) > 1:
            message = f"{name!r} has another baseline: {places[0].path}"
            hint = "scores need exactly one; change the author of the others"
            yield Place("baseline", places[1].path).error(message, "author", hint)
        elif not places and name in solved:
            message = "the definition has solutions but no baseline, so they have no scores"
            hint = f"a baseline is a solution by the author {AUTHOR!r}"
            yield here.note(message, hint=hint)
        left = sorted(uuid for uuid in run[name] if (name, uuid) not in passed)
        if left and places:
            yield here.note(
                f"the baseline has not passed on {len(left)} workloads that others have run, "
                f"which do not count in scores; the first is {left[0]}"
            )


def check_benchmark(contents: Contents) -> Iterator[Finding]:
    """Find definitions that `fib run` would skip, or for which every evaluation would fail."""
    with_workloads = {head.definition for head, _ in contents.traces if head.solution is None}
    solved = {head.definition for head, _ in contents.solution_files}
    for definition, at in contents.definition_files:
        place = Place("benchmark", at.path)
        if definition.name in solved and definition.name not in with_workloads:
            yield place.warning("the definition has solutions but no workloads")
        if definition.name in with_workloads and definition.name not in solved:
            yield place.warning("the definition has workloads but no solutions")
        yield from _check_reference(definition, place)


def _check_reference(definition: Definition, place: Place) -> Iterator[Finding]:
    try:
        tree = parse_python(definition.reference)
    except DataError:
        return
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    found = [one for one in tree.body if isinstance(one, kinds) and one.name == "run"]
    # A decorator may change the signature.
    if not found or found[-1].decorator_list or found[-1].args.vararg is not None:
        return
    arguments = found[-1].args
    positional = [*arguments.posonlyargs, *arguments.args]
    least = len(positional) - len(arguments.defaults)
    count = len(definition.inputs)
    if least <= count <= len(positional):
        return
    takes = str(least) if least == len(positional) else f"{least} to {len(positional)}"
    message = f"run takes {takes} inputs, but {count} are declared"
    yield place.error(message, "reference", "every evaluation would fail")
