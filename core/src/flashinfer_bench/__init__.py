"""FlashInfer-Bench: judge GPU kernels on real workloads, and put the best one to work.

Every public name is imported when it is first used: ``import flashinfer_bench`` loads neither
torch nor pydantic.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from flashinfer_bench._version import __version__

if TYPE_CHECKING:
    from flashinfer_bench.apply import ApplyConfig as ApplyConfig
    from flashinfer_bench.apply import ApplyConfigRegistry as ApplyConfigRegistry
    from flashinfer_bench.apply import ApplyRuntime as ApplyRuntime
    from flashinfer_bench.apply import apply as apply
    from flashinfer_bench.apply import disable_apply as disable_apply
    from flashinfer_bench.apply import enable_apply as enable_apply
    from flashinfer_bench.bench import Benchmark as Benchmark
    from flashinfer_bench.bench import BenchmarkConfig as BenchmarkConfig
    from flashinfer_bench.bench import EvalConfig as EvalConfig
    from flashinfer_bench.compile import Builder as Builder
    from flashinfer_bench.compile import BuilderRegistry as BuilderRegistry
    from flashinfer_bench.compile import Runnable as Runnable
    from flashinfer_bench.data import *  # noqa: F403
    from flashinfer_bench.tracing import TracingConfig as TracingConfig
    from flashinfer_bench.tracing import TracingConfigRegistry as TracingConfigRegistry
    from flashinfer_bench.tracing import TracingRuntime as TracingRuntime
    from flashinfer_bench.tracing import disable_tracing as disable_tracing
    from flashinfer_bench.tracing import enable_tracing as enable_tracing

_DATA_NAMES = (
    "AxisConst",
    "AxisSpec",
    "AxisVar",
    "BuildSpec",
    "CompileOptions",
    "Correctness",
    "DType",
    "Definition",
    "Environment",
    "Evaluation",
    "EvaluationStatus",
    "InputSpec",
    "Performance",
    "RandomInput",
    "SafetensorsInput",
    "ScalarInput",
    "Solution",
    "SourceFile",
    "SpeedupMetrics",
    "SupportedBindings",
    "SupportedLanguages",
    "TensorSpec",
    "Trace",
    "TraceSet",
    "TraceSetSummary",
    "Workload",
    "append_jsonl_file",
    "load_json_file",
    "load_jsonl_file",
    "save_json_file",
    "save_jsonl_file",
)

_APPLY_NAMES = (
    "ApplyConfig",
    "ApplyConfigRegistry",
    "ApplyRuntime",
    "apply",
    "disable_apply",
    "enable_apply",
)

_TRACING_NAMES = (
    "TracingConfig",
    "TracingConfigRegistry",
    "TracingRuntime",
    "disable_tracing",
    "enable_tracing",
)

_EXPORTS = {
    **dict.fromkeys(_APPLY_NAMES, "flashinfer_bench.apply"),
    **dict.fromkeys(_DATA_NAMES, "flashinfer_bench.data"),
    **dict.fromkeys(("Benchmark", "BenchmarkConfig", "EvalConfig"), "flashinfer_bench.bench"),
    **dict.fromkeys(("Builder", "BuilderRegistry", "Runnable"), "flashinfer_bench.compile"),
    **dict.fromkeys(("BuildError", "FibError"), "flashinfer_bench.errors"),
    **dict.fromkeys(_TRACING_NAMES, "flashinfer_bench.tracing"),
}

__all__ = ["__version__", *sorted(_EXPORTS)]


def __getattr__(name: str) -> Any:
    """Import a public name on first use (PEP 562)."""
    module = _EXPORTS.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = import_module(module)
    # `apply` is the module, which can be called: importing it has bound the name already, and
    # whoever imports flashinfer_bench.apply must find the module there.
    value = found if found.__name__.endswith(f".{name}") else getattr(found, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Return the public names, loaded or not."""
    return sorted({*globals(), *__all__})
