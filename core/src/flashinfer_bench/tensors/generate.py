"""Generate inputs from a definition, a workload and a seed, and allocate poisoned outputs.

Random tensors depend only on a seed, a shape and an element type. They are drawn on the CPU with
torch's generator. Large tensors are drawn in blocks of fixed size, each with its own seed, so that
several cores can work on one tensor without changing the result.
"""

from __future__ import annotations

import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from math import isfinite, prod
from typing import TYPE_CHECKING, Any, Optional

from flashinfer_bench.data import Definition, RandomInput, SafetensorsInput, ScalarInput, Workload
from flashinfer_bench.data.blobs import load_tensors, present_blob
from flashinfer_bench.errors import BlobError, CapabilityError, DataError
from flashinfer_bench.tensors import dtypes

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from pathlib import Path

    import torch

    from flashinfer_bench.data.definition import Shape


def load_checked(
    path: Path, key: str, *, shape: Optional[tuple[int, ...]], dtype: str, field: str
) -> torch.Tensor:
    """Read one tensor and check that it matches the workload.

    Parameters
    ----------
    path : Path
        The file. A Git-LFS pointer is first replaced by its content if git-lfs is installed.
    key : str
        Name of the tensor in the file.
    shape : tuple of int or None
        Expected shape; None for a scalar, for which any one-element tensor is accepted.
    dtype : str
        Expected element type. Packed 4-bit floats may be stored as ``uint8``.
    field : str
        Location of the input in the workload, for messages.

    Returns
    -------
    torch.Tensor
        On the CPU.

    Raises
    ------
    BlobError
        If the file or key is missing, or the shape or dtype differs.
    """
    tensor = load_tensors(path, key)[key]
    found = dtypes.dtype_name(tensor.dtype)
    if dtype == dtypes.FLOAT4 and found == "uint8":
        tensor, found = tensor.view(dtypes.to_torch_dtype(dtype)), dtype
    fits = tensor.numel() == 1 if shape is None else tuple(tensor.shape) == tuple(shape)
    if fits and found == dtype:
        return tensor
    expected = "a scalar" if shape is None else f"shape {list(shape)}"
    raise BlobError(
        f"tensor {key!r} must be {expected} of {dtype}, "
        f"but the file has shape {list(tensor.shape)} of {found}",
        path=path,
        field=field,
    )


BLOCK = 1 << 22
"""Number of elements drawn with one seed."""

INT_BOUND = 128
"""Integers wider than 8 bits are drawn from [0, INT_BOUND)."""

# Midpoints between the magnitudes of 4-bit floats: 0, 0.5, 1, 1.5, 2, 3, 4, 6.
_FLOAT4_MIDPOINTS = (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)
_TOO_MANY_BYTES = 2**60
# Repeated as the bytes of an integer of any width: far from any index, count or small number.
_PATTERN = 0x5B


def generate_inputs(
    definition: Definition,
    workload: Workload,
    *,
    seed: int,
    root: Optional[Path],
    device: str = "cpu",
    only: Optional[Collection[str]] = None,
) -> list[Any]:
    """Make the inputs that a workload specifies.

    Values are drawn on the CPU, each input with a generator seeded from `seed`, the definition's
    name, the workload's uuid and the input's name. An input therefore has the same bits on every
    device, independent of other inputs.

    Random floats are standard normal (``probs`` of a sampling definition is softmaxed over its last
    axis); those of 8 bits or fewer are clamped to their finite range. ``int8`` uses its whole
    range, wider integers lie in [0, 128), and bool is true half of the time. Inputs that index into
    another tensor, such as a page table, need a safetensors input, because their valid range is
    unknown here.

    Parameters
    ----------
    definition : Definition
        Declares names, shapes and dtypes.
    workload : Workload
        Gives the axes and the source of each input.
    seed : int
        Different seeds give different random values.
    root : Path or None
        Root of the dataset, to which file paths are relative; None if there are no files.
    device : str
        Device of the returned tensors.
    only : collection of str, optional
        Names of the inputs to make; the others are None.

    Returns
    -------
    list
        In declaration order: a tensor, or a Python int, float or bool for a scalar.

    Raises
    ------
    DataError
        If the workload lacks an axis or an input, or a scalar is not of the declared type.
    BlobError
        If a file is missing, or its key, shape or dtype differs from the declaration.
    CapabilityError
        If this machine does not have enough memory for an input.
    """
    missing = [axis for axis in definition.var_axes if axis not in workload.axes]
    if missing:
        raise DataError(
            f"the workload has no value for axis {missing[0]!r} of definition {definition.name!r}",
            field=f"axes.{missing[0]}",
        )
    axes = {axis: workload.axes[axis] for axis in definition.var_axes}
    shapes = dict(zip(definition.inputs, definition.get_input_shapes(axes), strict=True))
    made: dict[str, Any] = dict(_inputs_of_family(definition, workload, axes, shapes, seed))
    for name, shape in shapes.items():
        if only is not None and name not in only:
            made[name] = None
        elif name not in made:
            made[name] = _make_input(definition, workload, name, shape, seed, root)
    return [
        value.to(device) if hasattr(value, "element_size") else value
        for value in (made[name] for name in shapes)
    ]


def _inputs_of_family(
    definition: Definition,
    workload: Workload,
    axes: dict[str, int],
    shapes: dict[str, Shape],
    seed: int,
) -> dict[str, torch.Tensor]:
    """Return the inputs that a plugin generates for the op type instead of random ones."""
    from flashinfer_bench.plugins import default_catalog

    family = default_catalog().family_of(definition.op_type)
    if family is None or family.spec.inputs is None:
        return {}
    made: dict[str, torch.Tensor] = family.load(family.spec.inputs)(definition, axes, seed)
    asked = [name for name, one in workload.inputs.items() if isinstance(one, RandomInput)]
    kept = {name: one for name, one in made.items() if name in asked}
    for name, one in kept.items():
        wanted = shapes[name], dtypes.to_torch_dtype(str(definition.inputs[name].dtype.value))
        if (tuple(one.shape), one.dtype) != wanted:
            raise DataError(
                f"op family {family.name!r} of {family.origin} makes an input of shape "
                f"{tuple(one.shape)} and type {one.dtype}, not {wanted[0]} and {wanted[1]}",
                field=f"inputs.{name}",
            )
    return kept


def _make_input(
    definition: Definition,
    workload: Workload,
    name: str,
    shape: Shape,
    seed: int,
    root: Optional[Path],
) -> Any:
    source, field = workload.inputs.get(name), f"inputs.{name}"
    dtype = str(definition.inputs[name].dtype.value)
    if isinstance(source, ScalarInput):
        if shape is not None:
            raise DataError(
                f"the definition declares a tensor of shape {list(shape)}, not a scalar",
                field=field,
                hint="Use a random or safetensors input.",
            )
        value = source.value
        exact = isfinite(value) and value == int(value)
        if (dtype == "bool" and value not in (0, 1)) or (dtypes.is_integer(dtype) and not exact):
            raise DataError(f"{value!r} is not a value of dtype {dtype}", field=field)
        return dtypes.to_python_type(dtype)(value)
    if isinstance(source, SafetensorsInput):
        if root is None:
            raise BlobError(
                f"the input is read from {source.path!r}, but the dataset has no folder",
                field=field,
            )
        path = present_blob(root, source.path)
        tensor = load_checked(path, source.tensor_key, shape=shape, dtype=dtype, field=field)
    elif isinstance(source, RandomInput):
        if shape is None and dtypes.is_low_precision(dtype):
            dtype = "float32"  # Python's float is wider; packed types have no single elements
        key = derive_seed(seed, definition.name, workload.uuid, name)
        tensor = _random_input(name, shape or (), dtype, key)
        if shape is not None and is_softmaxed(definition.op_type, name):
            tensor = tensor.float().softmax(dim=-1).to(tensor.dtype)
    else:
        raise DataError(
            f"the workload does not specify input {name!r} of definition {definition.name!r}",
            field=field,
        )
    if shape is not None:
        return tensor
    single = tensor.reshape(())
    # Widen 8-bit floats first: some torch releases cannot read them as Python numbers.
    return (single.float() if dtypes.is_low_precision(dtype) else single).item()


def _random_input(name: str, shape: tuple[int, ...], dtype: str, seed: int) -> torch.Tensor:
    nbytes = prod(shape) * dtypes.to_torch_dtype(dtype).itemsize
    what = f"input {name!r} of shape {list(shape)} and dtype {dtype}"
    if nbytes >= _TOO_MANY_BYTES:
        raise DataError(f"{what} is too large for any machine", field=f"inputs.{name}")
    try:
        return random_tensor(shape, dtype, seed)
    except (RuntimeError, MemoryError) as error:  # torch has no specific error for this
        raise CapabilityError(
            f"{what} takes {nbytes / 2**30:.1f} GiB, which cannot be allocated",
            hint="skip this workload, or use a machine with more memory",
        ) from error


def derive_seed(*parts: object) -> int:
    """Return a seed in [0, 2**63) that depends on all `parts` and their order."""
    text = "\x1f".join(str(part) for part in parts)
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def random_tensor(shape: Sequence[int], dtype: str, seed: int) -> torch.Tensor:
    """Return a random tensor.

    Parameters
    ----------
    shape : sequence of int
        Its shape; sizes may be 0.
    dtype : str
        Name of the element type. Floats are standard normal; those of 8 bits or fewer are clamped
        to the finite range of their type. ``int8`` and ``uint8`` use their whole range, wider
        integers lie in [0, `INT_BOUND`), ``bool`` is true for half of the elements.
    seed : int
        Determines the values.

    Returns
    -------
    torch.Tensor
        Contiguous, on the CPU.
    """
    import torch

    stored = torch.uint8 if dtype == dtypes.FLOAT4 else dtypes.to_torch_dtype(dtype)
    tensor = torch.empty(tuple(shape), dtype=stored)
    flat = tensor.view(-1)
    starts = range(0, flat.numel(), BLOCK)

    def fill_block(start: int) -> None:
        generator = torch.Generator("cpu").manual_seed(derive_seed(seed, start // BLOCK))
        part = flat[start : start + BLOCK]
        part.copy_(_draw_block(dtype, part.numel(), generator))

    if len(starts) == 1:  # most tensors are small
        fill_block(0)
    elif starts:
        with ThreadPoolExecutor(min(len(starts), os.cpu_count() or 1)) as pool:
            list(pool.map(fill_block, starts))
    return tensor.view(dtypes.to_torch_dtype(dtype))


def is_softmaxed(op_type: str, name: str) -> bool:
    """Return whether each row of a random input called `name` is a probability distribution."""
    return op_type == "sampling" and "probs" in name


def _draw_block(dtype: str, count: int, generator: torch.Generator) -> torch.Tensor:
    import torch

    if dtype == "bool" or dtypes.is_integer(dtype):
        ranges = {"bool": (0, 2), "int8": (-128, 128), "uint8": (0, 256)}
        low, high = ranges.get(dtype, (0, INT_BOUND))
        return torch.randint(low, high, (count,), generator=generator)
    if dtype == dtypes.FLOAT4:  # two values per byte
        values = torch.randn(2 * count, dtype=torch.float32, generator=generator)
        codes = torch.bucketize(values.abs(), torch.tensor(_FLOAT4_MIDPOINTS)).to(torch.uint8)
        codes |= torch.signbit(values).to(torch.uint8) << 3
        first, second = codes.view(-1, 2).unbind(1)
        return first | (second << 4)
    values = torch.randn(count, dtype=torch.float32, generator=generator)
    if dtypes.is_low_precision(dtype):
        limits = torch.finfo(dtypes.to_torch_dtype(dtype))
        values.clamp_(limits.min, limits.max)
    return values


def allocate_outputs(
    definition: Definition, axes: Mapping[str, int], device: str = "cpu"
) -> list[torch.Tensor]:
    """Allocate the outputs of a definition and poison them.

    Parameters
    ----------
    definition : Definition
        Declares the outputs.
    axes : mapping
        Value of every variable axis.
    device : str
        Device of the outputs.

    Returns
    -------
    list of torch.Tensor
        In declaration order. A scalar output is a zero-dimensional tensor. Elements that are not
        overwritten read as NaN in floats, as a pattern of bytes 0x5B in integers and 4-bit floats,
        and as alternating values in bool.
    """
    import torch

    shapes = definition.get_output_shapes(axes)
    outputs = [
        torch.empty(shape or (), dtype=dtype, device=device)
        for shape, dtype in zip(shapes, definition.torch_output_dtypes, strict=True)
    ]
    for tensor in outputs:
        poison(tensor)
    return outputs


def poison(tensor: torch.Tensor) -> None:
    """Overwrite a contiguous tensor in place with values that no kernel would compute."""
    import torch

    name = dtypes.dtype_name(tensor.dtype)
    flat = tensor.view(-1)
    if name == "bool":
        flat.zero_()
        flat[::2] = True
    elif name != dtypes.FLOAT4 and (dtypes.is_float(name) or name.startswith("complex")):
        flat.fill_(float("nan"))
    else:
        flat.view(torch.uint8).fill_(_PATTERN)
