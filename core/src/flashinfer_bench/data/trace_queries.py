"""Asking a dataset: best traces, scores, rankings."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Optional

from flashinfer_bench.data import ranking

if TYPE_CHECKING:
    from collections.abc import Mapping

    from flashinfer_bench.data.definition import Definition
    from flashinfer_bench.data.ranking import SpeedupMetrics, TraceSetSummary
    from flashinfer_bench.data.solution import Solution
    from flashinfer_bench.data.trace import Trace


class TraceQueries(ABC):
    """The questions that can be put to a `TraceSet`; the answers are computed in `ranking`.

    Attributes
    ----------
    definitions : dict of str to Definition
        By name.
    solutions : dict of str to list of Solution
        By definition.
    """

    definitions: dict[str, Definition]
    solutions: dict[str, list[Solution]]
    _solution_index: dict[str, Solution]

    @property
    @abstractmethod
    def traces(self) -> dict[str, list[Trace]]:
        """Traces of runs by definition."""

    def get_solution(self, name: str) -> Optional[Solution]:
        """Return the solution of that name, or None."""
        found = self._solution_index.get(name)
        if found is None or not self._holds(found):  # `solutions` is a plain dict: anyone may edit
            groups = self.solutions.values()
            found = next((one for group in groups for one in group if one.name == name), None)
            if found is not None:
                self._solution_index[name] = found
        return found

    def _index_solutions(self) -> None:
        self._solution_index = {one.name: one for group in self.solutions.values() for one in group}

    def _holds(self, solution: Solution) -> bool:
        return any(solution is other for other in self.solutions.get(solution.definition, ()))

    def filter_traces(self, def_name: str, atol: float = 1e-2, rtol: float = 1e-2) -> list[Trace]:
        """Return the traces of a definition that passed within both tolerances.

        Parameters
        ----------
        def_name : str
            Name of the definition.
        atol, rtol : float
            Largest absolute and relative error.
        """
        return ranking.filter_traces(self.traces.get(def_name, []), atol, rtol)

    def get_best_trace(
        self,
        def_name: str,
        axes: Optional[Mapping[str, int]] = None,
        max_abs_error: float = 1e-2,
        max_rel_error: float = 1e-2,
    ) -> Optional[Trace]:
        """Return the trace with the highest speedup factor.

        Parameters
        ----------
        def_name : str
            Name of the definition.
        axes : mapping of str to int, optional
            Consider only workloads with exactly these axis values.
        max_abs_error, max_rel_error : float
            Largest absolute and relative error.

        Returns
        -------
        Trace or None
            None if no trace qualifies. Of equals, the first recorded.
        """
        traces = self.traces.get(def_name, [])
        return ranking.best_trace(traces, axes, max_abs_error, max_rel_error)

    def summary(
        self,
        baseline_author: str = "baseline",
        op_type: Optional[str] = None,
        definition_name: Optional[str] = None,
    ) -> TraceSetSummary:
        """Count traces and rank authors.

        Definitions that cannot be ranked, most often because there is no solution by the baseline
        author, are named in the result with the reason; they are counted all the same.

        Parameters
        ----------
        baseline_author : str
            Author whose solutions the others are compared with.
        op_type : str, optional
            Consider only definitions of this type.
        definition_name : str, optional
            Consider only this definition.

        Raises
        ------
        KeyError
            If there is no such definition.
        ValueError
            If both `op_type` and `definition_name` are given.
        """
        return ranking.summarize(self, baseline_author, op_type, definition_name)

    def get_solution_score(
        self, solution_name: str, baseline_author: str = "baseline"
    ) -> Optional[SpeedupMetrics]:
        """Compare one solution with the baseline of its definition.

        Parameters
        ----------
        solution_name : str
            The solution.
        baseline_author : str
            Author of the baseline.

        Returns
        -------
        SpeedupMetrics or None
            None if there is no such solution, it is the baseline itself, or no workload has passing
            traces of both. Zero if any trace of the solution failed.

        Raises
        ------
        ValueError
            If the definition has no solution by the baseline author, or more than one, or if a
            passing trace has a latency that is not positive.
        """
        return ranking.score_solution(self, solution_name, baseline_author)

    def get_author_score(
        self,
        author: str,
        baseline_author: str = "baseline",
        op_type: Optional[str] = None,
        definition_name: Optional[str] = None,
    ) -> Optional[SpeedupMetrics]:
        """Return the mean, over definitions, of the score of the author's best solution.

        Returns
        -------
        SpeedupMetrics or None
            None if the author has no solution that can be scored.

        Raises
        ------
        KeyError
            If there is no such definition.
        ValueError
            If both `op_type` and `definition_name` are given; also as of `get_solution_score`.
        """
        return ranking.score_author(self, author, baseline_author, op_type, definition_name)

    def rank_authors(
        self,
        baseline_author: str = "baseline",
        op_type: Optional[str] = None,
        definition_name: Optional[str] = None,
    ) -> list[tuple[str, SpeedupMetrics]]:
        """Return all authors with a score, the best first; equals by name.

        Raises
        ------
        KeyError
            If there is no such definition.
        ValueError
            If both `op_type` and `definition_name` are given; if a definition with solutions has
            none by the baseline author, or more than one; if a latency is not positive.
        """
        return ranking.rank_authors(self, baseline_author, op_type, definition_name)
