"""Asking a dataset: best traces, scores, rankings."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Optional, TypeVar

from flashinfer_bench.data import ranking

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from flashinfer_bench.data.definition import Definition
    from flashinfer_bench.data.ranking import SpeedupMetrics, TraceSetSummary
    from flashinfer_bench.data.run_source import RunColumns, RunRow, RunSource
    from flashinfer_bench.data.solution import Solution
    from flashinfer_bench.data.trace import Trace

_Answer = TypeVar("_Answer")


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
    def run_source(self) -> RunSource:
        """Where the runs are to be had: from memory, or from the index of the folder."""

    @abstractmethod
    def _ask(self, question: Callable[[], _Answer]) -> _Answer:
        """Return the answer to a question that uses `run_source`."""

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
        return self._ask(lambda: self.run_source.filtered(def_name, atol, rtol))

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
        return self._ask(lambda: self.run_source.best(def_name, axes, max_abs_error, max_rel_error))

    def run_rows(self, def_name: Optional[str] = None) -> Iterator[RunRow]:
        """Yield the runs of a definition, or all, without their logs and without making traces.

        For very many runs `run_columns` is quicker.

        Parameters
        ----------
        def_name : str, optional
            Name of the definition.
        """
        groups = self.run_columns(def_name).values()
        return (row for columns in groups for row in columns.rows())

    def run_columns(self, def_name: Optional[str] = None) -> dict[str, RunColumns]:
        """Return the runs of a definition, or all, column by column and without making traces.

        This is the quick way to go through very many runs. Their logs and samples are read when
        they are asked for.

        Parameters
        ----------
        def_name : str, optional
            Name of the definition.

        Returns
        -------
        dict of str to RunColumns
            By definition, in the order in which they are met; those without runs are left out.
        """

        def columns() -> dict[str, RunColumns]:
            source = self.run_source
            names = source.names() if def_name is None else (def_name,)
            found = {name: source.columns(name) for name in names}
            return {name: group for name, group in found.items() if group}

        return self._ask(columns)

    def workload_uuids(self, def_name: str) -> list[str]:
        """Return the uuids of a definition's workloads, as often as they are recorded.

        Parameters
        ----------
        def_name : str
            Name of the definition.
        """
        return self._ask(lambda: self.run_source.workload_uuids(def_name))

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
        return self._ask(lambda: ranking.summarize(self, baseline_author, op_type, definition_name))

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
        return self._ask(lambda: ranking.score_solution(self, solution_name, baseline_author))

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
        return self._ask(
            lambda: ranking.score_author(self, author, baseline_author, op_type, definition_name)
        )

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
        return self._ask(
            lambda: ranking.rank_authors(self, baseline_author, op_type, definition_name)
        )
