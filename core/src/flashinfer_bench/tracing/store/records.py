"""From a recorded call to a workload of the format."""

from __future__ import annotations

import numbers
from typing import TYPE_CHECKING, Any, NamedTuple, Optional, Protocol, Union

from flashinfer_bench.data.workload import RandomInput, SafetensorsInput, ScalarInput
from flashinfer_bench.errors import DataError
from flashinfer_bench.tracing.store.blobs import Blob, make_blob
from flashinfer_bench.tracing.store.identity import content_key

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import torch

    from flashinfer_bench.data.definition import Definition, TensorSpec
    from flashinfer_bench.data.workload import InputSpec

    Recorded = Union[torch.Tensor, bool, int, float]


class Entry(Protocol):
    """What the store needs to know of a recorded call; `WorkloadEntry` is one."""

    @property
    def def_name(self) -> str:
        """Name of the definition."""

    @property
    def axes(self) -> Mapping[str, int]:
        """Value of each variable axis."""

    def values(self) -> Mapping[str, Recorded]:
        """Return the tensors to keep and the numbers of ALL scalar inputs, by input.

        A tensor input that is not among them becomes a random one.
        """


class Draft(NamedTuple):
    """A workload without its uuid.

    Parameters
    ----------
    key : str
        Its content; see `content_key`.
    axes : dict of str to int
        Value of each variable axis.
    inputs : dict of str to InputSpec
        How each input comes about.
    blob : Blob, optional
        The file of its tensors.
    """

    key: str
    axes: dict[str, int]
    inputs: dict[str, InputSpec]
    blob: Optional[Blob]


def draft(root: Path, definition: Definition, entry: Entry) -> Draft:
    """Make a workload of a recorded call; nothing is written yet.

    Parameters
    ----------
    root : Path
        The dataset.
    definition : Definition
        What was called.
    entry : Entry
        The call.

    Raises
    ------
    DataError
        If an axis or a scalar has no value, or something is recorded that is no input.
    CapabilityError
        If tensors are to be written and torch or safetensors is not installed.
    """
    values = entry.values()
    _require_inputs(definition, values)
    axes = {name: _axis(definition, entry, name) for name in definition.var_axes}
    tensors = _tensors(definition, values)
    blob = make_blob(root, definition.op_type, definition.name, tensors) if tensors else None
    path = "" if blob is None else f"./{blob.path.relative_to(root).as_posix()}"
    inputs = {
        name: _input(definition.name, name, spec, values, path if name in tensors else None)
        for name, spec in definition.inputs.items()
    }
    return Draft(content_key(definition.name, axes, inputs), axes, inputs, blob)


def _require_inputs(definition: Definition, values: Mapping[str, Any]) -> None:
    unknown = [name for name in values if name not in definition.inputs]
    if unknown:
        known = ", ".join(definition.inputs)
        raise DataError(
            f"{unknown[0]!r} is recorded, but it is no input of {definition.name!r} ({known})"
        )


def _axis(definition: Definition, entry: Entry, name: str) -> int:
    if name not in entry.axes:
        raise DataError(f"a call of {definition.name!r} was recorded without its axis {name!r}")
    value = int(entry.axes[name])
    if value < 0:
        raise DataError(f"axis {name!r} of {definition.name!r} is {value}; it must be at least 0")
    return value


def _tensors(definition: Definition, values: Mapping[str, Recorded]) -> dict[str, torch.Tensor]:
    """Return what belongs into a file; the numbers of scalars are in the workload itself."""
    found: dict[str, torch.Tensor] = {}
    for name, spec in definition.inputs.items():
        if name not in values or spec.shape is None:
            continue
        value = values[name]
        if isinstance(value, (bool, int, float)):
            raise DataError(f"input {name!r} of {definition.name!r} is a number, not a tensor")
        found[name] = value
    return found


def _input(
    definition: str,
    name: str,
    spec: TensorSpec,
    values: Mapping[str, Recorded],
    path: Optional[str],
) -> InputSpec:
    if path is not None:
        return SafetensorsInput(path=path, tensor_key=name)
    if spec.shape is not None:
        return RandomInput()
    if name not in values:
        raise DataError(f"a call of {definition!r} was recorded without its scalar {name!r}")
    return ScalarInput(value=_number(definition, name, values[name]))


def _number(definition: str, name: str, value: Any) -> Union[bool, int, float]:
    """Return a plain number; those of numpy and torch (0-d tensors) become one."""
    plain = value.item() if hasattr(value, "item") else value
    if isinstance(plain, (bool, int, float)):
        return plain
    if isinstance(plain, numbers.Real):
        return float(plain)
    raise DataError(f"scalar {name!r} of {definition!r} is a {type(value).__name__}, not a number")
