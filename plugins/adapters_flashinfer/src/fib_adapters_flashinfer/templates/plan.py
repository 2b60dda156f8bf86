"""Determine the meaning of each argument of a function from one template.

An argument is one of these:

- an input of the template, or a tuple of several inputs;
- a buffer for an output, or a flag that requests one; see `Results`;
- a size that the shapes of tensors must agree with;
- the order of dimensions in a page cache, which must match the template;
- a hint, which does not affect the result;
- any other parameter, which must have its default.

The name of a definition follows from a template and the sizes of its constant axes. The rule is
that of FlashInfer's own `TraceTemplate.definition_name`, which releases before 0.6.14 lack: the
prefix (or the family of the computation), then the abbreviation and size of each constant axis, in
order. An axis without an abbreviation uses its name; an axis with an empty abbreviation is omitted.
"""

from __future__ import annotations

import inspect
import re
import types
import typing
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

from flashinfer_bench.routing import Returns, UnroutableError, evaluated, returns_of, write_back

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from inspect import Parameter

    import torch

    Sizes = dict[str, int]

HINTS = frozenset(
    {
        "deterministic",
        "enable_pdl",
        "float_workspace_buffer",
        "int_workspace_buffer",
        "is_cuda_graph_compatible",
        "kv_seq_lens_cpu",
        "launch_with_pdl",
        "multi_ctas_kv_counter_buffer",
        "pdl",
        "q_seq_lens_cpu",
        "schedule_meta",
        "skip_all_rows_active_check",
        "sm_count",
        "tune_max_num_tokens",
        "workspace_buffer",
    }
)
"""Parameters that may affect the speed of a call, or the location of scratch data."""

_SIZES = {"local_num_experts": "num_local_experts"}  # parameters whose name differs from their axis
_LAYOUT = "kv_layout"
_ONE = frozenset({"one", "scalar"})  # axes of one-element tensors, which may be zero-dimensional
# Parameters that are updated in place, which templates do not state.
_STATE = re.compile(r"(?!initial_)(\w+_)?state")
_UPDATES = {
    "gated_delta_rule_mtp": "initial_state",
    "recurrent_kda": "initial_state",
    "rope_quantize_fp8_append_paged_kv_cache": "paged_kv_cache",
}


_DATASET = {
    "moe_fp8_block_scale_renormalize_routing_topk": "moe_fp8_block_scale_renorm_topk",
    "top_k_sampling_v": "top_k_sampling_from_probs_v",
    "top_p_sampling_v": "top_p_sampling_from_probs_v",
    "top_k_top_p_sampling_v": "top_k_top_p_sampling_from_probs_v",
}
"""FlashInfer's name prefixes, and those of the public dataset for the same inputs."""


def is_const(axis: Any) -> bool:
    """Return whether a template's axis is constant: it has an abbreviation, possibly None."""
    return hasattr(axis, "abbrev")


def name_parts(template: Any) -> list[tuple[str, str]]:
    """Return the axes in the name, each with the text before its size."""
    named = [(name, axis) for name, axis in template.axes.items() if is_const(axis)]
    return [
        (name, name if axis.abbrev is None else axis.abbrev)
        for name, axis in named
        if axis.abbrev != ""
    ]


def prefix_of(template: Any) -> str:
    """Return the prefix of all names of a template."""
    prefix = template.name_prefix
    return str(template.op_type if prefix is None else prefix)


def definition_name(template: Any, sizes: Mapping[str, int]) -> str:
    """Return the name of a definition.

    Parameters
    ----------
    template : TraceTemplate
        FlashInfer's template.
    sizes : mapping of str to int
        Sizes of all axes that `name_parts` lists.
    """
    parts = [f"{short}{sizes[axis]}" for axis, short in name_parts(template)]
    return "_".join([prefix_of(template), *parts])


def patterns(template: Any) -> tuple[str, ...]:
    """Return file-name patterns of all definitions that calls may match."""
    name = "_".join([prefix_of(template), *(f"{short}*" for _, short in name_parts(template))])
    return (name, *aliases(name))


def aliases(name: str) -> tuple[str, ...]:
    """Return the public dataset's names of a definition with the same inputs."""
    found = (
        dataset + name[len(ours) :] for ours, dataset in _DATASET.items() if name.startswith(ours)
    )
    return tuple(found)


class Input(NamedTuple):
    """One input of a template.

    Attributes
    ----------
    name : str
        Name in the template.
    param : str
        The parameter of the function.
    item : int or None
        Index in that parameter, if it takes a tuple.
    axes : tuple of str or None
        Axes of a tensor; None for a scalar.
    optional : bool
        Whether a call may omit it.
    """

    name: str
    param: str
    item: Optional[int]
    axes: Optional[tuple[str, ...]]
    optional: bool

    def read(self, values: Mapping[str, Any]) -> Any:
        """Return its value in a call; None if an optional input is not given.

        Raises
        ------
        UnroutableError
            If it does not match the template.
        """
        import torch

        value = values.get(self.param)
        if self.item is not None and value is not None:
            value = element(value, self.item)
        if self.axes is None:
            return value
        if value is None and self.optional:
            return None
        if not isinstance(value, torch.Tensor):
            raise UnroutableError("input missing")
        if value.dim() != len(self.axes) and not (value.dim() == 0 and _ONE.issuperset(self.axes)):
            raise UnroutableError("rank of an input")
        return value


class Plan:
    """Maps the calls of one function to one template.

    Parameters
    ----------
    template : TraceTemplate
        FlashInfer's template.
    function : callable
        The function.

    Attributes
    ----------
    template : TraceTemplate
        The template.
    inputs : dict of str to Input
        Its inputs, by name.
    results : Results
        How its outputs are delivered.
    extras : dict of str to Any
        Other parameters, and their required values.
    flags : list of str
        Inputs that request outputs.

    Raises
    ------
    UnroutableError
        If the template cannot describe calls of the function.
    """

    def __init__(self, template: Any, function: Callable[..., Any]) -> None:
        self.template = template
        self._parameters = inspect.signature(function).parameters
        self.inputs = {each.name: each for each in self._read_inputs()}
        self.results = read_results(template, function, self.inputs)
        _require_declared(function.__name__, self)
        self._layout = _layout_of(template) if _LAYOUT in self._parameters else None
        self._named = name_parts(template)
        self._read_axes()
        self._sizes = self._size_parameters()
        self.extras = self._read_extras()
        asked = {each.flag for each in self.results.outputs}
        self.flags = [name for name, each in self.inputs.items() if each.param in asked]

    # ------------------------------------------------------------------------------- reading

    def _read_inputs(self) -> list[Input]:
        found = []
        for name, spec in self.template.inputs.items():
            param = getattr(spec, "param", None) or name
            if param not in self._parameters and not spec.optional:
                raise UnroutableError(f"input '{name}' is not a parameter of it")
            axes = getattr(spec, "dim_names", None)
            item = getattr(spec, "tuple_idx", None)
            found.append(
                Input(name, param, item, None if axes is None else (*axes,), spec.optional)
            )
        return found

    def _read_axes(self) -> None:
        """Determine where the sizes of constant axes come from, and what must agree with them."""
        axes = {name: axis for name, axis in self.template.axes.items() if is_const(axis)}
        self._fixed = {name: getattr(axis, "value", None) for name, axis in axes.items()}
        # Axis, input and dimension. Inputs that are always given decide, so they come first.
        self._places = [
            (axis, name, dimension)
            for name, spec in sorted(self.inputs.items(), key=lambda pair: pair[1].optional)
            if spec.axes is not None and not _ONE.issuperset(spec.axes)
            for dimension, axis in enumerate(spec.axes)
            if axis in axes
        ]
        required = {axis for axis, name, _ in self._places if not self.inputs[name].optional}
        self._open = [a for a, size in self._fixed.items() if size is None and a not in required]

    def _size_parameters(self) -> dict[str, str]:
        """Return the axis of each parameter that is the size of one and not an input."""
        known = {each.param for each in self.inputs.values()}
        found = {name: _SIZES.get(name, name) for name in self._parameters if name not in known}
        return {name: axis for name, axis in found.items() if axis in self._fixed}

    def _read_extras(self) -> dict[str, Any]:
        used = {each.param for each in self.inputs.values()} | self.results.parameters
        used |= {*self._sizes, _LAYOUT} if self._layout else {*self._sizes}
        extras = {}
        for name, parameter in self._parameters.items():
            if name in used or _is_hint(name, parameter):
                continue
            # A parameter without a default is ignored only if it is None.
            default = parameter.default
            extras[name] = None if default is inspect.Parameter.empty else default
        return extras

    def default_of(self, each: Input, otherwise: Any) -> Any:
        """Return the value of an input that is not given."""
        parameter = self._parameters.get(each.param)
        if parameter is None or parameter.default is inspect.Parameter.empty:
            return otherwise
        return parameter.default if each.item is None else otherwise

    # --------------------------------------------------------------------------------- calls

    def read(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the inputs of a call by name.

        Parameters
        ----------
        values : mapping of str to Any
            All arguments by name, defaults filled in.

        Raises
        ------
        UnroutableError
            If the call does not match the template.
        """
        if self._layout is not None and values[_LAYOUT] != self._layout:
            raise UnroutableError("kv layout")
        return {name: each.read(values) for name, each in self.inputs.items()}

    def name(self, values: Mapping[str, Any], inputs: Mapping[str, Any]) -> str:
        """Return the name of the definition for a call.

        Raises
        ------
        UnroutableError
            If a size is unknown, or sizes disagree.
        """
        sizes = dict(self._fixed)
        sizes.update((axis, inputs.get(axis, values.get(axis))) for axis in self._open)
        for axis, name, dimension in self._places:
            if inputs[name] is None:
                continue
            size = inputs[name].shape[dimension]
            if sizes[axis] is None:
                sizes[axis] = size
            elif sizes[axis] != size:
                raise UnroutableError("sizes differ")
        for parameter, axis in self._sizes.items():
            if values[parameter] is not None and values[parameter] != sizes[axis]:
                raise UnroutableError("sizes differ")
        if any(not _is_size(sizes[axis]) for axis, _ in self._named):
            raise UnroutableError("axis not known")
        return definition_name(self.template, {a: int(sizes[a]) for a, _ in self._named})


def _is_hint(name: str, parameter: inspect.Parameter) -> bool:
    # No definition requires repeatable results, so a flag that requests them is a hint.
    demand = name == "deterministic" and parameter.default is False
    return name in HINTS and not demand


def _is_size(value: Any) -> bool:
    # Enumerations, such as activation types, are also integers.
    return isinstance(value, int) and not isinstance(value, bool)


def _require_declared(function: str, plan: Plan) -> None:
    """Refuse functions that modify an input which the template does not declare as an output."""
    written = {each.place for each in plan.results.outputs}
    tensors = [each.param for each in plan.inputs.values() if each.axes is not None]
    states = [name for name in tensors if _STATE.fullmatch(name)]
    for name in (*states, *filter(None, [_UPDATES.get(function)])):
        if name not in written:
            raise UnroutableError(f"it updates '{name}' in place, which its template does not say")


def _layout_of(template: Any) -> Optional[str]:
    """Return a template's order of dimensions of keys and values: ``"NHD"`` or ``"HND"``."""
    for spec in template.inputs.values():
        axes: list[str] = list(getattr(spec, "dim_names", None) or ())
        if len(axes) < 3 or axes[0].startswith(("batch", "num_tokens", "num_q", "qo", "nnz")):
            continue
        if "heads" in axes[-2]:
            return "NHD"
        if "heads" in axes[-3]:
            return "HND"
    return None


# ----------------------------------------------------------------------------------- results
#
# The outputs that a function returns, and where it writes them.
#
# An output has a buffer in a call if the template names the parameter that it is written to, if a
# parameter has the output's name, or if it is the first output without such a parameter and the
# function has a parameter ``out`` or ``output``. A buffer that the caller omits does not count.
#
# The annotation, and flags such as ``return_lse``, determine what is returned.

_OUT = ("out", "output")
_FLAGS = ("return_", "output_final_")
_UNIONS = (typing.Union, types.UnionType)


class Output(NamedTuple):
    """One output of a template.

    Attributes
    ----------
    name : str
        Name in the template.
    place : str or None
        The parameter with its buffer.
    item : int or None
        Index in that parameter, if it takes a tuple.
    in_place : bool
        Whether every call provides that buffer.
    flag : str or None
        The parameter that requests its return.
    optional : bool
        Whether a call may omit it.
    narrow : bool
        Whether the function returns 32-bit integers, regardless of definitions.
    """

    name: str
    place: Optional[str] = None
    item: Optional[int] = None
    in_place: bool = False
    flag: Optional[str] = None
    optional: bool = False
    narrow: bool = False


@dataclass(frozen=True, eq=False)
class Results:
    """How one template describes the outputs of a function.

    Parameters
    ----------
    outputs : tuple of Output
        All outputs.
    returned : tuple of int
        Indices of the outputs that are returned, apart from flags.
    returns : Returns
        Form of the returned outputs.
    flags : tuple of str
        Parameters that request something that is not an output of the template.
    handed : frozenset of int
        Outputs whose buffers are also inputs: a solution may write to these itself.
    """

    outputs: tuple[Output, ...]
    returned: tuple[int, ...]
    returns: Returns
    flags: tuple[str, ...]
    handed: frozenset[int] = frozenset()

    @property
    def parameters(self) -> set[str]:
        """Parameters that are buffers or flags."""
        used = {each.place for each in self.outputs} | {each.flag for each in self.outputs}
        return {name for name in (*used, *self.flags) if name is not None}

    @property
    def required(self) -> int:
        """Minimum number of outputs of a definition."""
        return sum(not each.optional for each in self.outputs)

    def places(self, values: Mapping[str, Any]) -> dict[int, torch.Tensor]:
        """Return the buffers of a call, by the position of the output.

        Raises
        ------
        UnroutableError
            If a buffer is not a tensor, or a missing output is requested.
        """
        import torch

        if any(_is_on(values[name]) for name in self.flags):
            raise UnroutableError("more outputs wanted than the template has")
        found = {}
        for index, output in enumerate(self.outputs):
            if output.place is None:
                continue
            buffer = values[output.place]
            if buffer is None and not (output.in_place and not output.optional):
                continue
            if output.item is not None:
                buffer = element(buffer, output.item)
            if not isinstance(buffer, torch.Tensor):
                raise UnroutableError("buffer")
            found[index] = buffer
        return found

    def deliver(
        self, values: Mapping[str, Any], places: dict[int, torch.Tensor], result: Any
    ) -> Any:
        """Deliver outputs as a call requires, and return what the function would return.

        Parameters
        ----------
        values : mapping of str to Any
            Arguments of the call.
        places : dict of int to torch.Tensor
            Its buffers.
        result : tensor or sequence
            The outputs of the definition.

        Raises
        ------
        UnroutableError
            If they do not match. In that case nothing has been written.
        """
        if not places and self._is_plain and not isinstance(result, (tuple, list, type(None))):
            return result
        if result is None and all(i in self.handed for i in range(self.required)):
            result = [places.get(index) for index in range(self.required)]
        outputs = list(result) if isinstance(result, (tuple, list)) else [result]
        wanted = self._wanted(values)
        least = max([self.required, *(index + 1 for index in (*places, *wanted))])
        if not least <= len(outputs) <= len(self.outputs):
            raise UnroutableError("outputs not as the template has them")
        outputs = [_as_returned(*pair) for pair in zip(self.outputs, outputs, strict=False)]
        for index, buffer in places.items():
            _check(outputs[index], buffer)
        write_back(outputs, places)
        return self._wrap(
            [places.get(i, outputs[i]) if i in wanted else None for i in self.returned]
        )

    @cached_property
    def _is_plain(self) -> bool:
        """Whether the only output is returned unchanged."""
        alone = self.returned == (0,) and len(self.outputs) == 1
        return alone and self.returns.kind in ("any", "one") and not self.outputs[0].narrow

    def _wanted(self, values: Mapping[str, Any]) -> list[int]:
        """Return the indices of the outputs that a call returns."""
        flags = ((index, self.outputs[index].flag) for index in self.returned)
        return [index for index, flag in flags if flag is None or _is_on(values[flag])]

    def _wrap(self, values: list[Any]) -> Any:
        number = self.returns.number
        if number is None:  # the number depends on flags
            values = [value for value in values if value is not None]
        elif self.returns.kind == "tuple":
            values += [None] * (number - len(values))
        return self.returns.wrap(values, [])

    def collect(
        self, values: Mapping[str, Any], places: Mapping[int, torch.Tensor], returned: Any
    ) -> Any:
        """Return the outputs of the definition, from what the function wrote and returned.

        Parameters
        ----------
        values, places
            As for `deliver`.
        returned : Any
            The function's return value.
        """
        several = returned if isinstance(returned, (tuple, list)) else [returned]
        found = {**dict(zip(self._wanted(values), several, strict=False)), **places}
        outputs = [found.get(index) for index in range(len(self.outputs))]
        while outputs and outputs[-1] is None:
            outputs.pop()
        return outputs[0] if len(outputs) == 1 else tuple(outputs)


def element(value: Any, index: int) -> Any:
    """Return an element of a tuple; None if it does not exist."""
    known = isinstance(value, (tuple, list)) and len(value) > index
    return value[index] if known else None


def _is_on(flag: Any) -> bool:
    return isinstance(flag, int) and bool(flag)


def _as_returned(output: Output, value: Any) -> Any:
    """Return an output in the function's form: sampled tokens are 32-bit integers."""
    import torch

    wide = output.narrow and getattr(value, "dtype", None) == torch.int64
    return value.to(torch.int32) if wide else value


def _check(output: Any, buffer: torch.Tensor) -> None:
    import torch

    same = isinstance(output, torch.Tensor) and (
        output.shape == buffer.shape
        and output.dtype == buffer.dtype
        and output.device == buffer.device
    )
    if not same:
        raise UnroutableError("buffer")


# ----------------------------------------------------------------------------------- reading


def read_results(template: Any, function: Callable[..., Any], taken: Mapping[str, Any]) -> Results:
    """Determine how the outputs of a function are delivered.

    Parameters
    ----------
    template : TraceTemplate
        FlashInfer's template.
    function : callable
        The function with these outputs.
    taken : mapping of str to Any
        Inputs of the template by name, with attributes `param` and `item`.

    Raises
    ------
    UnroutableError
        If that cannot be determined.
    """
    signature = inspect.signature(function)
    parameters = signature.parameters
    annotation = evaluated(signature.return_annotation, function)
    returns = _returns(annotation, function)
    outputs = _read_outputs(template, parameters, taken)
    if returns.kind == "none":
        for each in outputs:
            if each.place is None and not each.optional:
                raise UnroutableError(
                    f"it works in place, and the template does not say where '{each.name}' goes"
                )
    claimed = {each.flag for each in outputs}
    known = {each.param for each in taken.values()}
    flags = [n for n, p in parameters.items() if _is_flag(n, p) and n not in claimed]
    idle = [name for name in flags if name not in known or name == "return_lse"]
    returned = _returned(outputs, returns, annotation)
    handed = frozenset(i for i, each in enumerate(outputs) if each.place in known)
    return Results(tuple(outputs), returned, returns, tuple(idle), handed)


def _returns(annotation: Any, function: Callable[..., Any]) -> Returns:
    if annotation is inspect.Signature.empty:
        return Returns()
    import torch

    returns = returns_of(annotation, function)
    named = isinstance(annotation, type) and annotation not in (torch.Tensor, tuple, list)
    if returns.kind == "any" and named:
        raise UnroutableError(f"it returns an object of its own type, {annotation.__name__}")
    return returns


def _read_outputs(
    template: Any, parameters: Mapping[str, Parameter], taken: Mapping[str, Any]
) -> list[Output]:
    declared = {name: getattr(spec, "param", None) for name, spec in template.outputs.items()}
    places = {}
    for name, spec in template.outputs.items():
        place = declared[name] or name
        if place in parameters:
            places[name] = place
        elif declared[name] and not spec.optional:
            raise UnroutableError(f"output '{name}' goes into '{place}', which is not a parameter")
    out = next((each for each in _OUT if each in parameters and each not in places.values()), None)
    if out is not None:
        without = next((name for name in template.outputs if name not in places), None)
        if without is None:
            raise UnroutableError(f"parameter '{out}' takes no output of the template")
        places[without] = out
    flags = {}
    for flag in (name for name, parameter in parameters.items() if _is_flag(name, parameter)):
        wanted = flag.removeprefix("return_").removeprefix("output_")
        flags.update(dict.fromkeys((wanted, wanted.replace("final_", "new_")), flag))
    outputs: list[Output] = []
    for name, spec in template.outputs.items():
        place = places.get(name)
        item = taken[name].item if declared[name] and name in taken else None
        if any((each.place, each.item) == (place, item) for each in outputs if place):
            raise UnroutableError(f"two outputs go into '{place}'")
        given = place is not None and parameters[place].default is inspect.Parameter.empty
        narrow = name == "samples" and template.op_type == "sampling"
        outputs.append(Output(name, place, item, given, flags.get(name), spec.optional, narrow))
    return outputs


def _is_flag(name: str, parameter: Parameter) -> bool:
    """Return whether a parameter requests the return of an output."""
    switch = isinstance(parameter.default, bool) or parameter.annotation in (bool, "bool")
    return switch and name.startswith(_FLAGS)


def _returned(outputs: list[Output], returns: Returns, annotation: Any) -> tuple[int, ...]:
    every = tuple(range(len(outputs)))
    fresh = tuple(index for index in every if not outputs[index].in_place)
    if returns.kind == "none":
        return ()
    if returns.number is not None:
        chosen = fresh if returns.number <= len(fresh) else every
        lacking = returns.number - len(chosen)
        last = typing.get_args(annotation)[-lacking:] if lacking > 0 else ()
        if not all(type(None) in typing.get_args(each) for each in last):
            raise UnroutableError(
                f"it returns {returns.number} values, and the template has {len(outputs)} outputs"
            )
        return chosen[: returns.number]
    chosen = tuple(i for i in fresh or every if outputs[i].flag or not outputs[i].optional)
    open_ends = [index for index in chosen if outputs[index].flag is None]
    if typing.get_origin(annotation) in _UNIONS and len(open_ends) > 1:
        raise UnroutableError("it is not known how many of its outputs it returns")
    return chosen
