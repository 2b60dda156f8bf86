"""What an adapter knows of a function's signature, compared with the function that is installed.

A signature is written as its parameters are in source code: ``"input, weight, eps=1e-06"``. What an
adapter knows are the leading parameters; releases add others at the end, which is fine as long as
they need not be given: a call that gives one is not understood, and goes to the original.
"""

from __future__ import annotations

import ast
import inspect
from inspect import Parameter, Signature
from typing import TYPE_CHECKING, Any, Optional

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_BY_POSITION = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
_VARIABLE = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)


class _Text:
    """A default that is known by its source code only: ``torch.bfloat16``."""

    def __init__(self, source: str) -> None:
        self._source = source

    def __repr__(self) -> str:
        return self._source


def parse(parameters: str) -> Signature:
    """Return a signature from the source code of its parameters, without annotations.

    Raises
    ------
    SyntaxError
        If it is no such list.
    """
    tree = ast.parse(f"lambda {parameters}: None", mode="eval")
    assert isinstance(tree.body, ast.Lambda)
    return Signature(_parameters(tree.body.args))


def _parameters(arguments: ast.arguments) -> list[Parameter]:
    positional = [*arguments.posonlyargs, *arguments.args]
    defaults = [*[None] * (len(positional) - len(arguments.defaults)), *arguments.defaults]
    found = [
        _parameter(each, _kind(index, arguments), default)
        for index, (each, default) in enumerate(zip(positional, defaults, strict=True))
    ]
    if arguments.vararg:
        found.append(_parameter(arguments.vararg, Parameter.VAR_POSITIONAL))
    named = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    found += [_parameter(each, Parameter.KEYWORD_ONLY, default) for each, default in named]
    if arguments.kwarg:
        found.append(_parameter(arguments.kwarg, Parameter.VAR_KEYWORD))
    return found


def _kind(index: int, arguments: ast.arguments) -> Any:
    only = index < len(arguments.posonlyargs)
    return Parameter.POSITIONAL_ONLY if only else Parameter.POSITIONAL_OR_KEYWORD


def _parameter(argument: ast.arg, kind: Any, default: Optional[ast.expr] = None) -> Parameter:
    value = Parameter.empty if default is None else _value(default)
    return Parameter(argument.arg, kind, default=value)


def _value(default: ast.expr) -> Any:
    try:
        return ast.literal_eval(default)
    except ValueError:
        return _Text(ast.unparse(default))


def as_text(signature: Signature) -> str:
    """Return the parameters of a signature as source code, without annotations.

    Of a method they have ``self`` as the first.
    """
    bare = [each.replace(annotation=Parameter.empty) for each in signature.parameters.values()]
    return str(signature.replace(parameters=bare, return_annotation=Signature.empty))[1:-1]


def difference(known: Signature, found: Signature) -> Optional[str]:
    """Return how a function's signature differs from what is known; None if it does not matter.

    Parameters
    ----------
    known : inspect.Signature
        Its parameters that may be given by position are the leading ones of the function, of the
        same names and defaults. Those by keyword alone have the same defaults, if they are there.
    found : inspect.Signature
        Of the function. Any further parameter needs a default, or takes any number of arguments.
    """
    leading = [each for each in known.parameters.values() if each.kind in _BY_POSITION]
    positional = [each for each in found.parameters.values() if each.kind in _BY_POSITION]
    for index, wanted in enumerate(leading):
        if index >= len(positional):
            return f"there is no parameter '{wanted.name}' at position {index}"
        problem = _differs(wanted, positional[index], index)
        if problem:
            return problem
    others = [*positional[len(leading) :], *_others(found)]
    return _unknown(known, others)


def _others(found: Signature) -> list[Parameter]:
    return [each for each in found.parameters.values() if each.kind is Parameter.KEYWORD_ONLY]


def _differs(wanted: Parameter, found: Parameter, index: int) -> Optional[str]:
    if found.name != wanted.name:
        return f"parameter {index} is '{found.name}', not '{wanted.name}'"
    if repr(found.default) != repr(wanted.default):
        return f"the default of '{found.name}' is {_said(found)}, not {_said(wanted)}"
    return None


def _said(parameter: Parameter) -> str:
    return "none" if parameter.default is Parameter.empty else repr(parameter.default)


def _unknown(known: Signature, others: Sequence[Parameter]) -> Optional[str]:
    for each in others:
        wanted = known.parameters.get(each.name)
        if wanted is not None and wanted.kind not in _VARIABLE:
            if repr(each.default) != repr(wanted.default):
                return f"the default of '{each.name}' is {_said(each)}, not {_said(wanted)}"
        elif each.default is Parameter.empty:
            return f"parameter '{each.name}' is new, and has no default"
    return None


def expects(*known: str) -> Callable[[Callable[..., Any]], Optional[str]]:
    """Return a function that says why an original is not supported.

    Parameters
    ----------
    *known : str
        Signatures that are supported, each as its parameters; see `difference`. One that fits
        suffices. Of methods they have ``self`` first.

    Returns
    -------
    callable
        Takes the original; returns the reason, which begins with "version mismatch", or None.
    """
    wanted = tuple(parse(parameters) for parameters in known)

    def problem(original: Callable[..., Any]) -> Optional[str]:
        try:
            found = inspect.signature(original)
        except (TypeError, ValueError) as error:
            return f"version mismatch: its signature cannot be read ({error})"
        return mismatch(wanted, found)

    return problem


def mismatch(wanted: Sequence[Signature], found: Signature) -> Optional[str]:
    """Return why a signature fits none of `wanted`: what is said of the one that comes closest."""
    problems = [difference(each, found) for each in wanted]
    if None in problems:
        return None
    # Releases are listed from old to new, and an unknown one is likely newer than all of them.
    return f"version mismatch: {problems[-1]}" if problems else None
