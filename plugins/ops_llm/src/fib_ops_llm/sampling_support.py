"""Which tokens the filters of a sampler leave, and with which probabilities.

Sorted by falling probability, every filter leaves a prefix: top-k the first k tokens; top-p then
the shortest prefix whose share of what is left reaches p; min-p the tokens with at least min-p
times the largest probability. Where a prefix ends among equal probabilities, or so near to p that
rounding decides, more than one answer is right: all of them are listed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy as np

    from fib_ops_llm.sampling_inputs import SamplingInputs

    Vector = np.ndarray[Any, np.dtype[Any]]

#: Share of the mass within which top-p may end elsewhere: a float32 sum over 10⁵ tokens, in any
#: order, is known no better.
_TOP_P_SLACK = 1e-3
_MIN_P_SLACK = 1e-6  # relative: one multiplication and one comparison
_SOFTMAX_SLACK = 1e-5  # relative, of probabilities that a solution computes from logits


@dataclass(frozen=True)
class Support:
    """One right answer to which tokens are left.

    Attributes
    ----------
    floor : float
        The smallest probability (as given, not renormalised) of a token that is left.
    kept, tied : int
        How many tokens of exactly that probability are left, and how many there are.
    mass : float
        Sum of the probabilities of all that are left.
    """

    floor: float
    kept: int
    tied: int
    mass: float


@dataclass(frozen=True)
class Row:
    """A distribution, and all right answers to which tokens of it are left.

    Attributes
    ----------
    rising : numpy.ndarray
        All probabilities, sorted.
    above : numpy.ndarray
        ``above[n]`` is the sum of the *n* largest.
    supports : tuple of Support
        At least one.
    slack : float
        Relative rounding within which a token's probability may reach a floor.
    """

    rising: Vector
    above: Vector
    supports: tuple[Support, ...]
    slack: float

    @property
    def floor(self) -> float:
        """The least probability that a token may have to be sampled at all."""
        return min(each.floor for each in self.supports) * (1.0 - self.slack)

    def rank(self, values: Any) -> Any:
        """Return how many tokens have a larger probability than each of `values`."""
        return len(self.rising) - self.rising.searchsorted(values, side="right")

    def falling(self, support: Support) -> Vector:
        """Return the probabilities under `support`, renormalised, from the largest on."""
        length = int(self.rank(support.floor)) + support.kept
        return self.rising[::-1][:length].astype("float64") / support.mass


def row_of(inputs: SamplingInputs, index: int) -> Row:
    """Return what is left of row `index` by the filters of `inputs`."""
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
    """Return where the tokens end that are as probable as the last of a prefix."""
    return len(row.rising) - int(row.rising.searchsorted(row.rising[-length], side="left"))


def _with_ties(row: Row, lengths: Iterable[int], most: int) -> set[int]:
    """Add that an implementation may keep all tokens as probable as the last one."""
    return {end for each in lengths for end in (each, min(_end_of_ties(row, each), most))}


def _after_top_k(row: Row, lengths: set[int], k: float) -> set[int]:
    most = max(lengths)
    if not 0 < k < most:
        return lengths  # asks for none, or for more than there are: nothing is filtered
    return _with_ties(row, {int(k)}, most)


def _after_top_p(row: Row, lengths: set[int], p: float) -> set[int]:
    if p <= 0.0:
        return _with_ties(row, {1}, max(lengths))  # the most probable token alone
    if p >= 1.0:
        return lengths
    found = set()
    for most in lengths:
        for share in (p - _TOP_P_SLACK, p + _TOP_P_SLACK):
            # Token j is left if those before it sum up to no more than the share.
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
    """Return the answer that samples fit best, and their total-variation distance from it.

    The distance between frequencies *f* and probabilities *e* is 1 - Σ min(*f*, *e*), to which
    only tokens that were sampled add.

    Parameters
    ----------
    row : Row
        Distribution and right answers.
    values, counts : numpy.ndarray
        Probability of each token that was sampled, and how often it was.
    """
    frequencies = counts / counts.sum()
    overlaps = [_overlap(each, values, frequencies) for each in row.supports]
    best = max(range(len(overlaps)), key=overlaps.__getitem__)
    return row.supports[best], max(0.0, 1.0 - overlaps[best])


def _overlap(support: Support, values: Vector, frequencies: Vector) -> float:
    import numpy as np

    inside = values > support.floor
    found = np.minimum(values[inside].astype("float64") / support.mass, frequencies[inside]).sum()
    # Any `kept` of the tied tokens may be the ones that are left: those sampled most often.
    tied: Vector = np.sort(frequencies[values == support.floor])[::-1][: support.kept]
    return float(found + np.minimum(tied, support.floor / support.mass).sum())
