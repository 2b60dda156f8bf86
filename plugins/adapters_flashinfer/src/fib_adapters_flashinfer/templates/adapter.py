"""The adapter of all functions that have templates."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Optional

from fib_adapters_flashinfer import targets
from fib_adapters_flashinfer.templates.names import patterns
from fib_adapters_flashinfer.templates.registry import Api, read_apis
from fib_adapters_flashinfer.templates.results import UnsupportedError
from fib_adapters_flashinfer.templates.route import TemplateRoute
from flashinfer_bench.integration.adapter import Adapter, PatchSpec
from flashinfer_bench.integration.routing import UnroutableError, route_calls

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

NO_TEMPLATES = "it has no trace template; FlashInfer has them since 0.6.10"
"""Why the first target is not patched in earlier releases."""

_FIRST = "silu_and_mul_h*"
_ANYTHING = (Exception,)


class TemplateAdapter(Adapter):
    """Routes the functions of FlashInfer that carry trace templates.

    What there is depends on the release, and on what has been imported of it. So there is only one
    target before FlashInfer is imported, one that each release with templates has; `late_targets`
    finds the others then. Functions that cannot be routed are among them, each with the reason.
    """

    def __init__(self) -> None:
        self._routes: dict[str, TemplateRoute] = {}
        self._problems: dict[str, str] = {}
        self._unroutable: set[str] = set()

    def targets(self) -> Sequence[PatchSpec]:
        """Return the one target that is known without FlashInfer."""
        return [
            PatchSpec(
                path,
                "function",
                path.rpartition(".")[2],
                expects=functools.partial(self._expects, path),
                definitions=(_FIRST,),
            )
            for path in targets.TEMPLATES
        ]

    def late_targets(self) -> Sequence[PatchSpec]:
        """Return one target for each function that has templates and no adapter of its own."""
        return [self._target(api) for api in self._apis() if api.path not in targets.TEMPLATES]

    def make_wrapper(self, spec: PatchSpec, orig: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that routes the calls of `orig`.

        Where FlashInfer has no template for it, calls are passed through.
        """
        route = self.route(spec.path)
        return _passing(orig) if route is None else route_calls(route, orig)

    def route(self, path: str) -> Optional[TemplateRoute]:
        """Return the route of a function; None if there is none."""
        if path not in self._routes:
            for api in self._apis():
                if api.path == path:
                    self._describe(api)
        return self._routes.get(path)

    def _apis(self) -> list[Api]:
        return [api for api in read_apis() if not api.is_by_hand]

    def _expects(self, path: str, _original: Callable[..., Any]) -> Optional[str]:
        if self.route(path) is not None:
            return None
        if path in self._unroutable:
            raise UnroutableError(self._problems[path])
        return self._problems.get(path, NO_TEMPLATES)

    def _target(self, api: Api) -> PatchSpec:
        self._describe(api)
        route = self._routes.get(api.path)
        return PatchSpec(
            api.path,
            "method" if api.is_method else "function",
            api.path.rpartition(".")[2],
            expects=None if route is not None else functools.partial(self._expects, api.path),
            definitions=_patterns(api) if route is None else route.definitions,
        )

    def _describe(self, api: Api) -> None:
        """Make the route of a function, or note why there is none."""
        self._routes.pop(api.path, None)
        try:
            self._routes[api.path] = TemplateRoute(api)
        except UnsupportedError as error:
            self._problems[api.path] = str(error)
            self._unroutable.add(api.path)
        except _ANYTHING as error:  # a template of a form that is not known
            self._problems[api.path] = f"its template cannot be read: {_told(error)}"


def _passing(orig: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(orig)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return orig(*args, **kwargs)

    return wrapper


def _patterns(api: Api) -> tuple[str, ...]:
    """Return the definitions that calls would be of, so that the reason is told with these."""
    return tuple(dict.fromkeys(each for template in api.templates for each in patterns(template)))


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]
