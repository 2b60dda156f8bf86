"""Calls of functions that have templates: made by FlashInfer, or made up from the template."""

import inspect

import torch


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
