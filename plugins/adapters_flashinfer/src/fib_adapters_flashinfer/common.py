"""Shared code of the adapters: signatures, neutral options, buffers, epsilons, definitions.

Importing this module does not import torch: adapters are created and listed without running.
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

_MOST_NAMES = 1024  # names are derived from shapes, whose number is unlimited


# ----------------------------------------------------------------------------------- options


def unit_scale(value: Any) -> bool:
    """Return whether a scale is None or 1, as a number.

    Engines pass 1.0 without calibration, so 1.0 must count as no scale. A one-element tensor on the
    CPU is read; a tensor on a device counts as a real scale.
    """
    if value is None:
        return True
    import torch

    if isinstance(value, torch.Tensor) and (value.device.type != "cpu" or value.numel() != 1):
        return False
    return bool(value == 1.0)


# ----------------------------------------------------------------------------------- buffers


def fill(buffer: Optional[torch.Tensor], value: torch.Tensor) -> torch.Tensor:
    """Return the caller's buffer filled with `value`; `value` itself if there is no buffer."""
    if buffer is None or buffer is value:
        return value
    buffer.copy_(value.view(buffer.shape) if value.shape != buffer.shape else value)
    return buffer


def with_lse(
    result: Any, out: Optional[torch.Tensor], lse: Optional[torch.Tensor], return_lse: bool
) -> Any:
    """Return the result of attention from the outputs of a definition: both, or only the first.

    The caller's buffers are filled and returned. `lse` is filled even if it is not returned, as the
    kernels do.
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
    """Return None: the initial value of a weak reference to the active calls.

    Active calls are referenced weakly, because an engine's wrappers and adapters outlive them, and
    would otherwise keep their solutions alive.
    """


class PerDefinition(Generic[T]):
    """Values computed once for each definition, and again when the enabled state changes.

    Parameters
    ----------
    work_out : callable
        Takes the name of a definition, and the definition, or None if no active runtime has it.
    name_of : callable, optional
        Computes the name from the key of a look-up, such as a size. Default: keys are names.
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
        """Return the value for the definition that `key` refers to."""
        calls, found = self._known
        # Replaced as a whole whenever the active runtimes or their definitions change.
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
# A signature is written like parameters in source code: ``"input, weight, eps=1e-06"``. An adapter
# supports the leading parameters. Later releases may add others at the end if they are optional: a
# call that uses one is not understood, and goes to the original.

_BY_POSITION = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
_VARIABLE = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)


def parse(parameters: str) -> Signature:
    """Return a signature from the source code of its parameters, without annotations."""
    return inspect.signature(eval(f"lambda {parameters}: None"))  # our own text


def difference(known: Signature, found: Signature) -> Optional[str]:
    """Return how a function's signature differs from the known one; None if it is compatible.

    Parameters
    ----------
    known : inspect.Signature
        Its positional parameters must be the leading ones of the function, with the same names and
        defaults. Its keyword-only parameters must have the same defaults, if they exist.
    found : inspect.Signature
        Signature of the function. Additional parameters need a default, or must be variadic.
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
    """Raise if FlashInfer's own Trace Apply has wrapped the function.

    Only one of the two can answer a call. If both wrapped a function, FlashInfer would also remove
    our wrapper when it is disabled.
    """
    if getattr(original, "_trace_apply", False):
        reason = "FlashInfer's own Trace Apply answers its calls (flashinfer.trace_apply)"
        raise NotPatchedError("mismatch", reason)


def _said(parameter: Parameter) -> str:
    return "none" if parameter.default is Parameter.empty else repr(parameter.default)


def mismatch(original: Callable[..., Any], *known: str) -> Optional[str]:
    """Return why an original is not supported, or None if it is.

    Parameters
    ----------
    original : callable
        The original.
    *known : str
        Supported signatures, each as source code of its parameters; see `difference`. One match is
        sufficient. Those of methods start with ``self``.
    """
    require_free(original)
    try:
        found = inspect.signature(original)
    except (TypeError, ValueError) as error:
        return f"version mismatch: its signature cannot be read ({error})"
    problems = [difference(parse(parameters), found) for parameters in known]
    # Releases are listed from old to new; an unknown one is probably newer than all of them.
    return None if None in problems else f"version mismatch: {problems[-1]}"


# ---------------------------------------------------------------------------------- epsilons

DEFAULT_EPS = 1e-6
"""FlashInfer's default, also used for definitions that do not specify an epsilon."""

OTHER_EPS = "eps is not the definition's"
"""Reason: with a different epsilon the computation differs."""

_TAG = "eps:"
# Some configurations store epsilons as float32, with a relative error of at most 6e-8.
_TOLERANCE = 1e-6
_LARGEST = 0.01  # numbers up to this may be an epsilon


def takes_eps(definition: Definition) -> bool:
    """Return whether the epsilon is an input of a definition."""
    return "eps" in definition.inputs


def same_eps(eps: float, known: Optional[float]) -> bool:
    """Return whether two epsilons are equal, possibly after rounding to float32."""
    return known is not None and (eps == known or math.isclose(eps, known, rel_tol=_TOLERANCE))


def epsilon_of(definition: Definition) -> Optional[float]:
    """Return the epsilon of a definition that does not have it as an input.

    The value of a tag (``"eps:1e-5"``), else the only number that the reference uses as an epsilon,
    else FlashInfer's default. None if the reference uses several and no tag decides.
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

    Arguments of other names, such as ``atol=1e-3``, are excluded. Empty if it is not Python.
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
