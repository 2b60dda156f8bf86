"""Holding the samples of an operation against the distributions that they are drawn from."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Optional

from fib_ops_llm import sampling_statistics as statistics
from fib_ops_llm.sampling_support import best_supported, row_of

if TYPE_CHECKING:
    import numpy as np

    from fib_ops_llm.sampling_inputs import SamplingInputs
    from fib_ops_llm.sampling_support import Row, Support

    Vector = np.ndarray[Any, np.dtype[Any]]


_UNIFORM_VARIANCE = 1.0 / 12.0


@dataclass(frozen=True)
class Thresholds:
    """What a sampler may do wrong, however many samples show it.

    Attributes
    ----------
    tvd : float
        Total-variation distance of its distribution from the one asked for.
    bias : float
        Kolmogorov-Smirnov distance, in the order of probabilities or of token numbers.
    """

    tvd: float
    bias: float


@dataclass
class Findings:
    """What the samples of some calls show.

    Attributes
    ----------
    samples : int
        How many there are.
    invalid : int
        How many are no token that the filters leave.
    first_invalid : str
        What the first of those is.
    distances : dict of str to float
        Largest, by what was measured: see `sampling_statistics`.
    problems : list of str
        What no honest sampler does.
    """

    samples: int
    invalid: int = 0
    first_invalid: str = ""
    distances: dict[str, float] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def compare(self, name: str, found: float, limit: float, what: str) -> None:
        """Note a distance, and that it is a problem if it exceeds `limit`."""
        self.distances[name] = found
        if found > limit:
            self.problems.append(f"{what} is {found:.3g}, more than {limit:.3g}")


@dataclass(frozen=True)
class _Drawn:
    """What the samples of one row show.

    Of an honest sampler the places are uniform in [0, 1], and standardised ones have mean 0 and
    variance 1. Those in the order of tokens are None where it is not known which of equally
    probable tokens are left.
    """

    tvd: float
    expected_tvd: float
    repeated: Optional[int]
    by_probability: Vector
    by_token: Optional[Vector]
    standard: Optional[Vector]


def find_invalid(inputs: SamplingInputs, samples: Vector) -> Findings:
    """Return whether all samples are tokens that the filters leave.

    Parameters
    ----------
    inputs : SamplingInputs
        The distributions and filters.
    samples : numpy.ndarray
        ``[draws, rows]`` integers.
    """
    findings = Findings(samples.size)
    for index in range(inputs.rows):
        _note_invalid(findings, inputs, index, row_of(inputs, index), samples[:, index])
    return findings


def examine(
    inputs: SamplingInputs, samples: Vector, *, thresholds: Thresholds, repeats: int, seed: int
) -> Findings:
    """Return whether samples are valid, and whether their frequencies are right.

    Parameters
    ----------
    inputs, samples
        As in `find_invalid`.
    thresholds : Thresholds
        What a sampler may do wrong.
    repeats : int
        How many of the draws are of different calls: the first so many, where a call with the same
        seed returns the same samples.
    seed : int
        Makes the values that are random reproducible.
    """
    import numpy as np

    findings, drawn = Findings(samples.size), []
    generator = np.random.default_rng(seed)
    limits = {"rows": inputs.rows, "threshold": thresholds.tvd}
    for index in range(inputs.rows):
        row = row_of(inputs, index)
        _note_invalid(findings, inputs, index, row, samples[:, index])
        if not findings.invalid:
            tokens = samples[:repeats, index]
            drawn.append(_draw(row, inputs.probs[index], tokens, generator, **limits))
    if not findings.invalid and drawn:
        _note_distances(findings, drawn, repeats, thresholds)
        _note_repetition(findings, drawn, repeats)
        _note_dependence(findings, drawn)
    return findings


def _note_invalid(
    findings: Findings, inputs: SamplingInputs, index: int, row: Row, tokens: Vector
) -> None:
    inside = (tokens >= 0) & (tokens < inputs.vocabulary)
    values = inputs.probs[index][tokens.clip(0, inputs.vocabulary - 1)]
    valid = inside & (values > 0.0) & (values >= row.floor)
    findings.invalid += int(len(valid) - valid.sum())
    if findings.first_invalid or valid.all():
        return
    draw = int(valid.argmin())
    text = f"draw {draw} of row {index} is {int(tokens[draw])}"
    if inside[draw]:
        value = float(values[draw])
        text += f", of probability {value:.3g} and rank {int(row.rank(value))}"
        text += f", where tokens down to {row.floor:.3g} are left"
    else:
        text += f", which is not in [0, {inputs.vocabulary})"
    findings.first_invalid = text


def _draw(
    row: Row, probs: Vector, tokens: Vector, generator: np.random.Generator, **limits: Any
) -> _Drawn:
    import numpy as np

    kinds, counts = np.unique(tokens, return_counts=True)
    support, tvd = best_supported(row, probs[kinds], counts)
    falling = row.falling(support)
    by_token, standard = _by_token(support, probs, tokens, generator)
    repeated = statistics.is_repeated(counts, probs[kinds] / support.mass, **limits)
    return _Drawn(
        tvd,
        statistics.expected_tvd(falling, len(tokens)),
        int(kinds[repeated.argmax()]) if repeated.any() else None,
        _by_probability(row, support, probs[tokens], generator),
        by_token,
        standard,
    )


def _by_probability(
    row: Row, support: Support, values: Vector, generator: np.random.Generator
) -> Vector:
    """Return the probability of all more probable tokens, and a random part of its equals'."""
    import numpy as np

    below = row.above[row.rank(values)]
    equals = len(row.rising) - row.rising.searchsorted(values, side="left")
    upto = np.where(values > support.floor, row.above[equals], support.mass)
    places: Vector = (below + generator.random(len(values)) * (upto - below)) / support.mass
    return places.clip(0.0, 1.0)


def _by_token(
    support: Support, probs: Vector, tokens: Vector, generator: np.random.Generator
) -> tuple[Optional[Vector], Optional[Vector]]:
    """Return the probability of all tokens of a lower number, and a random part of its own.

    Also return the middle of a token's place, standardised. Where a few tokens have nearly all the
    probability, that is too rarely anything else than their middle: the place takes its part.
    """
    import numpy as np

    if support.kept < support.tied:
        return None, None
    left = np.where(probs >= support.floor, probs, np.float32(0.0))
    upto = np.cumsum(left, dtype=np.float64)[tokens] / support.mass
    shares = left[tokens] / support.mass
    places: Vector = (upto - generator.random(len(tokens)) * shares).clip(0.0, 1.0)
    # Of places the variance is 1/12; within a token of share e it is e²/12.
    middle_variance = 1.0 - float((left / support.mass) @ np.square(left / support.mass))
    if middle_variance < 0.5:
        return places, (places - 0.5) / math.sqrt(_UNIFORM_VARIANCE)
    return places, (upto - 0.5 * shares - 0.5) / math.sqrt(_UNIFORM_VARIANCE * middle_variance)


def _note_distances(
    findings: Findings, drawn: list[_Drawn], repeats: int, thresholds: Thresholds
) -> None:
    import numpy as np

    rows = len(drawn)
    limits = [
        max(thresholds.tvd, each.expected_tvd + statistics.tvd_margin(repeats, rows))
        for each in drawn
    ]
    worst = max(range(rows), key=lambda index: drawn[index].tvd - limits[index])
    what = f"total-variation distance of row {worst}"
    findings.compare("tvd", drawn[worst].tvd, limits[worst], what)
    findings.distances["tvd"] = max(each.tvd for each in drawn)
    mean = float(np.mean([each.tvd for each in drawn]))
    noise = float(np.mean([each.expected_tvd for each in drawn]))
    limit = max(thresholds.tvd, noise + statistics.tvd_margin(repeats * rows))
    findings.compare("mean_tvd", mean, limit, "mean total-variation distance")
    for name, places in (
        ("ks_by_probability", [each.by_probability for each in drawn]),
        ("ks_by_token", [each.by_token for each in drawn if each.by_token is not None]),
    ):
        _note_ks(findings, name, places, thresholds.bias)


def _note_ks(findings: Findings, name: str, places: list[Vector], threshold: float) -> None:
    import numpy as np

    if not places:
        return
    together = np.concatenate(places)
    limit = max(threshold, statistics.ks_limit(len(together)))
    order = "probabilities" if name == "ks_by_probability" else "token numbers"
    what = f"distance from the distribution asked for, in the order of {order},"
    findings.compare(name, statistics.ks_distance(together), limit, what)


def _note_repetition(findings: Findings, drawn: list[_Drawn], repeats: int) -> None:
    found = [index for index, each in enumerate(drawn) if each.repeated is not None]
    if found and repeats > 1:
        text = f"token {drawn[found[0]].repeated} of row {found[0]} is repeated beyond chance"
        more = len(found) - 1
        findings.problems.append(text + (f", and so in {more} more rows" if more else ""))


def _note_dependence(findings: Findings, drawn: list[_Drawn]) -> None:
    import numpy as np

    rows = [each.standard for each in drawn if each.standard is not None]
    if len(rows) < 2:
        return
    found, limit = statistics.dependence(np.stack(rows, axis=1))
    findings.compare("row_dependence", found, limit, "dependence of the rows on one another")
