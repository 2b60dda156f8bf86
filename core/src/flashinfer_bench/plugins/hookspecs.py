"""The hooks that a plugin may implement.

A plugin is a module (or any object) with some of these functions, each marked with `hookimpl`, and
made known under the entry-point group ``flashinfer_bench.plugins``.

*Registration hooks* (``fib_register_…``), one for each kind of record and named after it, are
called without arguments, once, when the plugins are discovered, and return records: small
descriptions that name the code by string. The record of each kind (see `records`) has an example.
Import nothing heavy in the module that holds the hooks. One that raises, also midway through a
generator, registers nothing; the other hooks of the same plugin, and all other plugins, are not
affected.

*Lifecycle hooks*, which are specified here, are called while a benchmark runs, in the judge's
process. Name only the arguments that are used. What one raises is logged and ends neither the run
nor the calls of other plugins.
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
def fib_provenance(
    run: Any, baseline: Any, solution: Solution, builder: str
) -> Optional[dict[str, Any]]:
    """Return more fields for the `Provenance` of an evaluation, or None.

    What core records itself stands over it.

    Parameters
    ----------
    run : Session
        As of `fib_veto`.
    baseline : DeviceBaseline
        The workload: ``definition``, ``workload``, ``config``, ….
    solution : Solution
        What was evaluated.
    builder : str
        Name of its builder; empty if it is not known.

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
    """Say why a measured latency must be rejected, or return None.

    A text makes the evaluation a ``RUNTIME_ERROR``; its log has the text, and names the plugin. It
    is asked about solutions that are correct and whose latency core itself accepts.

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
