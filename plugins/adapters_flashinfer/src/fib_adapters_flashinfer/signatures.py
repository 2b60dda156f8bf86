"""What an adapter knows of a function's signature, compared with the function that is installed.

A signature is written as its parameters are in source code: ``"input, weight, eps=1e-06"``. What an
adapter knows are the leading parameters; releases add others at the end, which is fine as long as
they need not be given: a call that gives one is not understood, and goes to the original.
"""

from __future__ import annotations

import inspect
from inspect import Parameter, Signature
from typing import TYPE_CHECKING, Optional

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_BY_POSITION = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
_VARIABLE = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)


def parse(parameters: str) -> Signature:
    """Return a signature from the source code of its parameters, without annotations."""
    return inspect.signature(eval(f"lambda {parameters}: None"))  # our own text


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
        if positional[index].name != wanted.name:
            return f"parameter {index} is '{positional[index].name}', not '{wanted.name}'"
    for each in found.parameters.values():
        wanted_one = known.parameters.get(each.name)
        if each.kind in _VARIABLE:
            continue
        if wanted_one is not None and wanted_one.kind not in _VARIABLE:
            if repr(each.default) != repr(wanted_one.default):
                said = _said(wanted_one)
                return f"the default of '{each.name}' is {_said(each)}, not {said}"
        elif each.default is Parameter.empty:
            return f"parameter '{each.name}' is new, and has no default"
    return None


def _said(parameter: Parameter) -> str:
    return "none" if parameter.default is Parameter.empty else repr(parameter.default)


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
        problems = [difference(each, found) for each in wanted]
        # Releases are listed from old to new, and an unknown one is likely newer than all of them.
        return None if None in problems else f"version mismatch: {problems[-1]}"

    return problem
