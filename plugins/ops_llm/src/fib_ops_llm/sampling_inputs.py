"""What a sampling operation is asked for, read from the judge's own copy of its inputs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Optional

from flashinfer_bench.errors import CapabilityError, DataError

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np

    from flashinfer_bench.bench.evaluators.base import Trial
    from flashinfer_bench.data import Definition

    Vector = np.ndarray[Any, np.dtype[Any]]

#: Inputs with which equal calls give equal samples.
_SEEDS = ("seed", "offset", "philox_seed", "philox_offset")
_FILTERS = ("top_k", "top_p", "min_p")
_OTHERS = ("temperature", "indices")


@dataclass(frozen=True)
class SamplingInputs:
    """A distribution for each row, and the filters that are applied to it.

    Attributes
    ----------
    probs : numpy.ndarray
        ``[rows, vocabulary]`` float32; need not be normalised.
    top_k, top_p, min_p : numpy.ndarray, optional
        ``[rows]`` float64.
    computed : bool
        Whether `probs` follow from logits, so that a solution's may be rounded otherwise.
    seeded : bool
        Whether the definition has a seed as an input: equal calls then give equal samples.
    """

    probs: Vector
    top_k: Optional[Vector]
    top_p: Optional[Vector]
    min_p: Optional[Vector]
    computed: bool
    seeded: bool

    @property
    def rows(self) -> int:
        """How many distributions there are."""
        return len(self.probs)

    @property
    def vocabulary(self) -> int:
        """How many tokens there are."""
        return int(self.probs.shape[1])


def read_inputs(definition: Definition, trial: Trial) -> SamplingInputs:
    """Read the inputs of a sampling operation by their names, which are those of FlashInfer.

    ``probs`` or ``logits`` (then with ``temperature``, by row or for all), ``top_k``, ``top_p``,
    ``min_p`` (by row or for all), ``indices`` (which distribution each row takes), and seeds.

    Raises
    ------
    CapabilityError
        If there is an input of another name: what it does to the distribution is not known.
    DataError
        If a row is no distribution.
    """
    given = dict(zip(definition.inputs, trial.inputs, strict=True))
    source = _name_of_source(definition, given)
    probs = _distributions(given[source], given, computed="probs" not in source)
    if "indices" in given:
        probs = probs[_vector(given["indices"], None).astype("int64")]
    filters = {
        name: _vector(given[name], len(probs)) if name in given else None for name in _FILTERS
    }
    return SamplingInputs(
        probs=probs,
        **filters,
        computed="probs" not in source,
        seeded=any(name in given for name in _SEEDS),
    )


def _name_of_source(definition: Definition, given: Mapping[str, Any]) -> str:
    found = [name for name in given if "probs" in name or "logits" in name]
    known = {*found[:1], *_FILTERS, *_OTHERS, *_SEEDS}
    unknown = [name for name in given if name not in known]
    if found and not unknown:
        return found[0]
    what = f"input {unknown[0]!r}" if found else "no input called 'probs' or 'logits'"
    raise CapabilityError(
        f"definition {definition.name!r} has {what}: evaluator 'sampling' knows probs or logits, "
        f"{', '.join((*_FILTERS, *_OTHERS, *_SEEDS))}",
        hint="register an evaluator for this definition, or ask for evaluator 'default'",
    )


def _distributions(source: Any, given: Mapping[str, Any], *, computed: bool) -> Vector:
    import torch

    values = source.detach().float()
    if computed:
        values = values.double()
        temperature = given.get("temperature")
        if temperature is not None:
            divisor = torch.as_tensor(temperature, dtype=torch.float64)
            values = values / divisor.reshape(-1, 1).clamp(min=1e-9)
        values = torch.softmax(values, dim=-1).float()
    sums = values.sum(dim=-1, dtype=torch.float64)
    wrong = (~(sums > 0) | ~sums.isfinite() | (values < 0).any(dim=-1)).nonzero()
    if len(wrong):
        raise DataError(f"row {int(wrong[0])} of what is sampled from is no distribution")
    array: Vector = values.contiguous().numpy()
    return array


def _vector(value: Any, rows: Optional[int]) -> Vector:
    import numpy as np
    import torch

    flat = torch.as_tensor(value).detach().double().reshape(-1).numpy()
    wanted = len(flat) if rows is None else rows
    vector: Vector = np.broadcast_to(flat, (wanted,)) if len(flat) == 1 else flat
    if len(vector) != wanted:
        raise DataError(f"a filter has {len(vector)} values for {wanted} rows")
    return vector
