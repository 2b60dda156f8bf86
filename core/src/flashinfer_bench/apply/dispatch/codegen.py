"""Functions from source that we have written ourselves, with tracebacks that show it."""

from __future__ import annotations

import linecache
from functools import lru_cache
from hashlib import sha256
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from types import CodeType


def compile_source(
    source: str, name: str, title: str, namespace: Mapping[str, Any]
) -> Callable[..., Any]:
    """Run `source` and return what it defines as `name`.

    Parameters
    ----------
    source : str
        Python. No text from outside stands in it other than identifiers and what `repr` wrote.
    name : str
        The function in it.
    title : str
        Shown in tracebacks in place of a file; equal sources of one title share their entry there.
    namespace : mapping
        Global names of the source.
    """
    scope = {"__name__": __name__, **namespace}
    exec(_compiled(source, title), scope)
    function: Callable[..., Any] = scope[name]
    return function


@lru_cache(maxsize=1024)
def _compiled(source: str, title: str) -> CodeType:
    digest = sha256(source.encode()).hexdigest()[:8]
    file = f"<flashinfer_bench apply {title} {digest}>"
    # Without a time of change the entry is never checked against a file.
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    return compile(source, file, "exec")


def indented(lines: Iterable[str], depth: int = 1) -> list[str]:
    """Return `lines` with `depth` levels of indentation more."""
    return ["    " * depth + line for line in lines]
