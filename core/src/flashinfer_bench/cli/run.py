"""``fib run``: benchmark the solutions of datasets."""

# ruff: noqa: TC001 - typer reads the annotations at run time

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Optional

import typer

from flashinfer_bench import env
from flashinfer_bench.cli import run_options as own
from flashinfer_bench.cli.datasets import dataset_roots, open_datasets
from flashinfer_bench.cli.exit_codes import ExitCode
from flashinfer_bench.cli.greedy import GreedyCommand
from flashinfer_bench.cli.logs import set_up_logging
from flashinfer_bench.cli.options import AsJson, Definitions, Hub, Local, OpTypes, Solutions
from flashinfer_bench.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from flashinfer_bench.bench import BenchmarkConfig

app = typer.Typer(add_completion=False, rich_markup_mode=None)

# Options that bear the name of the setting that they stand over.
_SETTINGS = (
    "definitions",
    "solutions",
    "device",
    "warmup_runs",
    "iterations",
    "num_trials",
    "stop_rule",
    "min_samples",
    "max_samples",
    "max_seconds",
    "cache",
    "interleave_reference",
    "rtol",
    "atol",
    "required_matched_ratio",
    "timeout_seconds",
    "seed",
    "executor",
    "timer",
    "trust",
    "build_jobs",
    "sandbox",
    "lock_clocks_mhz",
)
_WATCH = {None: None, True: "auto", False: "off"}


@app.command("run", cls=GreedyCommand, epilog=own.STOP_RULES)
def run(
    ctx: typer.Context,
    local: Local = None,
    hub: Hub = None,
    definitions: Definitions = None,
    solutions: Solutions = None,
    op_types: OpTypes = None,
    device: own.Device = None,
    warmup_runs: own.Warmups = None,
    iterations: own.Iterations = None,
    num_trials: own.Trials = None,
    stop_rule: own.StopRule = None,
    stop_param: own.StopParams = None,
    min_samples: own.MinSamples = None,
    max_samples: own.MaxSamples = None,
    max_seconds: own.MaxTiming = None,
    cache: own.Cache = None,
    watch: own.Watch = None,
    interleave_reference: own.Interleave = None,
    lock_clocks_mhz: own.LockClocks = None,
    rtol: own.Rtol = None,
    atol: own.Atol = None,
    required_matched_ratio: own.Ratio = None,
    timeout_seconds: own.Timeout = None,
    seed: own.Seed = None,
    executor: own.Executor = None,
    timer: own.Timer = None,
    sandbox: own.Sandbox = None,
    trust: own.Trust = None,
    build_jobs: own.BuildJobs = None,
    config: own.ConfigFile = None,
    save_results: own.Save = True,
    resume: own.Resume = False,
    use_isolated_runner: own.Isolated = False,
    no_profile_baseline: own.NoBaseline = False,
    strict: own.Strict = False,
    as_json: AsJson = False,
    log_level: own.LogLevel = None,
) -> None:
    """Benchmark the solutions of a dataset on its workloads, and record a trace of each.

    A solution that fails is a result: the exit code is 0 if everything selected was evaluated, and
    1 under --strict unless all of it passed. 1 also tells of unreadable records and of references
    that fail, 4 of solutions that this machine cannot build. Ctrl-C keeps what is done; --resume
    goes on from there.
    """
    from flashinfer_bench.cli.run_session import RunSession

    _refuse_to_write(hub, save_results)
    settings = _settings(ctx.params)
    level = set_up_logging(log_level, default=settings.log_level)
    session = RunSession(settings, save=save_results, resume=resume, level=level)
    opened = [open_datasets([root]) for root in dataset_roots(local, hub)]
    session.run_all(opened, tuple(op_types or ()), as_json=as_json)
    if session.interrupted:
        raise typer.Exit(ExitCode.INTERRUPTED)
    raise typer.Exit(session.exit_code(strict=strict))


def _refuse_to_write(hub: Optional[str], save: bool) -> None:
    if hub and save:
        raise ConfigError(
            "--hub names a dataset in a shared cache, which takes no traces",
            hint="add --no-save-results, or make a copy first and name its folder with --local",
        )


def _settings(options: Mapping[str, Any]) -> BenchmarkConfig:
    """Layer the options that were given over a file, or over the packaged settings."""
    from flashinfer_bench.bench import BenchmarkConfig

    given = {name: options[name] for name in _SETTINGS}
    # A repeatable option that was not given is an empty list here, which would select nothing.
    given.update({name: options[name] or None for name in ("definitions", "solutions")})
    given["stop_params"] = own.stop_params(options["stop_param"])
    given["watch"] = _WATCH[options["watch"]]
    given["log_level"] = options["log_level"] or env.log_level()
    given["use_isolated_runner"] = options["use_isolated_runner"] or None
    given["profile_baseline"] = False if options["no_profile_baseline"] else None
    if options["config"] is not None:
        return BenchmarkConfig.from_yaml(options["config"], **given)
    return BenchmarkConfig.default(**given)
