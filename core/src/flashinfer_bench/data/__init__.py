"""The FlashInfer-Trace format: records, files, datasets, scores. Importing it imports no torch."""

from __future__ import annotations

from flashinfer_bench.data.blobs import is_lfs_pointer, read_safetensors_header, resolve_blob
from flashinfer_bench.data.constraints import Constraint, evaluate_constraint, parse_constraint
from flashinfer_bench.data.definition import (
    AxisConst,
    AxisSpec,
    AxisVar,
    Definition,
    TensorSpec,
)
from flashinfer_bench.data.dtypes import DType
from flashinfer_bench.data.json_codec import (
    append_jsonl_file,
    append_jsonl_line,
    append_jsonl_lines,
    from_json,
    load_json_file,
    load_jsonl_file,
    save_json_file,
    save_jsonl_file,
    to_json,
)
from flashinfer_bench.data.merge import export_trace_set, merge_trace_sets
from flashinfer_bench.data.ranking import SpeedupMetrics, TraceSetSummary
from flashinfer_bench.data.solution import (
    BuildSpec,
    CompileOptions,
    Solution,
    SourceFile,
    SupportedBindings,
    SupportedLanguages,
)
from flashinfer_bench.data.tolerance import OutputTolerance, Tolerance
from flashinfer_bench.data.trace import (
    Correctness,
    Environment,
    Evaluation,
    EvaluationStatus,
    Performance,
    Provenance,
    Trace,
)
from flashinfer_bench.data.trace_set import TraceSet
from flashinfer_bench.data.workload import (
    InputDesc,
    InputSpec,
    RandomInput,
    SafetensorsInput,
    ScalarInput,
    ScalarValue,
    Workload,
)

__all__ = [
    "AxisConst",
    "AxisSpec",
    "AxisVar",
    "BuildSpec",
    "CompileOptions",
    "Constraint",
    "Correctness",
    "DType",
    "Definition",
    "Environment",
    "Evaluation",
    "EvaluationStatus",
    "InputDesc",
    "InputSpec",
    "OutputTolerance",
    "Performance",
    "Provenance",
    "RandomInput",
    "SafetensorsInput",
    "ScalarInput",
    "ScalarValue",
    "Solution",
    "SourceFile",
    "SpeedupMetrics",
    "SupportedBindings",
    "SupportedLanguages",
    "TensorSpec",
    "Tolerance",
    "Trace",
    "TraceSet",
    "TraceSetSummary",
    "Workload",
    "append_jsonl_file",
    "append_jsonl_line",
    "append_jsonl_lines",
    "evaluate_constraint",
    "export_trace_set",
    "from_json",
    "is_lfs_pointer",
    "load_json_file",
    "load_jsonl_file",
    "merge_trace_sets",
    "parse_constraint",
    "read_safetensors_header",
    "resolve_blob",
    "save_json_file",
    "save_jsonl_file",
    "to_json",
]
