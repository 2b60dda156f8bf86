"""The FlashInfer-Trace format: records, files, datasets, scores. Importing it imports no torch.

Every public name is imported when it is first used, so that who needs records alone does not pay
for datasets and their index.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flashinfer_bench._lazy import exports

if TYPE_CHECKING:
    from flashinfer_bench.data.blobs import is_lfs_pointer as is_lfs_pointer
    from flashinfer_bench.data.blobs import read_safetensors_header as read_safetensors_header
    from flashinfer_bench.data.blobs import resolve_blob as resolve_blob
    from flashinfer_bench.data.constraints import Constraint as Constraint
    from flashinfer_bench.data.constraints import evaluate_constraint as evaluate_constraint
    from flashinfer_bench.data.constraints import parse_constraint as parse_constraint
    from flashinfer_bench.data.definition import AxisConst as AxisConst
    from flashinfer_bench.data.definition import AxisSpec as AxisSpec
    from flashinfer_bench.data.definition import AxisVar as AxisVar
    from flashinfer_bench.data.definition import Definition as Definition
    from flashinfer_bench.data.definition import TensorSpec as TensorSpec
    from flashinfer_bench.data.dtypes import DType as DType
    from flashinfer_bench.data.json_codec import append_jsonl_file as append_jsonl_file
    from flashinfer_bench.data.json_codec import append_jsonl_line as append_jsonl_line
    from flashinfer_bench.data.json_codec import append_jsonl_lines as append_jsonl_lines
    from flashinfer_bench.data.json_codec import from_json as from_json
    from flashinfer_bench.data.json_codec import load_json_file as load_json_file
    from flashinfer_bench.data.json_codec import load_jsonl_file as load_jsonl_file
    from flashinfer_bench.data.json_codec import save_json_file as save_json_file
    from flashinfer_bench.data.json_codec import save_jsonl_file as save_jsonl_file
    from flashinfer_bench.data.json_codec import to_json as to_json
    from flashinfer_bench.data.merge import export_trace_set as export_trace_set
    from flashinfer_bench.data.merge import merge_trace_sets as merge_trace_sets
    from flashinfer_bench.data.ranking import SpeedupMetrics as SpeedupMetrics
    from flashinfer_bench.data.ranking import TraceSetSummary as TraceSetSummary
    from flashinfer_bench.data.solution import BuildSpec as BuildSpec
    from flashinfer_bench.data.solution import CompileOptions as CompileOptions
    from flashinfer_bench.data.solution import Solution as Solution
    from flashinfer_bench.data.solution import SourceFile as SourceFile
    from flashinfer_bench.data.solution import SupportedBindings as SupportedBindings
    from flashinfer_bench.data.solution import SupportedLanguages as SupportedLanguages
    from flashinfer_bench.data.tolerance import OutputTolerance as OutputTolerance
    from flashinfer_bench.data.tolerance import Tolerance as Tolerance
    from flashinfer_bench.data.trace import Correctness as Correctness
    from flashinfer_bench.data.trace import Environment as Environment
    from flashinfer_bench.data.trace import Evaluation as Evaluation
    from flashinfer_bench.data.trace import EvaluationStatus as EvaluationStatus
    from flashinfer_bench.data.trace import Performance as Performance
    from flashinfer_bench.data.trace import Provenance as Provenance
    from flashinfer_bench.data.trace import Trace as Trace
    from flashinfer_bench.data.trace_set import TraceSet as TraceSet
    from flashinfer_bench.data.workload import InputDesc as InputDesc
    from flashinfer_bench.data.workload import InputSpec as InputSpec
    from flashinfer_bench.data.workload import RandomInput as RandomInput
    from flashinfer_bench.data.workload import SafetensorsInput as SafetensorsInput
    from flashinfer_bench.data.workload import ScalarInput as ScalarInput
    from flashinfer_bench.data.workload import ScalarValue as ScalarValue
    from flashinfer_bench.data.workload import Workload as Workload

_NAMES = {
    "blobs": "is_lfs_pointer read_safetensors_header resolve_blob",
    "constraints": "Constraint evaluate_constraint parse_constraint",
    "definition": "AxisConst AxisSpec AxisVar Definition TensorSpec",
    "dtypes": "DType",
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
