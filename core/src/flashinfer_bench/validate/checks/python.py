"""Python of solutions that cannot even be parsed, or lacks its entry point."""

from __future__ import annotations

import ast
import warnings
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flashinfer_bench.data import Solution
    from flashinfer_bench.validate.findings import Finding, Place

# Languages whose entry point is a Python function.
_PYTHON = frozenset({"python", "triton", "tilelang", "cutedsl", "cutile"})


def check_python(solution: Solution, place: Place) -> Iterator[Finding]:
    """Check the entry file of one solution.

    A solution that does not build is a legitimate record, which gets the status COMPILE_ERROR: it
    is no more than a warning.
    """
    entry = solution.get_entry_source()
    if str(solution.spec.language) not in _PYTHON or entry is None:
        return
    field = f"sources.{solution.sources.index(entry)}.content"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of an invalid escape, say: the author's business
            tree = ast.parse(entry.content)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = f", line {error.lineno}," if isinstance(error, SyntaxError) else ""
        reason = error.msg if isinstance(error, SyntaxError) else str(error)
        yield place.warning(f"{entry.path}{line} is not valid Python: {reason}", field)
        return
    symbol = solution.get_entry_symbol()
    if symbol not in _top_level_names(tree):
        message = f"{entry.path} defines no {symbol!r} at its top level"
        yield place.warning(message, "spec.entry_point")


def _top_level_names(tree: ast.Module) -> set[str]:
    """Return every name that a statement outside functions and classes may bind."""
    names: set[str] = set()
    pending: list[ast.AST] = list(tree.body)
    while pending:
        node = pending.pop()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, ast.alias):
            names.add((node.asname or node.name).partition(".")[0])
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        else:
            pending += ast.iter_child_nodes(node)
    return names
