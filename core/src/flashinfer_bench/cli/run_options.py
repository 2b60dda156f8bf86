"""The options of ``fib run``; those with a value stand over the configuration if they are given."""

from __future__ import annotations

import inspect
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from flashinfer_bench.bench.stopping import described, rules
from flashinfer_bench.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable


def _value(metavar: Optional[str], text: str, *flags: str) -> Any:
    """Return an option, whose flag is by default the name of the parameter."""
    return typer.Option(*flags, metavar=metavar, show_default=False, help=text)


def _setting(kind: Any, metavar: Optional[str], text: str, *flags: str) -> Any:
    return Annotated[Optional[kind], _value(metavar, text, *flags)]


# Those that other commands have, too.
Device = Annotated[
    Optional[str], _value("DEVICE", "cpu, cuda or cuda:N. Default: the best there is.")
]
_CACHE = "cold, or warm: do not empty caches before timed calls. Default: cold."
Cache = Annotated[Optional[str], _value("STATE", _CACHE)]
_TIMEOUT = "Seconds that one evaluation may take. Default: 300."
Timeout = Annotated[Optional[float], _value("S", _TIMEOUT, "--timeout")]
Seed = Annotated[Optional[int], _value("N", "Seed of the random inputs. Default: a fresh one.")]
Executor = Annotated[Optional[str], _value("NAME", "Executor plugin to use.")]
Timer = Annotated[Optional[str], _value("NAME", "Timer plugin to use.")]
_SANDBOX = "off, auto or strict: exit with 4 unless solutions can be confined. Default: auto."
Sandbox = Annotated[Optional[str], _value("LEVEL", _SANDBOX)]
_TRUST = "full, or off: believe the latencies that solutions tell."
Trust = Annotated[Optional[str], _value("MODE", _TRUST)]
ConfigFile = Annotated[
    Optional[Path], _value("FILE", "YAML file of settings; options stand over it.", "--config")
]

#: By the setting that each stands over, in the order in which the help lists them.
SETTINGS: dict[str, Any] = {
    "device": Device,
    "warmup_runs": _setting(int, "N", "Untimed calls before timing. Default: 10."),
    "iterations": _setting(int, "N", "Timed calls in each trial. Default: 50."),
    "num_trials": _setting(int, "N", "Sets of random inputs to check and time. Default: 3."),
    "stop_rule": _setting(
        str,
        "NAME",
        f"What ends the timing of a solution: {', '.join(rules())}; see below. Default: fixed.",
    ),
    "stop_params": _setting(
        list[str],
        "KEY=VALUE",
        "Parameter of the stop rule: target=0.5%. Repeatable.",
        "--stop-param",
    ),
    "min_samples": _setting(
        int, "N", "Timed calls before the rule may stop. Default: 30; fixed: none."
    ),
    "max_samples": _setting(int, "N", "Most timed calls. Default: 1000; fixed: all of its rounds."),
    "max_seconds": _setting(
        float,
        "S",
        "Seconds for the timed calls of a solution and workload. Default: 15; fixed: no limit.",
        "--max-timing-seconds",
    ),
    "cache": Cache,
    "watch": _setting(
        bool, None, "Look at clocks, temperature and load while timing. Default: yes."
    ),
    "interleave_reference": _setting(
        bool, None, "Time the reference in turn with each solution. Default: yes."
    ),
    "lock_clocks_mhz": _setting(
        int, "MHZ", "Hold the SM clock of GPUs there during the run.", "--lock-clocks"
    ),
    "rtol": _setting(float, "X", "Relative tolerance. Default: 0.01."),
    "atol": _setting(float, "X", "Absolute tolerance. Default: 0.01."),
    "required_matched_ratio": _setting(
        float, "X", "Share of elements within tolerance, in (0, 1]."
    ),
    "timeout_seconds": Timeout,
    "seed": Seed,
    "executor": Executor,
    "timer": Timer,
    "sandbox": Sandbox,
    "trust": Trust,
    "build_jobs": _setting(int, "N", "Solutions that are compiled at once. Default: cores - 1."),
}

#: Appended to the help: each rule with its parameters, as their declarations say.
STOP_RULES = "\b\nStop rules, with their parameters and defaults:\n" + "\n".join(
    f"  {line}" for line in described()
)


def with_settings(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of all `SETTINGS`, in place of its ``**settings``.

    They come after its positional parameters. The command is called with values as
    `BenchmarkConfig.default` takes them; None stands for what was not given.
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
        kinds(name, kinds.KEYWORD_ONLY, default=None, annotation=kind)
        for name, kind in SETTINGS.items()
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
        If one is not written as a key and a value, or a key is given twice.
    """
    params: dict[str, Any] = {}
    for text in given or ():
        key, equals, value = text.partition("=")
        if not (key and equals and value):
            raise ConfigError(
                f"--stop-param {text!r} is not written KEY=VALUE", hint="for example target=0.5%"
            )
        if key in params:
            raise ConfigError(f"--stop-param {key} is given twice", hint="give each key once")
        params[key] = value
    return params or None
