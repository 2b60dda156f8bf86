"""The inputs of a run, from a definition, a workload and a seed."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any, Optional, Union

from flashinfer_bench.data import RandomInput, SafetensorsInput, ScalarInput
from flashinfer_bench.data.hub import present_blob
from flashinfer_bench.errors import BlobError, CapabilityError, DataError
from flashinfer_bench.tensors.blobs import load_checked
from flashinfer_bench.tensors.dtypes import (
    is_bool,
    is_integer,
    is_low_precision,
    to_python_type,
    to_torch_dtype,
)
from flashinfer_bench.tensors.rand import derive_seed, is_softmaxed, random_tensor

if TYPE_CHECKING:
    from pathlib import Path

    import torch

    from flashinfer_bench.data import Definition, Workload

    Scalar = Union[bool, int, float]
    Shape = Optional[tuple[int, ...]]

_TOO_MANY_BYTES = 2**60


def generate_inputs(
    definition: Definition,
    workload: Workload,
    *,
    seed: int,
    root: Optional[Path],
    device: str = "cpu",
) -> list[Any]:
    """Make the inputs that a workload asks for.

    Values are drawn on the CPU, each input from a generator that is seeded with `seed`, the
    definition's name, the workload's uuid and the input's name. So an input has the same bits on
    every device and whatever other inputs there are.

    Random floats are standard normal (``probs`` of a sampling definition is softmaxed over its last
    axis), those of 8 bits or fewer are clamped to their finite range; ``int8`` uses its whole
    range, wider integers lie in [0, 128), bool is true half of the time. What indexes into
    something, such as a page table, needs a safetensors input: its bounds cannot be known here.

    Parameters
    ----------
    definition : Definition
        Declares names, shapes and dtypes.
    workload : Workload
        Gives the axes, and says how each input comes about.
    seed : int
        Another seed gives other random values.
    root : Path or None
        Root of the dataset, which files are relative to; None if there are none.
    device : str
        Where tensors end up.

    Returns
    -------
    list
        In declaration order: a tensor, or a Python int, float or bool for a scalar.

    Raises
    ------
    DataError
        If the workload lacks an axis or an input, or a scalar is not of the declared type.
    BlobError
        If a file is missing, or has another key, shape or dtype than declared.
    CapabilityError
        If this machine has not the memory for an input.
    """
    shapes = _shapes(definition, workload)
    return [
        _make_input(definition, workload, name, shapes[name], seed, root, device)
        for name in definition.inputs
    ]


def _make_input(
    definition: Definition,
    workload: Workload,
    name: str,
    shape: Shape,
    seed: int,
    root: Optional[Path],
    device: str,
) -> Any:
    source = workload.inputs.get(name)
    dtype = str(definition.inputs[name].dtype.value)
    if isinstance(source, SafetensorsInput):
        value = _from_file(source, name, shape, dtype, root)
    elif isinstance(source, ScalarInput):
        value = _from_scalar(source, name, shape, dtype)
    elif isinstance(source, RandomInput):
        key = derive_seed(seed, definition.name, workload.uuid, name)
        value = _from_random(definition, name, shape, dtype, key)
    else:
        raise DataError(
            f"the workload says nothing about input {name!r} of definition {definition.name!r}",
            field=f"inputs.{name}",
        )
    return value if shape is None else value.to(device)


def _shapes(definition: Definition, workload: Workload) -> dict[str, Shape]:
    missing = [axis for axis in definition.var_axes if axis not in workload.axes]
    if missing:
        raise DataError(
            f"the workload has no value for axis {missing[0]!r} of definition {definition.name!r}",
            field=f"axes.{missing[0]}",
        )
    axes = {axis: workload.axes[axis] for axis in definition.var_axes}
    return dict(zip(definition.inputs, definition.get_input_shapes(axes), strict=True))


def _from_file(
    source: SafetensorsInput,
    name: str,
    shape: Shape,
    dtype: str,
    root: Optional[Path],
) -> Any:
    field = f"inputs.{name}"
    if root is None:
        raise BlobError(
            f"the input is read from {source.path!r}, but the dataset has no folder", field=field
        )
    path = present_blob(root, source.path)
    tensor = load_checked(path, source.tensor_key, shape=shape, dtype=dtype, field=field)
    return tensor if shape is not None else _to_scalar(tensor, dtype)


def _from_scalar(source: ScalarInput, name: str, shape: Shape, dtype: str) -> Scalar:
    if shape is not None:
        raise DataError(
            f"the definition declares a tensor of shape {list(shape)}, not a scalar",
            field=f"inputs.{name}",
            hint="Use a random or safetensors input.",
        )
    return coerce_scalar(source.value, dtype, field=f"inputs.{name}")


def _from_random(definition: Definition, name: str, shape: Shape, dtype: str, seed: int) -> Any:
    if shape is None:
        # Python's float is wider than all of them; some narrow types have no single elements.
        drawn = "float32" if is_low_precision(dtype) else dtype
        return _to_scalar(random_tensor((), drawn, seed), drawn)
    tensor = _draw(name, shape, dtype, seed)
    if is_softmaxed(definition.op_type, name):
        return _softmax(tensor)
    return tensor


def _draw(name: str, shape: tuple[int, ...], dtype: str, seed: int) -> torch.Tensor:
    nbytes = prod(shape) * to_torch_dtype(dtype).itemsize
    what = f"input {name!r} of shape {list(shape)} and dtype {dtype}"
    if nbytes >= _TOO_MANY_BYTES:
        raise DataError(f"{what} is too large for any machine", field=f"inputs.{name}")
    try:
        return random_tensor(shape, dtype, seed)
    except (RuntimeError, MemoryError) as error:  # torch has no error of its own for this
        raise CapabilityError(
            f"{what} takes {nbytes / 2**30:.1f} GiB, which cannot be allocated",
            hint="leave this workload out, or use a machine with more memory",
        ) from error


def coerce_scalar(value: Scalar, dtype: str, *, field: str = "") -> Scalar:
    """Return `value` as the Python type of `dtype`, if that loses nothing.

    Parameters
    ----------
    value : bool, int or float
        The number.
    dtype : str
        Declared type of the scalar.
    field : str
        Its place in the workload, for the message.

    Raises
    ------
    DataError
        If, for example, 2.5 is given for an integer, or 2 for a bool.
    """
    kind = to_python_type(dtype)
    exact = value == int(value) if _is_finite(value) else False
    if (is_bool(dtype) and value not in (0, 1)) or (is_integer(dtype) and not exact):
        raise DataError(f"{value!r} is not a value of dtype {dtype}", field=field)
    converted: Scalar = kind(value)
    return converted


def _is_finite(value: Scalar) -> bool:
    return value - value == 0


def _to_scalar(tensor: torch.Tensor, dtype: str) -> Scalar:
    single = tensor.reshape(())
    # 8-bit floats are widened first: not every release of torch can read one out.
    value: Scalar = (single.float() if is_low_precision(dtype) else single).item()
    return value


def _softmax(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.float().softmax(dim=-1).to(tensor.dtype)
