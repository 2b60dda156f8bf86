"""Benchmarking: judge solutions on workloads and time them.

Every name is imported when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flashinfer_bench._lazy import exports
from flashinfer_bench.errors import RunnerError as RunnerError
from flashinfer_bench.errors import RunnerFatalError as RunnerFatalError

if TYPE_CHECKING:
    from flashinfer_bench.bench.benchmark import *  # noqa: F403
    from flashinfer_bench.bench.builds import BuildOutcome as BuildOutcome
    from flashinfer_bench.bench.config import *  # noqa: F403
    from flashinfer_bench.bench.evaluators import *  # noqa: F403
    from flashinfer_bench.bench.measurement import *  # noqa: F403
    from flashinfer_bench.bench.observers import *  # noqa: F403
    from flashinfer_bench.bench.plan import Skipped as Skipped
    from flashinfer_bench.bench.session import *  # noqa: F403

_NAMES = {
    "benchmark": "Benchmark",
    "build_run": "BuildRun",
    "builds": "BuildOutcome",
    "config": "BenchmarkConfig EvalConfig ResolvedEvalConfig",
    "evaluators": "DefaultEvaluator Evaluator resolve_evaluator",
    "observers": "RunObserver",
    "plan": "Skipped",
    "measurement": "BaselineHandle DeviceBaseline",
    "session": "IsolatedRunner PersistentRunner Runner",
}

__getattr__, __dir__, __all__ = exports(__name__, _NAMES)
__all__ += ["RunnerError", "RunnerFatalError"]
__all__.remove("BuildRun")  # of a plugin: a star import does without it
