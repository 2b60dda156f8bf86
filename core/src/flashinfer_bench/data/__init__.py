"""The FlashInfer-Trace format: records, files, datasets, scores. Importing it imports no torch.

Every public name is imported on first use, so that code that needs only records does not import
datasets and their index.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flashinfer_bench._lazy import exports

if TYPE_CHECKING:
    from flashinfer_bench.data.blobs import *  # noqa: F403
    from flashinfer_bench.data.constraints import *  # noqa: F403
    from flashinfer_bench.data.definition import *  # noqa: F403
    from flashinfer_bench.data.json_codec import *  # noqa: F403
    from flashinfer_bench.data.solution import *  # noqa: F403
    from flashinfer_bench.data.tolerance import *  # noqa: F403
    from flashinfer_bench.data.trace import *  # noqa: F403
    from flashinfer_bench.data.trace_set import *  # noqa: F403
    from flashinfer_bench.data.workload import *  # noqa: F403

_NAMES = {
    "blobs": "is_lfs_pointer read_safetensors_header resolve_blob",
    "constraints": "Constraint parse_constraint",
    "definition": "AxisConst AxisSpec AxisVar DType Definition TensorSpec",
    "json_codec": (
        "append_jsonl_file append_jsonl_line append_jsonl_lines from_json load_json_file "
        "load_jsonl_file save_json_file save_jsonl_file to_json"
    ),
    "merge": "export_trace_set merge_trace_sets",
    "ranking": "SpeedupMetrics TraceSetSummary",
    "solution": (
        "BuildSpec CompileOptions Solution SourceFile SupportedBindings SupportedLanguages"
    ),
    "tolerance": "OutputTolerance Tolerance",
    "trace": "Correctness Environment Evaluation EvaluationStatus Performance Provenance Trace",
    "trace_set": "TraceSet",
    "workload": (
        "InputDesc InputSpec RandomInput SafetensorsInput ScalarInput ScalarValue Workload"
    ),
}

__getattr__, __dir__, __all__ = exports(__name__, _NAMES)
