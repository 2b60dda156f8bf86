"""The evaluator for indexers, which select the tokens that sparse attention looks at."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Optional

from fib_ops_llm.checks import compare_output, number_of, verdict, wrong_form
from flashinfer_bench.bench.correctness import as_tensors
from flashinfer_bench.bench.evaluators.base import Check, Evaluator, Trial
from flashinfer_bench.bench.evaluators.default import plain_number
from flashinfer_bench.data import Correctness, Definition, Workload

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import numpy as np
    import torch

    from flashinfer_bench.bench.config import ResolvedEvalConfig

    Vector = np.ndarray[Any, np.dtype[Any]]


# The scores by which a sparse-attention indexer selects tokens, computed by the judge.
#
# Two forms are known, told apart by the inputs that a definition has:
#
# * FP8 (DeepSeek-V3.2, as deep_gemm lays it out): ``q_index_fp8`` [batch, heads, d], ``weights``
#   [batch, heads], and ``k_index_cache_fp8`` [pages, page size, 1, d + 4] as bytes: per page first
#   all values, then one float32 scale for each token. Pages of a sequence come from
#   ``block_table``; the score of a token is Σ over heads of weight · relu(q · k).
# * Plain: ``q_index`` [batch, heads, d], ``k_index_cache`` [pages, page size, d], and
#   ``page_table`` with the token numbers of each sequence; the score is the mean over heads of q ·
#   k.
#
# ``seq_lens`` says how many tokens of a sequence there are. A token's number is page · page size +
# place in the page.


_SCALE_BYTES = 4


@dataclass(frozen=True)
class Candidates:
    """The tokens that one row selects from.

    Attributes
    ----------
    tokens : torch.Tensor
        Their numbers, int64; one that a table names twice is here twice.
    scores : torch.Tensor
        Their scores, float32.
    """

    tokens: torch.Tensor
    scores: torch.Tensor


def candidates_of(given: Mapping[str, Any]) -> Optional[Iterator[Candidates]]:
    """Return the candidates of each row, or None if the inputs are of no form that is known.

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
        # The mean over heads of a product is the product with the mean over heads.
        yield Candidates(tokens, keys[tokens].float() @ query.mean(dim=0))


def _lengths(given: Mapping[str, Any]) -> list[int]:
    return [int(length) for length in given["seq_lens"].tolist()]


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


#: How far a score may be from the last one to be selected, in units of the RMS of a row's scores.
SCORE_SLACK = 5e-3
#: Share of the reference's selection that is to be selected where scores are not known.
OVERLAP = 0.99


class DsaTopkIndexerEvaluator(Evaluator):
    """Check that each row holds the tokens of the largest scores, in any order.

    The judge computes the scores (see `candidates_of`). With *s* the smallest score that belongs
    into the selection of a row, and a slack of ``dsa_score_slack`` (0.005) times the RMS of the
    row's scores, for ties and for rounding (tensor cores add products of FP8 with 14 bits):

    * a token that is selected has at least *s* minus the slack;
    * no token of more than *s* plus the slack is left out;
    * as many tokens are selected as there are, at most as many as there is room for; the other
      places hold -1, wherever they are;
    * a token is there as often as the row's table names it: once, unless a page is there twice.

    The first two allow for wrong tokens if a ``required_matched_ratio`` is set, the others do not.
    Scores that are an output are compared with those of the tokens that the solution selected.

    Where inputs are of no form that is known, or the reference's own selection is not right by
    those scores, the selection is compared with the reference's: per row at least
    ``dsa_reference_overlap`` (0.99) of it must be there, which allows for ties.
    ``correctness.extra`` says which it was, as ``judged_by``; the errors are how far the worst
    score lies under *s*, in units of the RMS.
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
        problem = wrong_form(definition, workload, calls)
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


@dataclass(frozen=True)
class _Judged:
    """What is judged."""

    definition: Definition
    trial: Trial
    outputs: Sequence[torch.Tensor]

    @property
    def place(self) -> int:
        """Which output holds the selection: the first of integers."""
        kinds = [spec.dtype.is_integer for spec in self.definition.outputs.values()]
        return kinds.index(True) if True in kinds else 0

    @property
    def name(self) -> str:
        return list(self.definition.outputs)[self.place]

    @property
    def given(self) -> dict[str, Any]:
        return dict(zip(self.definition.inputs, self.trial.inputs, strict=True))

    def rows(self) -> Iterator[tuple[Any, Any]]:
        """Yield what each row selects, and what the reference selects there."""
        both = (self.outputs[self.place], self.trial.expected[self.place])
        arrays = [each.detach().reshape(-1, max(each.shape[-1], 1)).numpy() for each in both]
        return zip(*arrays, strict=True)


@dataclass(frozen=True)
class _Found:
    """What the rows show."""

    judged_by: str
    checks: tuple[RowCheck, ...]
    enough: float  # share of each row that must be right unless the configuration says otherwise
    scores: Optional[torch.Tensor] = None  # of what the solution selected


def _by_scores(judged: _Judged, slack: float) -> Optional[_Found]:
    """Judge by scores; return None if they are not what the definition's reference goes by."""
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
    """Return the score of each selected token, and -inf for all that is none."""
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
    """Yield the outputs that are no selection: scores, in whatever order tokens are."""
    for place, name in enumerate(judged.definition.outputs):
        if place == judged.place:
            continue
        actual, expected = judged.outputs[place], judged.trial.expected[place]
        if found.scores is not None and found.scores.shape == actual.shape:
            expected = found.scores
        elif actual.dim():
            actual, expected = (each.sort(dim=-1).values for each in (actual, expected))
        yield name, actual, expected


def _verdict(judged: _Judged, found: _Found, config: ResolvedEvalConfig) -> Check:
    required = config.tolerance_of(judged.name).required_matched_ratio or found.enough
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
        problems.append(f"output {judged.name!r}: row {index}: {text}: {first.problem}{more}")
    worst = max((each.shortfall for each in found.checks), default=0.0)
    if any(each.fatal for each in found.checks):
        worst = math.inf
    absolute, relative = [worst], [worst]
    for name, actual, expected in _others(judged, found):
        item, passes = compare_output(name, actual, expected, config)
        if not passes:
            problems.append(f"output {name!r}: {item.matched} of {item.elements} elements match")
        absolute.append(item.max_absolute_error)
        relative.append(item.max_relative_error)
    wanted = sum(each.wanted for each in found.checks)
    right = sum(each.right for each in found.checks)
    extra: dict[str, Any] = {
        "matched_ratio": right / wanted if wanted else 1.0,
        "judged_by": found.judged_by,
        "score_shortfall": plain_number(worst),
    }
    correctness = Correctness(
        max_absolute_error=max(absolute), max_relative_error=max(relative), extra=extra
    )
    return verdict(correctness, problems)
