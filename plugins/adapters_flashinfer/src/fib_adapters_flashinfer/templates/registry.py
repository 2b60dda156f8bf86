"""Which functions of the imported FlashInfer have templates, and where they are found.

FlashInfer lists them in ``flashinfer.api_logging._TRACE_REGISTRY``: the function, the template and
a label, once for each template. Where a function has several, something chooses one by the
arguments of the call. Later releases list these choosers in ``_TRACE_DISPATCHERS``; in earlier ones
they are found in the function's own ``fi_trace``, which calls them.

A function is in the list once its module has been imported.
"""

from __future__ import annotations

import inspect
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Optional

from fib_adapters_flashinfer import targets

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

BY_HAND = frozenset(
    path.split(".", 2)[2]
    for paths in (targets.NORM, targets.DECODE, targets.PREFILL, targets.RAGGED, targets.MLA)
    for path in paths
)
"""Functions that adapters are written for by hand: they know more than a template says."""

_ANYTHING = (Exception,)


@dataclass(frozen=True, eq=False)
class Api:
    """A function of FlashInfer that has templates.

    Parameters
    ----------
    path : str
        Where it is found: ``"flashinfer.activation.silu_and_mul"``.
    function : callable
        The function itself, without FlashInfer's logging around it.
    templates : tuple
        What its calls may be described by.
    choose : callable, optional
        ``choose(**arguments)`` returns the one for a call, or None. Needed where there are several.
    """

    path: str
    function: Callable[..., Any]
    templates: tuple[Any, ...]
    choose: Optional[Callable[..., Any]] = None

    @property
    def signature(self) -> inspect.Signature:
        """Its parameters."""
        return inspect.signature(self.function)

    @property
    def is_method(self) -> bool:
        """Whether it is a method of a class."""
        return "." in self.function.__qualname__.rpartition("<locals>.")[2]

    @property
    def is_by_hand(self) -> bool:
        """Whether another adapter is for it."""
        return self.function.__qualname__ in BY_HAND


def read_apis() -> list[Api]:
    """Return the functions that have templates by now.

    Returns
    -------
    list of Api
        In FlashInfer's order. Empty where FlashInfer is not imported, or has no templates. What
        cannot be reached by a path, such as a function within a function, is left out.
    """
    logging = sys.modules.get("flashinfer.api_logging")
    registry = getattr(logging, "_TRACE_REGISTRY", ())
    choosers = getattr(logging, "_TRACE_DISPATCHERS", {})
    templates: dict[Callable[..., Any], list[Any]] = {}
    for function, template, _label in list(registry):
        templates.setdefault(function, []).append(template)
    found = []
    for function, several in templates.items():
        public = _public(function)
        if public is not None:
            choose = choosers.get(function) or _chooser_of(public)
            path = f"{function.__module__}.{function.__qualname__}"
            found.append(Api(path, function, tuple(several), choose))
    return found


def _public(function: Callable[..., Any]) -> Any:
    """Return what callers get under the name of a function; None if that is not it."""
    found: Any = sys.modules.get(function.__module__)
    for name in function.__qualname__.split("."):
        found = vars(found).get(name) if found is not None else None
    return found if any(each is function for each in _layers(found)) else None


def _layers(function: Any) -> Iterator[Any]:
    """Yield a function, and what it wraps."""
    seen: set[int] = set()
    while function is not None and id(function) not in seen:
        seen.add(id(function))
        yield function
        function = getattr(function, "__wrapped__", None)


def _chooser_of(public: Any) -> Optional[Callable[..., Any]]:
    trace: Any = getattr(public, "fi_trace", None)
    try:
        chooser = inspect.getclosurevars(trace).nonlocals.get("_dispatch_fn")
    except _ANYTHING:  # it has none, or is no Python function
        return None
    return chooser if callable(chooser) else None
