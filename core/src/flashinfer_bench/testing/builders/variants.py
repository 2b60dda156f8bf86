"""Broken variants of a correct solution."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flashinfer_bench.data import CompileOptions, Definition, Solution

MISSING = "fib_conformance_no_such_symbol"
FOREIGN = "fib-conformance-no-such-language"

_AXIS = "fib_conformance_axis"


def with_symbol(solution: Solution, symbol: str) -> Solution:
    """Return `solution` with another entry symbol."""
    path = solution.get_entry_path()
    return _with_spec(solution, entry_point=f"{path}::{symbol}")


def with_language(solution: Solution, language: str) -> Solution:
    """Return `solution` as one in another language."""
    return _with_spec(solution, language=language)


def with_binding(solution: Solution, binding: str) -> Solution:
    """Return `solution` as one with another binding."""
    return _with_spec(solution, binding=binding)


def with_options(solution: Solution, options: CompileOptions) -> Solution:
    """Return `solution` with compile options in the place of its own."""
    return _with_spec(solution, compile_options=options.model_dump(mode="json"))


def with_constant(definition: Definition) -> Definition:
    """Return `definition` with one more constant axis, which nothing refers to."""
    from flashinfer_bench.data import Definition

    record = definition.model_dump(mode="json")
    record["axes"][_AXIS] = {"type": "const", "value": 7}
    return Definition.model_validate(record)


def with_entry_content(solution: Solution, content: str) -> Solution:
    """Return `solution` with other content in its entry file, and nothing else changed."""
    record = solution.model_dump(mode="json")
    for source in record["sources"]:
        if source["path"] == solution.get_entry_path():
            source["content"] = content
    return _load(record)


def with_unsafe_source(solution: Solution, path: str, content: str) -> Solution:
    """Return `solution` with one more file, at a path that the format does not allow.

    A solution like this can be made by leaving out the checks, as somebody who unpickles or
    constructs it by hand might: a builder is the last one to look.
    """
    from flashinfer_bench.data import SourceFile

    unsafe = SourceFile.model_construct(path=path, content=content)
    return solution.model_copy(update={"sources": [*solution.sources, unsafe]})


def _with_spec(solution: Solution, **fields: Any) -> Solution:
    record = solution.model_dump(mode="json")
    record["spec"].update(fields)
    return _load(record)


def _load(record: dict[str, Any]) -> Solution:
    from flashinfer_bench.data import Solution

    return Solution.model_validate(record)
