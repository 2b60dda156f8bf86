"""The route of one function that has templates."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Optional

from fib_adapters_flashinfer.common import PerDefinition
from fib_adapters_flashinfer.epsilon import OTHER_EPS, epsilon_of, same_eps, takes_eps
from fib_adapters_flashinfer.templates.plan import Plan, aliases, patterns, prefix_of
from fib_adapters_flashinfer.templates.results import UnsupportedError
from flashinfer_bench.routing import (
    Canonical,
    Route,
    Understood,
    UnroutableError,
    quick_binder,
    router,
    same_value,
    signature_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import torch

    from fib_adapters_flashinfer.templates import Api
    from flashinfer_bench.data import Definition

NO_TEMPLATE = "no template for the call"
"""Reason: FlashInfer does not say what the call is."""

NUMBER = "number of outputs"
"""Reason: the definition of that name has more or fewer outputs than the template."""

_EPS = "eps"
_DTYPES = ("out_dtype", "output_dtype")
_NONE_NEEDED = frozenset({"local_expert_offset", "routed_scaling_factor"})
_NEUTRAL = {"local_expert_offset": 0}
_ANYTHING = (Exception,)


class Known(NamedTuple):
    """What a route has to know about the definition of a call.

    Attributes
    ----------
    name : str
        What it is called: by FlashInfer's rule, or as the dataset does that is enabled.
    definition : Definition or None
        The definition, where anybody has it.
    """

    name: str
    definition: Optional[Definition]

    @classmethod
    def of(cls, name: str, _definition: Optional[Definition]) -> Known:
        """Look for a definition that is enabled, FlashInfer's name first."""
        wanted = set(router.wanted())
        every = (name, *aliases(name))
        chosen = next((each for each in every if each in wanted), name)
        return cls(chosen, router.definition(chosen))


class Call(NamedTuple):
    """What there is to remember of a call, for handing its outputs over.

    Attributes
    ----------
    plan : Plan
        By which it is described.
    values : dict of str to Any
        All arguments by name.
    places : dict of int to torch.Tensor
        The caller's buffers, by the position of the output.
    """

    plan: Plan
    values: dict[str, Any]
    places: dict[int, torch.Tensor]


class TemplateRoute(Route):
    """Routes the calls of one function by its templates.

    Parameters
    ----------
    api : Api
        The function.

    Raises
    ------
    UnsupportedError
        If none of its templates describes its calls.
    """

    def __init__(self, api: Api) -> None:
        self.label = api.path
        self._api = api
        self._bind = quick_binder(api.signature)
        self.plans = _plans(api)
        plans = [*self.plans.values()]
        found = (pattern for plan in plans for pattern in patterns(plan.template))
        self.definitions = tuple(dict.fromkeys(found))
        self._slots = _slots(plans)
        self.parameters: Canonical = signature_of(
            *(name for name, default in self._slots.items() if default is _REQUIRED),
            **{name: value for name, value in self._slots.items() if value is not _REQUIRED},
        )
        self._order = tuple(self.parameters.parameters)
        self._known = PerDefinition(Known.of)

    # ------------------------------------------------------------------------------- the call

    def understand(self, *args: Any, **kwargs: Any) -> Understood:
        """Say what a call means; see `Route.understand`."""
        values = self._bind(args, kwargs)
        plan = self._chosen(values)
        if plan is None:
            raise UnroutableError(NO_TEMPLATE)
        inputs = plan.read(values)
        known = self._known(plan.name(values, inputs))
        results = plan.results
        if known.definition is not None:
            number = len(known.definition.outputs)
            if not results.required <= number <= len(results.outputs):
                raise UnroutableError(NUMBER)
        places = results.places(values)
        extras = self._extras(plan, values, known.definition)
        points = self._slots
        given = [
            inputs[name] if name in inputs else extras.get(name, points[name])
            for name in self._order
        ]
        return Understood(known.name, tuple(given), Call(plan, values, places))

    def deliver(self, understood: Understood, result: Any) -> Any:
        """Return what the function would return; see `Route.deliver`."""
        call: Call = understood.rest
        return call.plan.results.deliver(call.values, call.places, result)

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
        # Some choosers make a template anew each time.
        about = prefix_of(template), [*template.inputs]
        every = self.plans.values()
        same = (p for p in every if (prefix_of(p.template), [*p.template.inputs]) == about)
        return next(same, None)

    def _extras(
        self, plan: Plan, values: Mapping[str, Any], definition: Optional[Definition]
    ) -> dict[str, Any]:
        """Return the arguments that are no inputs, as the definition is to see them.

        What the template or the definition says in another way becomes its default.
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
        """Return whether an argument is no news to someone who knows the template."""
        if name == "backend" and value == "auto":
            return True
        if name in _DTYPES:
            declared = [getattr(each, "dtype", None) for each in plan.template.outputs.values()]
            return declared[:1] == [str(value).removeprefix("torch.")]
        if self._api.choose is None:
            return False
        try:
            return self._chosen({**values, name: default}) is not plan
        except _ANYTHING:  # there has to be one, then
            return True


_REQUIRED: Any = object()  # stands for the default of what has none


def _plans(api: Api) -> dict[int, Plan]:
    """Return the plans of an API, by the identity of the template."""
    if api.is_method:
        raise UnsupportedError("its result depends on what its object was given before")
    if len(api.templates) > 1 and api.choose is None:
        raise UnsupportedError("it has several templates, and nothing tells which is for a call")
    plans, problems = {}, []
    for template in api.templates:
        try:
            plans[id(template)] = Plan(template, api.function)
        except UnsupportedError as error:
            problems.append(str(error))
    if not plans:
        raise UnsupportedError("; ".join(dict.fromkeys(problems)))
    return plans


def _slots(plans: list[Plan]) -> dict[str, Any]:
    """Return the canonical parameters with their defaults, those without a default first."""
    found: dict[str, Any] = {}
    for plan in plans:
        for name, each in plan.inputs.items():
            everywhere = all(
                name in other.inputs and not other.inputs[name].optional for other in plans
            )
            needed = everywhere and not each.optional and name not in _NONE_NEEDED
            found[name] = _REQUIRED if needed else plan.default_of(name, _NEUTRAL.get(name))
    inputs = {*found}
    for plan in plans:
        for name, default in plan.extras.items():
            if name not in inputs:
                found.setdefault(name, default)
    return dict(sorted(found.items(), key=lambda pair: pair[1] is not _REQUIRED))


def _replaced(call: Call, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call with other inputs, and other buffers."""
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
