"""The options of ``fib run``; those with a value stand over the configuration if they are given."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Optional

import typer

from flashinfer_bench.bench.stopping.registry import RULES, described
from flashinfer_bench.errors import ConfigError


def _setting(flag: str, text: str, metavar: str) -> Any:
    return typer.Option(flag, metavar=metavar, show_default=False, help=text)


Warmups = Annotated[
    Optional[int], _setting("--warmup-runs", "Untimed calls before timing. Default: 10.", "N")
]
Iterations = Annotated[
    Optional[int], _setting("--iterations", "Timed calls in each trial. Default: 50.", "N")
]
Trials = Annotated[
    Optional[int],
    _setting("--num-trials", "Sets of random inputs to check and time. Default: 3.", "N"),
]
StopRule = Annotated[
    Optional[str],
    _setting(
        "--stop-rule",
        f"What ends the timing of a solution: {', '.join(RULES)}; see below. Default: fixed.",
        "NAME",
    ),
]
StopParams = Annotated[
    Optional[list[str]],
    _setting("--stop-param", "Parameter of the stop rule: target=0.5%. Repeatable.", "KEY=VALUE"),
]
MinSamples = Annotated[
    Optional[int],
    _setting(
        "--min-samples", "Timed calls before the rule may stop. Default: 30; fixed: none.", "N"
    ),
]
MaxSamples = Annotated[
    Optional[int],
    _setting("--max-samples", "Most timed calls. Default: 1000; fixed: all of its rounds.", "N"),
]
MaxTiming = Annotated[
    Optional[float],
    _setting(
        "--max-timing-seconds",
        "Seconds for the timed calls of a solution and workload. Default: 15; fixed: no limit.",
        "S",
    ),
]
Cache = Annotated[
    Optional[str],
    _setting(
        "--cache", "cold, or warm: do not empty caches before timed calls. Default: cold.", "STATE"
    ),
]
Watch = Annotated[
    Optional[bool],
    typer.Option(
        "--watch/--no-watch",
        show_default=False,
        help="Look at clocks, temperature and load while timing. Default: yes.",
    ),
]
Interleave = Annotated[
    Optional[bool],
    typer.Option(
        "--interleave-reference/--no-interleave-reference",
        show_default=False,
        help="Time the reference in turn with each solution. Default: yes.",
    ),
]
LockClocks = Annotated[
    Optional[int],
    _setting("--lock-clocks", "Hold the SM clock of GPUs there during the run.", "MHZ"),
]
Rtol = Annotated[Optional[float], _setting("--rtol", "Relative tolerance. Default: 0.01.", "X")]
Atol = Annotated[Optional[float], _setting("--atol", "Absolute tolerance. Default: 0.01.", "X")]
Ratio = Annotated[
    Optional[float],
    _setting("--required-matched-ratio", "Share of elements within tolerance, in (0, 1].", "X"),
]
Timeout = Annotated[
    Optional[float],
    _setting("--timeout", "Seconds that one evaluation may take. Default: 300.", "S"),
]
Device = Annotated[
    Optional[str],
    _setting("--device", "cpu, cuda or cuda:N. Default: the best there is.", "DEVICE"),
]
Seed = Annotated[
    Optional[int], _setting("--seed", "Seed of the random inputs. Default: a fresh one.", "N")
]
Executor = Annotated[Optional[str], _setting("--executor", "Executor plugin to use.", "NAME")]
Timer = Annotated[Optional[str], _setting("--timer", "Timer plugin to use.", "NAME")]
Trust = Annotated[
    Optional[str],
    _setting("--trust", "full, or off: believe the latencies that solutions tell.", "MODE"),
]
Sandbox = Annotated[
    Optional[str],
    _setting(
        "--sandbox",
        "off, auto or strict: exit with 4 unless solutions can be confined. Default: auto.",
        "LEVEL",
    ),
]
ConfigFile = Annotated[
    Optional[Path], _setting("--config", "YAML file of settings; options stand over it.", "FILE")
]
BuildJobs = Annotated[
    Optional[int],
    _setting("--build-jobs", "Solutions that are compiled at once. Default: cores - 1.", "N"),
]
LogLevel = Annotated[
    Optional[str],
    _setting(
        "--log-level",
        "DEBUG, INFO, WARNING, ERROR or CRITICAL. Default: $FIB_LOG_LEVEL or INFO.",
        "LEVEL",
    ),
]
Save = Annotated[
    bool, typer.Option("--save-results/--no-save-results", help="Write traces into the dataset.")
]
Isolated = Annotated[
    bool, typer.Option("--use-isolated-runner", help="A fresh process for every evaluation.")
]
Resume = Annotated[
    bool, typer.Option("--resume", help="Skip what earlier traces decide; retry crashes.")
]
NoBaseline = Annotated[
    bool, typer.Option("--no-profile-baseline", help="Do not time references: no speed-ups.")
]
Strict = Annotated[
    bool, typer.Option("--strict", help="Exit with 1 if any evaluation does not pass.")
]

#: Appended to the help: each rule with its parameters, as their declarations say.
STOP_RULES = "\b\nStop rules, with their parameters and defaults:\n" + "\n".join(
    f"  {line}" for line in described()
)


def stop_params(given: Optional[list[str]]) -> Optional[dict[str, Any]]:
    """Return the values of ``--stop-param`` by key; None if there are none.

    Raises
    ------
    ConfigError
        If one is not written KEY=VALUE, or a key is there twice.
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
