"""A definition can be benchmarked if it has workloads, solutions, and a reference that fits."""

from __future__ import annotations

import ast
import warnings
from typing import TYPE_CHECKING, Union

from flashinfer_bench.validate.findings import Place

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flashinfer_bench.data import Definition
    from flashinfer_bench.validate.findings import Finding
    from flashinfer_bench.validate.records import Contents, Record

NAME = "benchmark"

_Function = Union[ast.FunctionDef, ast.AsyncFunctionDef]


class BenchmarkCheck:
    """Finds what `fib run` would have nothing to do for, or would fail on in every evaluation."""

    def __init__(self, contents: Contents) -> None:
        self._with_workloads: set[str] = set()

    def visit(self, record: Record) -> Iterator[Finding]:
        """Remember which definitions have workloads."""
        if record.trace.is_workload_trace():
            self._with_workloads.add(record.trace.definition)
        yield from ()

    def facts(self) -> set[str]:
        """Return the definitions that have workloads."""
        return self._with_workloads

    @classmethod
    def combine(cls, facts: list[set[str]], contents: Contents) -> Iterator[Finding]:
        """Tell of each definition that cannot be benchmarked."""
        with_workloads = set().union(*facts)
        solved = {head.definition for head, _ in contents.solution_files}
        for definition, at in contents.definition_files:
            place = Place(NAME, at.path)
            if definition.name in solved and definition.name not in with_workloads:
                yield place.warning("it has solutions and no workload to run them on")
            if definition.name in with_workloads and definition.name not in solved:
                yield place.warning("it has workloads and no solution to run on them")
            yield from _check_reference(definition, place)


def _check_reference(definition: Definition, place: Place) -> Iterator[Finding]:
    function = _reference(definition)
    if function is None or function.args.vararg is not None:
        return
    positional = [*function.args.posonlyargs, *function.args.args]
    least = len(positional) - len(function.args.defaults)
    count = len(definition.inputs)
    if least <= count <= len(positional):
        return
    takes = str(least) if least == len(positional) else f"{least} to {len(positional)}"
    message = f"run takes {takes} inputs, but {count} are declared"
    yield place.error(message, "reference", "every evaluation would fail on it")


def _reference(definition: Definition) -> Union[_Function, None]:
    """Return the plain function that the reference defines last as ``run``, if it is plain."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(definition.reference)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    found = [one for one in tree.body if isinstance(one, _FUNCTIONS) and one.name == "run"]
    # A decorator may change how it is called.
    return found[-1] if found and not found[-1].decorator_list else None


_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
