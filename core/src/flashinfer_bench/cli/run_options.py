"""The options of ``fib run``; those with a value stand over the configuration if they are given."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Optional

import typer


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
