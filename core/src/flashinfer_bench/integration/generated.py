"""Functions that are written while the program runs."""

from __future__ import annotations

import hashlib
import keyword
import linecache
from functools import lru_cache
from inspect import Parameter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from inspect import Signature

RESERVED = "_fib_"
"""How every name begins that generated code adds to those of a user's function."""


@lru_cache(maxsize=512)
def factory(source: str, name: str = "make") -> Callable[..., Any]:
    """Return a function that source text defines at its top level.

    The text is kept where tracebacks look for source. The same text is compiled once.

    Parameters
    ----------
    source : str
        Our own: nothing in it may come from elsewhere, but for names that are known to be
        identifiers.
    name : str
        Of the function.
    """
    digest = hashlib.sha256(source.encode()).hexdigest()[:12]
    filename = f"<flashinfer_bench apply {digest}>"
    # Without a time of change, an entry is not dropped when no such file is found.
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    # No name of a module here: torch.compile would look for globals in that module.
    scope: dict[str, Any] = {}
    exec(compile(source, filename, "exec"), scope)
    made: Callable[..., Any] = scope[name]
    return made


def writable(signature: Signature) -> bool:
    """Return whether generated code can have these parameters under their names."""
    names = signature.parameters
    return all(
        name.isidentifier() and not keyword.iskeyword(name) and not name.startswith(RESERVED)
        for name in names
    )


def parameter_list(signature: Signature) -> str:
    """Return parameters as a definition lists them; each default is None, as a placeholder."""
    parts: list[str] = []
    kinds = [parameter.kind for parameter in signature.parameters.values()]
    starred = Parameter.VAR_POSITIONAL in kinds
    for index, parameter in enumerate(signature.parameters.values()):
        if parameter.kind is Parameter.KEYWORD_ONLY and not starred:
            parts.append("*")
            starred = True
        prefix = _stars(parameter)
        suffix = "" if parameter.default is Parameter.empty else "=None"
        parts.append(f"{prefix}{parameter.name}{suffix}")
        if parameter.kind is Parameter.POSITIONAL_ONLY and (
            kinds[index + 1 :][:1] != [Parameter.POSITIONAL_ONLY]
        ):
            parts.append("/")
    return ", ".join(parts)


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
