"""The hooks that a plugin may implement.

A plugin is a module (or any object) with some of these functions, each marked with `hookimpl`, and
made known under the entry-point group ``flashinfer_bench.plugins``.

*Registration hooks* (``fib_register_…``), one for each kind of record, are called without
arguments, once, when the plugins are discovered, and return records: small descriptions that name
the code by string. Import nothing heavy in the module that holds them. One that raises, also midway
through a generator, registers nothing; the other hooks of the same plugin, and all other plugins,
are not affected.

*Lifecycle hooks* are called while a benchmark runs, in the judge's process. Name only the arguments
that are used. What one raises is logged and ends neither the run nor the calls of other plugins.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Optional

from pluggy import HookimplMarker, HookspecMarker

if TYPE_CHECKING:
    from collections.abc import Iterable

    from flashinfer_bench.data import Trace
    from flashinfer_bench.plugins import records

PROJECT = "flashinfer_bench"

hookspec = HookspecMarker(PROJECT)
hookimpl = HookimplMarker(PROJECT)


@hookspec
def fib_register_builders() -> Iterable[records.BuilderSpec]:
    """Register builders, which turn a Solution into something that can be called.

    Called once, when the plugins are discovered. Whether the compiler is there is a matter for
    the record's probe, not for this function.

    Returns
    -------
    iterable of BuilderSpec
        One record per builder. Of two builders of the same name neither is used.

    Examples
    --------
    ::

        @hookimpl
        def fib_register_builders():
            yield BuilderSpec(
                name="mojo",
                handles=(("mojo", None),),
                compiles=True,
                factory="fib_builder_mojo.builder:MojoBuilder",
                probe="fib_builder_mojo.probe:check",
                summary="Mojo kernels, compiled ahead of time",
            )

    .. versionadded:: 0.2
    """
    return ()


@hookspec
def fib_register_timers() -> Iterable[records.TimerSpec]:
    """Register timing backends.

    Called once, when the plugins are discovered. The factory is imported in the process that
    measures, before any code of a solution is.

    Returns
    -------
    iterable of TimerSpec
        One record per timer. The name goes into every trace that the timer measured.

    Examples
    --------
    ::

        @hookimpl
        def fib_register_timers():
            yield TimerSpec(
                name="cupti",
                devices=("cuda",),
                priority=100,
                factory="fib_timing_cuda.cupti:CuptiTimer",
                probe="fib_timing_cuda.probes:cupti",
                summary="Kernel times from CUPTI activity records",
            )

    .. versionadded:: 0.2
    """
    return ()


@hookspec
def fib_register_key_builders() -> Iterable[records.KeyBuilderSpec]:
    """Register key builders, which reduce the inputs of a call to the key of an apply table.

    Called once, when the plugins are discovered.

    Returns
    -------
    iterable of KeyBuilderSpec
        One record per key builder, naming the op types that it is for.

    Examples
    --------
    ::

        @hookimpl
        def fib_register_key_builders():
            yield KeyBuilderSpec(
                name="gqa_paged",
                op_types=("gqa_paged",),
                factory="my_keys.gqa:GQAPagedKeyBuilder",
                summary="Axes and the average length of the key-value cache",
            )

    .. versionadded:: 0.2
    """
    return ()


@hookspec
def fib_register_adapters() -> Iterable[records.AdapterSpec]:
    """Register API adapters, which route the calls of a library through apply and tracing.

    Called once, when the plugins are discovered. The library itself must not be imported here:
    the probe looks whether it is installed, and the factory patches it.

    Returns
    -------
    iterable of AdapterSpec
        One record per adapter, naming the functions that it patches.

    Examples
    --------
    ::

        @hookimpl
        def fib_register_adapters():
            yield AdapterSpec(
                name="flashinfer.rmsnorm",
                targets=("flashinfer.norm.rmsnorm",),
                factory="my_adapters.rmsnorm:RMSNormAdapter",
                probe="my_adapters.probe:flashinfer",
                summary="flashinfer.norm.rmsnorm",
            )

    .. versionadded:: 0.2
    """
    return ()


@hookspec
def fib_register_evaluators() -> Iterable[records.EvaluatorSpec]:
    """Register evaluators, which decide whether a solution's outputs are correct.

    Called once, when the plugins are discovered. An evaluator runs in the judge's process and is
    trusted: it sees the reference outputs.

    Returns
    -------
    iterable of EvaluatorSpec
        One record per evaluator. One that says what it is for goes before every fallback,
        whatever their priorities.

    Examples
    --------
    ::

        @hookimpl
        def fib_register_evaluators():
            yield EvaluatorSpec(
                name="speculative",
                op_types=("sampling",),
                inputs=("draft_probs",),
                factory="my_evaluators.speculative:SpeculativeEvaluator",
                summary="Compares frequencies of accepted tokens, not single draws",
            )

    .. versionadded:: 0.2
    """
    return ()


@hookspec
def fib_register_executors() -> Iterable[records.ExecutorSpec]:
    """Register executors, which start the processes that solutions run in.

    Called once, when the plugins are discovered.

    Returns
    -------
    iterable of ExecutorSpec
        One record per executor, naming the device types that its processes can use.

    Examples
    --------
    ::

        @hookimpl
        def fib_register_executors():
            yield ExecutorSpec(
                name="container",
                devices=("cpu",),
                factory="my_executors.container:ContainerExecutor",
                probe="my_executors.probe:podman",
                summary="Runs each candidate in a container without network",
            )

    .. versionadded:: 0.2
    """
    return ()


@hookspec
def fib_register_commands() -> Iterable[records.CommandSpec]:
    """Register commands of ``fib``, or subcommands of its groups.

    Called once, when the plugins are discovered. What was found is kept, so that ``fib --help``
    lists these commands without importing a plugin.

    Returns
    -------
    iterable of CommandSpec
        One record per command. A command of core is never replaced.

    Examples
    --------
    ::

        @hookimpl
        def fib_register_commands():
            yield CommandSpec(
                name="roofline",
                factory="my_commands.roofline:app",
                summary="Plot traces against the device's roofline",
            )
            yield CommandSpec(
                name="report roofline",
                factory="my_commands.roofline:report",
                summary="Print how far each solution is from the roofline",
            )

    .. versionadded:: 0.2
    """
    return ()


@hookspec
def fib_register_languages() -> Iterable[records.LanguageSpec]:
    """Register languages: what decides whether a recorded result still holds.

    Called once, when the plugins are discovered. A language needs no record to be built and
    measured; without one, its results are applied whatever libraries are installed.

    Returns
    -------
    iterable of LanguageSpec
        One record per language.

    Examples
    --------
    ::

        @hookimpl
        def fib_register_languages():
            yield LanguageSpec(
                name="mojo",
                libraries=("mojo", "cuda"),
                gpu_only=("cuda",),
                factory="fib_builder_mojo.versions:installed",
                summary="Mojo",
            )

    .. versionadded:: 0.3
    """
    return ()


@hookspec
def fib_register_measurements() -> Iterable[records.MeasurementSpec]:
    """Register measurements, which take the latency of a solution.

    Called once, when the plugins are discovered. A measurement runs in the judge's process.

    Returns
    -------
    iterable of MeasurementSpec
        One record per measurement. The name goes into every trace that it made.

    Examples
    --------
    ::

        @hookimpl
        def fib_register_measurements():
            yield MeasurementSpec(
                name="verified",
                devices=("cpu", "cuda"),
                verified=True,
                priority=100,
                factory="fib_judge.measurement:VerifiedMeasurement",
                summary="Fresh values for each call, by the judge's own clock",
            )

    .. versionadded:: 0.3
    """
    return ()


@hookspec
def fib_register_sandboxes() -> Iterable[records.SandboxSpec]:
    """Register sandboxes, which confine the processes of solutions.

    Called once, when the plugins are discovered. The factory is imported in the process that it
    confines, before any code of a solution.

    Returns
    -------
    iterable of SandboxSpec
        One record per sandbox, naming the platforms that it works on.

    Examples
    --------
    ::

        @hookimpl
        def fib_register_sandboxes():
            yield SandboxSpec(
                name="landlock",
                platforms=("linux",),
                factory="my_sandbox.landlock:LandlockSandbox",
                probe="my_sandbox.probe:landlock",
                summary="No writing outside the work folder, no network",
            )

    .. versionadded:: 0.3
    """
    return ()


@hookspec
def fib_register_op_families() -> Iterable[records.OpFamilySpec]:
    """Register op families: what is known of operations of one type.

    Called once, when the plugins are discovered. Each function that a record names is imported when
    it is first needed.

    Returns
    -------
    iterable of OpFamilySpec
        One record per family. Of two for the same op type the one of higher priority is used.

    Examples
    --------
    ::

        @hookimpl
        def fib_register_op_families():
            yield OpFamilySpec(
                name="rope",
                op_types=("rope*",),
                key_axes=("num_tokens",),
                evaluator="default",
                settings="my_ops.rope:SETTINGS",
                work="my_ops.rope:work",
                inputs="my_ops.rope:inputs",
                summary="Rotary position embedding",
            )

    .. versionadded:: 0.3
    """
    return ()


@hookspec
def fib_register_stop_rules() -> Iterable[records.StopRuleSpec]:
    """Register stop rules, which say when a solution has been timed often enough.

    Called once, when the plugins are discovered.

    Returns
    -------
    iterable of StopRuleSpec
        One record per rule, called as ``--stop-rule`` has it.

    Examples
    --------
    ::

        @hookimpl
        def fib_register_stop_rules():
            yield StopRuleSpec(
                name="deadline",
                factory="my_rules.deadline:Deadline",
                summary="Stop after a number of milliseconds",
            )

    .. versionadded:: 0.3
    """
    return ()


@hookspec
def fib_register_monitors() -> Iterable[records.MonitorSpec]:
    """Register monitors, which watch the machine while a solution is timed.

    Called once, when the plugins are discovered. A monitor runs in the judge's process.

    Returns
    -------
    iterable of MonitorSpec
        One record per monitor, naming the types of devices that it is of use for.

    Examples
    --------
    ::

        @hookimpl
        def fib_register_monitors():
            yield MonitorSpec(
                name="power",
                devices=("cuda",),
                factory="my_monitors.power:PowerMonitor",
                probe="my_monitors.probe:nvml",
                summary="Power that the board draws",
            )

    .. versionadded:: 0.3
    """
    return ()


@hookspec
def fib_register_checks() -> Iterable[records.CheckSpec]:
    """Register checks of datasets, for ``fib validate``.

    Called once, when the plugins are discovered.

    Returns
    -------
    iterable of CheckSpec
        One record per check, naming the layer that it belongs to.

    Examples
    --------
    ::

        @hookimpl
        def fib_register_checks():
            yield CheckSpec(
                name="licences",
                layer="solution",
                factory="my_checks.licences:check",
                summary="Each solution names its licence",
            )

    .. versionadded:: 0.3
    """
    return ()


@hookspec
def fib_register_sources() -> Iterable[records.SourceSpec]:
    """Register sources of datasets, for ``--hub``.

    Called once, when the plugins are discovered.

    Returns
    -------
    iterable of SourceSpec
        One record per source; its name is what stands before ``://``.

    Examples
    --------
    ::

        @hookimpl
        def fib_register_sources():
            yield SourceSpec(
                name="s3",
                factory="my_sources.s3:download",
                summary="Datasets in a bucket: --hub s3://BUCKET/NAME",
            )

    .. versionadded:: 0.3
    """
    return ()


@hookspec
def fib_register_formats() -> Iterable[records.FormatSpec]:
    """Register formats of datasets other than our own, for ``fib import``.

    Called once, when the plugins are discovered. The formats are asked by falling priority, and the
    first that knows a folder reads it.

    Returns
    -------
    iterable of FormatSpec
        One record per format.

    Examples
    --------
    ::

        @hookimpl
        def fib_register_formats():
            yield FormatSpec(
                name="kernelbench",
                factory="my_formats.kernelbench:read",
                summary="Problems of KernelBench",
            )

    .. versionadded:: 0.3
    """
    return ()


@hookspec
def fib_register_reports() -> Iterable[records.ReportSpec]:
    """Register reports, which are drawn from recorded traces.

    Called once, when the plugins are discovered.

    Returns
    -------
    iterable of ReportSpec
        One record per report.

    Examples
    --------
    ::

        @hookimpl
        def fib_register_reports():
            yield ReportSpec(
                name="badges",
                factory="my_reports.badges:draw",
                summary="The best speed-up of each definition as a badge",
            )

    .. versionadded:: 0.3
    """
    return ()


@hookspec
def fib_register_tracing_policies() -> Iterable[records.TracingPolicySpec]:
    """Register policies of tracing: which calls are kept, and what of them is written.

    Called once, when the plugins are discovered.

    Returns
    -------
    iterable of TracingPolicySpec
        One record per policy, called as a `TracingConfig` names it.

    Examples
    --------
    ::

        @hookimpl
        def fib_register_tracing_policies():
            yield TracingPolicySpec(
                name="keep_slow",
                decides="calls",
                factory="my_policies.slow:KeepSlow",
                summary="Keep the calls that took longest",
            )

    .. versionadded:: 0.3
    """
    return ()


@hookspec
def fib_run_started(run: Any) -> None:
    """Take note that a benchmark begins.

    Parameters
    ----------
    run : RunRecord
        The run: ``run.trace_set`` is its dataset, ``run.config`` its settings, and ``run.total``
        how many evaluations it has.

    Examples
    --------
    ::

        @hookimpl
        def fib_run_started(run):
            print(f"{run.total} evaluations", file=sys.stderr)

    .. versionadded:: 0.3
    """


@hookspec
def fib_evaluated(run: Any, trace: Trace) -> None:
    """Take note that an evaluation has ended, and that its trace is stored.

    Parameters
    ----------
    run : RunRecord
        As of `fib_run_started`.
    trace : Trace
        What came of it.

    Examples
    --------
    ::

        @hookimpl
        def fib_evaluated(trace):
            requests.post(DASHBOARD, data=trace.model_dump_json())

    .. versionadded:: 0.3
    """


@hookspec
def fib_run_finished(run: Any) -> None:
    """Take note that a benchmark has ended, however it came; `run` is as of `fib_run_started`.

    Examples
    --------
    ::

        @hookimpl
        def fib_run_finished(run):
            print(f"{len(run.skipped)} left out", file=sys.stderr)

    .. versionadded:: 0.3
    """


@hookspec
def fib_veto(run: Any, measurement: Any) -> Optional[str]:
    """Say why a measured latency must not be believed, or return None.

    A text makes the evaluation a ``RUNTIME_ERROR``; its log has the text, and names the plugin. It
    is asked about solutions that are correct and whose latency core itself believes.

    Parameters
    ----------
    run : Session
        What holds for all solutions of a workload: ``device``, ``seed``, ``environment``, ….
    measurement : Measurement
        The samples, and how they were taken.

    Returns
    -------
    str or None
        One sentence, for the log.

    Examples
    --------
    ::

        @hookimpl
        def fib_veto(measurement):
            if min(measurement.samples_ms) < 0.0005:
                return "no kernel takes less than half a microsecond"

    .. versionadded:: 0.3
    """
