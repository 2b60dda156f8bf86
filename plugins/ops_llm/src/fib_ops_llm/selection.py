"""Whether a row of token numbers is the selection of those with the largest scores."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

    from fib_ops_llm.index_scores import Candidates

    Vector = np.ndarray[Any, np.dtype[Any]]

#: What stands where there is nothing to select.
PADDING = -1


@dataclass(frozen=True)
class RowCheck:
    """What is wrong with the selection of one row.

    Attributes
    ----------
    right : int
        How many of the places that are to be filled hold a token that belongs there.
    wanted : int
        How many places are to be filled.
    shortfall : float
        By how much the worst token's score lies under the smallest that belongs there, in units
        of the RMS of all scores.
    problem : str
        What the first mistake is; empty if there is none.
    fatal : bool
        Whether it is one that no share of wrong tokens allows for: a number that is no token of
        the row, a repeated one, or another number of places filled.
    """

    right: int
    wanted: int
    shortfall: float = 0.0
    problem: str = ""
    fatal: bool = False


def check_row(selected: Vector, candidates: Candidates, slack: float) -> RowCheck:
    """Check a selection by the scores of what could be selected.

    Parameters
    ----------
    selected : numpy.ndarray
        Token numbers in any order; `PADDING` anywhere.
    candidates : Candidates
        All tokens of the row.
    slack : float
        How far under the smallest score that belongs into the selection a score may lie, in units
        of the RMS of all scores; and how far above it a score must lie to be indispensable.
    """
    import numpy as np

    tokens, scores = candidates.tokens.numpy(), candidates.scores.double().numpy()
    wanted = min(len(selected), len(tokens))
    filled = selected[selected != PADDING].astype(np.int64)
    if len(filled) != wanted:
        text = f"{len(filled)} tokens are selected instead of {wanted}"
        return RowCheck(0, wanted, 0.0, text, fatal=True)
    if not wanted:
        return RowCheck(0, 0)
    known, first, copies = np.unique(tokens, return_index=True, return_counts=True)
    kinds, counts = np.unique(filled, return_counts=True)
    places = known.searchsorted(kinds).clip(0, len(known) - 1)
    strange = (known[places] != kinds) | (counts > copies[places])
    if strange.any():
        bad = strange.argmax()
        why = "is no token of the row" if known[places[bad]] != kinds[bad] else "is there twice"
        return RowCheck(0, wanted, 0.0, f"{int(kinds[bad])} {why}", fatal=True)
    chosen = np.zeros(len(known), dtype=np.int64)
    chosen[places] = counts
    return _by_score(known, scores[first], copies, chosen, wanted, slack)


def _by_score(
    tokens: Vector, scores: Vector, copies: Vector, chosen: Vector, wanted: int, slack: float
) -> RowCheck:
    """Compare with the score that the last token of a right selection has."""
    import numpy as np

    scores = np.where(np.isnan(scores), np.inf, scores)  # NaN goes first, as in torch.topk
    every = np.repeat(scores, copies)
    smallest = np.partition(every, len(every) - wanted)[len(every) - wanted]
    finite = every[np.isfinite(every)]
    size = float(np.sqrt(np.square(finite).mean())) if finite.any() else 1.0
    low = (scores < smallest - slack * size) & (chosen > 0)
    left_out = (scores > smallest + slack * size) & (chosen < copies)
    missing = int((copies - chosen)[left_out].sum())
    wrong = max(int(chosen[low].sum()), missing)
    if not wrong:
        return RowCheck(wanted, wanted)
    shortfall = float((min(smallest, finite.max()) - scores[chosen > 0].min()) / size)
    which = low if low.any() else left_out
    place, verb = int(which.argmax()), "is selected" if low.any() else "is left out"
    text = f"token {int(tokens[place])} of score {scores[place]:.6g} {verb}"
    text += f", where the last to be selected has {smallest:.6g}"
    return RowCheck(wanted - wrong, wanted, max(shortfall, 0.0), text)


def check_row_against(selected: Vector, expected: Vector, tokens: int) -> RowCheck:
    """Check a selection by what the reference selected, where scores are not known.

    Parameters
    ----------
    selected, expected : numpy.ndarray
        Token numbers, in any order.
    tokens : int
        Numbers are in [0, tokens).
    """
    import numpy as np

    filled = selected[selected != PADDING].astype(np.int64)
    right = expected[expected != PADDING].astype(np.int64)
    if len(filled) != len(right):
        text = f"{len(filled)} tokens are selected instead of {len(right)}"
        return RowCheck(0, len(right), 0.0, text, fatal=True)
    strange = (filled < 0) | (filled >= tokens)
    if strange.any():
        text = f"{int(filled[strange.argmax()])} is not in [0, {tokens})"
        return RowCheck(0, len(right), 0.0, text, fatal=True)
    if len(np.unique(filled)) < len(filled) and len(np.unique(right)) == len(right):
        return RowCheck(0, len(right), 0.0, "a token is there twice", fatal=True)
    shared = int(np.isin(filled, right).sum())
    text = "" if shared == len(right) else f"{len(right) - shared} tokens are not the reference's"
    return RowCheck(shared, len(right), 0.0, text)
