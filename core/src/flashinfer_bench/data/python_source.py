"""Looking into Python source without running it."""

from __future__ import annotations

import ast
import warnings

from flashinfer_bench.errors import DataError

ENTRY = "run"
"""Name of the function that a reference must define."""


def parse_python(source: str, *, what: str) -> ast.Module:
    """Parse Python source.

    Parameters
    ----------
    source : str
        The source.
    what : str
        What it is, for the message.

    Returns
    -------
    ast.Module
        The syntax tree.

    Raises
    ------
    DataError
        If it is not Python; the message has the line within the source.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes and the like are the author's affair
            return ast.parse(source)
    except SyntaxError as error:
        raise DataError(
            f"{what} is not valid Python, its line {error.lineno}: {error.msg}"
        ) from error
    except (ValueError, RecursionError, MemoryError) as error:
        reason = str(error) or "nested too deeply"
        raise DataError(f"{what} is not valid Python: {reason}") from error


def top_level_names(tree: ast.Module) -> set[str]:
    """Return the names that functions and assignments at top level define."""
    names: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign):
            names.update(target.id for target in node.targets if isinstance(target, ast.Name))
    return names


def require_run(source: str) -> None:
    """Check that a reference parses and defines ``run`` at top level.

    Raises
    ------
    DataError
        If it is empty, does not parse, or defines no ``run``.
    """
    if not source.strip():
        raise DataError("the reference is empty; it must be Python source that defines 'run'")
    names = top_level_names(parse_python(source, what="the reference"))
    if ENTRY not in names:
        found = ", ".join(sorted(names)) or "nothing"
        raise DataError(
            f"the reference must define a function '{ENTRY}' at top level; it defines {found}"
        )
