"""Definitions derived from calls, using the trace templates of the installed FlashInfer.

A solution may be chosen for a definition that no dataset has. The function's template describes its
inputs and outputs; element types and sizes of constant axes are taken from the first call. The
remaining arguments of a FlashInfer solution stay the same in all calls: optional inputs that the
first call does not give are None, and flags such as ``return_lse`` are on, so that a solution
always returns all outputs.
"""

from __future__ import annotations

import inspect
import textwrap
from contextlib import suppress
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, ClassVar, Optional

from flashinfer_bench import routing
from flashinfer_bench.errors import ConfigError, DataError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    import torch

NO_TEMPLATES = "it has no trace template; FlashInfer has had them since 0.6.10"
"""Reason why earlier releases allow neither deriving a definition nor routing a function."""

# Required by calls, but missing in templates: the used slots on the last page of each request.
_LAST_PAGE = "kv_last_page_len"
_SCALARS = {bool: "bool", int: "int64", float: "float32"}


class TemplatedRoute(routing.Route):
    """A hand-written route for a function that has a template.

    Attributes
    ----------
    untemplated : tuple of str
        Patterns of definitions whose calls the template does not describe.
    """

    untemplated: ClassVar[tuple[str, ...]] = ()

    def lacks(self, name: str) -> Optional[str]:
        """Return why no definition of that name can be derived from calls; None if one can."""
        if any(fnmatchcase(name, pattern) for pattern in self.untemplated):
            return "no trace template of FlashInfer describes such calls"
        return None if self._templates() else NO_TEMPLATES

    def define(self, understood: routing.Understood) -> routing.Made:
        """Return the definition of a call; see `Route.define`."""
        if problem := self.lacks(understood.name):
            raise ConfigError(problem)
        given = dict(zip(self.parameters.parameters, understood.inputs, strict=True))
        return make(understood.name, self.label, self._templates()[0], given, flags=("return_lse",))

    def _templates(self) -> tuple[Any, ...]:
        from fib_adapters_flashinfer.templates import read_apis

        function = self.label.split(".", 2)[2]
        found = (api.templates for api in read_apis() if api.function.__qualname__ == function)
        return next(found, ())


def make(
    name: str,
    path: str,
    template: Any,
    given: Mapping[str, Any],
    *,
    arguments: Optional[Mapping[str, Any]] = None,
    buffers: Optional[Mapping[int, torch.Tensor]] = None,
    flags: Collection[str] = (),
    outputs: Optional[int] = None,
) -> routing.Made:
    """Derive the definition of a call.

    Parameters
    ----------
    name : str
        Name of the definition.
    path : str
        Path of the function.
    template : TraceTemplate
        FlashInfer's template.
    given : mapping of str to Any
        The inputs of the call, by their names in the template.
    arguments : mapping of str to Any, optional
        All arguments of the call, by the function's parameter names.
    buffers : mapping of int to torch.Tensor, optional
        Destination buffers of outputs, by position.
    flags : collection of str
        Inputs that request outputs.
    outputs : int, optional
        Number of outputs of the template that are used; default: all.

    Raises
    ------
    ConfigError
        If the call has a property that a definition cannot express.
    """
    import torch

    from flashinfer_bench.data import Definition

    sizes: dict[str, int] = {}
    inputs: dict[str, Any] = {}
    full: dict[str, Any] = {}
    fixed: dict[str, Any] = {}
    called = {key: getattr(spec, "param", None) or key for key, spec in template.inputs.items()}
    values = {**{called.get(key, key): value for key, value in given.items()}, **(arguments or {})}
    for key in _ordered(template, given):
        spec, value = template.inputs.get(key), given.get(key)
        axes = ("batch_size",) if spec is None else getattr(spec, "dim_names", None)
        entry: dict[str, Any] = {"shape": axes and [*axes]}
        if isinstance(value, torch.Tensor):
            entry = {"shape": _shape(key, value, axes or (), sizes)}
            entry["dtype"] = _dtype(value.dtype, f"input '{key}'")
        elif type(value) in _SCALARS and axes is None and key not in flags:
            declared = str(spec.dtype)
            same = declared.startswith((type(value).__name__, "float"))
            entry["dtype"] = declared if same and _known(declared) else _SCALARS[type(value)]
        else:
            fixed[key] = True if key in flags else value
            declared = str(spec.dtype)
            full[key] = {**entry, "dtype": declared if _known(declared) else "float32"}
            continue
        if called.get(key, key) != key:
            entry["param"] = called[key]
        inputs[key] = full[key] = entry
    results: dict[str, Any] = {}
    for index, (key, spec) in enumerate([*template.outputs.items()][:outputs]):
        entry = {"shape": getattr(spec, "dim_names", None), "dtype": None}
        buffer = (buffers or {}).get(index)
        found = buffer.dtype if buffer is not None else _dtype_of(spec, template, values, given)
        entry["dtype"] = _dtype(found, f"output '{key}'")
        place = getattr(spec, "param", None)
        into = next((each for each in inputs if place in (each, called.get(each, each))), None)
        if place is not None and into is not None:
            entry["param"] = into
        results[f"{key}_out" if key in full else key] = entry
    record = {
        "name": name,
        "op_type": template.op_type,
        "description": template.description or None,
        "tags": [f"fi_api:{path}", *template.tags],
        "outputs": results,
        "reference": _reference(template, inputs),
    }
    try:
        plain, whole = (
            Definition.model_validate(
                {**record, "axes": _axes(template, each, results, sizes, values), "inputs": each}
            )
            for each in (inputs, full)
        )
    except ValueError as error:
        raise ConfigError(f"its template gives no definition: {error}") from error
    return routing.Made(plain, whole, fixed)


def _ordered(template: Any, given: Mapping[str, Any]) -> list[str]:
    """Return the inputs of a template, including those required only by calls."""
    keys = [*template.inputs]
    if _LAST_PAGE not in keys and given.get(_LAST_PAGE) is not None:
        # Before the scale, as in the public dataset.
        keys.insert(keys.index("sm_scale") if "sm_scale" in keys else len(keys), _LAST_PAGE)
    return keys


def _shape(
    key: str, value: torch.Tensor, axes: Collection[str], sizes: dict[str, int]
) -> list[str]:
    """Return the axes of a tensor, and record their sizes."""
    if value.dim() == 0:
        return []
    if value.dim() != len(axes):
        raise ConfigError(f"input '{key}' has {value.dim()} dimensions, not {', '.join(axes)}")
    for axis, size in zip(axes, value.shape, strict=True):
        known = sizes.setdefault(axis, int(size))
        if known != size:
            raise ConfigError(f"'{axis}' is {known}, but {size} for input '{key}'")
    return [*axes]


def _axes(
    template: Any,
    inputs: Mapping[str, Any],
    outputs: Mapping[str, Any],
    sizes: Mapping[str, int],
    values: Mapping[str, Any],
) -> dict[str, Any]:
    found: dict[str, Any] = {}
    entries = (*inputs.values(), *outputs.values())
    for axis in dict.fromkeys(axis for each in entries for axis in each["shape"] or ()):
        said = template.axes.get(axis)
        found[axis] = {"type": "var"}
        if hasattr(said, "abbrev"):
            fixed = getattr(said, "value", None)
            size = next((n for n in (fixed, sizes.get(axis), values.get(axis)) if n), None)
            if size is not None:  # None for axes of an optional input that is not given
                found[axis] = {"type": "const", "value": int(size)}
    constants = {axis: each["value"] for axis, each in found.items() if "value" in each}
    for axis in found:
        if axis not in sizes and axis not in constants:
            size = _derived(axis, constants, template.constraints)
            found[axis] = {"type": "const", "value": size} if size else found[axis]
    return found


def _derived(axis: str, constants: Mapping[str, int], constraints: Sequence[str]) -> Optional[int]:
    """Return the size of an output axis that constraints tie to constant axes, or None."""
    from flashinfer_bench.data.constraints import parse_constraint

    ties = []
    for text in constraints:
        with suppress(DataError):  # an unsupported form of constraint
            tie = parse_constraint(text)
            if tie.decidable({**constants, axis: 1}) and not tie.decidable(constants):
                ties.append(tie)
    sizes = {size // part for size in constants.values() for part in (1, 2, 4, 8, 16, 32, 64)}
    fits = (n for n in sorted(sizes) if all(tie.evaluate({**constants, axis: n}) for tie in ties))
    return next(fits, None) if ties else None


def _known(dtype: str) -> bool:
    from flashinfer_bench.data import DType

    return dtype in [str(each.value) for each in DType]


def _dtype(dtype: Any, what: str) -> str:
    name = str(dtype).removeprefix("torch.")
    if not _known(name):
        raise ConfigError(f"{what} has dtype {name}, which a definition cannot have")
    return name


def _dtype_of(spec: Any, template: Any, values: Mapping[str, Any], given: Mapping[str, Any]) -> Any:
    """Return the element type of an output, as in FlashInfer's own traces."""
    source: Any = getattr(spec, "dtype_from", None)
    asked: Any = getattr(spec, "dtype_from_scalar", None)
    if hasattr(values.get(source), "dtype"):
        return values[source].dtype
    if source is not None and values.get(asked) is not None:
        return values[asked]
    if spec.dtype is not None:
        return spec.dtype
    axes = {*(getattr(spec, "dim_names", None) or ())}
    for key, each in template.inputs.items():
        if axes & {*(getattr(each, "dim_names", None) or ())} and hasattr(given.get(key), "dtype"):
            return given[key].dtype
    return "unknown"


def _reference(template: Any, inputs: Mapping[str, Any]) -> str:
    """Return the reference of a template, from which adapters read the epsilon."""
    function = template.reference
    try:
        source = textwrap.dedent(inspect.getsource(function))
        name = function.__name__
    except (TypeError, OSError, AttributeError):  # no reference, or no source code
        return f"def run({', '.join(inputs)}):\n    raise NotImplementedError\n"
    return f"import math\n\nimport torch\n\n{source}\n\nrun = {name}\n"
