"""Running references in a process of their own, as a benchmark does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Optional

from flashinfer_bench.bench.backends import choose_devices, make_executor
from flashinfer_bench.bench.judge.structure import as_tensors, find_problem, output_specs
from flashinfer_bench.bench.pool import WorkerPool
from flashinfer_bench.bench.sandbox import Sandbox
from flashinfer_bench.errors import RunnerError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from typing_extensions import Self

    from flashinfer_bench.bench import BenchmarkConfig
    from flashinfer_bench.data import Definition, Workload
    from flashinfer_bench.plugins import Catalog


class ReferenceRuns:
    """Calls the references of definitions, one after the other, each in a confined process.

    Parameters
    ----------
    catalog : Catalog
        What is installed.
    config : BenchmarkConfig
        Says how long a call may take, and how far processes are confined.
    """

    def __init__(self, catalog: Catalog, config: BenchmarkConfig) -> None:
        device = choose_devices(config.device)[0]
        self._executor = make_executor(catalog, device, config.executor)
        self._pool = WorkerPool(self._executor, keep=1, sandbox=Sandbox(config.sandbox))
        self._timeout_s = config.timeout_seconds
        self._definition: Optional[Definition] = None

    def call(self, definition: Definition, workload: Workload, inputs: Sequence[Any]) -> list[Any]:
        """Call the reference once, and return its outputs as CPU tensors.

        Raises
        ------
        CandidateError
            If it raises, hangs or dies.
        RunnerError
            If it returns something else than its definition declares.
        RunnerFatalError
            If no process can be started.
        """
        axes = {axis: workload.axes[axis] for axis in definition.var_axes}
        outputs = self._outputs(definition, axes, inputs)
        problem = find_problem(outputs, output_specs(definition, axes), exact_dtype=False)
        if problem is not None:
            raise RunnerError(
                f"the reference of {definition.name!r} does not return what it declares: "
                f"{problem.message}",
                hint="correct the definition's outputs or its reference",
            )
        return as_tensors(outputs)

    def _outputs(
        self, definition: Definition, axes: dict[str, int], inputs: Sequence[Any]
    ) -> list[Any]:
        from flashinfer_bench.compile import reference_solution

        if self._definition is not definition:
            self._pool.clear()
            self._definition = definition
        with self._pool.worker(("reference", definition.name)) as worker:
            solution = reference_solution(definition)
            worker.load(definition, solution, timeout_s=self._timeout_s)
            worker.candidate.put_inputs(0, inputs, axes, timeout_s=self._timeout_s)
            return worker.candidate.call(0, timeout_s=self._timeout_s)

    def close(self) -> None:
        """End all processes; idempotent."""
        self._pool.clear()
        self._executor.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: Optional[type[BaseException]],
        error: Optional[BaseException],
        traceback: Optional[TracebackType],
    ) -> None:
        self.close()
