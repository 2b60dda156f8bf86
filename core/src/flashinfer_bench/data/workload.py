"""Workloads: the axis values and inputs of one run."""

from __future__ import annotations

import json
import uuid
from typing import Annotated, Any, Literal, Optional, Union

from pydantic import BeforeValidator, Field, SerializerFunctionWrapHandler, model_serializer

from flashinfer_bench.data.base import JsonWords, NonEmptyStr, SchemaModel, Size, number_for_word
from flashinfer_bench.data.tolerance import Tolerance, without_tolerance

ScalarValue = Union[
    Annotated[bool, Field(strict=True)],
    Annotated[int, Field(strict=True)],
    Annotated[float, Field(strict=True)],
]
"""Value of a scalar input; booleans, integers and floats are kept apart."""


class RandomInput(SchemaModel):
    """An input whose elements are drawn at random."""

    type: Literal["random"] = "random"


class ScalarInput(SchemaModel):
    """An input that is one number.

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
"""How one input of a workload comes about."""

InputDesc = InputSpec
"""Old name of `InputSpec`."""


_NAMESPACE = uuid.uuid5(uuid.NAMESPACE_URL, "flashinfer-bench/workload")


def derive_uuid(definition: str, axes: Any, inputs: Any) -> str:
    """Return the identity of a workload that has none: the same for the same content, always.

    Parameters
    ----------
    definition : str
        Name of the definition.
    axes, inputs : Any
        The workload's decoded fields.

    Returns
    -------
    str
        A UUID of version 5.
    """
    content = json.dumps([definition, axes, inputs], sort_keys=True, separators=(",", ":"))
    return str(uuid.uuid5(_NAMESPACE, content))


class Workload(SchemaModel):
    """One problem: sizes, and where each input comes from.

    Parameters
    ----------
    axes : dict of str to int
        Size of each variable axis.
    inputs : dict of str to InputSpec
        Where each input comes from.
    uuid : str
        Identity of the workload. Files of 2025-07 have none; it is then derived from the content.
    tolerance : Tolerance, optional
        How far outputs may be from the reference's on these inputs; takes precedence over the
        definition's. Omitted from JSON if None.
    """

    axes: dict[str, Size]
    inputs: dict[str, InputSpec]
    uuid: NonEmptyStr
    tolerance: Optional[Tolerance] = None

    @model_serializer(mode="wrap")
    def _drop_no_tolerance(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return without_tolerance(handler(self))

    @staticmethod
    def upgrade(data: Any, definition: str = "") -> Any:
        """Give a workload of an older release its uuid, which the name of the definition enters."""
        if not isinstance(data, dict) or not {"axes", "inputs"} <= data.keys():
            return data
        if data.get("uuid") not in (None, ""):
            return data
        return {**data, "uuid": derive_uuid(definition, data["axes"], data["inputs"])}
