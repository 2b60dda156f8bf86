"""Every function of the real FlashInfer that has a template: routed as the template says."""

import dataclasses
import inspect
from collections import Counter

import pytest
import template_calls as calls

from fib_adapters_flashinfer.templates import TemplateAdapter, TemplateRoute, read_apis
from fib_adapters_flashinfer.templates.plan import definition_name
from flashinfer_bench.apply import enable_apply
from flashinfer_bench.routing.routes import UnroutableError, route_calls, route_stats

ANYTHING = (Exception,)


@pytest.fixture(scope="module")
def adapter(flashinfer):
    made = TemplateAdapter()
    if not read_apis():
        pytest.skip(f"flashinfer {flashinfer.__version__} has no trace templates")
    return made


@pytest.fixture(scope="module")
def routed(adapter):
    """All pairs of a target that is routed and one of its plans."""
    specs = [*adapter.targets(), *adapter.late_targets()]
    return [
        (spec, adapter.route(spec.path), plan)
        for spec in specs
        if adapter.route(spec.path) is not None
        for plan in adapter.route(spec.path).plans.values()
    ]


def test_all_but_a_few_are_routed_and_the_rest_say_why(adapter):
    specs = adapter.late_targets()
    reasons = {}
    for spec in specs:
        try:
            assert spec.expects(None) is None
        except UnroutableError as error:
            reasons[spec.path] = error.reason
    print(f"{len(specs)} functions, {len(specs) - len(reasons)} routed; the others:")
    for path, reason in reasons.items():
        print(f"  {path}: {reason}")
    assert len(specs) > 80
    assert len(reasons) <= 0.15 * len(specs)
    stateful = [p for p, why in reasons.items() if why.startswith("its result depends on earlier")]
    in_place = [p for p, why in reasons.items() if "in place" in why]
    assert {*stateful, *in_place} == {*reasons}
    assert all(path.rpartition(".")[2] in ("run", "plan") for path in stateful)


def test_names_are_those_of_flashinfer(routed):
    compared = 0
    for _spec, _route, plan in routed:
        sizes = calls.sizes_of(plan.template)
        ours = definition_name(plan.template, sizes)
        theirs = getattr(plan.template, "definition_name", None)
        if theirs is not None:  # since 0.6.14
            compared += 1
            assert ours == theirs(sizes)
    print(f"{compared} of {len(routed)} names compared")


def test_every_template_routes_a_call_that_is_made_up_from_it(routed):
    outcomes = Counter()
    for spec, route, plan in routed:
        outcome = _made_up_call(route, plan)
        outcomes[outcome] += 1
        if outcome != "routed":
            print(f"  {spec.path} by {plan.template.name_prefix}: {outcome}")
    print(f"{len(routed)} templates: {dict(outcomes)}")
    assert {*outcomes} <= {"routed", "routed, once chosen"}


def _made_up_call(route, plan):
    """Have a solution answer; it gets what the template says, and the original is not called."""
    values = calls.made_up(route, plan)
    outcome = "routed"
    if not _is_chosen(route, plan, values):
        # Choosers look at more of a call than the template says, such as the method of routing.
        outcome = "routed, once chosen"
        api = dataclasses.replace(route._api, choose=lambda **_: plan.template)
        route = TemplateRoute(api)
        plan = route._chosen({})
    understood = route.understand(**values)
    assert understood.rest.plan is plan
    seen, outputs = [], calls.outputs_of(plan, understood.rest.places)

    def original(*args, **kwargs):
        pytest.fail(f"{route.label}: {route_stats()[route.label]}")

    def solution(**inputs):
        seen.append(inputs)
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    with enable_apply({understood.name: solution}):
        route_calls(route, original)(**values)
    _check_inputs(plan, values, seen)
    for index, buffer in understood.rest.places.items():
        assert buffer.dtype == outputs[index].dtype
        assert bool((buffer.float() == 1).all())
    return outcome


def _is_chosen(route, plan, values):
    if route._api.choose is None:
        return True
    parameters = calls.parameters_of(route).values()
    defaults = {p.name: p.default for p in parameters if p.default is not inspect.Parameter.empty}
    try:
        return route._chosen({**defaults, **values}) is plan
    except ANYTHING:  # the call is not complete enough for it
        return False


def _check_inputs(plan, values, seen):
    (given,) = seen
    for name, each in plan.inputs.items():
        value = values.get(each.param)
        if value is not None:
            wanted = value if each.item is None else value[each.item]
            assert given[name] is wanted, name


def test_releases_without_templates_have_nothing_to_route(flashinfer):
    made = TemplateAdapter()
    if read_apis():
        pytest.skip(f"flashinfer {flashinfer.__version__} has templates")
    (first,) = made.targets()
    assert "0.6.10" in first.expects(flashinfer.silu_and_mul)
    assert list(made.late_targets()) == []
