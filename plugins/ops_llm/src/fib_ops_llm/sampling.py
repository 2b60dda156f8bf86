"""The evaluator for operations that draw random samples from a distribution."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Optional

from fib_ops_llm.checks import compare_output, count_of, number_of
from fib_ops_llm.sampling_rows import Findings, Thresholds, examine, find_bias, find_invalid
from flashinfer_bench.bench.correctness import as_tensors, output_specs
from flashinfer_bench.bench.evaluators.base import Check, Evaluator, Trial
from flashinfer_bench.bench.evaluators.default import wrong_form
from flashinfer_bench.data import Correctness, Definition, Workload
from flashinfer_bench.errors import CapabilityError, DataError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np

    from flashinfer_bench.bench.config import ResolvedEvalConfig

    Vector = np.ndarray[Any, np.dtype[Any]]


#: Names of inputs that make equal calls return equal samples.
_SEEDS = ("seed", "offset", "philox_seed", "philox_offset")
_FILTERS = ("top_k", "top_p", "min_p")
_OTHERS = ("temperature", "indices")


@dataclass(frozen=True)
class SamplingInputs:
    """A distribution for each row, and the filters applied to it.

    Attributes
    ----------
    probs : numpy.ndarray
        ``[rows, vocabulary]`` float32; not necessarily normalised.
    top_k, top_p, min_p : numpy.ndarray, optional
        ``[rows]`` float64.
    computed : bool
        Whether `probs` are computed from logits, so that a solution's may be rounded differently.
    seeded : bool
        Whether the definition has a seed input, so that equal calls return equal samples.
    """

    probs: Vector
    top_k: Optional[Vector]
    top_p: Optional[Vector]
    min_p: Optional[Vector]
    computed: bool
    seeded: bool

    @property
    def rows(self) -> int:
        """Number of distributions."""
        return len(self.probs)

    @property
    def vocabulary(self) -> int:
        """Number of tokens."""
        return int(self.probs.shape[1])


def read_inputs(definition: Definition, trial: Trial) -> SamplingInputs:
    """Read the inputs of a sampling operation by name, using FlashInfer's names.

    ``probs`` or ``logits`` (with ``temperature``, per row or for all), ``top_k``, ``top_p``,
    ``min_p`` (per row or for all), ``indices`` (the distribution of each row), and seeds.

    Raises
    ------
    CapabilityError
        If there is an input of another name, because its effect on the distribution is unknown.
    DataError
        If a row is not a valid distribution.
    """
    given = dict(zip(definition.inputs, trial.inputs, strict=True))
    sources = [name for name in given if "probs" in name or "logits" in name]
    known = {*sources[:1], *_FILTERS, *_OTHERS, *_SEEDS}
    unknown = [name for name in given if name not in known]
    if not sources or unknown:
        what = f"input {unknown[0]!r}" if sources else "no input called 'probs' or 'logits'"
        raise CapabilityError(
            f"definition {definition.name!r} has {what}: evaluator 'sampling' supports "
            f"probs or logits, {', '.join((*_FILTERS, *_OTHERS, *_SEEDS))}",
            hint="register an evaluator for this definition, or select evaluator 'default'",
        )
    source = sources[0]
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
        raise DataError(f"row {int(wrong[0])} of the probabilities is not a distribution")
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


#: Number of calls of a solution per set of inputs.
VALIDATION_TRIALS = 100
#: Largest allowed total-variation distance from the requested distribution.
TVD_THRESHOLD = 0.2
#: Largest allowed distance from it in the order of probabilities, or of token numbers.
BIAS_THRESHOLD = 0.05


class SamplingEvaluator(Evaluator):
    """Compare samples with the distribution that the judge computes from the inputs.

    Each of ``sampling_validation_trials`` (100) calls must return tokens that top-k, top-p and
    min-p keep. Of equally probable tokens at the boundary, any may be kept, and rounding of a sum
    may shift the boundary of top-p. Over all calls, frequencies must match the renormalised
    distribution: within ``sampling_tvd_threshold`` (0.2) as a total-variation distance, and within
    ``sampling_bias_threshold`` (0.05) in favour of more or less probable tokens, or within random
    variation if there are too few samples. See `sampling_rows`, which also describes how repeated
    samples, and rows that share their random numbers, are detected.

    Outputs other than the samples are compared with the reference's. ``correctness.extra`` contains
    the distances; the errors are 0 for samples that pass and 1 for others.
    """

    name = "sampling"
    version = "1"
    one_answer = False

    def check_settings(self, config: ResolvedEvalConfig) -> None:
        """See `Evaluator.check_settings`."""
        self.calls_per_trial(config)
        _thresholds(config)

    def calls_per_trial(self, config: ResolvedEvalConfig) -> int:
        """Return ``sampling_validation_trials``."""
        return count_of(config, "sampling_validation_trials", VALIDATION_TRIALS)

    def check(
        self,
        definition: Definition,
        workload: Workload,
        trial: Trial,
        calls: Sequence[Sequence[Any]],
        config: ResolvedEvalConfig,
    ) -> Check:
        """See `Evaluator.check`."""
        thresholds = _thresholds(config)
        problem = wrong_form(output_specs(definition, workload.axes), calls)
        if problem is not None:
            return problem
        inputs = read_inputs(definition, trial)
        samples = _samples(definition, calls, inputs.rows)
        draws_of_a_call = len(samples) // len(calls)
        repeats = draws_of_a_call if inputs.seeded else len(samples)
        findings = examine(inputs, samples, thresholds=thresholds, repeats=repeats, seed=trial.seed)
        return _verdict(findings, _others(definition, trial, calls, config))

    def check_timed(
        self,
        definition: Definition,
        workload: Workload,
        trial: Trial,
        outputs: Sequence[Any],
        config: ResolvedEvalConfig,
    ) -> Check:
        """Judge whether the samples of one call are valid; a single call has no frequencies."""
        problem = wrong_form(output_specs(definition, workload.axes), [outputs])
        if problem is not None:
            return problem
        inputs = read_inputs(definition, trial)
        findings = find_invalid(inputs, _samples(definition, [outputs], inputs.rows))
        return _verdict(findings, _others(definition, trial, [outputs], config))

    def find_pattern(
        self,
        definition: Definition,
        calls: Sequence[tuple[Trial, Sequence[Any]]],
        config: ResolvedEvalConfig,
    ) -> Optional[str]:
        """See `Evaluator.find_pattern`: uses the positions of the tokens in their distributions."""
        pairs = ((read_inputs(definition, trial), outputs) for trial, outputs in calls)
        drawn = ((given, _samples(definition, [own], given.rows)) for given, own in pairs)
        return find_bias(drawn, _thresholds(config).bias, seed=len(calls))

    def combine(self, checks: Sequence[Check]) -> Correctness:
        """Return the errors of the last trial, and the largest distances of all trials."""
        measured = [check.correctness for check in checks if check.correctness is not None]
        extras = [item.extra or {} for item in measured]
        merged = dict(extras[-1])
        for key in merged:
            if key not in ("samples", "matched_ratio"):
                merged[key] = max(extra[key] for extra in extras if key in extra)
        return measured[-1].model_copy(update={"extra": merged})


def _thresholds(config: ResolvedEvalConfig) -> Thresholds:
    return Thresholds(
        number_of(config, "sampling_tvd_threshold", TVD_THRESHOLD, most=1.0),
        number_of(config, "sampling_bias_threshold", BIAS_THRESHOLD, most=1.0),
    )


def _place_of_samples(definition: Definition) -> int:
    """Return the index of the output with the samples: by name, else the first integer output."""
    outputs = list(definition.outputs.items())
    named = [place for place, (name, _) in enumerate(outputs) if name.startswith("samples")]
    integers = [place for place, (_, spec) in enumerate(outputs) if spec.dtype.is_integer]
    return (named or integers or [0])[0]


def _samples(definition: Definition, calls: Sequence[Sequence[Any]], rows: int) -> Vector:
    """Return all samples, ``[draws, rows]``; a call may make several draws per row."""
    import torch

    place = _place_of_samples(definition)
    drawn = torch.stack([as_tensors(outputs)[place].detach() for outputs in calls]).to(torch.int64)
    by_row = drawn.reshape(len(calls), rows, -1).transpose(1, 2)
    samples: Vector = by_row.reshape(-1, rows).numpy()
    return samples


def _others(
    definition: Definition,
    trial: Trial,
    calls: Sequence[Sequence[Any]],
    config: ResolvedEvalConfig,
) -> list[str]:
    """Return the problems of the outputs other than samples."""
    problems, skipped = [], _place_of_samples(definition)
    for place, name in enumerate(definition.outputs):
        if place == skipped:
            continue
        for outputs in calls:
            actual, expected = as_tensors(outputs)[place], trial.expected[place]
            found, passes = compare_output(name, actual, expected, config)
            if not passes:
                problems.append(f"output {name!r}: {found.matched} of {found.elements} match")
                break
    return problems


def _verdict(findings: Findings, others: Sequence[str]) -> Check:
    problems = [*findings.problems, *others]
    if findings.invalid:
        text = f"{findings.invalid} of {findings.samples} samples are not among the allowed tokens"
        problems.insert(0, f"{text}: {findings.first_invalid}")
    failed = 1.0 if problems else 0.0
    valid = 1.0 - findings.invalid / findings.samples if findings.samples else 1.0
    extra = {"matched_ratio": valid, "samples": findings.samples, **findings.distances}
    correctness = Correctness(max_relative_error=failed, max_absolute_error=failed, extra=extra)
    return Check.of(correctness, problems)
