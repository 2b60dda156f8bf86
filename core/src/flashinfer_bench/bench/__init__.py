"""Benchmarking: judge solutions on workloads and time them.

Every name is imported when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flashinfer_bench.bench.benchmark import Benchmark as Benchmark
    from flashinfer_bench.bench.build_run import BuildRun as BuildRun
    from flashinfer_bench.bench.builds import BuildOutcome as BuildOutcome
    from flashinfer_bench.bench.config import BenchmarkConfig as BenchmarkConfig
    from flashinfer_bench.bench.config import EvalConfig as EvalConfig
    from flashinfer_bench.bench.config import ResolvedEvalConfig as ResolvedEvalConfig
    from flashinfer_bench.bench.evaluators import DefaultEvaluator as DefaultEvaluator
    from flashinfer_bench.bench.evaluators import Evaluator as Evaluator
    from flashinfer_bench.bench.evaluators import resolve_evaluator as resolve_evaluator
    from flashinfer_bench.bench.judge.baseline import BaselineHandle as BaselineHandle
    from flashinfer_bench.bench.judge.baseline import DeviceBaseline as DeviceBaseline
    from flashinfer_bench.bench.observers import RunObserver as RunObserver
    from flashinfer_bench.bench.plan import Skipped as Skipped
    from flashinfer_bench.bench.runner import IsolatedRunner as IsolatedRunner
    from flashinfer_bench.bench.runner import PersistentRunner as PersistentRunner
    from flashinfer_bench.bench.runner import Runner as Runner
    from flashinfer_bench.errors import RunnerError as RunnerError
    from flashinfer_bench.errors import RunnerFatalError as RunnerFatalError

_BENCH = "flashinfer_bench.bench"
_EXPORTS = {
    "BaselineHandle": f"{_BENCH}.judge.baseline",
    "Benchmark": f"{_BENCH}.benchmark",
    "BenchmarkConfig": f"{_BENCH}.config",
    "BuildOutcome": f"{_BENCH}.builds",
    "BuildRun": f"{_BENCH}.build_run",
    "DefaultEvaluator": f"{_BENCH}.evaluators",
    "DeviceBaseline": f"{_BENCH}.judge.baseline",
    "EvalConfig": f"{_BENCH}.config",
    "Evaluator": f"{_BENCH}.evaluators",
    "IsolatedRunner": f"{_BENCH}.runner",
    "PersistentRunner": f"{_BENCH}.runner",
    "ResolvedEvalConfig": f"{_BENCH}.config",
    "RunObserver": f"{_BENCH}.observers",
    "Runner": f"{_BENCH}.runner",
    "RunnerError": "flashinfer_bench.errors",
    "RunnerFatalError": "flashinfer_bench.errors",
    "Skipped": f"{_BENCH}.plan",
    "resolve_evaluator": f"{_BENCH}.evaluators",
}

__all__ = sorted(_EXPORTS)


def __getattr__(name: str) -> Any:
    """Import a public name on first use (PEP 562)."""
    module = _EXPORTS.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Return the public names, loaded or not."""
    return sorted({*globals(), *__all__})
