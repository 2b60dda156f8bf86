"""What each argument of a function is, by one template.

An argument is one of these:

- an input of the template, or the tuple that some of its inputs come in;
- a place for an output, or a flag that has one returned; see `results`;
- a size that the shapes of tensors have to agree with;
- the order of dimensions in a page cache, which has to be the template's;
- a hint, which changes nothing about the result;
- anything else, which has to have its default.

The name of a definition follows from a template and the sizes of its constant axes. The rule is
that of FlashInfer's own `TraceTemplate.definition_name`, which releases before 0.6.14 lack: the
prefix (or the family of the computation), then each constant axis in order, as its abbreviation and
its size. An axis without an abbreviation of its own goes by its name; one whose abbreviation is
empty is left out.
"""

from __future__ import annotations

import inspect
import re
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

from fib_adapters_flashinfer.templates.results import UnsupportedError, element, read_results
from flashinfer_bench.routing import UnroutableError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Sizes = dict[str, int]

MISSING = "input missing"
"""Reason: a tensor that the template requires is not given, or something else in its place."""

RANK = "rank of an input"
"""Reason: a tensor has more or fewer dimensions than the template says."""

AXIS = "axis not known"
"""Reason: the size of a constant axis cannot be told."""

SIZES = "sizes differ"
"""Reason: two inputs, or an input and an argument, do not agree about a constant axis."""

LAYOUT = "kv layout"
"""Reason: dimensions of a cache come in another order than the template says."""

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
"""Parameters that may change how quick a call is, or where it keeps scratch data."""

_SIZES = {"local_num_experts": "num_local_experts"}  # parameters named unlike their axis
_LAYOUT = "kv_layout"
_ONE = frozenset({"one", "scalar"})  # axes of tensors with one element, which may have no dimension
# Updated in place, which no template says.
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
"""How names begin that the public dataset has for the same inputs, by how FlashInfer's begin."""


def is_const(axis: Any) -> bool:
    """Return whether an axis of a template is constant: it has an abbreviation, if only None."""
    return hasattr(axis, "abbrev")


def name_parts(template: Any) -> list[tuple[str, str]]:
    """Return the axes that are part of the name, each with what stands before its size."""
    parts = []
    for name, axis in template.axes.items():
        if is_const(axis) and axis.abbrev != "":
            parts.append((name, name if axis.abbrev is None else axis.abbrev))
    return parts


def prefix_of(template: Any) -> str:
    """Return how all names of a template begin."""
    prefix = template.name_prefix
    return str(template.op_type if prefix is None else prefix)


def definition_name(template: Any, sizes: Mapping[str, int]) -> str:
    """Return the name of a definition.

    Parameters
    ----------
    template : TraceTemplate
        FlashInfer's.
    sizes : mapping of str to int
        Of all axes that `name_parts` lists.
    """
    parts = [f"{short}{sizes[axis]}" for axis, short in name_parts(template)]
    return "_".join([prefix_of(template), *parts])


def patterns(template: Any) -> tuple[str, ...]:
    """Return patterns of all definitions that calls may be of, as in file names."""
    name = "_".join([prefix_of(template), *(f"{short}*" for _, short in name_parts(template))])
    return (name, *aliases(name))


def aliases(name: str) -> tuple[str, ...]:
    """Return what the public dataset calls a definition, where its inputs are the same."""
    found = (
        dataset + name[len(ours) :] for ours, dataset in _DATASET.items() if name.startswith(ours)
    )
    return tuple(found)


class Input(NamedTuple):
    """One input of a template.

    Attributes
    ----------
    name : str
        What the template calls it.
    param : str
        The parameter of the function.
    item : int or None
        Which element of that parameter, if it takes a tuple.
    axes : tuple of str or None
        Of a tensor; None for a scalar.
    optional : bool
        Whether a call may do without it.
    """

    name: str
    param: str
    item: Optional[int]
    axes: Optional[tuple[str, ...]]
    optional: bool

    def read(self, values: Mapping[str, Any]) -> Any:
        """Return its value in a call; None if an optional one is not given.

        Raises
        ------
        UnroutableError
            If it is not what the template says.
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
            raise UnroutableError(MISSING)
        if value.dim() != len(self.axes) and not (value.dim() == 0 and _ONE.issuperset(self.axes)):
            raise UnroutableError(RANK)
        return value


class Plan:
    """How calls of one function are described by one template.

    Parameters
    ----------
    template : TraceTemplate
        FlashInfer's.
    function : callable
        The function.

    Attributes
    ----------
    template : TraceTemplate
        The template.
    inputs : dict of str to Input
        Its inputs, by name.
    results : Results
        What becomes of its outputs.
    extras : dict of str to Any
        Parameters that are none of the above, and what they must be.

    Raises
    ------
    UnsupportedError
        If calls of the function cannot be described by it.
    """

    def __init__(self, template: Any, function: Callable[..., Any]) -> None:
        self.template = template
        self._parameters = inspect.signature(function).parameters
        self.inputs = {each.name: each for each in self._read_inputs()}
        self.results = read_results(template, function, self.inputs)
        _require_declared(function.__name__, self)
        self._layout = _layout_of(template) if _LAYOUT in self._parameters else None
        self._named = name_parts(template)
        self._sources = {
            axis: self._source(axis) for axis, spec in template.axes.items() if is_const(spec)
        }
        self._witnesses = self._find_witnesses()
        self._sizes = self._size_parameters()
        self.extras = self._read_extras()

    # ------------------------------------------------------------------------------- reading

    def _read_inputs(self) -> list[Input]:
        found = []
        for name, spec in self.template.inputs.items():
            param = getattr(spec, "param", None) or name
            if param not in self._parameters and not spec.optional:
                raise UnsupportedError(f"input '{name}' is no parameter of it")
            axes = getattr(spec, "dim_names", None)
            item = getattr(spec, "tuple_idx", None)
            found.append(
                Input(name, param, item, None if axes is None else (*axes,), spec.optional)
            )
        return found

    def _source(self, axis: str) -> Callable[[Mapping[str, Any], Mapping[str, Any]], Any]:
        """Return what tells the size of an axis, given the arguments and the inputs of a call."""
        fixed = getattr(self.template.axes[axis], "value", None)
        if fixed is not None:
            return lambda _values, _inputs: fixed
        for optional in (False, True):
            for name, spec in self.inputs.items():
                if spec.axes is not None and axis in spec.axes and spec.optional is optional:
                    return _shape_reader(name, spec.axes.index(axis))
            if not optional and axis in self.inputs:
                return lambda _values, inputs: inputs[axis]
        return lambda values, _inputs: values.get(axis)

    def _find_witnesses(self) -> list[tuple[str, str, int]]:
        """Return where else the sizes of constant axes are seen: axis, input, dimension."""
        found = []
        for name, spec in self.inputs.items():
            for dimension, axis in enumerate(spec.axes or ()):
                if axis in self._sources and not (spec.axes and _ONE.issuperset(spec.axes)):
                    found.append((axis, name, dimension))
        return found

    def _size_parameters(self) -> dict[str, str]:
        """Return the axis of each parameter that is the size of one, and no input."""
        known = {each.param for each in self.inputs.values()}
        found = {name: _SIZES.get(name, name) for name in self._parameters if name not in known}
        return {name: axis for name, axis in found.items() if axis in self._sources}

    def _read_extras(self) -> dict[str, Any]:
        used = {each.param for each in self.inputs.values()} | self.results.parameters
        used |= {*self._sizes, _LAYOUT} if self._layout else {*self._sizes}
        extras = {}
        for name, parameter in self._parameters.items():
            if name in used or _is_hint(name, parameter):
                continue
            # What has no default is of no account only while it is None.
            default = parameter.default
            extras[name] = None if default is inspect.Parameter.empty else default
        return extras

    def default_of(self, name: str, otherwise: Any = None) -> Any:
        """Return what an input is where it is not given."""
        each = self.inputs.get(name)
        parameter = self._parameters.get(name if each is None else each.param)
        if parameter is None or parameter.default is inspect.Parameter.empty:
            return otherwise
        return otherwise if each is not None and each.item is not None else parameter.default

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
            If the call is not what the template describes.
        """
        if self._layout is not None and values[_LAYOUT] != self._layout:
            raise UnroutableError(LAYOUT)
        return {name: each.read(values) for name, each in self.inputs.items()}

    def name(self, values: Mapping[str, Any], inputs: Mapping[str, Any]) -> str:
        """Return the definition that a call is one of.

        Raises
        ------
        UnroutableError
            If a size is not known, or sizes do not agree.
        """
        sizes = {axis: source(values, inputs) for axis, source in self._sources.items()}
        for axis, name, dimension in self._witnesses:
            tensor = inputs[name]
            if tensor is not None and tensor.shape[dimension] != sizes[axis]:
                raise UnroutableError(SIZES)
        for parameter, axis in self._sizes.items():
            if values[parameter] is not None and values[parameter] != sizes[axis]:
                raise UnroutableError(SIZES)
        if any(not _is_size(sizes[axis]) for axis, _ in self._named):
            raise UnroutableError(AXIS)
        return definition_name(self.template, {a: int(sizes[a]) for a, _ in self._named})


def _shape_reader(
    name: str, dimension: int
) -> Callable[[Mapping[str, Any], Mapping[str, Any]], Any]:
    def read(_values: Mapping[str, Any], inputs: Mapping[str, Any]) -> Any:
        tensor = inputs[name]
        return None if tensor is None or tensor.dim() == 0 else tensor.shape[dimension]

    return read


def _is_hint(name: str, parameter: inspect.Parameter) -> bool:
    # Where results are not repeatable unless that is asked for, no definition says that they are.
    demand = name == "deterministic" and parameter.default is False
    return name in HINTS and not demand


def _is_size(value: Any) -> bool:
    # Enumerations, such as that of activations, are integers, too.
    return isinstance(value, int) and not isinstance(value, bool)


def _require_declared(function: str, plan: Plan) -> None:
    """Refuse functions that change an input which the template does not name as an output."""
    written = {each.place for each in plan.results.outputs}
    tensors = [each.param for each in plan.inputs.values() if each.axes is not None]
    states = [name for name in tensors if _STATE.fullmatch(name)]
    for name in (*states, *filter(None, [_UPDATES.get(function)])):
        if name not in written:
            raise UnsupportedError(f"it updates '{name}' in place, which its template does not say")


def _layout_of(template: Any) -> Optional[str]:
    """Return how a template orders the dimensions of keys and values: ``"NHD"`` or ``"HND"``."""
    for spec in template.inputs.values():
        axes: list[str] = list(getattr(spec, "dim_names", None) or ())
        if len(axes) < 3 or axes[0].startswith(("batch", "num_tokens", "num_q", "qo", "nnz")):
            continue
        if "heads" in axes[-2]:
            return "NHD"
        if "heads" in axes[-3]:
            return "HND"
    return None
