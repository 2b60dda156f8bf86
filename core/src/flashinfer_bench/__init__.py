"""FlashInfer-Bench: judge GPU kernels on real workloads, and put the best one to work.

Every public name is imported when it is first used: ``import flashinfer_bench`` loads neither
torch nor pydantic.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flashinfer_bench._lazy import exports
from flashinfer_bench._version import __version__

if TYPE_CHECKING:
    from flashinfer_bench.apply import ApplyConfig as ApplyConfig
    from flashinfer_bench.apply import ApplyConfigRegistry as ApplyConfigRegistry
    from flashinfer_bench.apply import ApplyRuntime as ApplyRuntime
    from flashinfer_bench.apply import apply as apply
    from flashinfer_bench.apply import disable_apply as disable_apply
    from flashinfer_bench.apply import enable_apply as enable_apply
    from flashinfer_bench.bench import *  # noqa: F403
    from flashinfer_bench.compile import *  # noqa: F403
    from flashinfer_bench.data import *  # noqa: F403
    from flashinfer_bench.tracing import *  # noqa: F403

_NAMES = {
    "agents": "FFI_PROMPT FFI_PROMPT_SIMPLE",
    "apply": "ApplyConfig ApplyConfigRegistry ApplyRuntime apply disable_apply enable_apply",
    "bench": "Benchmark BenchmarkConfig EvalConfig",
    "compile": "Builder BuilderRegistry Runnable",
    "data": (
        "AxisConst AxisSpec AxisVar BuildSpec CompileOptions Correctness DType Definition "
        "Environment Evaluation EvaluationStatus InputSpec Performance RandomInput "
        "SafetensorsInput ScalarInput Solution SourceFile SpeedupMetrics SupportedBindings "
        "SupportedLanguages TensorSpec Trace TraceSet TraceSetSummary Workload "
        "append_jsonl_file load_json_file load_jsonl_file save_json_file save_jsonl_file"
    ),
    "errors": "BuildError FibError",
    "tracer": "TracingRule get_tracer",
    "tracing": (
        "TracingConfig TracingConfigRegistry TracingRuntime disable_tracing enable_tracing"
    ),
}

__getattr__, __dir__, __all__ = exports(__name__, _NAMES)
__all__ += ["__version__"]
