"""Adapters that are generated from what FlashInfer itself says about its functions.

Since release 0.6.10 a function of FlashInfer may carry a trace template, which tells its inputs,
its outputs, and the name of the definition that a call is of. A `TemplateAdapter` makes a route of
each of them, but for those that an adapter here is written for by hand.

FlashInfer lists them in ``flashinfer.api_logging._TRACE_REGISTRY``: the function, the template and
a label, once for each template. Where a function has several, something chooses one by the
arguments of the call. Later releases list these choosers in ``_TRACE_DISPATCHERS``; in earlier ones
they are found in the function's own ``fi_trace``, which calls them. A function is in the list once
its module has been imported.

- `plan`: what each argument of a function is, by one template.
- `results`: what it returns of its outputs, and where it puts them.
- `route`: the route of one function.
"""

from __future__ import annotations

import functools
import inspect
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Optional, Union

import fib_adapters_flashinfer
from fib_adapters_flashinfer.templates.plan import patterns
from fib_adapters_flashinfer.templates.results import UnsupportedError
from fib_adapters_flashinfer.templates.route import TemplateRoute
from flashinfer_bench.routing import Adapter, PatchSpec, UnroutableError, route_calls

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

__all__ = ["TemplateAdapter"]

NO_TEMPLATES = "it has no trace template; FlashInfer has them since 0.6.10"
"""Why the first target is not patched in earlier releases."""

FIRST = "flashinfer.activation.silu_and_mul"
_FIRST_DEFINITION = "silu_and_mul_h*"
_ANYTHING = (Exception,)


@functools.cache
def _by_hand() -> frozenset[str]:
    """Return the functions that adapters are written for by hand: they know more."""
    records = fib_adapters_flashinfer.fib_register_adapters()
    paths = [path for record in records for path in record.targets if path != FIRST]
    return frozenset(path.split(".", 2)[2] for path in paths)


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
    def definitions(self) -> tuple[str, ...]:
        """Patterns of the definitions that calls may be of."""
        return tuple(dict.fromkeys(each for one in self.templates for each in patterns(one)))

    @property
    def is_method(self) -> bool:
        """Whether it is a method of a class."""
        return "." in self.function.__qualname__.rpartition("<locals>.")[2]

    @property
    def is_by_hand(self) -> bool:
        """Whether another adapter is for it."""
        return self.function.__qualname__ in _by_hand()


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


class TemplateAdapter(Adapter):
    """Routes the functions of FlashInfer that carry trace templates.

    What there is depends on the release, and on what has been imported of it. So there is only one
    target before FlashInfer is imported, one that each release with templates has; `late_targets`
    finds the others then. Functions that cannot be routed are among them, each with the reason.
    """

    def __init__(self) -> None:
        # By path: the route of a function, or why there is none: an `UnroutableError` if FlashInfer
        # says too little, a text if what it says could not be read.
        self._described: dict[str, Union[TemplateRoute, UnroutableError, str]] = {}

    def targets(self) -> Sequence[PatchSpec]:
        """Return the one target that is known without FlashInfer."""
        expects = functools.partial(self._expects, FIRST)
        name = FIRST.rpartition(".")[2]
        return [PatchSpec(FIRST, "function", name, "", expects, (_FIRST_DEFINITION,))]

    def late_targets(self) -> Sequence[PatchSpec]:
        """Return one target for each function that has templates and no adapter of its own."""
        return [self._target(api) for api in self._apis() if api.path != FIRST]

    def make_wrapper(self, spec: PatchSpec, orig: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that routes the calls of `orig`.

        Where FlashInfer has no template for it, calls are passed through.
        """
        route = self.route(spec.path)
        if route is not None:
            return route_calls(route, orig)

        @functools.wraps(orig)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return orig(*args, **kwargs)

        return wrapper

    def route(self, path: str) -> Optional[TemplateRoute]:
        """Return the route of a function; None if there is none."""
        found = self._described.get(path)
        if not isinstance(found, TemplateRoute):
            for api in self._apis():
                if api.path == path:
                    found = self._describe(api)
        return found if isinstance(found, TemplateRoute) else None

    def _apis(self) -> list[Api]:
        return [api for api in read_apis() if not api.is_by_hand]

    def _expects(self, path: str, _original: Callable[..., Any]) -> Optional[str]:
        if self.route(path) is not None:
            return None
        found = self._described.get(path, NO_TEMPLATES)
        if isinstance(found, UnroutableError):
            raise found
        return str(found)

    def _target(self, api: Api) -> PatchSpec:
        found = self._describe(api)
        routed = isinstance(found, TemplateRoute)
        return PatchSpec(
            api.path,
            "method" if api.is_method else "function",
            api.path.rpartition(".")[2],
            expects=None if routed else functools.partial(self._expects, api.path),
            # Of one that is not routed, too, so that the reason is told with these.
            definitions=found.definitions if isinstance(found, TemplateRoute) else api.definitions,
        )

    def _describe(self, api: Api) -> Union[TemplateRoute, UnroutableError, str]:
        """Make the route of a function, or note why there is none."""
        found: Union[TemplateRoute, UnroutableError, str]
        try:
            found = TemplateRoute(api)
        except UnsupportedError as error:
            found = UnroutableError(str(error))
        except _ANYTHING as error:  # a template of a form that is not known
            told = f"{type(error).__name__}: {error}".splitlines()[0]
            found = f"its template cannot be read: {told}"
        self._described[api.path] = found
        return found
