"""What the adapters share: signatures, options that do nothing, buffers, epsilons, definitions.

Importing this module does not import torch: adapters are made and listed where nothing is run.
"""

from __future__ import annotations

import ast
import functools
import inspect
import math
import weakref
from inspect import Parameter, Signature
from typing import TYPE_CHECKING, Any, Generic, Optional, TypeVar

from flashinfer_bench.routing import UnroutableError, router
from flashinfer_bench.routing.patch_manager import NotPatchedError

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from flashinfer_bench.data import Definition

T = TypeVar("T")

_NUMBERS = (float, int, bool)
_MOST_NAMES = 1024  # names are made of shapes, of which a program may have any number


# ----------------------------------------------------------------------------------- options


def unit_scale(value: Any) -> bool:
    """Return whether a scale is None or 1, as a number.

    Engines pass 1.0 where nothing is calibrated, so it has to count as no scale. A tensor on the
    CPU with one element is read; one on a device is taken for a scale that does something.
    """
    if value is None:
        return True
    if type(value) in _NUMBERS:
        return bool(value == 1.0)
    import torch

    if isinstance(value, torch.Tensor):
        return value.device.type == "cpu" and value.numel() == 1 and value.item() == 1.0
    return bool(value == 1.0)


# ----------------------------------------------------------------------------------- buffers


def fill(buffer: Optional[torch.Tensor], value: torch.Tensor) -> torch.Tensor:
    """Return the caller's buffer with `value` in it; `value` itself if there is no buffer."""
    if buffer is None or buffer is value:
        return value
    buffer.copy_(value.view(buffer.shape) if value.shape != buffer.shape else value)
    return buffer


def with_lse(
    result: Any, out: Optional[torch.Tensor], lse: Optional[torch.Tensor], return_lse: bool
) -> Any:
    """Return what attention returns, from the outputs of a definition: both, or the first.

    The caller's buffers are filled and returned. `lse` is filled even if it is not to be returned,
    as the kernels do it.
    """
    outputs = result if isinstance(result, (tuple, list)) else (result,)
    if not return_lse and lse is None:
        return fill(out, outputs[0])
    if len(outputs) < 2:
        raise UnroutableError("no lse among the outputs")
    output, sums = fill(out, outputs[0]), fill(lse, outputs[1])
    return (output, sums) if return_lse else output


# ------------------------------------------------------------------------------- definitions


def nobody() -> None:
    """Return None: stands for the reference to who is active where nobody was asked for yet.

    Who is active is held by weak references, since wrappers of an engine, and adapters, live on
    when it ends; and with it would its solutions.
    """


class PerDefinition(Generic[T]):
    """What is worked out once from each definition, and anew when other things are enabled.

    Parameters
    ----------
    work_out : callable
        Takes the name of a definition, and the definition, or None if nobody who is enabled has one
        of that name.
    name_of : callable, optional
        Makes the name from what it is asked by, a size say. Default: it is asked by names.
    """

    def __init__(
        self,
        work_out: Callable[[str, Optional[Definition]], T],
        name_of: Callable[[Any], str] = str,
    ) -> None:
        self._work_out = work_out
        self._name_of = name_of
        self._known: tuple[Any, dict[Any, T]] = (nobody, {})

    def __call__(self, key: Any) -> T:
        """Return what was worked out for the definition that `key` stands for."""
        calls, found = self._known
        # Replaced as a whole whenever who is active, or what they know, has changed.
        if calls() is not router.calls:
            calls, found = self._known = (weakref.ref(router.calls), {})
        value = found.get(key)
        if value is None:
            name = self._name_of(key)
            value = self._work_out(name, router.definition(name))
            if len(found) < _MOST_NAMES:
                found[key] = value
        return value


# -------------------------------------------------------------------------------- signatures
#
# A signature is written as its parameters are in source code: ``"input, weight, eps=1e-06"``. What
# an adapter knows are the leading parameters; releases add others at the end, which is fine as long
# as they need not be given: a call that gives one is not understood, and goes to the original.

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


def require_free(original: Callable[..., Any]) -> None:
    """Leave a function to FlashInfer's own Trace Apply, if that has wrapped it.

    Each call has one that answers it. Of one wrapper over the other, FlashInfer's would take ours
    off as well, when it is disabled.
    """
    if getattr(original, "_trace_apply", False):
        reason = "FlashInfer's own Trace Apply answers its calls (flashinfer.trace_apply)"
        raise NotPatchedError("mismatch", reason)


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
        require_free(original)
        try:
            found = inspect.signature(original)
        except (TypeError, ValueError) as error:
            return f"version mismatch: its signature cannot be read ({error})"
        problems = [difference(each, found) for each in wanted]
        # Releases are listed from old to new, and an unknown one is likely newer than all of them.
        return None if None in problems else f"version mismatch: {problems[-1]}"

    return problem


# ---------------------------------------------------------------------------------- epsilons

DEFAULT_EPS = 1e-6
"""FlashInfer's default, and what a definition means that does not say which epsilon it has."""

OTHER_EPS = "eps is not the definition's"
"""Reason: a call with another epsilon is another computation."""

_TAG = "eps:"
# Configurations keep epsilons as float32 now and then, which is off by 6e-8 of the value at most.
_TOLERANCE = 1e-6
_LARGEST = 0.01  # of numbers that are taken for an epsilon


def takes_eps(definition: Definition) -> bool:
    """Return whether the epsilon is an input of a definition."""
    return "eps" in definition.inputs


def same_eps(eps: float, known: Optional[float]) -> bool:
    """Return whether two epsilons are the same number, perhaps rounded to float32."""
    return known is not None and (eps == known or math.isclose(eps, known, rel_tol=_TOLERANCE))


def epsilon_of(definition: Definition) -> Optional[float]:
    """Return the epsilon that a definition has, which has no such input.

    It is what a tag says (``"eps:1e-5"``), else the one number that the reference uses as an
    epsilon, else FlashInfer's default. None if the reference uses several, and no tag decides.
    """
    for tag in definition.tags or ():
        if tag.startswith(_TAG):
            try:
                return float(tag[len(_TAG) :])
            except ValueError:
                continue
    found = reference_epsilons(definition.reference or "")
    return None if len(found) > 1 else next(iter(found), DEFAULT_EPS)


@functools.lru_cache(maxsize=256)
def reference_epsilons(source: str) -> frozenset[float]:
    """Return the numbers in the code of a reference that can be an epsilon: those up to 0.01.

    But for arguments of another name, such as ``atol=1e-3``. Nothing if it is no Python.
    """
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return frozenset()
    nodes = list(ast.walk(tree))
    others = {
        id(node.value)
        for node in nodes
        if isinstance(node, ast.keyword) and "eps" not in (node.arg or "").lower()
    }
    return frozenset(
        node.value
        for node in nodes
        if isinstance(node, ast.Constant)
        and isinstance(node.value, float)
        and 0 < node.value <= _LARGEST
        and id(node) not in others
    )
