"""The evaluator for indexers, which select the tokens that sparse attention looks at."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Optional

from fib_ops_llm.checks import compare_output, verdict, wrong_form
from fib_ops_llm.index_scores import candidates_of
from fib_ops_llm.selection import check_row, check_row_against
from fib_ops_llm.settings import number_of
from flashinfer_bench.bench.correctness import as_tensors
from flashinfer_bench.bench.evaluators.base import Evaluator
from flashinfer_bench.bench.evaluators.default import plain_number
from flashinfer_bench.data import Correctness

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import torch

    from fib_ops_llm.index_scores import Candidates
    from fib_ops_llm.selection import RowCheck
    from flashinfer_bench.bench.config import ResolvedEvalConfig
    from flashinfer_bench.bench.evaluators.base import Check, Trial
    from flashinfer_bench.data import Definition, Workload

#: How far a score may be from the last one to be selected, in units of the RMS of a row's scores.
SCORE_SLACK = 5e-3
#: Share of the reference's selection that is to be selected where scores are not known.
OVERLAP = 0.99


class DsaTopkIndexerEvaluator(Evaluator):
    """Check that each row holds the tokens of the largest scores, in any order.

    The judge computes the scores (see `index_scores`). With *s* the smallest score that belongs
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
    problems = _problems_of_rows(found.checks, required, judged.name)
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


def _problems_of_rows(checks: Sequence[RowCheck], required: float, name: str) -> list[str]:
    wrong = [
        (index, each)
        for index, each in enumerate(checks)
        if each.fatal or each.right < required * each.wanted
    ]
    if not wrong:
        return []
    index, first = wrong[0]
    more = f"; {len(wrong)} of {len(checks)} rows are wrong" if len(wrong) > 1 else ""
    text = f"{first.right} of {first.wanted} right" if not first.fatal else "no selection"
    return [f"output {name!r}: row {index}: {text}: {first.problem}{more}"]
