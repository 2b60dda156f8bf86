"""Whether a workload can tell a right solution from one that computes nothing.

An absolute tolerance is chosen for outputs of about unit scale. Where they are small, as the
average over thousands of values is, zeros are within it. So, once the expected outputs are known:

* With ``--tolerance dtype`` an absolute tolerance that nobody has set is made to suit their scale.
* Every trivial output (see `trivial_outputs`) must fail in at least one trial. Where one does not,
  that output's tolerances are made smaller step by step, down to what rounding alone needs.

Where a trivial output *is* the answer, as of an operation that copies, or where nothing short of
rounding tells it from the answer, tolerances stay as they are. Only if that holds for zeros or a
constant and for every output, the workload cannot decide anything.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Optional

from flashinfer_bench.bench.correctness import OutputSpec, compare, output_specs, unpack_float4
from flashinfer_bench.errors import RunnerError
from flashinfer_bench.tensors.dtypes import EPS, default_tolerance, precision_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import torch

    from flashinfer_bench.bench.config import ResolvedEvalConfig
    from flashinfer_bench.bench.evaluators.base import Evaluator, Trial
    from flashinfer_bench.data import Definition, Tolerance, Workload


_SAMPLE = 1 << 16  # elements that a median is taken of


@dataclass(frozen=True)
class Trivial:
    """What a solution could return for one output without computing it.

    Attributes
    ----------
    label : str
        What it is, for people.
    values : tuple of torch.Tensor
        For each trial, of the declared shape and dtype.
    is_constant : bool
        Whether it depends neither on the inputs nor on the trial.
    """

    label: str
    values: tuple[torch.Tensor, ...]
    is_constant: bool = False


def as_declared(value: torch.Tensor, spec: OutputSpec) -> torch.Tensor:
    """Return a reference's output, which may be of a wider type, as a solution has to return it."""
    return value if value.dtype == spec.dtype else value.to(spec.dtype)


def trivial_outputs(
    definition: Definition, trials: Sequence[Trial], index: int, spec: OutputSpec
) -> Iterator[Trivial]:
    """Yield what a solution could return for one output without computing it.

    Parameters
    ----------
    definition : Definition
        What is computed.
    trials : sequence of Trial
        Inputs and expected outputs.
    index : int
        Number of the output.
    spec : OutputSpec
        What it has to be.
    """
    expected = [trial.expected[index] for trial in trials]
    yield _constant("zeros", 0.0, len(trials), spec)
    for constant in _best_constants(expected):
        yield _constant(f"the constant {constant:g}", constant, len(trials), spec)
    for place, name in enumerate(definition.inputs):
        copies = [_copy(trial.inputs[place], spec) for trial in trials]
        values = tuple(copy for copy in copies if copy is not None)
        if len(values) == len(copies):
            yield Trivial(f"a copy of input {name!r}", values)
    if len(trials) > 1:
        stale = tuple(as_declared(expected[number - 1], spec) for number in range(len(trials)))
        yield Trivial("the result of another trial", stale)


def _constant(label: str, value: float, count: int, spec: OutputSpec) -> Trivial:
    import torch

    if _is_packed(spec.dtype):
        filled = torch.zeros(spec.shape, dtype=torch.uint8).view(spec.dtype)
    else:
        filled = torch.full(spec.shape, value, dtype=torch.float64).to(spec.dtype)
    return Trivial(label, (filled,) * count, is_constant=True)


def _best_constants(expected: Sequence[torch.Tensor]) -> list[float]:
    """Return the median and the mean of all trials' elements, if they say more than zeros do.

    Of a single element there is none: it is its own median.
    """
    import torch

    dtype = expected[0].dtype
    if _is_packed(dtype) or dtype.is_complex or sum(one.numel() for one in expected) < 2:
        return []
    rows = [one.reshape(-1) for one in expected]
    sample = torch.cat([row[:: row.numel() // _SAMPLE + 1].to(torch.float64) for row in rows])
    finite = sample[sample.isfinite()]
    if not finite.numel():
        return []
    found = float(finite.median()), float(finite.mean())
    values = found if dtype.is_floating_point else tuple(float(round(value)) for value in found)
    return list(dict.fromkeys(value for value in values if value))


def _copy(value: Any, spec: OutputSpec) -> Optional[torch.Tensor]:
    import torch

    if not isinstance(value, torch.Tensor) or tuple(value.shape) != spec.shape:
        return None
    if value.dtype == spec.dtype:
        return value
    if _is_packed(value.dtype) or _is_packed(spec.dtype):
        return None
    same_kind = value.is_floating_point() == spec.dtype.is_floating_point
    return value.to(spec.dtype) if same_kind else None


def _is_packed(dtype: torch.dtype) -> bool:
    import torch

    return dtype == getattr(torch, "float4_e2m1fn_x2", None)


_HALVINGS = 6  # from the default to the smallest tolerance
_PIECE = 3 << 13  # elements that are looked at together, in one thread
_PEAK = 4.0  # about how many times its scale the largest of many elements is


class UndecidableWorkload(RunnerError):
    """Outputs that compute nothing would pass on it, however small the tolerance."""


def tightened(
    definition: Definition,
    workload: Workload,
    trials: Sequence[Trial],
    evaluator: Evaluator,
    config: ResolvedEvalConfig,
) -> ResolvedEvalConfig:
    """Return `config` with tolerances that zeros, a constant or a copied input do not satisfy.

    What was made smaller, and why, is in ``tightened`` of the result.

    Parameters
    ----------
    definition, workload
        What is computed on what.
    trials : sequence of Trial
        Inputs and expected outputs.
    evaluator : Evaluator
        Judges the outputs. One for which there are several right answers (`Evaluator.one_answer`)
        is not asked; nor is one that does not accept the reference's own outputs.
    config : ResolvedEvalConfig
        The settings so far.

    Raises
    ------
    UndecidableWorkload
        If there are none.
    """
    judge = _Judge(definition, workload, tuple(trials), evaluator)
    if not (evaluator.one_answer and trials) or not judge.accepts_reference(config):
        return config
    holes: list[tuple[str, Optional[Trivial]]] = []
    for index, spec in enumerate(judge.specs):
        if judge.trials[0].expected[index].numel():
            config = _scaled(judge, index, config)
            config, hole = _closed(judge, index, config)
            holes.append((spec.name, hole))
    if holes and all(hole is not None for _, hole in holes):
        passing = "; ".join(f"{hole.label} as {name!r}" for name, hole in holes if hole is not None)
        raise UndecidableWorkload(
            f"workload {workload.uuid} of definition {definition.name!r} cannot tell a correct "
            f"solution from one that computes nothing; this passes at any tolerance: {passing}",
            hint="give it inputs on which the outputs vary, or remove it from the dataset",
        )
    return config


@dataclass(frozen=True)
class _Judge:
    """Asks an evaluator about outputs of which one is replaced."""

    definition: Definition
    workload: Workload
    trials: tuple[Trial, ...]
    evaluator: Evaluator

    @property
    def specs(self) -> tuple[OutputSpec, ...]:
        return output_specs(self.definition, self.workload.axes)

    def accepts_reference(self, config: ResolvedEvalConfig) -> bool:
        return all(self._passes(trial, None, 0, config) for trial in self.trials)

    def accepts(self, index: int, trivial: Trivial, config: ResolvedEvalConfig) -> bool:
        """Return whether every trial passes with a trivial output in one place."""
        pairs = zip(self.trials, trivial.values, strict=True)
        return all(self._passes(trial, value, index, config) for trial, value in pairs)

    def is_answer(self, index: int, trivial: Trivial) -> bool:
        """Return whether a trivial output is what the reference returns, to the bit."""
        spec = self.specs[index]
        expected = [as_declared(trial.expected[index], spec) for trial in self.trials]
        found = map(partial(compare, atol=0.0, rtol=0.0), trivial.values, expected)
        return all(one.matched == one.elements for one in found)

    def _passes(
        self, trial: Trial, value: Optional[torch.Tensor], index: int, config: ResolvedEvalConfig
    ) -> bool:
        pairs = zip(trial.expected, self.specs, strict=True)
        outputs: list[Any] = [as_declared(expected, spec) for expected, spec in pairs]
        if value is not None:
            outputs[index] = value
        problem = self.definition, self.workload, trial
        try:
            calls = [outputs] * self.evaluator.calls_per_trial(config)
            return self.evaluator.check(*problem, calls, config).passed
        except Exception:  # noqa: BLE001 - a plugin; it will fail on a solution's outputs too
            return False


def _scaled(judge: _Judge, index: int, config: ResolvedEvalConfig) -> ResolvedEvalConfig:
    """Hold an absolute tolerance that nobody has set against the scale of its output."""
    name = judge.specs[index].name
    old = config.tolerance_of(name)
    if name not in config.atol_by_dtype or not judge.specs[index].dtype.is_floating_point:
        return config
    scale = min(scale_of(trial.expected[index]) for trial in judge.trials)
    precision = precision_of(judge.definition, name)
    atol = _share_of_scale(precision) * scale
    if config.tolerance == "fixed":  # what is not within it is marked, but passes
        known = {name: atol} if 0.0 < atol < default_tolerance(precision) else {}
        return config.model_copy(update={"scaled_atol": {**config.scaled_atol, **known}})
    if not 0.0 < atol < (old.atol or 0.0):
        return config
    return _with(config, name, old, f"its elements are on the order of {scale:.2g}", atol=atol)


def _share_of_scale(dtype: str) -> float:
    """Return the largest absolute error that honest kernels have, as a share of the scale.

    Eight times the default tolerance leaves room for several roundings in a row and for the
    largest of millions of errors; types of 8 bits and fewer cannot have as much.
    """
    tolerance = default_tolerance(dtype)
    return max(2.0 * tolerance, min(8.0 * tolerance, 0.25))


def scale_of(expected: torch.Tensor) -> float:
    """Return the order of magnitude of an output's elements; 0 if none is finite and not 0.

    That is the root mean square of those that are, or a quarter of the largest one: where few are
    far larger than the rest, their rounding decides.
    """
    import torch

    row = unpack_float4(expected).reshape(-1)
    total, count, largest = 0.0, 0, 0.0
    for start in range(0, row.numel(), _PIECE):
        part = row[start : start + _PIECE].to(torch.float64)
        wide = part.abs().nan_to_num_(0.0, posinf=0.0)
        total += float(wide.square().sum())
        count += int(torch.count_nonzero(wide))
        largest = max(largest, float(wide.amax()))
    return max(math.sqrt(total / count), largest / _PEAK) if count else 0.0


def _closed(
    judge: _Judge, index: int, config: ResolvedEvalConfig
) -> tuple[ResolvedEvalConfig, Optional[Trivial]]:
    """Make one output's tolerances so small that no trivial output passes.

    Returns
    -------
    ResolvedEvalConfig
        With the smaller tolerances.
    Trivial or None
        The zeros or the constant for which there are no such tolerances.
    """
    hole: Optional[Trivial] = None
    for trivial in trivial_outputs(judge.definition, judge.trials, index, judge.specs[index]):
        if not judge.accepts(index, trivial, config):
            continue
        smaller = (
            None if judge.is_answer(index, trivial) else _smaller(judge, index, trivial, config)
        )
        config = smaller or config
        if smaller is None and trivial.is_constant:
            hole = hole or trivial
    return config, hole


def _smaller(
    judge: _Judge, index: int, trivial: Trivial, config: ResolvedEvalConfig
) -> Optional[ResolvedEvalConfig]:
    """Return the largest tolerances at which `trivial` fails but the reference still passes."""
    name = judge.specs[index].name
    for values in _steps(judge, index, config.tolerance_of(name)):
        reason = f"{trivial.label} would pass"
        tried = _with(config, name, config.tolerance_of(name), reason, **values)
        if not judge.accepts_reference(tried):
            return None
        if not judge.accepts(index, trivial, tried):
            return tried
    return None


def _steps(judge: _Judge, index: int, old: Tolerance) -> Iterator[dict[str, float]]:
    """Yield smaller and smaller tolerances, then larger and larger shares that must match."""
    spec = judge.specs[index]
    if spec.dtype.is_floating_point:
        dtype = precision_of(judge.definition, spec.name)
        scale = min(scale_of(trial.expected[index]) for trial in judge.trials)
        yield from _tolerance_steps(dtype, scale, old.atol or 0.0, old.rtol or 0.0)
    missing = 1.0 - (old.required_matched_ratio or 1.0)
    for halving in range(1, _HALVINGS + 1) if missing > 0.0 else ():
        yield {"required_matched_ratio": 1.0 - missing * 0.5**halving}


def _tolerance_steps(
    dtype: str, scale: float, atol: float, rtol: float
) -> Iterator[dict[str, float]]:
    """Yield tolerances from what suits the scale down to what rounding alone needs.

    The smallest are `eps` of the type, which is two roundings to it, but for types of more than 16
    bits no less than a 64th of the default: sums in another order need that.
    """
    first = min(atol, _share_of_scale(dtype) * scale)
    if first < atol:
        yield {"atol": first}
    floor = max(EPS[dtype], default_tolerance(dtype) * 0.5**_HALVINGS)
    least = min(rtol, floor), min(first, floor * scale)
    small = rtol, first
    while small != least:
        small = max(least[0], small[0] / 2), max(least[1], small[1] / 2)
        yield {"rtol": small[0], "atol": small[1]}


def _with(
    config: ResolvedEvalConfig, name: str, old: Tolerance, reason: str, **values: float
) -> ResolvedEvalConfig:
    """Return a copy of `config` with other tolerances for one output, and why."""
    fields = old.model_dump()
    told = ", ".join(
        f"{field} {fields.get(field):.3g} -> {value:.3g}"
        for field, value in values.items()
        if fields.get(field) != value
    )
    before = config.tightened.get(name)
    note = "; ".join(part for part in (before, f"{told}: {reason}") if part)
    return config.model_copy(
        update={
            "tolerances": {**config.tolerances, name: old.model_copy(update=values)},
            "tightened": {**config.tightened, name: note},
        }
    )
