"""Adapters that are generated from FlashInfer's own descriptions of its functions.

Since release 0.6.10 a FlashInfer function may have a trace template, which describes its inputs,
its outputs, and the name of a call's definition. A `TemplateAdapter` makes a route for each such
function, except for those with a hand-written adapter.

FlashInfer lists them in ``flashinfer.api_logging._TRACE_REGISTRY``: function, template and label,
one entry per template. If a function has several templates, a chooser selects one by the arguments
of the call. Later releases list these choosers in ``_TRACE_DISPATCHERS``; in earlier ones they are
found in the function's own ``fi_trace``, which calls them. A function is listed once its module has
been imported.

`plan` determines from a template the meaning of each argument and the returned values.
"""

from __future__ import annotations

import functools
import inspect
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Optional, Union

import fib_adapters_flashinfer
from fib_adapters_flashinfer import common, live
from fib_adapters_flashinfer.common import OTHER_EPS, epsilon_of, same_eps, takes_eps
from fib_adapters_flashinfer.templates.plan import Plan, aliases, patterns, prefix_of
from flashinfer_bench import routing
from flashinfer_bench.routing import Understood, UnroutableError, router, same_value

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    import torch

    from flashinfer_bench.data import Definition

__all__ = ["TemplateAdapter"]

FIRST = "flashinfer.activation.silu_and_mul"
_FIRST_DEFINITION = "silu_and_mul_h*"
_ANYTHING = (Exception,)


@functools.cache
def _by_hand() -> frozenset[str]:
    """Return the functions with hand-written adapters, which support more."""
    records = fib_adapters_flashinfer.fib_register_adapters()
    paths = [path for record in records for path in record.targets if path != FIRST]
    return frozenset(path.split(".", 2)[2] for path in paths)


@dataclass(frozen=True, eq=False)
class Api:
    """A FlashInfer function that has templates.

    Parameters
    ----------
    path : str
        Path of the function: ``"flashinfer.activation.silu_and_mul"``.
    function : callable
        The function itself, without FlashInfer's logging wrapper.
    templates : tuple
        Templates that may describe its calls.
    choose : callable, optional
        ``choose(**arguments)`` returns the template of a call, or None. Required if there are
        several.
    """

    path: str
    function: Callable[..., Any]
    templates: tuple[Any, ...]
    choose: Optional[Callable[..., Any]] = None

    @property
    def is_method(self) -> bool:
        """Whether it is a method of a class."""
        return "." in self.function.__qualname__.rpartition("<locals>.")[2]


def read_apis() -> list[Api]:
    """Return the functions that currently have templates.

    Returns
    -------
    list of Api
        In FlashInfer's order. Empty if FlashInfer is not imported, or has no templates. Functions
        that cannot be reached by a path, such as nested functions, are omitted.
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
    """Return the object that callers get by the name of a function; None if it is another one."""
    found: Any = sys.modules.get(function.__module__)
    for name in function.__qualname__.split("."):
        found = vars(found).get(name) if found is not None else None
    inner = inspect.unwrap(found, stop=lambda each: each is function)
    return found if inner is function else None


def _chooser_of(public: Any) -> Optional[Callable[..., Any]]:
    trace: Any = getattr(public, "fi_trace", None)
    try:
        chooser = inspect.getclosurevars(trace).nonlocals.get("_dispatch_fn")
    except _ANYTHING:  # no fi_trace, or not a Python function
        return None
    return chooser if callable(chooser) else None


# ------------------------------------------------------------------------------------- routes

_EPS = "eps"
_DTYPES = ("out_dtype", "output_dtype")
_NONE_NEEDED = frozenset({"local_expert_offset", "routed_scaling_factor"})
_NEUTRAL = {"local_expert_offset": 0}


def _enabled(name: str, _definition: Optional[Definition]) -> tuple[str, Optional[Definition]]:
    """Return the name of a call's definition in the enabled dataset, and that definition.

    FlashInfer's name goes first.
    """
    wanted = set(router.wanted())
    chosen = next((each for each in (name, *aliases(name)) if each in wanted), name)
    return chosen, router.definition(chosen)


class Call(NamedTuple):
    """Data about a call that is needed to deliver its outputs.

    Attributes
    ----------
    plan : Plan
        The plan that describes it.
    values : dict of str to Any
        All arguments by name.
    places : dict of int to torch.Tensor
        The caller's buffers, by the position of the output.
    """

    plan: Plan
    values: dict[str, Any]
    places: dict[int, torch.Tensor]


class TemplateRoute(routing.Route):
    """Routes the calls of one function by its templates.

    Parameters
    ----------
    api : Api
        The function.

    Raises
    ------
    UnroutableError
        If none of its templates describes its calls.
    """

    def __init__(self, api: Api) -> None:
        self.label = api.path
        self._api = api
        self._bind = routing.quick_binder(inspect.signature(api.function))
        self.plans = _plans(api)
        plans = [*self.plans.values()]
        self.definitions = _patterns_of(plan.template for plan in plans)
        self._slots = _slots(plans)
        self.parameters: routing.Canonical = routing.signature_of(
            *(name for name, default in self._slots.items() if default is _REQUIRED),
            **{name: value for name, value in self._slots.items() if value is not _REQUIRED},
        )
        self._order = tuple(self.parameters.parameters)
        self._known = common.PerDefinition(_enabled)

    # -------------------------------------------------------------------------------------- calls

    def understand(self, *args: Any, **kwargs: Any) -> Understood:
        """Interpret a call; see `Route.understand`."""
        values = self._bind(args, kwargs)
        plan = self._chosen(values)
        if plan is None:
            raise UnroutableError("no template for the call")
        inputs = plan.read(values)
        name, definition = self._known(plan.name(values, inputs))
        results = plan.results
        if definition is not None:
            number = len(definition.outputs)
            if not results.required <= number <= len(results.outputs):
                raise UnroutableError("number of outputs")
            for flag in self._flags(plan) if plan.flags else ():
                if flag not in definition.inputs:  # a solution always returns all outputs
                    inputs[flag] = self._slots[flag]
        places = results.places(values)
        extras = self._extras(plan, values, definition)
        slots = self._slots
        given = [
            inputs[each] if each in inputs else extras.get(each, slots[each])
            for each in self._order
        ]
        return Understood(name, tuple(given), Call(plan, values, places))

    def deliver(self, understood: Understood, result: Any) -> Any:
        """Return what the function would return; see `Route.deliver`."""
        call: Call = understood.rest
        return call.plan.results.deliver(call.values, call.places, result)

    def lacks(self, name: str) -> Optional[str]:
        """Return None: each call has its template."""
        return None

    def define(self, understood: Understood) -> routing.Made:
        """Return the definition of a call; see `Route.define`."""
        call: Call = understood.rest
        plan, outputs = call.plan, call.plan.results.outputs
        # Outputs that a call may request; whether there are others is unknown.
        some = [
            i for i, o in enumerate(outputs) if o.optional and not o.flag and i not in call.places
        ]
        return live.make(
            understood.name,
            self.label,
            plan.template,
            plan.read(call.values),
            arguments=call.values,
            buffers=call.places,
            flags=self._flags(plan),
            outputs=min(some, default=len(outputs)),
        )

    def outputs(
        self, original: Callable[..., Any], understood: Understood, inputs: tuple[Any, ...]
    ) -> Any:
        """Return the outputs of the definition, computed by the original; see `Route.outputs`."""
        call: Call = understood.rest
        results = call.plan.results
        values = _replaced(call, dict(zip(self._order, inputs, strict=True)))
        values.update((each.flag, True) for each in results.outputs if each.flag is not None)
        places = results.places(values)
        returned = original(**values)
        return results.collect(values, places, returned)

    # ----------------------------------------------------------------------------- templates

    def _chosen(self, values: Mapping[str, Any]) -> Optional[Plan]:
        choose = self._api.choose
        if choose is None:
            return next(iter(self.plans.values()))
        template = choose(**values)
        found = self.plans.get(id(template))
        if found is not None or template is None:
            return found
        # Some choosers create a new template each time.
        about = prefix_of(template), [*template.inputs]
        every = self.plans.values()
        same = (p for p in every if (prefix_of(p.template), [*p.template.inputs]) == about)
        return next(same, None)

    def _flags(self, plan: Plan) -> list[str]:
        """Return the inputs of a template that request outputs, and may be omitted."""
        return [name for name in plan.flags if self._slots[name] is not _REQUIRED]

    def _extras(
        self, plan: Plan, values: Mapping[str, Any], definition: Optional[Definition]
    ) -> dict[str, Any]:
        """Return the arguments that are not inputs, in the form passed to the definition.

        Arguments that the template or the definition already determines get their defaults.
        """
        extras = {name: values[name] for name in plan.extras}
        for name, default in plan.extras.items():
            value = extras[name]
            if name == _EPS and definition is not None and not takes_eps(definition):
                if not same_eps(value, epsilon_of(definition)):
                    raise UnroutableError(OTHER_EPS)
                extras[name] = default
            elif value is default or same_value(value, default):
                continue
            elif self._is_said(name, value, default, plan, values):
                extras[name] = default
        return extras

    def _is_said(
        self, name: str, value: Any, default: Any, plan: Plan, values: Mapping[str, Any]
    ) -> bool:
        """Return whether a template already determines an argument."""
        if name == "backend" and value == "auto":
            return True
        if name in _DTYPES:
            declared = [getattr(each, "dtype", None) for each in plan.template.outputs.values()]
            return declared[:1] == [str(value).removeprefix("torch.")]
        if self._api.choose is None:
            return False
        try:
            return self._chosen({**values, name: default}) is not plan
        except _ANYTHING:  # then a template is required
            return True


_REQUIRED: Any = object()  # marks parameters without a default


def _patterns_of(templates: Iterable[Any]) -> tuple[str, ...]:
    """Return patterns of the definitions that calls may match."""
    return tuple(dict.fromkeys(each for one in templates for each in patterns(one)))


def _plans(api: Api) -> dict[int, Plan]:
    """Return the plans of an API, by the identity of the template."""
    if api.is_method:
        raise UnroutableError("its result depends on earlier calls of its object")
    if len(api.templates) > 1 and api.choose is None:
        raise UnroutableError("it has several templates, and nothing says which one a call needs")
    plans, problems = {}, []
    for template in api.templates:
        try:
            plans[id(template)] = Plan(template, api.function)
        except UnroutableError as error:
            problems.append(str(error))
    if not plans:
        raise UnroutableError("; ".join(dict.fromkeys(problems)))
    return plans


def _slots(plans: list[Plan]) -> dict[str, Any]:
    """Return the canonical parameters with their defaults, required ones first."""
    found: dict[str, Any] = {}
    for plan in plans:
        for name, each in plan.inputs.items():
            needed = name not in _NONE_NEEDED and all(
                name in other.inputs and not other.inputs[name].optional for other in plans
            )
            found[name] = _REQUIRED if needed else plan.default_of(each, _NEUTRAL.get(name))
    for plan in plans:
        for name, default in plan.extras.items():
            found.setdefault(name, default)
    return dict(sorted(found.items(), key=lambda pair: pair[1] is not _REQUIRED))


def _replaced(call: Call, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call with other inputs and buffers."""
    values = dict(call.values)
    for each in call.plan.results.outputs:
        if each.place is not None and values[each.place] is not None:
            values[each.place] = _copied(values[each.place])
    for name, spec in call.plan.inputs.items():
        if spec.param not in values:
            continue
        if spec.item is None:
            values[spec.param] = inputs[name]
        else:
            several = list(values[spec.param])
            several[spec.item] = inputs[name]
            values[spec.param] = tuple(several)
    return values


def _copied(value: Any) -> Any:
    import torch

    if isinstance(value, torch.Tensor):
        return value.clone()
    return tuple(map(_copied, value)) if isinstance(value, (tuple, list)) else value


# ------------------------------------------------------------------------------------ adapter


class TemplateAdapter(routing.Adapter):
    """Routes the FlashInfer functions that have trace templates.

    The functions depend on the release, and on which parts of it have been imported. Before
    FlashInfer is imported there is therefore only one target, a function that every release with
    templates has; `late_targets` then finds the others. These include functions that cannot be
    routed, each with the reason.
    """

    def __init__(self) -> None:
        # By path: the route of a function, or why there is none: an `UnroutableError` if the
        # description is insufficient, a text if it could not be read.
        self._described: dict[str, Union[TemplateRoute, UnroutableError, str]] = {}

    def targets(self) -> Sequence[routing.PatchSpec]:
        """Return the one target that is known without FlashInfer."""
        expects = functools.partial(self._expects, FIRST)
        name = FIRST.rpartition(".")[2]
        return [routing.PatchSpec(FIRST, "function", name, "", expects, (_FIRST_DEFINITION,))]

    def late_targets(self) -> Sequence[routing.PatchSpec]:
        """Return one target for each function with templates and without a hand-written adapter."""
        return [self._target(api) for api in self._apis() if api.path != FIRST]

    def make_wrapper(self, spec: routing.PatchSpec, orig: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that routes the calls of `orig`.

        Without a template, calls are passed through.
        """
        route = self.route(spec.path)
        if route is not None:
            return routing.route_calls(route, orig)

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
        return [api for api in read_apis() if api.function.__qualname__ not in _by_hand()]

    def _expects(self, path: str, original: Callable[..., Any]) -> Optional[str]:
        if self.route(path) is not None:
            common.require_free(original)
            return None
        found = self._described.get(path, live.NO_TEMPLATES)
        if isinstance(found, UnroutableError):
            raise found
        return str(found)

    def _target(self, api: Api) -> routing.PatchSpec:
        found = self._describe(api)
        return routing.PatchSpec(
            api.path,
            "method" if api.is_method else "function",
            api.path.rpartition(".")[2],
            expects=functools.partial(self._expects, api.path),
            # Also for functions that are not routed, so that the reason lists the definitions.
            definitions=(
                found.definitions
                if isinstance(found, TemplateRoute)
                else _patterns_of(api.templates)
            ),
        )

    def _describe(self, api: Api) -> Union[TemplateRoute, UnroutableError, str]:
        """Create the route of a function, or the reason why there is none."""
        found: Union[TemplateRoute, UnroutableError, str]
        try:
            found = TemplateRoute(api)
        except UnroutableError as error:
            found = error
        except _ANYTHING as error:  # a template of unknown form
            told = f"{type(error).__name__}: {error}".splitlines()[0]
            found = f"its template cannot be read: {told}"
        self._described[api.path] = found
        return found
