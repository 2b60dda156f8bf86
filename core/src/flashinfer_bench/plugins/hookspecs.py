"""The hooks that a plugin may implement, one for each kind of record.

A plugin is a module (or any object) with some of these functions, each marked with `hookimpl`, and
made known under the entry-point group ``flashinfer_bench.plugins``. All of them are called without
arguments, once, when the plugins are discovered, and return records: small descriptions that name
the code by string. Import nothing heavy in the module that holds them.

A hook that raises, also midway through a generator, registers nothing; the other hooks of the same
plugin, and all other plugins, are not affected.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pluggy import HookimplMarker, HookspecMarker

if TYPE_CHECKING:
    from collections.abc import Iterable

    from flashinfer_bench.plugins.records import (
        AdapterSpec,
        BuilderSpec,
        CommandSpec,
        EvaluatorSpec,
        ExecutorSpec,
        KeyBuilderSpec,
        TimerSpec,
    )

PROJECT = "flashinfer_bench"

hookspec = HookspecMarker(PROJECT)
hookimpl = HookimplMarker(PROJECT)


@hookspec
def fib_register_builders() -> Iterable[BuilderSpec]:
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
def fib_register_timers() -> Iterable[TimerSpec]:
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
                factory="fib_timing_cupti.timer:CuptiTimer",
                probe="fib_timing_cupti.probe:check",
                summary="Kernel times from CUPTI activity records",
            )

    .. versionadded:: 0.2
    """
    return ()


@hookspec
def fib_register_key_builders() -> Iterable[KeyBuilderSpec]:
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
def fib_register_adapters() -> Iterable[AdapterSpec]:
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
def fib_register_evaluators() -> Iterable[EvaluatorSpec]:
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
def fib_register_executors() -> Iterable[ExecutorSpec]:
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
def fib_register_commands() -> Iterable[CommandSpec]:
    """Register commands of ``fib``.

    Called once, when the plugins are discovered; this happens when the user types a command that
    core does not have, and not for ``fib --help`` alone.

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

    .. versionadded:: 0.2
    """
    return ()
