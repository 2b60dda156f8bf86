"""Options that several commands share, with the same names and help everywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Optional

import typer
from typer.core import TyperCommand

DEFAULT_HUB = "flashinfer-ai/flashinfer-trace"
"""The dataset of ``--hub`` without a value."""


def option(*flags: str, help: str, **details: Any) -> Any:
    """Return an option whose default is not shown automatically, but may be part of its help."""
    return typer.Option(*flags, help=help, **{"show_default": False, **details})


def command_group(name: str, help: str) -> typer.Typer:
    """Return a group of commands."""
    return typer.Typer(
        name=name, help=help, no_args_is_help=True, add_completion=False, rich_markup_mode=None
    )


# ------------------------------------------------------------------------ several values at once


class GreedyCommand(TyperCommand):
    """A command whose repeatable options take all values that follow.

    ``--local a b`` and ``--local a --local b`` mean the same. Values end at the next option.
    ``--hub`` without a value means `DEFAULT_HUB`. If the command has ``--local``, further
    positional arguments are datasets.
    """

    def _local(self) -> Any:
        arguments = [one for one in self.params if one.param_type_name == "argument"]
        if any(one.nargs != 1 or one.name == "dataset" for one in arguments):
            return None
        return next((param for param in self.params if param.name == "local"), None)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the words of the usage line."""
        return [*super().collect_usage_pieces(ctx), *(["[DATASET]"] if self._local() else [])]

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        """Repeat each flag before each of its values, then parse as usual."""
        if any("--hub" in param.opts for param in self.params):
            args = _with_hub_named(args)
        repeatable = {
            flag
            for param in self.params
            if getattr(param, "multiple", False)
            for flag in param.opts
        }
        local = self._local()
        ctx.allow_extra_args = local is not None
        args = spread_values(args, repeatable)
        self._before_last = args[-2:-1]
        rest = super().parse_args(ctx, args)
        if local is not None and rest:
            given = [*(ctx.params.get("local") or () if local.multiple else ()), *map(Path, rest)]
            if not local.multiple and (ctx.params["local"] or len(given) > 1):
                ctx.fail("only one DATASET can be given, as an argument or with --local")
            ctx.params["local"] = given if local.multiple else given[0]
            ctx.args = []
        return ctx.args

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        """Complete further values of the repeatable option at the end of the command line."""
        for param in self.params if not incomplete.startswith("-") else ():
            if getattr(param, "multiple", False) and {*self._before_last} & {*param.opts}:
                return param.shell_complete(ctx, incomplete)
        return super().shell_complete(ctx, incomplete)


def spread_values(args: list[str], repeatable: set[str]) -> list[str]:
    """Repeat each flag of `repeatable` before every value that follows it.

    Parameters
    ----------
    args : list of str
        A command line.
    repeatable : set of str
        Flags that may be given several times.

    Returns
    -------
    list of str
        The same command line, with one value after each of these flags.
    """
    spread: list[str] = []
    current = ""  # the flag whose values may still follow
    has_value = False
    for index, arg in enumerate(args):
        if arg == "--":
            return [*spread, *args[index:]]
        if arg.startswith("-") and len(arg) > 1:
            flag, equals, _ = arg.partition("=")
            current, has_value = flag if flag in repeatable else "", bool(equals)
        else:
            spread += [current] if current and has_value else []
            has_value = True
        spread.append(arg)
    return spread


def _with_hub_named(args: list[str]) -> list[str]:
    # Typer does not support options with an optional value.
    named: list[str] = []
    for arg, following in zip(args, [*args[1:], "--"], strict=False):
        if arg == "--":
            break
        bare = arg == "--hub" and following.startswith("-")
        named.append(f"--hub={DEFAULT_HUB}" if bare else arg)
    return [*named, *args[len(named) :]]


# --------------------------------------------------------------------------------------- options

_LOCAL = "Default: $FIB_DATASET_PATH, else the dataset that the current folder is in."
Local = Annotated[
    Optional[list[Path]],
    option("--local", "--dataset", metavar="DIR", help=f"Dataset folders. {_LOCAL}"),
]
OneLocal = Annotated[
    Optional[Path], option("--local", "--dataset", metavar="DIR", help=f"Dataset folder. {_LOCAL}")
]
Hub = Annotated[
    Optional[str],
    option(
        "--hub",
        metavar="[REPO[@REV]]",
        help="Dataset of the Hugging Face hub, at a branch, tag or commit. "
        f"Without a value: {DEFAULT_HUB}.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Write JSON.")]


def log_level(default: str) -> Any:
    """Return the option ``--log-level`` of a command with this default."""
    levels = "DEBUG, INFO, WARNING, ERROR or CRITICAL"
    text = f"{levels}. Default: $FIB_LOG_LEVEL or {default}."
    return option("--log-level", metavar="LEVEL", help=text)


LogLevel = Annotated[Optional[str], log_level("WARNING")]


def _names(flag: str, text: str) -> Any:
    """Return a filter option, which can be repeated and takes several names at once."""
    flags = (flag,) if flag.endswith("s") else (flag, f"{flag}s")
    return option(*flags, metavar="NAME...", help=text)


Definitions = Annotated[
    Optional[list[str]], _names("--definition", "Only these definitions, or patterns: 'gemm_*'.")
]
Solutions = Annotated[Optional[list[str]], _names("--solution", "Only these solutions.")]
OpTypes = Annotated[Optional[list[str]], _names("--op-type", "Only definitions of these types.")]
Authors = Annotated[Optional[list[str]], _names("--author", "Only solutions of these authors.")]
Workloads = Annotated[Optional[list[str]], _names("--workload", "Only these workloads.")]
Hardware = Annotated[
    Optional[list[str]],
    option(
        "--hardware",
        metavar="TEXT...",
        help="Only traces from devices whose name contains one of these.",
    ),
]
