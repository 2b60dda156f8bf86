"""Workloads: axis values and inputs of a problem."""

from __future__ import annotations

import json
import uuid
from typing import Annotated, Any, Literal, Optional, Union

from pydantic import BeforeValidator, Field, model_serializer

from flashinfer_bench.data.base import JsonWords, NonEmptyStr, SchemaModel, Size, number_for_word
from flashinfer_bench.data.tolerance import Tolerance, without_tolerance

ScalarValue = Union[
    Annotated[bool, Field(strict=True)],
    Annotated[int, Field(strict=True)],
    Annotated[float, Field(strict=True)],
]
"""Value of a scalar input; booleans, integers and floats are distinguished."""


class RandomInput(SchemaModel):
    """An input with random elements."""

    type: Literal["random"] = "random"


class ScalarInput(SchemaModel):
    """An input that is a single number.

    Parameters
    ----------
    value : bool, int or float
        The number.
    """

    type: Literal["scalar"] = "scalar"
    value: Annotated[ScalarValue, BeforeValidator(number_for_word), JsonWords]


class SafetensorsInput(SchemaModel):
    """An input that is read from a safetensors file.

    Parameters
    ----------
    path : str
        The file, relative to the dataset's root.
    tensor_key : str
        Name of the tensor in the file.
    """

    type: Literal["safetensors"] = "safetensors"
    path: NonEmptyStr
    tensor_key: NonEmptyStr


InputSpec = Annotated[
    Union[RandomInput, ScalarInput, SafetensorsInput], Field(discriminator="type")
]
"""Source of one input of a workload."""

InputDesc = InputSpec
"""Old name of `InputSpec`."""


_NAMESPACE = uuid.uuid5(uuid.NAMESPACE_URL, "flashinfer-bench/workload")


def derive_uuid(definition: str, axes: Any, inputs: Any) -> str:
    """Return a uuid for a workload without one, which depends only on the content.

    Parameters
    ----------
    definition : str
        Name of the definition.
    axes, inputs : Any
        Decoded fields of the workload.

    Returns
    -------
    str
        A UUID of version 5.
    """
    content = json.dumps([definition, axes, inputs], sort_keys=True, separators=(",", ":"))
    return str(uuid.uuid5(_NAMESPACE, content))


class Workload(SchemaModel):
    """One problem: sizes of axes, and the source of each input.

    Parameters
    ----------
    axes : dict of str to int
        Size of each variable axis.
    inputs : dict of str to InputSpec
        Source of each input.
    uuid : str
        Identity of the workload. If missing, as in files of 2025-07, it is derived from content.
    tolerance : Tolerance, optional
        Tolerance of the outputs for these inputs; takes precedence over that of the definition.
        Omitted from JSON if None.
    """

    axes: dict[str, Size]
    inputs: dict[str, InputSpec]
    uuid: NonEmptyStr
    tolerance: Optional[Tolerance] = None

    _drop_no_tolerance = model_serializer(mode="wrap")(without_tolerance)

    @staticmethod
    def upgrade(data: Any, definition: str = "") -> Any:
        """Add the uuid to a workload of an older release; it depends on the definition's name."""
        if not isinstance(data, dict) or not {"axes", "inputs"} <= data.keys():
            return data
        if data.get("uuid") not in (None, ""):
            return data
        return {**data, "uuid": derive_uuid(definition, data["axes"], data["inputs"])}
