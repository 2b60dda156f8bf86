"""The options of ``fib run``, which override the configuration file."""

from __future__ import annotations

import inspect
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

from flashinfer_bench._providers import provider_of
from flashinfer_bench.bench.observers import RunObserver
from flashinfer_bench.bench.stopping import described, rules
from flashinfer_bench.cli.options import GreedyCommand, option
from flashinfer_bench.errors import CapabilityError, ConfigError
from flashinfer_bench.plugins import default_catalog

if TYPE_CHECKING:
    from collections.abc import Callable

    from flashinfer_bench.data import TraceSet


class RunAddition(RunObserver):
    """A plugin's addition to ``fib run``: it observes the run, and may narrow and summarise it.

    A `CommandSpec` named ``"run NAME"`` adds the options of its function to ``fib run``. The
    function is called with their values before the run, and returns a `RunAddition`.

    Attributes
    ----------
    resume : bool
        Whether to skip evaluations that the traces of the set returned by `choose` settle.
    """

    resume = False

    def choose(self, trace_set: TraceSet) -> TraceSet:
        """Return the part of a dataset to run; by default all of it."""
        return trace_set

    def sum_up(self) -> None:
        """Print a summary after the table of results; by default nothing."""


class RunCommand(GreedyCommand):
    """A command to which plugins add options."""

    _additions: tuple[Any, ...] = ()

    def extend(self, addition: Any) -> None:
        """Add the options of a command that returns a `RunAddition`."""
        taken = {flag for param in self.params for flag in param.opts}
        for flag in (flag for param in addition.params for flag in param.opts if flag in taken):
            raise ConfigError(f"{flag} is already an option of this command")
        self.params += addition.params
        self._additions = (*self._additions, addition)

    def invoke(self, ctx: Any) -> Any:
        """Create the additions as ``ctx.obj``, and run the command."""
        made = [
            one.callback(**{param.name: ctx.params.pop(param.name) for param in one.params})
            for one in self._additions
        ]
        ctx.obj = [one for one in made if isinstance(one, RunAddition)]
        return super().invoke(ctx)


#: Metavar and help of each setting's option, in the order in which the help lists them.
_SETTINGS: dict[str, tuple[Optional[str], str]] = {
    "device": ("DEVICE", "cpu, cuda or cuda:N; several: cuda:0,cuda:1. Default: GPUs, else CPU."),
    "warmup_runs": ("N", "Untimed calls before timing. Default: 10."),
    "iterations": ("N", "Timed calls in each trial. Default: 50."),
    "num_trials": ("N", "Sets of random inputs to check and time. Default: 3."),
    "stop_rule": (
        "NAME",
        f"What ends the timing of a solution: {', '.join(rules())}; see below. Default: fixed.",
    ),
    "stop_params": ("KEY=VALUE", "Parameter of the stop rule: target=0.5%. Repeatable."),
    "min_samples": ("N", "Minimum of timed calls. Default: 30; fixed: none."),
    "max_samples": ("N", "Maximum of timed calls. Default: 1000; fixed: all of its rounds."),
    "max_seconds": (
        "S",
        "Seconds for timed calls of a solution and workload. Default: 15; fixed: about 2.",
    ),
    "processes": ("N", "Processes that share timed calls. Default: 2 per trial, 1 on GPUs."),
    "cache": ("STATE", "cold, or warm: do not flush caches before timed calls. Default: cold."),
    "watch": (None, "Record clocks, temperature and load while timing. Default: yes."),
    "interleave_reference": (None, "Time the reference in turn with each solution. Default: yes."),
    "lock_clocks_mhz": ("MHZ", "Lock the SM clock of GPUs at this frequency during the run."),
    "tolerance": ("NAME", "fixed, or dtype: by dtype where no tolerance is set. Default: fixed."),
    "rtol": ("X", "Relative tolerance. Default: 0.01."),
    "atol": ("X", "Absolute tolerance. Default: 0.01."),
    "required_matched_ratio": ("X", "Share of elements within tolerance, in (0, 1]."),
    "timeout_seconds": ("S", "Time limit of one evaluation, in seconds. Default: 300."),
    "seed": ("N", "Seed of the random inputs. Default: a new one for each run."),
    "executor": ("NAME", "Executor plugin to use."),
    "timer": ("NAME", "Timer plugin to use."),
    "sandbox": (
        "LEVEL",
        "off, auto or strict: exit with 4 unless solutions can be confined. Default: auto.",
    ),
    "trust": ("MODE", "full, or off: trust self-reported latencies. Default: full."),
    "build_jobs": ("N", "Solutions compiled at the same time. Default: cores - 1."),
}
# Flags that differ from the name of the setting.
_FLAGS = {
    "stop_params": "--stop-param",
    "max_seconds": "--max-timing-seconds",
    "lock_clocks_mhz": "--lock-clocks",
    "timeout_seconds": "--timeout",
}
_KINDS: dict[Optional[str], Any] = {
    "N": int,
    "MHZ": int,
    "X": float,
    "S": float,
    "KEY=VALUE": list[str],
    None: bool,
}


def known_device(value: Optional[str]) -> Optional[str]:
    """Return the value of ``--device``; raise `ConfigError` for a type without an executor."""
    known = {"cpu", "cuda"}.union(*(one.spec.devices for one in default_catalog().executors))
    for name in value.split(",") if value else ():
        if name.strip().partition(":")[0] not in known:
            hint = "did you mean cuda?" if name == "gpu" else "several: cuda:0,cuda:1"
            raise ConfigError(f"no device {name!r}; allowed: cpu, cuda or cuda:N", hint=hint)
    return value


def _registered(kind: str) -> Callable[[Optional[str]], Optional[str]]:
    """Return a check that rejects names of no known plugin, before torch is imported."""

    def check(value: Optional[str]) -> Optional[str]:
        catalog = default_catalog()
        if value is not None and not provider_of(kind, value):
            try:
                catalog.find(kind, value)
            except CapabilityError as error:
                if all(plugin.state != "broken" for plugin in catalog.plugins):
                    raise ConfigError(error.message, hint=error.hint) from error
        return value

    return check


_CHECKS = {"device": known_device, **{kind: _registered(kind) for kind in ("executor", "timer")}}


def _option(name: str) -> Any:
    metavar, text = _SETTINGS[name]
    flags = (_FLAGS[name],) if name in _FLAGS else ()
    return option(*flags, metavar=metavar, help=text, callback=_CHECKS.get(name))


# Options that other commands have as well.
Device = Annotated[Optional[str], _option("device")]
Cache = Annotated[Optional[str], _option("cache")]
Timeout = Annotated[Optional[float], _option("timeout_seconds")]
Seed = Annotated[Optional[int], _option("seed")]
Executor = Annotated[Optional[str], _option("executor")]
Timer = Annotated[Optional[str], _option("timer")]
Sandbox = Annotated[Optional[str], _option("sandbox")]
Trust = Annotated[Optional[str], _option("trust")]
ConfigFile = Annotated[
    Optional[Path],
    option("--config", metavar="FILE", help="YAML config file; command-line options override it."),
]

#: Appended to the help: each rule with its parameters, from their declarations.
STOP_RULES = "\b\nStop rules, with their parameters and defaults:\n" + "\n".join(
    f"  {line}" for line in described()
)


def with_settings(command: Callable[..., None]) -> Callable[..., None]:
    """Replace the ``**settings`` of a command by an option for each setting.

    They come after its positional parameters. The command is called with values for
    `BenchmarkConfig.default`; None means not given.
    """

    @wraps(command)
    def run(**values: Any) -> None:
        if values["watch"] is not None:
            values["watch"] = "auto" if values["watch"] else "off"
        values["stop_params"] = stop_params(values["stop_params"])
        command(**values)

    own = inspect.signature(command, eval_str=True).parameters.values()
    kinds = inspect.Parameter
    first = [one for one in own if one.kind is kinds.POSITIONAL_OR_KEYWORD]
    last = [one for one in own if one.kind is kinds.KEYWORD_ONLY]
    settings = [
        kinds(
            name,
            kinds.KEYWORD_ONLY,
            default=None,
            annotation=Annotated[Optional[_KINDS.get(metavar, str)], _option(name)],
        )
        for name, (metavar, _) in _SETTINGS.items()
    ]
    parameters = [*first, *settings, *last]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {one.name: one.annotation for one in parameters}
    return run


def stop_params(given: Optional[list[str]]) -> Optional[dict[str, Any]]:
    """Return the values of ``--stop-param`` by key; None if there are none.

    Raises
    ------
    ConfigError
        If one is not of the form KEY=VALUE, or a key is given twice.
    """
    params: dict[str, Any] = {}
    for text in given or ():
        key, equals, value = text.partition("=")
        if not (key and equals and value):
            message = f"--stop-param {text!r} is not of the form KEY=VALUE"
            raise ConfigError(message, hint="for example target=0.5%")
        if key in params:
            raise ConfigError(f"--stop-param {key} is given twice", hint="give each key once")
        params[key] = value
    return params or None
