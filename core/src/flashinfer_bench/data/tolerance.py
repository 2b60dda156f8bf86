"""How far an output may be from the reference's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Optional

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from flashinfer_bench.data.base import NonEmptyStr, SchemaModel
from flashinfer_bench.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Collection

_NotNegative = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]
_Share = Annotated[float, Field(gt=0.0, le=1.0, allow_inf_nan=False)]

_OTHER_SPELLINGS = {"max_atol": "atol", "max_rtol": "rtol"}


class OutputTolerance(SchemaModel):
    """How far one output may be from the reference's; None leaves it to the layer below.

    The names ``max_atol`` and ``max_rtol``, which SOL-ExecBench writes, are read too.

    Parameters
    ----------
    atol, rtol : float, optional
        An element matches if its absolute error is at most `atol` **or** its relative error at most
        `rtol`. Integers and booleans match if they are equal.
    required_matched_ratio : float, optional
        Share of the elements that must match, in (0, 1].
    max_error_cap : float, optional
        No element may have a larger absolute error, whether it has to match or not.
    """

    atol: Optional[_NotNegative] = None
    rtol: Optional[_NotNegative] = None
    required_matched_ratio: Optional[_Share] = None
    max_error_cap: Optional[_NotNegative] = None

    @model_validator(mode="before")
    @classmethod
    def _read_other_spellings(cls, data: Any) -> Any:
        if not isinstance(data, dict) or not _OTHER_SPELLINGS.keys() & data.keys():
            return data
        renamed = {_OTHER_SPELLINGS.get(key, key): value for key, value in data.items()}
        # Where both are given the name of this format counts.
        return {**renamed, **{key: data[key] for key in data.keys() & renamed.keys()}}

    @model_serializer(mode="wrap")
    def _drop_none(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {name: value for name, value in handler(self).items() if value is not None}


class Tolerance(OutputTolerance):
    """How far outputs may be from the reference's; None leaves it to the layer below.

    Parameters
    ----------
    atol, rtol, required_matched_ratio, max_error_cap
        For all outputs; see `OutputTolerance`.
    outputs : dict of str to OutputTolerance, optional
        The same for single outputs, which takes precedence.
    """

    outputs: Optional[dict[NonEmptyStr, OutputTolerance]] = None

    def values_for(self, output: str) -> dict[str, float]:
        """Return what is set for one output, its own values over those for all of them."""
        own = (self.outputs or {}).get(output)
        shared = self.model_dump(exclude={"outputs"})
        return {**shared, **(own.model_dump() if own is not None else {})}


def require_known_outputs(
    tolerance: Optional[Tolerance], known: Collection[str], *, field: str = "tolerance"
) -> None:
    """Refuse tolerances for outputs that a definition does not have.

    Parameters
    ----------
    tolerance : Tolerance, optional
        Of a definition or workload.
    known : collection of str
        Names of the definition's outputs.
    field : str
        Where the tolerance stands in its record.

    Raises
    ------
    DataError
        About the first of them.
    """
    for name in (tolerance.outputs if tolerance is not None else None) or ():
        if name not in known:
            raise DataError(
                f"the definition has no output {name!r}; it has {', '.join(known)}",
                field=f"{field}.outputs.{name}",
            )


def without_tolerance(record: dict[str, Any]) -> dict[str, Any]:
    """Return a serialised record without its tolerance if it has none.

    Most records have none, and readers of before tolerances existed write such records the same.
    """
    if record.get("tolerance") is None:
        record.pop("tolerance", None)
    return record
