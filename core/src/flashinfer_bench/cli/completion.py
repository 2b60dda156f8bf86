"""Shell completion of option values and arguments."""

from __future__ import annotations

import re
import sys
from contextlib import redirect_stdout, suppress
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from flashinfer_bench._lazy import import_string

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from flashinfer_bench.plugins import Catalog

    _Source = Callable[[Any], Iterable[str]]  # of the context of a command line

_MOST_NAMES = 500


def add_completion(command: Any, path: str) -> None:
    """Add completion to the parameters of a command that have none.

    Parameters
    ----------
    command
        A command, or a group of commands.
    path : str
        Its words after ``fib``: ``"plugins show"``.
    """
    for name, each in getattr(command, "commands", {}).items():
        add_completion(each, f"{path} {name}")
    for param in command.params:
        # Arguments are looked up by metavar or, if that is ambiguous, with their command.
        keys = (*param.opts, param.metavar, f"{path} {param.name}")
        source = next((_OFFERED[key] for key in keys if key in _OFFERED), None)
        if source and param._custom_shell_complete is None:
            param._custom_shell_complete = partial(_offer, source)


def _offer(source: _Source, ctx: Any, _: Any, incomplete: str) -> list[str]:
    # An error message would disturb the command line that is being typed.
    with suppress(Exception), redirect_stdout(sys.stderr):
        found = islice((name for name in source(ctx) if name.startswith(incomplete)), _MOST_NAMES)
        return sorted(set(found))
    return []


def _setting(name: str) -> _Source:
    def choices(ctx: Any) -> Iterable[str]:
        from flashinfer_bench.bench.config import BenchmarkConfig

        return get_args(BenchmarkConfig.model_fields[name].annotation)

    return choices


def _records(kind: str, field: str = "name") -> _Source:
    return lambda ctx: (getattr(entry.spec, field) for entry in _catalog().entries(kind))


def _catalog() -> Catalog:
    from flashinfer_bench.plugins import Settings, discover

    return discover(replace(Settings.from_env(), strict=False))


def _constant(path: str) -> _Source:
    return lambda ctx: import_string(f"flashinfer_bench.{path}")


def _devices(ctx: Any) -> Iterable[str]:
    return {"cpu", "cuda"}.union(*(one.spec.devices for one in _catalog().executors))


def _in_catalog(ctx: Any) -> Iterator[str]:
    for status in (catalog := _catalog()).plugins:
        yield from filter(None, (status.name, status.distribution))
    yield from (entry.name for entry in catalog if " " not in entry.name)


def _paths(ctx: Any, pattern: str) -> Iterator[Path]:
    from flashinfer_bench.cli.datasets import default_dataset

    given = ctx.params.get("local") or ctx.params.get("dataset") or default_dataset()
    for root in given if isinstance(given, (list, tuple)) else [given]:
        yield from Path(root).glob(pattern)


def _stems(folder: str) -> _Source:
    # From file names; no record is read.
    return lambda ctx: (path.stem for path in _paths(ctx, f"{folder}/**/*.json"))


def _folders(pattern: str) -> _Source:
    return lambda ctx: (path.name for path in _paths(ctx, pattern) if path.is_dir())


def _uuids(ctx: Any) -> Iterator[str]:
    wanted = ctx.params.get("definitions")
    for path in _paths(ctx, "workloads/**/*.jsonl"):
        if not wanted or path.stem in wanted:
            yield from re.findall(r'"uuid": *"([^"]+)"', path.read_text(encoding="utf-8"))


def _in_dataset(ctx: Any) -> Iterator[str]:
    for source in (_definitions, _solutions, _uuids):
        yield from source(ctx)


_definitions, _solutions = _stems("definitions"), _stems("solutions")

#: Keys: a flag, the metavar of an argument, or command and name of an argument.
_OFFERED: dict[str, _Source] = {
    **{f"--{name}": _setting(name) for name in ("cache", "sandbox", "tolerance", "trust")},
    "--checks": _records("check", "layer"),
    "--device": _devices,
    "--devices": _devices,
    "--executor": _records("executor"),
    "--kind": _constant("plugins:KINDS"),
    "--language": _records("language"),
    "--log-level": _constant("cli.output:LEVELS"),
    "--outputs": _constant("cli.validate:OUTPUTS"),
    "--stop-rule": _records("stop_rule"),
    "--timer": _records("timer"),
    **dict.fromkeys(("plugins show name", "plugins doctor name"), _in_catalog),
    **dict.fromkeys(("--definition", "DEFINITION"), _definitions),
    **dict.fromkeys(("--solution", "--baseline", "--candidate"), _solutions),
    **dict.fromkeys(("BASELINE", "CANDIDATE", "SOLUTION"), _solutions),
    **dict.fromkeys(("--author", "--baseline-author"), _folders("solutions/*")),
    "--op-type": _folders("definitions/*"),
    **dict.fromkeys(("--workload", "WORKLOAD"), _uuids),
    "show name": _in_dataset,
}
