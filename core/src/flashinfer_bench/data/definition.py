"""Definitions: computations with their axes, inputs, outputs and reference."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING, Annotated, Any, Literal, Optional, Union

import pydantic
from pydantic import (
    BeforeValidator,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    model_serializer,
)

from flashinfer_bench._lazy import old_names, old_parameters
from flashinfer_bench.data.base import NameEnum, NonEmptyStr, NullIsEmpty, SchemaModel, Size
from flashinfer_bench.data.constraints import parse_constraint, parse_python
from flashinfer_bench.data.tolerance import Tolerance, require_known_outputs, without_tolerance
from flashinfer_bench.errors import CapabilityError, DataError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import torch

TORCH_NAMES = {"float4_e2m1": "float4_e2m1fn_x2"}
"""Names of types in ``torch``, where they differ."""

__getattr__ = old_names(__name__)


class DType(NameEnum):
    """Element type of a tensor.

    A member equals its name as a string.
    """

    FLOAT32 = "float32"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"
    FLOAT8_E4M3FN = "float8_e4m3fn"
    FLOAT8_E5M2 = "float8_e5m2"
    FLOAT4_E2M1 = "float4_e2m1"
    INT64 = "int64"
    INT32 = "int32"
    INT16 = "int16"
    INT8 = "int8"
    BOOL = "bool"

    @classmethod
    def _missing_(cls, value: object) -> Optional[DType]:
        return cls.FLOAT8_E4M3FN if value == "float8_e4m3" else None  # its name in 2025-07

    def nbytes(self, elements: int) -> int:
        """Return the size of a number of elements in bytes, rounded up."""
        found = re.search(r"\d+", self.value)
        bits = int(found[0]) if found else 8  # of bool
        return -(-elements * bits // 8)

    @property
    def is_floating(self) -> bool:
        """Whether elements are floating-point numbers."""
        return "float" in self.value

    @property
    def is_integer(self) -> bool:
        """Whether elements are integers; ``bool`` is not one."""
        return self.value.startswith("int")

    @property
    def torch_name(self) -> str:
        """Name of the type in ``torch``, which packs two ``float4_e2m1`` into a byte."""
        return TORCH_NAMES.get(self.value, self.value)

    def to_torch(self) -> torch.dtype:
        """Return torch's dtype.

        Raises
        ------
        CapabilityError
            If torch is not installed, or too old to have the dtype.
        """
        return torch_dtype(self.torch_name)


def torch_dtype(name: str) -> torch.dtype:
    """Return the dtype that has a name in torch; raises like `DType.to_torch`."""
    try:
        import torch
    except ImportError as error:
        hint = "pip install torch numpy safetensors"
        raise CapabilityError("torch is not installed", hint=hint) from error
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        problem = f"torch {torch.__version__} does not support dtype '{name}'"
        raise CapabilityError(problem, hint="update torch")
    return found


Shape = Optional[tuple[int, ...]]
"""Sizes of a tensor, outermost first; None for a scalar."""


def is_literal(entry: str) -> bool:
    """Return whether an entry of a shape is a size (``"56"``) rather than the name of an axis."""
    return entry.isascii() and entry.isdigit()


class AxisConst(SchemaModel):
    """An axis whose size is part of the definition.

    Parameters
    ----------
    value : int
        The size, at least 0.
    description : str, optional
        What the axis is.
    """

    type: Literal["const"] = "const"
    value: Size
    description: Optional[str] = None


class AxisVar(SchemaModel):
    """An axis whose size each workload sets. Further keys, such as an old ``parent``, are kept.

    Parameters
    ----------
    description : str, optional
        What the axis is.
    """

    model_config = ConfigDict(extra="allow")

    type: Literal["var"] = "var"
    description: Optional[str] = None


def _with_type(axis: Any) -> Any:
    """Add the type to an axis of 2025-07: ``const`` if it has a value, else ``var``."""
    if not isinstance(axis, dict) or axis.get("type") is not None:
        return axis
    return {**axis, "type": "var" if axis.get("value") is None else "const"}


AxisSpec = Annotated[
    Union[AxisConst, AxisVar], Field(discriminator="type"), BeforeValidator(_with_type)
]
"""An axis, constant or variable."""


def _sizes_as_text(shape: Any) -> Any:
    """Convert sizes in shapes to strings; before 2025-09 they were numbers."""
    if not isinstance(shape, list):
        return shape
    return [str(size) if type(size) is int else size for size in shape]


class TensorSpec(SchemaModel):
    """An input or output.

    Parameters
    ----------
    shape : list of str or None
        Names of the axes, outermost first; None for a scalar. A fixed size may be written as
        ``"56"``.
    dtype : DType
        Element type.
    description : str, optional
        What the tensor is.
    param : str, optional
        For an output: the input that the library's function overwrites with it. For an input: its
        name in that function. Omitted from JSON if None.
    """

    shape: Annotated[Optional[list[NonEmptyStr]], BeforeValidator(_sizes_as_text)]
    dtype: DType
    description: Optional[str] = None
    param: Optional[NonEmptyStr] = None

    @model_serializer(mode="wrap")
    def _keep_shape(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Write the shape even if it is None, which denotes a scalar."""
        record = {"shape": self.shape, **handler(self)}
        if self.param is None:
            record.pop("param", None)
        return record


class Definition(SchemaModel):
    """A computation: its axes, inputs, outputs and a reference implementation.

    Parameters
    ----------
    name : str
        Unique name.
    op_type : str
        Family of the computation, such as ``gemm``. Its old name, ``type``, is accepted.
    axes : dict of str to AxisSpec
        All axes by name.
    inputs : dict of str to TensorSpec
        Tensors and scalars by name, in the order of the arguments.
    outputs : dict of str to TensorSpec
        Tensors and scalars by name, in the order of the results. Names differ from those of inputs.
    reference : str
        Python source with a function ``run`` at top level, from the inputs to the outputs.
    tags : list of str
        Arbitrary labels.
    description : str, optional
        What it computes.
    constraints : list of str
        Relations that every workload must satisfy, each one Python expression about axes.
    tolerance : Tolerance, optional
        Tolerance of the outputs, where the default does not fit. Omitted from JSON if None.
    """

    name: NonEmptyStr
    op_type: NonEmptyStr = Field(validation_alias=pydantic.AliasChoices("op_type", "type"))
    axes: dict[NonEmptyStr, AxisSpec]
    inputs: dict[NonEmptyStr, TensorSpec]
    outputs: dict[NonEmptyStr, TensorSpec]
    reference: str
    tags: Annotated[list[NonEmptyStr], NullIsEmpty] = Field(default_factory=list)
    description: Optional[str] = None
    constraints: Annotated[list[NonEmptyStr], NullIsEmpty] = Field(default_factory=list)
    tolerance: Optional[Tolerance] = None

    _drop_no_tolerance = model_serializer(mode="wrap")(without_tolerance)

    @pydantic.field_validator("reference")
    @classmethod
    def _reference_runs(cls, source: str) -> str:
        _require_run(source)
        return source

    @pydantic.field_validator("constraints")
    @classmethod
    def _constraints_parse(cls, constraints: list[str]) -> list[str]:
        for text in constraints:
            parse_constraint(text)
        return constraints

    @pydantic.model_validator(mode="after")
    def _consistent(self) -> Definition:
        if shared := self.inputs.keys() & self.outputs.keys():
            message = f"name of both an input and an output: {', '.join(sorted(shared))}"
            raise DataError(message, field="outputs", hint="rename one of the two")
        for kind, tensors in (("inputs", self.inputs), ("outputs", self.outputs)):
            for name, tensor in tensors.items():
                for axis in tensor.shape or ():
                    if axis not in self.axes and not is_literal(axis):
                        raise DataError(
                            f"'{axis}' is not an axis of the definition (available axes: "
                            f"{', '.join(self.axes) or 'none'}); add the axis and, if its size "
                            "follows from others, a constraint such as 'twice_n == 2 * N'",
                            field=f"{kind}.{name}.shape",
                        )
        require_known_outputs(self.tolerance, self.outputs)
        return self

    @property
    def const_axes(self) -> dict[str, int]:
        """Sizes of the constant axes by name."""
        return {name: axis.value for name, axis in self.axes.items() if isinstance(axis, AxisConst)}

    @property
    def var_axes(self) -> list[str]:
        """Names of the variable axes, in declaration order."""
        return [name for name, axis in self.axes.items() if isinstance(axis, AxisVar)]

    @property
    def var_axes_bindings(self) -> dict[str, tuple[str, int]]:
        """First input that has each variable axis: (name of the input, dimension)."""
        bindings: dict[str, tuple[str, int]] = {}
        for name, tensor in self.inputs.items():
            for dimension, axis in enumerate(tensor.shape or ()):
                if isinstance(self.axes.get(axis), AxisVar):
                    bindings.setdefault(axis, (name, dimension))
        return bindings

    @property
    def torch_input_dtypes(self) -> list[torch.dtype]:
        """Torch dtype of each input, in declaration order."""
        return [tensor.dtype.to_torch() for tensor in self.inputs.values()]

    @property
    def torch_output_dtypes(self) -> list[torch.dtype]:
        """Torch dtype of each output, in declaration order."""
        return [tensor.dtype.to_torch() for tensor in self.outputs.values()]

    def get_axes_values(self, input_shapes: Iterable[Optional[Sequence[int]]]) -> dict[str, int]:
        """Return the sizes of the variable axes, from the shapes of the inputs.

        Parameters
        ----------
        input_shapes : iterable of tuple of int or None
            Shape of each input in declaration order; None for a scalar.

        Returns
        -------
        dict of str to int
            Size of each variable axis that an input has.

        Raises
        ------
        DataError
            If the number of inputs, a rank or a constant size differs from the definition, or two
            inputs disagree on an axis.
        """
        given = list(input_shapes)
        if len(given) != len(self.inputs):
            names = f"{len(self.inputs)} ({', '.join(self.inputs)})"
            raise DataError(f"{len(given)} inputs given; expected {names}", field="inputs")
        sizes = self.const_axes
        for (name, tensor), shape in zip(self.inputs.items(), given, strict=True):
            if tensor.shape is None:
                continue
            field, wanted = f"inputs.{name}", f"[{', '.join(tensor.shape)}]"
            if shape is None:
                problem = f"input '{name}' must be a tensor of shape {wanted}, not a scalar"
                raise DataError(problem, field=field)
            if len(shape) != len(tensor.shape):
                problem = f"input '{name}' must have shape {wanted}, not {list(shape)}"
                raise DataError(problem, field=field)
            for axis, size in zip(tensor.shape, shape, strict=True):
                expected = sizes.setdefault(axis, int(axis) if is_literal(axis) else int(size))
                if int(size) != expected:
                    problem = f"{list(shape)} has {axis}={int(size)}; expected {expected}"
                    raise DataError(f"input '{name}' of shape {problem}", field=field)
        return {axis: sizes[axis] for axis in self.var_axes if axis in sizes}

    def get_axes_values_from_inputs(self, inputs: Iterable[Any]) -> dict[str, int]:
        """Return the sizes of the variable axes, from inputs with a ``shape``.

        Raises
        ------
        DataError
            As for `get_axes_values`.
        """
        return self.get_axes_values(getattr(value, "shape", None) for value in inputs)

    @old_parameters
    def get_input_shapes(self, var_axes_values: Optional[Mapping[str, int]] = None) -> list[Shape]:
        """Return the shape of each input in declaration order, None for scalars.

        Parameters
        ----------
        var_axes_values : mapping of str to int, optional
            Value of each variable axis.

        Raises
        ------
        DataError
            If a variable axis has no value.
        """
        return self._shapes(self.inputs, var_axes_values)

    @old_parameters
    def get_output_shapes(self, var_axes_values: Optional[Mapping[str, int]] = None) -> list[Shape]:
        """Return the shape of each output in declaration order, None for scalars.

        Parameters
        ----------
        var_axes_values : mapping of str to int, optional
            Value of each variable axis.

        Raises
        ------
        DataError
            If a variable axis has no value.
        """
        return self._shapes(self.outputs, var_axes_values)

    def _shapes(
        self, tensors: Mapping[str, TensorSpec], values: Optional[Mapping[str, int]]
    ) -> list[Shape]:
        sizes = {**(values or {}), **self.const_axes}
        found: list[Shape] = []
        for name, tensor in tensors.items():
            for axis in tensor.shape or ():
                if axis not in sizes:
                    if not is_literal(axis):
                        problem = f"no value for axis '{axis}' of '{name}'"
                        raise DataError(problem, field=f"axes.{axis}")
                    sizes[axis] = int(axis)
            found.append(None if tensor.shape is None else tuple(sizes[a] for a in tensor.shape))
        return found

    def merge_kwargs_to_args(
        self, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[Any, ...]:
        """Return all arguments by position: inputs, then outputs if any are given.

        Parameters
        ----------
        args : sequence
            Positional arguments.
        kwargs : mapping of str to Any
            Arguments by the name of the input or output.

        Returns
        -------
        tuple
            All arguments by position.

        Raises
        ------
        DataError
            If an argument is unknown, given twice, missing, or there are too many.
        """
        names = [*self.inputs, *self.outputs]
        counts = f"{len(self.inputs)} inputs, or {len(names)} inputs and outputs"
        if len(args) > len(names):
            raise DataError(f"{len(args)} positional arguments given; expected {counts}")
        given = dict(zip(names, args, strict=False))
        for name, value in kwargs.items():
            if name not in names:
                problem = f"unknown argument '{name}'; available arguments: {', '.join(names)}"
                raise DataError(problem, field=name)
            if name in given:
                raise DataError(f"argument '{name}' is given by position and by name", field=name)
            given[name] = value
        wanted = list(self.inputs) if given.keys() <= self.inputs.keys() else names
        missing = [name for name in wanted if name not in given]
        if missing:
            problem = f"missing arguments: {', '.join(missing)}; expected {counts}"
            raise DataError(problem, field=missing[0])
        return tuple(given[name] for name in wanted)


def _require_run(source: str) -> None:
    """Check that a reference is valid Python with ``run`` at top level, without running it."""
    if not source.strip():
        raise DataError("the reference is empty; it must be Python source that defines 'run'")
    try:
        tree = parse_python(source)
    except DataError as error:
        where = f", its line {error.line}" if error.line is not None else ""
        raise DataError(f"the reference is not valid Python{where}: {error.message}") from error
    names: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign):
            names.update(target.id for target in node.targets if isinstance(target, ast.Name))
    if "run" not in names:
        problem = "the reference must define a function 'run' at top level; it defines "
        raise DataError(problem + (", ".join(sorted(names)) or "nothing"))
