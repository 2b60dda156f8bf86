"""The hooks that a plugin may implement.

A plugin is a module (or any object) with some of these functions, each marked with `hookimpl`, and
registered in the entry-point group ``flashinfer_bench.plugins``.

*Registration hooks* (``fib_register_…``), one for each kind of record, are called once, without
arguments, during discovery. They return records: small descriptions that name the code by string.
The class of each record (see `records`) has an example. Import nothing heavy in the module of the
hooks. A hook that raises, even midway through a generator, registers nothing; other hooks of the
same plugin, and other plugins, are not affected.

*Lifecycle hooks*, which are specified here, are called while a benchmark runs, in the judge's
process. Declare only the arguments that you use. Exceptions are logged; the run and the hooks of
other plugins continue.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Optional

from pluggy import HookimplMarker, HookspecMarker

if TYPE_CHECKING:
    from flashinfer_bench.data import Solution, Trace

PROJECT = "flashinfer_bench"

hookspec = HookspecMarker(PROJECT)
hookimpl = HookimplMarker(PROJECT)


@hookspec
def fib_run_started(run: Any) -> None:
    """Handle the start of a benchmark.

    Parameters
    ----------
    run : RunRecord
        The run: ``run.trace_set`` is its dataset, ``run.config`` its settings, ``run.total`` the
        number of evaluations.

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
    """Handle the end of an evaluation, after its trace is stored.

    Parameters
    ----------
    run : RunRecord
        As for `fib_run_started`.
    trace : Trace
        The trace of the evaluation.

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
    """Handle the end of a benchmark, complete or not; `run` is as for `fib_run_started`.

    Examples
    --------
    ::

        @hookimpl
        def fib_run_finished(run):
            print(f"{len(run.skipped)} skipped", file=sys.stderr)

    .. versionadded:: 0.3
    """


@hookspec
def fib_provenance(
    run: Any, baseline: Any, solution: Solution, builder: str
) -> Optional[dict[str, Any]]:
    """Return additional fields for the `Provenance` of an evaluation, or None.

    Fields that core records take precedence.

    Parameters
    ----------
    run : Session
        As for `fib_veto`.
    baseline : DeviceBaseline
        The workload: ``definition``, ``workload``, ``config``, ….
    solution : Solution
        The solution that was evaluated.
    builder : str
        Name of its builder; empty if unknown.

    Examples
    --------
    ::

        @hookimpl
        def fib_provenance():
            return {"cluster_job": os.environ.get("SLURM_JOB_ID")}

    .. versionadded:: 0.3
    """


@hookspec
def fib_veto(run: Any, measurement: Any) -> Optional[str]:
    """Return why a measured latency must be rejected, or None.

    A string makes the evaluation a ``RUNTIME_ERROR``; the log has the string and the name of the
    plugin. The hook is called for correct solutions whose latency core accepts.

    Parameters
    ----------
    run : Session
        Data common to all solutions of a workload: ``device``, ``seed``, ``environment``, ….
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
