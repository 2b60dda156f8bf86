"""Every function of the real FlashInfer that has a template: routed as the template says."""

import dataclasses
import inspect

import pytest
import torch

from fib_adapters_flashinfer.templates import TemplateAdapter, TemplateRoute, read_apis
from fib_adapters_flashinfer.templates.plan import definition_name
from flashinfer_bench.apply import enable_apply
from flashinfer_bench.routing.routes import UnroutableError, route_calls, route_stats

ANYTHING = (Exception,)

# ---------------------------------------------------------- calls made up from a template


def parameters_of(route):
    return inspect.signature(route._api.function).parameters


def sizes_of(template):
    """A size for each axis, all different where the template leaves them open."""
    return {
        name: getattr(axis, "value", None) or index + 2
        for index, (name, axis) in enumerate(template.axes.items())
    }


def tensor(axes, sizes, dtype=torch.bfloat16):
    return torch.zeros([sizes.get(axis, 3) for axis in axes], dtype=dtype)


def made_up(route, plan):
    """Arguments for a call with each required input of a template, and nothing else."""
    sizes = sizes_of(plan.template)
    parameters = parameters_of(route)
    needed = {n for n, p in parameters.items() if p.default is inspect.Parameter.empty}
    values = {name: sizes.get(plan._sizes.get(name, name)) for name in needed}
    values.update(dict.fromkeys(set(plan._sizes), None) | {k: values.get(k) for k in plan._sizes})
    for name, each in plan.inputs.items():
        if each.optional and each.param not in needed:
            continue
        value = sizes.get(name, 1) if each.axes is None else tensor(each.axes, sizes)
        if each.item is None:
            values[each.param] = value
        else:
            several = list(values.get(each.param) or ())
            several += [None] * (each.item + 1 - len(several))
            several[each.item] = value
            values[each.param] = tuple(several)
    for output, spec in zip(plan.results.outputs, plan.template.outputs.values(), strict=True):
        if output.in_place and not isinstance(values.get(output.place), (torch.Tensor, tuple)):
            values[output.place] = tensor(spec.dim_names, sizes)
    for name in plan.results.flags:
        values[name] = False
    for output in plan.results.outputs:
        if output.flag in needed:
            values[output.flag] = False
    if plan._layout is not None:
        values["kv_layout"] = plan._layout
    return {name: value for name, value in values.items() if name in parameters}


def outputs_of(plan, places):
    """What a solution could return for such a call: fresh tensors, of ones."""
    sizes = sizes_of(plan.template)
    specs = enumerate(plan.template.outputs.values())
    return [torch.ones_like(places.get(i, tensor(s.dim_names, sizes))) for i, s in specs]


# -------------------------------------------------------------------------------- tests


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
    assert len(specs) > 80
    assert len(reasons) <= 0.15 * len(specs)
    stateful = [p for p, why in reasons.items() if why.startswith("its result depends on earlier")]
    in_place = [p for p, why in reasons.items() if "in place" in why]
    assert {*stateful, *in_place} == {*reasons}
    assert all(path.rpartition(".")[2] in ("run", "plan") for path in stateful)


def test_names_are_those_of_flashinfer(routed):
    for _spec, _route, plan in routed:
        sizes = sizes_of(plan.template)
        ours = definition_name(plan.template, sizes)
        theirs = getattr(plan.template, "definition_name", None)
        assert theirs is None or ours == theirs(sizes)  # since 0.6.14


def test_every_template_routes_a_call_that_is_made_up_from_it(routed):
    for _spec, route, plan in routed:
        answer_made_up_call(route, plan)


def answer_made_up_call(route, plan):
    """Have a solution answer; it gets what the template says, and the original is not called."""
    values = made_up(route, plan)
    if not _is_chosen(route, plan, values):
        # Choosers look at more of a call than the template says, such as the method of routing.
        api = dataclasses.replace(route._api, choose=lambda **_: plan.template)
        route = TemplateRoute(api)
        plan = route._chosen({})
    understood = route.understand(**values)
    assert understood.rest.plan is plan
    seen, outputs = [], outputs_of(plan, understood.rest.places)

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


def _is_chosen(route, plan, values):
    if route._api.choose is None:
        return True
    parameters = parameters_of(route).values()
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
