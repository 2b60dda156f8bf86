"""Default tolerances, by the precision that a computation can be expected to have.

With ``eps`` the distance from 1 to the next larger number of a type (rounding to it is wrong by at
most ``eps / 2``, relatively):

* **16 bits and fewer**: ``max(1e-2, eps)``. One rounding too many, as in an intermediate result,
  stays within it; rounding to the next coarser type in use does not: fp8 E4M3 is wrong by up to
  0.0625 where bfloat16 is allowed 0.01.
* **More than 16 bits**: an eighth of the ``eps`` of the next coarser type in use (bfloat16 below
  float32, float32 below float64), which is a quarter of what rounding to it may cost. Another
  order of summation costs some ``sqrt(K)`` times the type's own ``eps / 2`` (Higham, *Accuracy and
  Stability of Numerical Algorithms*, 2002, section 4.2: the error grows like the square root of
  the number of terms where roundings are independent), 5e-6 for float32 and 8192 terms.

The same number serves as absolute and as relative tolerance.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Union

from flashinfer_bench.data.tolerance import OutputTolerance, Tolerance

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from flashinfer_bench.data import Definition, DType

Layer = Union["Mapping[str, Any]", Tolerance, None]
"""Settings of one origin: those of a configuration, or a tolerance of the dataset."""

#: ``eps`` of each type, finest first.
EPS = {
    "float64": 2.0**-52,
    "float32": 2.0**-23,
    "float16": 2.0**-10,
    "bfloat16": 2.0**-7,
    "float8_e4m3fn": 2.0**-3,
    "float8_e5m2": 2.0**-2,
    "float4_e2m1": 2.0**-1,
}
_COARSER = {"float64": "float32", "float32": "bfloat16"}  # a computation's next cheaper type
_LEAST = 1e-2  # for types of 16 bits and fewer


def default_tolerance(dtype: str) -> float:
    """Return the absolute and relative tolerance for results of one precision.

    Parameters
    ----------
    dtype : str
        Name of a floating-point type.

    Returns
    -------
    float
        1.5e-8 for float64, 9.8e-4 for float32, 0.01 for float16 and bfloat16, 0.125 for
        ``float8_e4m3fn``, 0.25 for ``float8_e5m2`` and 0.5 for ``float4_e2m1``.
    """
    coarser = _COARSER.get(dtype)
    return EPS[coarser] / 8 if coarser is not None else max(_LEAST, EPS[dtype])


def precision_of(definition: Definition, output: str) -> str:
    """Return the type that limits how precise an output can be.

    Parameters
    ----------
    definition : Definition
        What is computed.
    output : str
        A floating-point output.

    Returns
    -------
    str
        Name of the coarsest type of the output and all floating-point input tensors: whoever gets
        bfloat16 inputs may compute in it, also where a statistic comes out as float32. Scalars,
        such as a softmax scale, do not count.
    """
    tensors = [spec for spec in definition.inputs.values() if spec.shape is not None]
    dtypes = [definition.outputs[output].dtype, *(spec.dtype for spec in tensors)]
    names = [_name(dtype) for dtype in dtypes if dtype.is_floating]
    return max(names, key=list(EPS).index)


def default_tolerances(definition: Definition) -> dict[str, float]:
    """Return the tolerance of each output of `definition`; 0 for integers and booleans."""
    return {
        name: default_tolerance(precision_of(definition, name)) if spec.dtype.is_floating else 0.0
        for name, spec in definition.outputs.items()
    }


def _name(dtype: DType) -> str:
    return str(dtype.value)


def tolerance_values(layers: Iterable[Layer], default: float, output: str = "") -> dict[str, Any]:
    """Merge layers into what holds for one output.

    Parameters
    ----------
    layers : iterable of Layer
        From weak to strong.
    default : float
        Absolute and relative tolerance below all layers.
    output : str
        Name of the output; without one what is said about single outputs does not count.

    Returns
    -------
    dict of str to float
        Fields of `OutputTolerance`; `atol` and `rtol` are there in any case.
    """
    merged: dict[str, Any] = {"atol": default, "rtol": default}
    for layer in layers:
        given = _given(layer, output)
        known = {name: given[name] for name in OutputTolerance.model_fields if name in given}
        merged.update((name, value) for name, value in known.items() if value is not None)
    return merged


def outputs_without(field: str, layers: Sequence[Layer], outputs: Iterable[str]) -> frozenset[str]:
    """Return the outputs for which no layer sets `field`."""
    return frozenset(
        output
        for output in outputs
        if all(_given(layer, output).get(field) is None for layer in layers)
    )


def _given(layer: Layer, output: str) -> Mapping[str, Any]:
    if layer is None:
        return {}
    return layer.values_for(output) if isinstance(layer, Tolerance) else layer
