"""Functions that are written while the program runs."""

from __future__ import annotations

import keyword
import linecache
from functools import lru_cache
from hashlib import sha256
from inspect import Parameter, Signature
from typing import TYPE_CHECKING, Any, Optional

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from types import CodeType

RESERVED = "_fib_"
"""How every name begins that generated code adds to those of a user's function."""


def compile_source(
    source: str, name: str = "make", names: Optional[Mapping[str, Any]] = None, title: str = ""
) -> Callable[..., Any]:
    """Return a function that source text defines at its top level.

    The text is kept where tracebacks look for source. The same text is compiled once.

    Parameters
    ----------
    source : str
        Our own: nothing in it may come from elsewhere, but for names that are known to be
        identifiers, and what `repr` wrote.
    name : str
        Of the function.
    names : mapping, optional
        The global names that it has. It has none of a module: torch.compile would look for them
        there.
    title : str
        Shown in tracebacks in place of a file.
    """
    scope = dict(names or {})
    exec(_compiled(source, title), scope)
    made: Callable[..., Any] = scope[name]
    return made


@lru_cache(maxsize=1024)
def _compiled(source: str, title: str) -> CodeType:
    digest = sha256(source.encode()).hexdigest()[:12]
    file = " ".join(filter(None, ("<flashinfer_bench apply", title, f"{digest}>")))
    # Without a time of change, an entry is not dropped when no such file is found.
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    return compile(source, file, "exec")


def writable(signature: Signature) -> bool:
    """Return whether generated code can have these parameters under their names."""
    names = signature.parameters
    return all(
        name.isidentifier() and not keyword.iskeyword(name) and not name.startswith(RESERVED)
        for name in names
    )


def parameter_list(signature: Signature) -> str:
    """Return parameters as a definition lists them; each default is None, as a placeholder."""
    empty = Parameter.empty
    plain = [
        each.replace(annotation=empty, default=empty if each.default is empty else None)
        for each in signature.parameters.values()
    ]
    return str(Signature(plain))[1:-1]


def _stars(parameter: Parameter) -> str:
    return {"VAR_POSITIONAL": "*", "VAR_KEYWORD": "**"}.get(parameter.kind.name, "")


def argument_list(signature: Signature) -> str:
    """Return what passes each parameter on, in a call."""
    return ", ".join(
        f"{parameter.name}={parameter.name}"
        if parameter.kind is Parameter.KEYWORD_ONLY
        else f"{_stars(parameter)}{parameter.name}"
        for parameter in signature.parameters.values()
    )


def positional_tuple(signature: Signature) -> str:
    """Return the tuple of what may be given by position."""
    passed = (Parameter.KEYWORD_ONLY, Parameter.VAR_KEYWORD)
    return tuple_of(
        f"{_stars(parameter)}{parameter.name}"
        for parameter in signature.parameters.values()
        if parameter.kind not in passed
    )


def keyword_dict(signature: Signature) -> str:
    """Return the dict of what is given by keyword alone, or None if there is no such parameter."""
    parts = [
        f"**{parameter.name}"
        if parameter.kind is Parameter.VAR_KEYWORD
        else f"{parameter.name!r}: {parameter.name}"
        for parameter in signature.parameters.values()
        if parameter.kind in (Parameter.KEYWORD_ONLY, Parameter.VAR_KEYWORD)
    ]
    return f"{{{', '.join(parts)}}}" if parts else "None"


def tuple_of(names: Iterable[str]) -> str:
    """Return a tuple of expressions."""
    return f"({''.join(f'{name}, ' for name in names).rstrip()})"
