"""Compare the samples of an operation with the distributions that they are drawn from."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Optional

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy as np

    from fib_ops_llm.sampling import SamplingInputs

    Vector = np.ndarray[Any, np.dtype[Any]]


# Tests whether samples come from given distributions; the bounds hold for every honest sampler.
#
# Independent samples of the right distribution exceed each limit here with a probability of at most
# `FALSE_ALARM`, for any distribution and any number of samples:
#
# * The mean **total-variation distance** (TVD) of *n* samples is half the sum of the mean absolute
#   deviations of binomial variables, for which de Moivre's formula is exact. One sample changes it
#   by at most 1/*n*, so that it exceeds its mean by √(ln(1/α) / 2*n*) with a probability of at most
#   α (McDiarmid 1989).
# * The **Kolmogorov-Smirnov distance** of *n* probability integral transforms from the uniform
#   distribution exceeds √(ln(2/α) / 2*n*) with a probability of at most α (Massart 1990). In the
#   order of probabilities it is as large as the TVD for every bias for or against probable tokens,
#   and unlike the TVD it can be estimated from few samples of many tokens.
# * A token of probability *e* is drawn at least *c* times in *n* with a probability of at most
#   exp(-*n* KL(*c*/*n* ‖ *e*)) (Chernoff). It counts as **repeated** if that is below α *e*; over
#   all tokens these add up to α.
# * Rows must be **independent**: for standardised variables of *B* rows and *n* calls, the sum of
#   all products of two rows, divided by *B*, is a chi-square form of variance 2*n*(1 - 1/*B*),
#   bounded by 2√(*n s L*) + 2*s L* with *s* = 1 - 1/*B*, *L* = ln(1/α) (Laurent and Massart 2000).


#: Probability with which an honest sampler may fail each test of one trial.
FALSE_ALARM = 1e-6


def expected_tvd(falling: Vector, count: int) -> float:
    """Return the mean total-variation distance of `count` samples from their own distribution.

    Parameters
    ----------
    falling : numpy.ndarray
        Probabilities of the tokens in descending order, with sum 1.
    count : int
        Number of samples.
    """
    import numpy as np

    # Tokens expected less than once, possibly very many: E|f - e| = 2 e (1 - e)ⁿ.
    often = int(np.count_nonzero(falling * count >= 1.0))
    rare = falling[often:]
    total = float((rare * np.exp(count * np.log1p(-rare))).sum())
    common = falling[:often][falling[:often] < 1.0]
    if not len(common):
        return total
    m = np.minimum(np.floor(common * count), count - 1).astype(np.int64)
    factorials = np.concatenate(([0.0], np.cumsum(np.log(np.arange(1, count + 1)))))
    choose = factorials[count] - factorials[m + 1] - factorials[count - m - 1]
    logs = np.log(m + 1.0) + choose + (m + 1) * np.log(common) + (count - m) * np.log1p(-common)
    return total + float(np.exp(logs).sum()) / count


def tvd_margin(count: int, tests: int = 1) -> float:
    """Return by how much the TVD of `count` samples may exceed its mean in one of `tests` tests."""
    return math.sqrt(math.log(tests / FALSE_ALARM) / (2.0 * count))


def ks_limit(count: int) -> float:
    """Return the largest Kolmogorov-Smirnov distance allowed for `count` honest samples."""
    return math.sqrt(math.log(2.0 / FALSE_ALARM) / (2.0 * count))


def ks_distance(uniforms: Vector) -> float:
    """Return the largest distance between the distribution of `uniforms` and the uniform one."""
    import numpy as np

    ordered = np.sort(uniforms, axis=None)
    steps = np.arange(len(ordered) + 1) / len(ordered)
    return float(max((steps[1:] - ordered).max(), (ordered - steps[:-1]).max()))


def is_repeated(
    counts: Vector, probabilities: Vector, *, rows: int = 1, threshold: float = 0.0
) -> Vector:
    """Return which tokens were drawn more often than random variation explains.

    Parameters
    ----------
    counts, probabilities : numpy.ndarray
        Values for each token that was drawn.
    rows : int
        Number of rows that are tested.
    threshold : float
        Amount by which the share of a token may always exceed its probability.
    """
    import numpy as np

    total = counts.sum()
    share, expected = counts / total, np.clip(probabilities, 1e-300, 1.0)
    # Terms with 0 · log 0 are 0; a token of probability 1 cannot be drawn too often.
    with np.errstate(divide="ignore", invalid="ignore"):
        others = np.where(share < 1.0, (1 - share) * np.log((1 - share) / (1 - expected)), 0.0)
    divergence = share * np.log(share / expected) + others
    allowed = math.log(FALSE_ALARM / rows) + np.log(expected)
    found: Vector = (share > expected + threshold) & (-total * divergence < allowed)
    return found


def dependence(standard: Vector) -> tuple[float, float]:
    """Return the dependence between rows, and the largest value that random variation explains.

    Both are relative to the dependence of identical rows.

    Parameters
    ----------
    standard : numpy.ndarray
        ``[calls, rows]`` bounded values with mean 0 and variance 1 in each row; at least two rows.
    """
    calls, rows = standard.shape
    products = float((standard.sum(axis=1) ** 2 - (standard**2).sum(axis=1)).sum()) / rows
    share, log = 1.0 - 1.0 / rows, math.log(1.0 / FALSE_ALARM)
    limit = 2.0 * math.sqrt(calls * share * log) + 2.0 * share * log
    copies = calls * (rows - 1)
    return products / copies, limit / copies


# The tokens that the filters of a sampler keep, and their probabilities.
#
# In descending order of probability, every filter keeps a prefix: top-k the first k tokens; top-p
# the shortest prefix whose share of the remaining probability reaches p; min-p the tokens with at
# least min-p times the largest probability. If a prefix ends among equal probabilities, or so close
# to p that rounding decides, several answers are correct: all of them are listed.


#: Share of the mass within which the boundary of top-p may vary: the accuracy of a float32 sum over
#: 10⁵ tokens in any order.
_TOP_P_SLACK = 1e-3
_MIN_P_SLACK = 1e-6  # relative: one multiplication and one comparison
_SOFTMAX_SLACK = 1e-5  # relative, of probabilities that a solution computes from logits


@dataclass(frozen=True)
class Support:
    """One correct set of kept tokens.

    Attributes
    ----------
    floor : float
        The smallest probability (as given, not renormalised) of a kept token.
    kept, tied : int
        Number of kept tokens with exactly that probability, and total number of such tokens.
    mass : float
        Sum of the probabilities of all kept tokens.
    """

    floor: float
    kept: int
    tied: int
    mass: float


@dataclass(frozen=True)
class Row:
    """A distribution, and all correct sets of kept tokens.

    Attributes
    ----------
    rising : numpy.ndarray
        All probabilities, sorted.
    above : numpy.ndarray
        ``above[n]`` is the sum of the *n* largest.
    supports : tuple of Support
        At least one.
    slack : float
        Relative rounding error within which a token's probability may reach a floor.
    """

    rising: Vector
    above: Vector
    supports: tuple[Support, ...]
    slack: float

    @property
    def floor(self) -> float:
        """The smallest probability with which a token may be sampled."""
        return min(each.floor for each in self.supports) * (1.0 - self.slack)

    def rank(self, values: Any) -> Any:
        """Return how many tokens have a larger probability than each of `values`."""
        return len(self.rising) - self.rising.searchsorted(values, side="right")

    def falling(self, support: Support) -> Vector:
        """Return the renormalised probabilities under `support`, in descending order."""
        length = int(self.rank(support.floor)) + support.kept
        return self.rising[::-1][:length].astype("float64") / support.mass


def row_of(inputs: SamplingInputs, index: int) -> Row:
    """Return the part of row `index` that the filters of `inputs` keep."""
    import numpy as np

    rising = np.sort(inputs.probs[index])
    above = np.concatenate(([0.0], np.cumsum(rising[::-1], dtype=np.float64)))
    bare = Row(rising, above, (), _SOFTMAX_SLACK if inputs.computed else 0.0)
    positive = len(rising) - int(rising.searchsorted(0.0, side="right"))
    lengths: set[int] = {positive}
    if inputs.top_k is not None:
        lengths = _after_top_k(bare, lengths, float(inputs.top_k[index]))
    if inputs.top_p is not None:
        lengths = _after_top_p(bare, lengths, float(inputs.top_p[index]))
    if inputs.min_p is not None:
        lengths = _after_min_p(bare, lengths, float(inputs.min_p[index]))
    supports = tuple(_support(bare, length) for length in sorted(lengths))
    return Row(rising, above, supports, bare.slack)


def _end_of_ties(row: Row, length: int) -> int:
    """Return the end of the tokens that are as probable as the last one of a prefix."""
    return len(row.rising) - int(row.rising.searchsorted(row.rising[-length], side="left"))


def _with_ties(row: Row, lengths: Iterable[int], most: int) -> set[int]:
    """Add the lengths for implementations that keep all tokens as probable as the last one."""
    return {end for each in lengths for end in (each, min(_end_of_ties(row, each), most))}


def _after_top_k(row: Row, lengths: set[int], k: float) -> set[int]:
    most = max(lengths)
    if not 0 < k < most:
        return lengths  # 0, or more than there are: nothing is filtered
    return _with_ties(row, {int(k)}, most)


def _after_top_p(row: Row, lengths: set[int], p: float) -> set[int]:
    if p <= 0.0:
        return _with_ties(row, {1}, max(lengths))  # the most probable token alone
    if p >= 1.0:
        return lengths
    found = set()
    for most in lengths:
        for share in (p - _TOP_P_SLACK, p + _TOP_P_SLACK):
            # Token j is kept if the sum of those before it does not exceed the share.
            left = int(row.above[:most].searchsorted(share * row.above[most], side="right"))
            found |= _with_ties(row, {max(left, 1)}, most)
    return found


def _after_min_p(row: Row, lengths: set[int], min_p: float) -> set[int]:
    if min_p <= 0.0:
        return lengths
    largest = float(row.rising[-1])
    found = set()
    for slack in (-_MIN_P_SLACK, _MIN_P_SLACK):
        least = min(min_p * (1.0 + slack), 1.0) * largest
        left = len(row.rising) - int(row.rising.searchsorted(least, side="left"))
        found |= {min(each, max(left, 1)) for each in lengths}
    return found


def _support(row: Row, length: int) -> Support:
    floor = float(row.rising[-length])
    larger = int(row.rank(floor))
    tied = _end_of_ties(row, length) - larger
    return Support(floor, length - larger, tied, float(row.above[length]))


def best_supported(row: Row, values: Vector, counts: Vector) -> tuple[Support, float]:
    """Return the answer that fits the samples best, and their total-variation distance from it.

    The distance between frequencies *f* and probabilities *e* is 1 - Σ min(*f*, *e*), to which only
    sampled tokens contribute.

    Parameters
    ----------
    row : Row
        Distribution and correct answers.
    values, counts : numpy.ndarray
        Probability of each sampled token, and number of times it was sampled.
    """
    frequencies = counts / counts.sum()
    overlaps = [_overlap(each, values, frequencies) for each in row.supports]
    best = max(range(len(overlaps)), key=overlaps.__getitem__)
    return row.supports[best], max(0.0, 1.0 - overlaps[best])


def _overlap(support: Support, values: Vector, frequencies: Vector) -> float:
    import numpy as np

    inside = values > support.floor
    found = np.minimum(values[inside].astype("float64") / support.mass, frequencies[inside]).sum()
    # Any `kept` of the tied tokens may be kept: assume those sampled most often.
    tied: Vector = np.sort(frequencies[values == support.floor])[::-1][: support.kept]
    return float(found + np.minimum(tied, support.floor / support.mass).sum())


_UNIFORM_VARIANCE = 1.0 / 12.0


@dataclass(frozen=True)
class Thresholds:
    """Errors allowed to a sampler, independent of the number of samples.

    Attributes
    ----------
    tvd : float
        Total-variation distance of its distribution from the requested one.
    bias : float
        Kolmogorov-Smirnov distance, in the order of probabilities or of token numbers.
    """

    tvd: float
    bias: float


@dataclass
class Findings:
    """Results for the samples of some calls.

    Attributes
    ----------
    samples : int
        Number of samples.
    invalid : int
        Number of samples that are not among the kept tokens.
    first_invalid : str
        Description of the first invalid sample.
    distances : dict of str to float
        Largest distance by type; see the bounds above.
    problems : list of str
        Deviations that an honest sampler does not show.
    """

    samples: int
    invalid: int = 0
    first_invalid: str = ""
    distances: dict[str, float] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def compare(self, name: str, found: float, limit: float, what: str) -> None:
        """Record a distance, and a problem if it exceeds `limit`."""
        self.distances[name] = found
        if found > limit:
            self.problems.append(f"{what} is {found:.3g}, more than {limit:.3g}")


@dataclass(frozen=True)
class _Drawn:
    """Results for the samples of one row.

    For an honest sampler the positions are uniform in [0, 1], and standardised positions have mean
    0 and variance 1. Positions in the order of tokens are None if it is unknown which of several
    equally probable tokens are kept.
    """

    tvd: float
    expected_tvd: float
    repeated: Optional[int]
    by_probability: Vector
    by_token: Optional[Vector]
    standard: Optional[Vector]


def find_invalid(inputs: SamplingInputs, samples: Vector) -> Findings:
    """Check that all samples are tokens that the filters keep.

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


def find_bias(
    calls: Iterable[tuple[SamplingInputs, Vector]], threshold: float, seed: int
) -> Optional[str]:
    """Return how valid samples of several distributions deviate from them jointly, or None.

    Parameters
    ----------
    calls : iterable of (SamplingInputs, numpy.ndarray)
        Distributions, and their samples ``[draws, rows]``.
    threshold : float
        Largest Kolmogorov-Smirnov distance, in addition to random variation.
    seed : int
        Makes random values reproducible.
    """
    import numpy as np

    generator = np.random.default_rng(seed)
    found: dict[str, list[Vector]] = {"probabilities": [], "token numbers": []}
    for inputs, samples in calls:
        for index in range(inputs.rows):
            row, probs, tokens = row_of(inputs, index), inputs.probs[index], samples[:, index]
            kinds, counts = np.unique(tokens, return_counts=True)
            support, _ = best_supported(row, probs[kinds], counts)
            places = _by_probability(row, support, probs[tokens], generator)
            found["probabilities"].append(places)
            by_token, _ = _by_token(support, probs, tokens, generator)
            if by_token is not None:
                found["token numbers"].append(by_token)
    for order, parts in found.items():
        distance, limit = _ks(parts, threshold)
        if distance > limit:
            return (
                f"the samples of all timed calls are {distance:.3g} off in the order of {order}, "
                f"more than {limit:.3g}"
            )
    return None


def _ks(places: list[Vector], threshold: float) -> tuple[float, float]:
    """Return the distance of positions from the uniform distribution, and the largest allowed."""
    import numpy as np

    if not places:
        return 0.0, threshold
    together = np.concatenate(places)
    return ks_distance(together), max(threshold, ks_limit(len(together)))


def examine(
    inputs: SamplingInputs, samples: Vector, *, thresholds: Thresholds, repeats: int, seed: int
) -> Findings:
    """Check that samples are valid and have the right frequencies.

    Parameters
    ----------
    inputs, samples
        As for `find_invalid`.
    thresholds : Thresholds
        Errors allowed to a sampler.
    repeats : int
        Number of draws that belong to different calls; these come first. The remaining calls repeat
        a seed, and return the same samples.
    seed : int
        Makes random values reproducible.
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
        repeated = [index for index, each in enumerate(drawn) if each.repeated is not None]
        if repeated and repeats > 1:
            first, more = repeated[0], len(repeated) - 1
            text = f"token {drawn[first].repeated} of row {first} is repeated beyond chance"
            findings.problems.append(text + (f", and so in {more} more rows" if more else ""))
        rows = [each.standard for each in drawn if each.standard is not None]
        if len(rows) > 1:
            found, limit = dependence(np.stack(rows, axis=1))
            findings.compare(
                "row_dependence", found, limit, "dependence of the rows on one another"
            )
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
    repeated = is_repeated(counts, probs[kinds] / support.mass, **limits)
    return _Drawn(
        tvd,
        expected_tvd(falling, len(tokens)),
        int(kinds[repeated.argmax()]) if repeated.any() else None,
        _by_probability(row, support, probs[tokens], generator),
        by_token,
        standard,
    )


def _by_probability(
    row: Row, support: Support, values: Vector, generator: np.random.Generator
) -> Vector:
    """Return the probability of all more probable tokens, plus a random part of the ties."""
    import numpy as np

    below = row.above[row.rank(values)]
    equals = len(row.rising) - row.rising.searchsorted(values, side="left")
    upto = np.where(values > support.floor, row.above[equals], support.mass)
    places: Vector = (below + generator.random(len(values)) * (upto - below)) / support.mass
    return places.clip(0.0, 1.0)


def _by_token(
    support: Support, probs: Vector, tokens: Vector, generator: np.random.Generator
) -> tuple[Optional[Vector], Optional[Vector]]:
    """Return the probability of all lower-numbered tokens, plus a random part of the token's own.

    Also return the middle of each token's range, standardised. If a few tokens have nearly all the
    probability, the middle hardly varies, and the random position is standardised instead.
    """
    import numpy as np

    if support.kept < support.tied:
        return None, None
    left = np.where(probs >= support.floor, probs, np.float32(0.0))
    upto = np.cumsum(left, dtype=np.float64)[tokens] / support.mass
    shares = left[tokens] / support.mass
    places: Vector = (upto - generator.random(len(tokens)) * shares).clip(0.0, 1.0)
    # The variance of positions is 1/12; within a token of share e it is e²/12.
    middle_variance = 1.0 - float((left / support.mass) @ np.square(left / support.mass))
    if middle_variance < 0.5:
        return places, (places - 0.5) / math.sqrt(_UNIFORM_VARIANCE)
    return places, (upto - 0.5 * shares - 0.5) / math.sqrt(_UNIFORM_VARIANCE * middle_variance)


def _note_distances(
    findings: Findings, drawn: list[_Drawn], repeats: int, thresholds: Thresholds
) -> None:
    import numpy as np

    rows = len(drawn)
    limits = [max(thresholds.tvd, each.expected_tvd + tvd_margin(repeats, rows)) for each in drawn]
    worst = max(range(rows), key=lambda index: drawn[index].tvd - limits[index])
    what = f"total-variation distance of row {worst}"
    findings.compare("tvd", drawn[worst].tvd, limits[worst], what)
    findings.distances["tvd"] = max(each.tvd for each in drawn)
    mean = float(np.mean([each.tvd for each in drawn]))
    noise = float(np.mean([each.expected_tvd for each in drawn]))
    limit = max(thresholds.tvd, noise + tvd_margin(repeats * rows))
    findings.compare("mean_tvd", mean, limit, "mean total-variation distance")
    by_token = [each.by_token for each in drawn if each.by_token is not None]
    for name, order, places in (
        ("ks_by_probability", "probabilities", [each.by_probability for each in drawn]),
        ("ks_by_token", "token numbers", by_token),
    ):
        if places:
            what = f"distance from the requested distribution, in the order of {order},"
            findings.compare(name, *_ks(places, thresholds.bias), what)
