"""The evaluator for indexers, which select tokens for sparse attention."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Optional

from fib_ops_llm.checks import compare_output, number_of
from flashinfer_bench.bench.correctness import as_tensors, output_specs
from flashinfer_bench.bench.evaluators.base import Check, Evaluator, Trial
from flashinfer_bench.bench.evaluators.default import plain_number, wrong_form
from flashinfer_bench.data import Correctness, Definition, Workload

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import numpy as np
    import torch

    from flashinfer_bench.bench.config import ResolvedEvalConfig

    Vector = np.ndarray[Any, np.dtype[Any]]


# The scores by which a sparse-attention indexer selects tokens, computed by the judge.
#
# Two forms are supported, distinguished by the inputs of the definition:
#
# * FP8 (DeepSeek-V3.2, in the layout of deep_gemm): ``q_index_fp8`` [batch, heads, d], ``weights``
#   [batch, heads], and ``k_index_cache_fp8`` [pages, page size, 1, d + 4] as bytes: in each page
#   first all values, then one float32 scale per token. ``block_table`` lists the pages of a
#   sequence; the score of a token is Σ over heads of weight · relu(q · k).
# * Plain: ``q_index`` [batch, heads, d], ``k_index_cache`` [pages, page size, d], and
#   ``page_table`` with the token numbers of each sequence; the score is the mean over heads of q ·
#   k.
#
# ``seq_lens`` is the number of tokens of each sequence. A token's number is page · page size +
# position in the page.


_SCALE_BYTES = 4


@dataclass(frozen=True)
class Candidates:
    """The tokens from which one row selects.

    Attributes
    ----------
    tokens : torch.Tensor
        Token numbers, int64; a token that a table lists twice is included twice.
    scores : torch.Tensor
        Their scores, float32.
    """

    tokens: torch.Tensor
    scores: torch.Tensor


def candidates_of(given: Mapping[str, Any]) -> Optional[Iterator[Candidates]]:
    """Return the candidates of each row, or None if the inputs have no supported form.

    Parameters
    ----------
    given : mapping of str to Any
        The inputs by name.
    """
    fp8 = {"q_index_fp8", "k_index_cache_fp8", "weights", "seq_lens", "block_table"}
    plain = {"q_index", "k_index_cache", "seq_lens", "page_table"}
    if fp8 == set(given):
        query, cache = given["q_index_fp8"], given["k_index_cache_fp8"]
        layout = (1, query.shape[-1] + _SCALE_BYTES)
        fits = cache.element_size() == 1 and tuple(cache.shape[-2:]) == layout
        return _fp8_rows(given) if fits else None
    return _plain_rows(given) if plain == set(given) else None


def _fp8_rows(given: Mapping[str, Any]) -> Iterator[Candidates]:
    import torch

    cache, page_size = given["k_index_cache_fp8"], given["k_index_cache_fp8"].shape[1]
    paged = cache.contiguous().view(torch.uint8).reshape(len(cache), -1)
    queries = given["q_index_fp8"].float()
    within = torch.arange(page_size)
    weights_by_row = given["weights"].float()
    rows = zip(queries, weights_by_row, _lengths(given), given["block_table"], strict=True)
    for query, weights, length, table in rows:
        pages = table[: -(-length // page_size)].long()
        keys = _fp8_keys(paged[pages], page_size, query.shape[-1])[:length]
        scores = weights @ torch.relu_(query @ keys.T)
        tokens = (pages[:, None] * page_size + within).flatten()[:length]
        yield Candidates(tokens, scores)


def _fp8_keys(paged: torch.Tensor, page_size: int, dim: int) -> torch.Tensor:
    import torch

    values = paged[:, : page_size * dim].contiguous().view(torch.float8_e4m3fn).float()
    scales = paged[:, page_size * dim :].contiguous().view(torch.float32)
    return (values.reshape(len(paged), page_size, dim) * scales[..., None]).reshape(-1, dim)


def _plain_rows(given: Mapping[str, Any]) -> Iterator[Candidates]:
    keys = given["k_index_cache"].flatten(0, 1)
    rows = zip(given["q_index"].float(), _lengths(given), given["page_table"], strict=True)
    for query, length, table in rows:
        tokens = table[:length].long()
        # The mean over heads of the products equals the product with the mean over heads.
        yield Candidates(tokens, keys[tokens].float() @ query.mean(dim=0))


def _lengths(given: Mapping[str, Any]) -> list[int]:
    return [int(length) for length in given["seq_lens"].tolist()]


#: Value of unused places of a selection.
PADDING = -1


@dataclass(frozen=True)
class RowCheck:
    """Result of checking the selection of one row.

    Attributes
    ----------
    right : int
        Number of places that contain a correct token.
    wanted : int
        Number of places to be filled.
    shortfall : float
        Difference between the smallest correct score and the score of the worst token, in units of
        the RMS of all scores; infinite if the mistake is fatal.
    problem : str
        Description of the first mistake; empty if there is none.
    fatal : bool
        Whether the mistake fails the row regardless of the required share of correct tokens: a
        number that is not a token of the row, a repeated token, or a wrong number of filled places.
    """

    right: int
    wanted: int
    shortfall: float = 0.0
    problem: str = ""
    fatal: bool = False


def _fatal(wanted: int, problem: str) -> RowCheck:
    return RowCheck(0, wanted, math.inf, problem, fatal=True)


def check_row(selected: Vector, candidates: Candidates, slack: float) -> RowCheck:
    """Check a selection by the scores of all candidates.

    Parameters
    ----------
    selected : numpy.ndarray
        Token numbers in any order; `PADDING` at any place.
    candidates : Candidates
        All tokens of the row.
    slack : float
        Amount by which a selected token's score may be below the smallest correct score, in units
        of the RMS of all scores; and by which an unselected token's score must exceed it to count
        as missing.
    """
    import numpy as np

    tokens, scores = candidates.tokens.numpy(), candidates.scores.double().numpy()
    wanted = min(len(selected), len(tokens))
    filled = selected[selected != PADDING].astype(np.int64)
    if len(filled) != wanted:
        text = f"{len(filled)} tokens are selected instead of {wanted}"
        return _fatal(wanted, text)
    if not wanted:
        return RowCheck(0, 0)
    known, first, copies = np.unique(tokens, return_index=True, return_counts=True)
    kinds, counts = np.unique(filled, return_counts=True)
    places = known.searchsorted(kinds).clip(0, len(known) - 1)
    strange = (known[places] != kinds) | (counts > copies[places])
    if strange.any():
        bad = strange.argmax()
        why = "is not a token of the row" if known[places[bad]] != kinds[bad] else "is repeated"
        return _fatal(wanted, f"{int(kinds[bad])} {why}")
    chosen = np.zeros(len(known), dtype=np.int64)
    chosen[places] = counts
    return _by_score(known, scores[first], copies, chosen, wanted, slack)


def _by_score(
    tokens: Vector, scores: Vector, copies: Vector, chosen: Vector, wanted: int, slack: float
) -> RowCheck:
    """Compare the scores with the smallest score of a correct selection."""
    import numpy as np

    scores = np.where(np.isnan(scores), np.inf, scores)  # NaN sorts first, as in torch.topk
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
    """Check a selection against the reference's selection, if scores are unknown.

    Parameters
    ----------
    selected, expected : numpy.ndarray
        Token numbers, in any order.
    tokens : int
        Valid token numbers are in [0, tokens).
    """
    import numpy as np

    filled = selected[selected != PADDING].astype(np.int64)
    right = expected[expected != PADDING].astype(np.int64)
    if len(filled) != len(right):
        text = f"{len(filled)} tokens are selected instead of {len(right)}"
        return _fatal(len(right), text)
    strange = (filled < 0) | (filled >= tokens)
    if strange.any():
        text = f"{int(filled[strange.argmax()])} is not in [0, {tokens})"
        return _fatal(len(right), text)
    if len(np.unique(filled)) < len(filled) and len(np.unique(right)) == len(right):
        return _fatal(len(right), "a token is repeated")
    shared = int(np.isin(filled, right).sum())
    text = "" if shared == len(right) else f"{len(right) - shared} tokens differ from the reference"
    return RowCheck(shared, len(right), 0.0, text)


#: Tolerance of scores around the smallest correct one, in units of the RMS of a row's scores.
SCORE_SLACK = 5e-3
#: Required share of the reference's selection if scores are unknown.
OVERLAP = 0.99


class DsaTopkIndexerEvaluator(Evaluator):
    """Check that each row selects the tokens with the largest scores, in any order.

    The judge computes the scores (see `candidates_of`). Let *s* be the smallest score of a correct
    selection of a row. The slack is ``dsa_score_slack`` (0.005) times the RMS of the row's scores;
    it covers ties and rounding (tensor cores add FP8 products with 14 bits). Then:

    * every selected token must have a score of at least *s* minus the slack;
    * no token with a score above *s* plus the slack may be left out;
    * the number of selected tokens must equal the number of tokens, or of places if there are
      fewer; all other places must contain -1, in any position;
    * a token must not occur more often than in the row's table: once, unless a page is listed
      twice.

    The first two rules allow for wrong tokens if a ``required_matched_ratio`` is set, the others do
    not. If scores are an output, they are compared with those of the tokens that the solution
    selected.

    If the inputs have no supported form, or the reference's own selection is not correct by these
    scores, the selection is compared with the reference's: each row must contain at least
    ``dsa_reference_overlap`` (0.99) of it, which allows for ties.
    ``correctness.extra`` records the method used as ``judged_by``; the errors are the distance of
    the worst score below *s*, in units of the RMS.
    """

    name = "dsa_topk_indexer"
    version = "1"

    def check_settings(self, config: ResolvedEvalConfig) -> None:
        """See `Evaluator.check_settings`."""
        _limits(config)

    def check(
        self,
        definition: Definition,
        workload: Workload,
        trial: Trial,
        calls: Sequence[Sequence[Any]],
        config: ResolvedEvalConfig,
    ) -> Check:
        """See `Evaluator.check`."""
        slack, overlap = _limits(config)
        problem = wrong_form(output_specs(definition, workload.axes), calls)
        if problem is not None:
            return problem
        judged = _Judged(definition, trial, as_tensors(calls[-1]))
        found = _by_scores(judged, slack) or _by_reference(judged, overlap)
        return _verdict(judged, found, config)


def _limits(config: ResolvedEvalConfig) -> tuple[float, float]:
    return (
        number_of(config, "dsa_score_slack", SCORE_SLACK),
        number_of(config, "dsa_reference_overlap", OVERLAP, most=1.0),
    )


class _Judged:
    """What is judged."""

    def __init__(
        self, definition: Definition, trial: Trial, outputs: Sequence[torch.Tensor]
    ) -> None:
        self.names = list(definition.outputs)
        self.given = dict(zip(definition.inputs, trial.inputs, strict=True))
        self.outputs, self.expected = outputs, trial.expected
        kinds = [spec.dtype.is_integer for spec in definition.outputs.values()]
        self.place = kinds.index(True) if True in kinds else 0  # of the selection

    def rows(self) -> Iterator[tuple[Any, Any]]:
        """Yield the selections of the solution and the reference for each row."""
        both = (self.outputs[self.place], self.expected[self.place])
        arrays = [each.detach().reshape(-1, max(each.shape[-1], 1)).numpy() for each in both]
        return zip(*arrays, strict=True)


@dataclass(frozen=True)
class _Found:
    """Results for all rows."""

    judged_by: str
    checks: tuple[RowCheck, ...]
    enough: float  # default share of each row that must be correct
    scores: Optional[torch.Tensor] = None  # scores of the selected tokens


def _by_scores(judged: _Judged, slack: float) -> Optional[_Found]:
    """Judge by scores; return None if the reference's selection does not agree with them."""
    import torch

    candidates = candidates_of(judged.given)
    if candidates is None:
        return None
    checks, scores = [], []
    for row, (selected, expected) in zip(candidates, judged.rows(), strict=True):
        if check_row(expected, row, slack).problem:
            return None
        checks.append(check_row(selected, row, slack))
        scores.append(_scores_of(selected, row))
    return _Found("scores", tuple(checks), 1.0, torch.stack(scores) if scores else None)


def _scores_of(selected: Any, row: Candidates) -> torch.Tensor:
    """Return the score of each selected token, and -inf for invalid ones."""
    import torch

    wanted = torch.from_numpy(selected).long()
    if not len(row.tokens):
        return torch.full(wanted.shape, -math.inf)
    known, order = row.tokens.sort()
    places = torch.searchsorted(known, wanted).clamp_(max=len(known) - 1)
    found = row.scores[order][places]
    return found.masked_fill(known[places] != wanted, -math.inf)


def _by_reference(judged: _Judged, overlap: float) -> _Found:
    pages = [each.shape for name, each in judged.given.items() if "cache" in name]
    tokens = max((shape[0] * shape[1] for shape in pages if len(shape) > 1), default=2**31)
    checks = tuple(check_row_against(*pair, tokens) for pair in judged.rows())
    return _Found("reference", checks, overlap)


def _others(judged: _Judged, found: _Found) -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
    """Yield the outputs other than the selection: scores, in the order of the tokens."""
    for place, name in enumerate(judged.names):
        if place == judged.place:
            continue
        actual, expected = judged.outputs[place], judged.expected[place]
        if found.scores is not None and found.scores.shape == actual.shape:
            expected = found.scores
        elif actual.dim():
            actual, expected = (each.sort(dim=-1).values for each in (actual, expected))
        yield name, actual, expected


def _verdict(judged: _Judged, found: _Found, config: ResolvedEvalConfig) -> Check:
    selection = judged.names[judged.place]
    required = config.tolerance_of(selection).required_matched_ratio or found.enough
    wrong = [
        (index, each)
        for index, each in enumerate(found.checks)
        if each.fatal or each.right < required * each.wanted
    ]
    problems = []
    if wrong:
        index, first = wrong[0]
        more = f"; {len(wrong)} of {len(found.checks)} rows are wrong" if len(wrong) > 1 else ""
        text = f"{first.right} of {first.wanted} right" if not first.fatal else "no selection"
        problems.append(f"output {selection!r}: row {index}: {text}: {first.problem}{more}")
    worst = max((each.shortfall for each in found.checks), default=0.0)
    absolute = relative = worst
    for name, actual, expected in _others(judged, found):
        item, passes = compare_output(name, actual, expected, config)
        if not passes:
            problems.append(f"output {name!r}: {item.matched} of {item.elements} elements match")
        absolute = max(absolute, item.max_absolute_error)
        relative = max(relative, item.max_relative_error)
    wanted = sum(each.wanted for each in found.checks)
    right = sum(each.right for each in found.checks)
    extra: dict[str, Any] = {
        "matched_ratio": right / wanted if wanted else 1.0,
        "judged_by": found.judged_by,
        "score_shortfall": plain_number(worst),
    }
    correctness = Correctness(max_absolute_error=absolute, max_relative_error=relative, extra=extra)
    return Check.of(correctness, problems)
