"""Checks that each definition has workloads, solutions and a matching reference."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from flashinfer_bench.data.constraints import parse_python
from flashinfer_bench.errors import DataError
from flashinfer_bench.validate.records import Place

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flashinfer_bench.data import Definition
    from flashinfer_bench.validate.records import Contents, Finding


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
