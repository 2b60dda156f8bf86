"""Calls of functions that have templates: made by FlashInfer, or made up from the template."""

import inspect

import torch


def original_of(counter):
    """A stand-in for a function; counts its calls."""

    def original(*args, **kwargs):
        counter.append((args, kwargs))
        return "original"

    return original


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


def made_up_outputs(plan, places):
    """What a solution could return for such a call: fresh tensors, of ones."""
    sizes = sizes_of(plan.template)
    made = []
    for index, spec in enumerate(plan.template.outputs.values()):
        if index in places:
            made.append(torch.ones_like(places[index]))
        else:
            made.append(torch.ones_like(tensor(spec.dim_names, sizes)))
    return made


def as_result(outputs):
    return outputs[0] if len(outputs) == 1 else tuple(outputs)


def same(left, right):
    """Whether two tensors are the same, NaN equal to itself."""
    return left.dtype == right.dtype and torch.equal(bytes_of(left), bytes_of(right))


def bytes_of(value):
    return value.detach().contiguous().reshape(-1).view(torch.uint8)
