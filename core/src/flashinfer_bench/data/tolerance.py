"""Tolerances: how far outputs may be from those of the reference."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Optional

from pydantic import AliasChoices, Field, SerializerFunctionWrapHandler, model_serializer

from flashinfer_bench.data.base import NonEmptyStr, SchemaModel
from flashinfer_bench.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Collection

_NotNegative = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]
_Share = Annotated[float, Field(gt=0.0, le=1.0, allow_inf_nan=False)]


class OutputTolerance(SchemaModel):
    """Tolerance of one output; values that are None are taken from the layer below.

    The names ``max_atol`` and ``max_rtol`` of SOL-ExecBench are accepted as well.

    Parameters
    ----------
    atol, rtol : float, optional
        An element matches if its absolute error is at most `atol` **or** its relative error at most
        `rtol`. Integers and booleans match if they are equal.
    required_matched_ratio : float, optional
        Share of the elements that must match, in (0, 1].
    max_error_cap : float, optional
        Maximum absolute error of any element, including those that need not match.
    """

    atol: Optional[_NotNegative] = Field(None, validation_alias=AliasChoices("atol", "max_atol"))
    rtol: Optional[_NotNegative] = Field(None, validation_alias=AliasChoices("rtol", "max_rtol"))
    required_matched_ratio: Optional[_Share] = None
    max_error_cap: Optional[_NotNegative] = None

    @model_serializer(mode="wrap")
    def _drop_none(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {name: value for name, value in handler(self).items() if value is not None}


class Tolerance(OutputTolerance):
    """Tolerance of outputs; values that are None are taken from the layer below.

    Parameters
    ----------
    atol, rtol, required_matched_ratio, max_error_cap
        For all outputs; see `OutputTolerance`.
    outputs : dict of str to OutputTolerance, optional
        The same for single outputs; these values take precedence.
    """

    outputs: Optional[dict[NonEmptyStr, OutputTolerance]] = None

    def values_for(self, output: str) -> dict[str, float]:
        """Return the values for one output: its own, else those for all outputs."""
        own = (self.outputs or {}).get(output)
        shared = self.model_dump(exclude={"outputs"})
        return {**shared, **(own.model_dump() if own is not None else {})}


def require_known_outputs(
    tolerance: Optional[Tolerance], known: Collection[str], *, field: str = "tolerance"
) -> None:
    """Check that a tolerance names only outputs of the definition.

    Parameters
    ----------
    tolerance : Tolerance, optional
        Tolerance of a definition or workload.
    known : collection of str
        Names of the definition's outputs.
    field : str
        Field of the tolerance in its record.

    Raises
    ------
    DataError
        For the first unknown output.
    """
    for name in (tolerance.outputs if tolerance is not None else None) or ():
        if name not in known:
            raise DataError(
                f"unknown output {name!r}; available outputs: {', '.join(known)}",
                field=f"{field}.outputs.{name}",
            )


def without_tolerance(self: Any, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
    """Serialise a record without the field ``tolerance`` if it is None.

    Most records have no tolerance; they are written as before tolerances existed.
    """
    record: dict[str, Any] = handler(self)
    if record.get("tolerance") is None:
        record.pop("tolerance", None)
    return record
