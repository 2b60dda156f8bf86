"""What had another name once, by what it is called now.

Names are relative to ``flashinfer_bench``, unless they begin with ``fib_``: those are of plugins.
An entry of a module or of a name is ``module``, all of whose public names are meant;
``module:Name``; or ``old=module:Name``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_RULES = "fib_ops_llm.tracing_rules"
_FLASHINFER = "fib_adapters_flashinfer"
_ADAPTERS = (
    f"GQAPagedDecodeAdapter={_FLASHINFER}.attention:DecodeAdapter "
    f"GQAPagedPrefillAdapter={_FLASHINFER}.attention:PrefillAdapter "
    f"RaggedPrefillAdapter={_FLASHINFER}.attention:RaggedAdapter "
    f"MLAPagedAdapter={_FLASHINFER}.mla:MLAAdapter"
)
_POLICIES = (
    "KeepFirstPolicy=tracing.policies:KeepFirstKPolicy "
    "KeepFirstByAxesPolicy=tracing.policies:KeepFirstKByAxesPolicy "
    "AttentionFilterPolicy=fib_ops_llm.tracing_policies:KeepFirstByAvgSeqLen "
    "compat.functions:DumpNonePolicy compat.functions:DumpAllPolicy "
    "compat.functions:DumpInt32Policy DumpIntPolicy=compat.functions:DumpIntegersPolicy "
)

MODULES: Mapping[str, str] = {
    # of the first release
    "apply.explain": "fib_report.apply_choices",
    "apply.hook": "fib_ops_llm.apply_hook",
    "apply.key": "apply.keys fib_ops_llm.key_builders",
    "bench.runner": (
        "bench.session:IsolatedRunner bench.session:PersistentRunner bench.session:Runner "
        "errors:RunnerError errors:RunnerFatalError "
        "bench.measurement:BaselineHandle bench.measurement:DeviceBaseline"
    ),
    "bench.runners": "bench.session:IsolatedRunner bench.session:PersistentRunner",
    "bench.runners.isolated_runner": "bench.session:IsolatedRunner",
    "bench.runners.mp_runner": "MultiProcessRunner=bench.session:IsolatedRunner",
    "bench.runners.persistent_runner": "bench.session:PersistentRunner",
    "compile.builders.cuda_builder": "CUDABuilder=fib_builder_cuda_torch.builder:TorchBuilder",
    "compile.builders.python_builder": "fib_builder_python.builder:PythonBuilder",
    "compile.builders.triton_builder": "fib_builder_triton.builder:TritonBuilder",
    "data.traceset": "data.trace_set:TraceSet",
    "integration": "routing",
    "integration.flashinfer": f"{_FLASHINFER}.first_release {_ADAPTERS}",
    "integration.flashinfer.adapters": _ADAPTERS,
    "integration.flashinfer.adapters.gqa_paged_decode": _ADAPTERS,
    "integration.flashinfer.adapters.gqa_paged_prefill": _ADAPTERS,
    "integration.flashinfer.adapters.mla_paged": _ADAPTERS,
    "integration.flashinfer.adapters.ragged_prefill": _ADAPTERS,
    "integration.flashinfer.common": f"{_FLASHINFER}.first_release",
    "integration.patch_manager": "routing.patch_manager",
    "integration.routing": "routing.routes",
    "integration.utils": f"{_FLASHINFER}.helpers",
    "tracer": _RULES,
    "tracer.hook_impl": _RULES,
    "tracer.presets": _RULES,
    "tracer.rule": _RULES,
    "tracer.tracer": _RULES,
    "tracer.types": _RULES,
    # of later ones
    "agents": "fib_agents",
    "apply.apply_api": "apply.api",
    "bench.build_run": "fib_datasets.build",
    "bench.compare": "fib_compare.paired",
    "bench.compare.comparer": "fib_compare.paired.comparer",
    "bench.stopping.registry": "bench.stopping",
    "bench.timing.do_bench": "fib_timing_cuda.do_bench",
    "bench.utils": "tensors bench.correctness",
    "bench.watch": "fib_judge.watch",
    "cli.cli": "cli.main",
    "compile.builders.tilelang_builder": "fib_builder_tilelang.builder:TileLangBuilder",
    "compile.builders.torch_builder": "fib_builder_cuda_torch.builder:TorchBuilder",
    "compile.builders.tvm_ffi_builder": "fib_builder_tvmffi.builder:TVMFFIBuilder",
    "compile.utils": "compile.builder",
    "data.hub": "fib_datasets.hub",
    "data.json_utils": "data.json_codec",
    "data.merge": "fib_datasets.transfer.merge",
    "data.ranking": "fib_report.authors",
    "data.transfer": "fib_datasets.transfer",
    "data.transfer.exporting": "fib_datasets.transfer.exporting",
    "data.transfer.importing": "fib_datasets.transfer.importing",
    "data.transfer.packing": "fib_datasets.transfer.packing",
    "data.transfer.subset": "fib_datasets.transfer.subset",
    "data.utils": "data.base",
    "data.validate": "validate",
    "serve": "fib_serve.first_release",
    "serve.app": "fib_serve.first_release:app fib_serve.first_release:init_app",
    "serve.scheduler": "fib_serve.first_release:Scheduler",
    "serve.task_store": (
        "fib_serve.records:Task fib_serve.records:TaskStatus TaskStore=fib_serve.store:Store"
    ),
    "tracing.policy": "tracing.policies",
    "tracing.tracing": "tracing.api",
    "tracing.workload_entry": "tracing.policies:WorkloadEntry",
}
"""Modules that are not there any more."""

NAMES: Mapping[str, str] = {
    "cli.main": "cli=cli.main:main",
    "compile.builder": (
        "compat.functions:create_pkg_name compat.functions:write_sources_to_dir "
        "compat.functions:write_sources_to_temp"
    ),
    "env": (
        "get_fib_cache_path=env:cache_path get_fib_dataset_path=env:dataset_path "
        "get_fib_enable_apply=env:apply_enabled get_fib_enable_tracing=env:tracing_enabled"
    ),
    "utils": "compat.functions:is_cuda_available",
    "bench.evaluators": (
        "fib_ops_llm.sampling:SamplingEvaluator fib_ops_llm.lowbit:LowBitEvaluator "
        "fib_ops_llm.dsa_sparse_attention:DsaSparseAttentionEvaluator "
        "fib_ops_llm.dsa_topk_indexer:DsaTopkIndexerEvaluator"
    ),
    "compile.builders": (
        "CUDABuilder=fib_builder_cuda_torch.builder:TorchBuilder "
        "fib_builder_python.builder:PythonBuilder fib_builder_tilelang.builder:TileLangBuilder "
        "fib_builder_cuda_torch.builder:TorchBuilder fib_builder_triton.builder:TritonBuilder "
        "fib_builder_tvmffi.builder:TVMFFIBuilder"
    ),
    "tracing": f"CudaGraphTracingRuntime=tracing.runtime:TracingRuntime {_POLICIES}",
    "tracing.policies": _POLICIES,
    "tracing.runtime": "CudaGraphTracingRuntime=tracing.runtime:TracingRuntime",
    "data.definition": "compat.functions:ALLOWED_DTYPES",
    "data.trace_set": "fib_report.authors:SpeedupMetrics fib_report.authors:TraceSetSummary",
}
"""Names that modules which are still there had, or take from plugins."""

OBSOLETE: Mapping[str, str] = {
    "compile.builders.CUDABuilder": "TorchBuilder",
    "compile.builders.cuda_builder.CUDABuilder": "TorchBuilder",
}
"""Of what warns when it is asked for: what to write instead."""

ATTRIBUTES: Mapping[str, str] = {
    "bench.measurement:DeviceBaseline": "defn=definition",
    "bench.session:Runner": (
        "run_ref=compat.functions:run_ref run_solution=compat.functions:run_solution "
        "release=compat.functions:release"
    ),
    "compile.builder:Builder": "clear_cache=compat.functions:clear_cache",
    "compile.runnable:Runnable": "meta=metadata.misc call_dest=compat.functions:call_dest",
    "data.definition:AxisVar": "parent=None",
    "data.definition:Definition": (
        "type=op_type get_const_axes=const_axes() get_var_axes=var_axes() "
        "get_var_axes_bindings=var_axes_bindings()"
    ),
    "data.solution:BuildSpec": "build_commands=[] build_steps=[]",
    "data.trace:Evaluation": "log_file=log error=None",
    "data.trace:Trace": "is_workload=is_workload_trace",
    "data.trace_set:TraceSet": "workload=workloads",
    "tracing.config:TracingConfig": (
        "create_filter_policy=compat.functions:create_filter_policy "
        "create_input_dump_policy=compat.functions:create_input_dump_policy "
        "get_inputs_to_dump=compat.functions:get_inputs_to_dump"
    ),
}
"""Attributes of objects by their old names, of subclasses of `OldAttributes` and of records.

``old=new``; ``old=new()`` where a method became a property; ``old=module:function``, which gets the
object first; or a constant, of what old files had.
"""

PARAMETERS: Mapping[str, str] = {
    "apply.api:apply": "def_name_or_resolver=name_or_resolver runtime_kwargs=kwargs",
    "apply.config:ApplyConfigRegistry.get": "def_name=name",
    "apply.keys:ApplyKeyBuilder.__init__": "defn=definition",
    "apply.keys:ApplyKeyFactory.specialize": "definition=defn",
    "apply.runtime:ApplyRuntime.__init__": "traceset=trace_set apply_config=config",
    "apply.runtime:ApplyRuntime.rebuild": "traceset=trace_set apply_config=config",
    "apply.runtime:BaseRuntime.__call__": (
        "def_name_or_resolver=name_or_resolver runtime_kwargs=kwargs"
    ),
    "apply.runtime:BaseRuntime.dispatch": "def_name=name runtime_kwargs=kwargs",
    "apply.table:ApplyTable.load_or_build": "ts=source trace_set=source config_registry=config",
    "bench.timing:time_runnable": "inputs=args",
    "compile.builder:Builder.build": "defn=definition sol=solution",
    "compile.builder:Builder.can_build": "sol=solution",
    "compile.registry:BuilderRegistry.build": "defn=definition sol=solution",
    "compile.registry:BuilderRegistry.build_reference": "defn=definition",
    "compile.runnable:Runnable.__init__": "fn=callable closer=cleaner meta=metadata",
    "data.trace_set:TraceSet.__init__": "workload=workloads",
    "data.definition:Definition.get_input_shapes": "var_values=var_axes_values",
    "data.definition:Definition.get_output_shapes": "var_values=var_axes_values",
    "data.json_codec:from_json": "json_str=text",
    "data.json_codec:save_jsonl_file": "objects=objs",
    "routing.config_registry:ConfigRegistry.register": "def_name=name",
    "fib_builder_triton.builder:TritonBuilder.__init__": "py_builder=",
    "tracing.config:TracingConfigRegistry.get": "def_name=name",
    "tracing.runtime:TracingRuntime.__init__": "tracing_config=config",
}
"""Parameters by their old names, of functions that are marked by `old_parameters`.

One without a new name counts for nothing.
"""

VALUES: Mapping[str, str] = {
    "filter_policy:attention": "keep_first_by_avg_seq_len",
    "input_dump_policy:dump_int": "dump_integers",
}
"""Values of settings by their old names: ``setting:value``."""
